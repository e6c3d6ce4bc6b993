//! Splices into a body, sent as pieces of the body and replacements between them.

use super::fields::{Fields, UsageAsk};
use super::walk::{Cursor, spells};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::ops::Range;

const ASK: &[u8] = br#"{"include_usage":true}"#;
const ASK_MEMBER: &[u8] = br#""include_usage":true"#;
const ASK_MEMBER_THEN: &[u8] = br#""include_usage":true,"#;
const OPTIONS_THEN: &[u8] = br#""stream_options":{"include_usage":true},"#;

/// Ranges of a body with what stands in their place; in order, without overlaps. Empty: the body as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edits(SmallVec<[Edit; 1]>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Edit {
    start: usize,
    end: usize,
    with: Cow<'static, [u8]>,
}

impl Edits {
    /// Nothing changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of splices.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Both sets of splices, which must not overlap.
    pub fn merge(mut self, other: Edits) -> Edits {
        self.0.extend(other.0);
        self.0.sort_by_key(|edit| edit.start);
        debug_assert!(self.0.windows(2).all(|w| w[0].end <= w[1].start), "overlapping edits");
        self
    }

    /// Length of the spliced body, bytes.
    pub fn len_of(&self, body_len: usize) -> usize {
        self.0.iter().fold(body_len, |len, edit| len - (edit.end - edit.start) + edit.with.len())
    }

    /// The spliced body, in pieces that are never empty. `body` must be the one that was scanned.
    pub fn segments<'a>(&'a self, body: &'a [u8]) -> Segments<'a> {
        Segments { edits: self.0.iter(), body, at: 0, with: None, tail: true }
    }

    fn push(&mut self, range: Range<usize>, with: impl Into<Cow<'static, [u8]>>) {
        self.0.push(Edit { start: range.start, end: range.end, with: with.into() });
    }
}

/// Pieces of a spliced body.
#[derive(Debug, Clone)]
pub struct Segments<'a> {
    edits: std::slice::Iter<'a, Edit>,
    body: &'a [u8],
    at: usize,
    with: Option<&'a [u8]>,
    tail: bool,
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let piece = if let Some(with) = self.with.take() {
                with
            } else if let Some(edit) = self.edits.next() {
                let before = &self.body[self.at..edit.start];
                self.at = edit.end;
                self.with = Some(&edit.with);
                before
            } else if std::mem::take(&mut self.tail) {
                &self.body[self.at..]
            } else {
                return None;
            };
            if !piece.is_empty() {
                return Some(piece);
            }
        }
    }
}

/// What makes the engine report its usage at the end of a stream: `stream_options.include_usage` true, and nothing else
/// changed. Empty if the client asked for it itself, or sent something there that is left for the engine to judge.
/// `body` must be the one that was scanned.
pub fn inject_usage(fields: &Fields, body: &[u8]) -> Edits {
    let mut edits = Edits::default();
    if fields.usage != UsageAsk::NotAsked {
        return edits;
    }
    if fields.stream_options_all.is_empty() {
        edits.push(fields.after_brace..fields.after_brace, OPTIONS_THEN);
    }
    for span in &fields.stream_options_all {
        match body[span.clone()].first() {
            Some(b'n') => edits.push(span.clone(), ASK),
            Some(b'{') => ask_in_object(&body[span.clone()], span.start, &mut edits),
            // Of an earlier duplicate, what the engine would not have looked at either.
            _ => {}
        }
    }
    edits
}

/// Sets `include_usage` in one `stream_options` object, which begins at `base` of the body.
fn ask_in_object(object: &[u8], base: usize, edits: &mut Edits) {
    let mut there = false;
    let mut empty = true;
    include_usage(object, |value, text| {
        there = true;
        if matches!(text, b"false" | b"null") {
            edits.push(base + value.start..base + value.end, &b"true"[..]);
        }
    });
    let mut inside = Cursor::new(object);
    inside.take(b'{');
    let start = base + inside.offset();
    if inside.key().is_some() {
        empty = false;
    }
    if !there {
        edits.push(start..start, if empty { ASK_MEMBER } else { ASK_MEMBER_THEN });
    }
}

/// Calls `found` with the range and text of each value of `include_usage` in an object.
pub(super) fn include_usage(object: &[u8], mut found: impl FnMut(Range<usize>, &[u8])) {
    let mut cursor = Cursor::new(object);
    cursor.take(b'{');
    while let Some(key) = cursor.key() {
        let Some(value) = cursor.value() else { break };
        if spells(key, b"include_usage") {
            found(cursor.offset() - value.len()..cursor.offset(), value);
        }
    }
}

/// Puts `new` in the place of the model's name, in every occurrence. Empty if that is its name already: then the body
/// passes as it was sent.
pub fn rewrite_model(fields: &Fields, new: &str) -> Edits {
    let mut edits = Edits::default();
    if *fields.model != *new {
        let name = quote(new);
        for span in &fields.model_all {
            edits.push(span.clone(), name.clone());
        }
    }
    edits
}

/// Sets the body's `priority`, over whatever the client wrote there: how requests of one engine are ordered is the
/// operator's business.
pub fn set_priority(fields: &Fields, priority: i32) -> Edits {
    let mut edits = Edits::default();
    for span in &fields.priority_all {
        edits.push(span.clone(), priority.to_string().into_bytes());
    }
    if fields.priority_all.is_empty() {
        let member = format!("\"priority\":{priority},").into_bytes();
        edits.push(fields.after_brace..fields.after_brace, member);
    }
    edits
}

/// `text` as a JSON string.
fn quote(text: &str) -> Vec<u8> {
    let mut quoted = Vec::with_capacity(text.len() + 2);
    quoted.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend([b'\\', byte]),
            0..0x20 => {
                let hex = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
                quoted.extend_from_slice(b"\\u00");
                quoted.extend([hex(byte >> 4), hex(byte & 15)]);
            }
            _ => quoted.push(byte),
        }
    }
    quoted.push(b'"');
    quoted
}
