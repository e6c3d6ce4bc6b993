//! The prefix key: the first bytes of the rendered prompt, by which requests that share their beginning meet on one
//! endpoint.
//!
//! Chat messages render as `role\ncontent\n`; content given as a list renders its text parts in order. A completion's
//! prompt renders as it is; of a list of prompts, the first; token ids as decimal numbers with spaces between. An
//! embedding's input renders as a prompt does.

use crate::scan::Fields;
use crate::scan::walk::{Cursor, spells};
use smallvec::SmallVec;
use std::ops::Range;

#[cfg(test)]
mod tests;

/// Length of a full key, bytes.
pub const PREFIX_KEY_LEN: usize = 64;

/// How far into a prompt its beginning is looked for, bytes of JSON. What lies in front of it may be long (an image),
/// and a shard has other requests to see to.
const LOOK_MAX: usize = 1 << 20;

/// Collects text up to the key's length.
struct Key {
    bytes: [u8; PREFIX_KEY_LEN],
    len: usize,
}

impl Key {
    /// Whether there is room for more.
    #[inline]
    fn push(&mut self, text: &[u8]) -> bool {
        let room = &mut self.bytes[self.len..];
        let kept = room.len().min(text.len());
        room[..kept].copy_from_slice(&text[..kept]);
        self.len += kept;
        !self.full()
    }

    fn full(&self) -> bool {
        self.len == PREFIX_KEY_LEN
    }
}

/// Puts the prefix key of a request into `out`, which is cleared first. `body` must be the one that was scanned. Of a
/// body that names several, `messages` is taken before `prompt` and `input`. Reads no more of the prompt than it needs,
/// and no more than its first MiB.
pub fn prefix_key(fields: &Fields, body: &[u8], out: &mut SmallVec<[u8; PREFIX_KEY_LEN]>) {
    out.clear();
    let mut key = Key { bytes: [0; PREFIX_KEY_LEN], len: 0 };
    let text = |range: &Range<usize>| {
        let text = body.get(range.clone()).unwrap_or_default();
        &text[..text.len().min(LOOK_MAX)]
    };
    if let Some(range) = &fields.messages {
        messages(&mut Cursor::new(text(range)), &mut key);
    } else if let Some(range) = fields.prompt.as_ref().or(fields.input.as_ref()) {
        prompt(&mut Cursor::new(text(range)), &mut key);
    }
    out.extend_from_slice(&key.bytes[..key.len]);
}

fn messages(cursor: &mut Cursor<'_>, key: &mut Key) {
    if !cursor.take(b'[') {
        return;
    }
    while !key.full() && cursor.element() {
        if cursor.peek() != Some(b'{') {
            if cursor.value().is_none() {
                return;
            }
        } else if !message(cursor, key) {
            return;
        }
    }
}

/// Renders one message, and steps over it unless the key is full; `false` if it does not end where it is looked at.
fn message(cursor: &mut Cursor<'_>, key: &mut Key) -> bool {
    let mut role = None;
    let mut content = None;
    let (mut ended, mut cut) = (true, false);
    cursor.take(b'{');
    while let Some(name) = cursor.key() {
        if spells(name, b"role") {
            role = Some(cursor.clone());
        } else if spells(name, b"content") {
            content = Some(cursor.clone());
        }
        if role.is_some() && content.is_some() {
            ended = false;
            break;
        }
        if cursor.value().is_none() {
            cut = true;
            break;
        }
    }
    for part in [role, content] {
        if let Some(mut part) = part {
            render_content(&mut part, key);
        }
        key.push(b"\n");
    }
    // Not before it is known that more is wanted: the content may be long.
    if !ended && !key.full() {
        loop {
            if cursor.value().is_none() {
                return false;
            }
            if cursor.key().is_none() {
                break;
            }
        }
    }
    key.full() || !cut
}

/// A string, or the text parts of a list.
fn render_content(cursor: &mut Cursor<'_>, key: &mut Key) {
    match cursor.peek() {
        Some(b'"') => {
            let _ = cursor.unescape(&mut |text| key.push(text));
        }
        Some(b'[') => {
            cursor.take(b'[');
            while !key.full() && cursor.element() {
                match cursor.peek() {
                    Some(b'"') => {
                        let _ = cursor.unescape(&mut |text| key.push(text));
                    }
                    Some(b'{') => text_part(cursor, key),
                    _ => {
                        if cursor.value().is_none() {
                            return;
                        }
                    }
                }
            }
        }
        _ => {}
    }
}

/// Renders a part's `text`, and steps over the part unless the key is full.
fn text_part(cursor: &mut Cursor<'_>, key: &mut Key) {
    cursor.take(b'{');
    while let Some(name) = cursor.key() {
        if spells(name, b"text") && cursor.peek() == Some(b'"') {
            if cursor.unescape(&mut |text| key.push(text)) == Some(false) {
                return;
            }
        } else if cursor.value().is_none() {
            return;
        }
    }
}

/// A string; the first of several; or token ids.
fn prompt(cursor: &mut Cursor<'_>, key: &mut Key) {
    let mut list = false;
    // A list of lists of ids is the deepest there is.
    for _ in 0..2 {
        if cursor.take(b'[') {
            list = cursor.element();
        }
    }
    if cursor.peek() == Some(b'"') {
        let _ = cursor.unescape(&mut |text| key.push(text));
        return;
    }
    while list && !key.full() && cursor.element() {
        let Some(id) = cursor.value().filter(|id| id[0].is_ascii_digit()) else {
            return;
        };
        key.push(id);
        key.push(b" ");
    }
}
