//! Splits an event stream into complete raw events, without copying those that lie whole in the input.
//!
//! An event ends with a blank line; lines end with CRLF, LF or CR, mixed at will. A blank line with nothing
//! before it is an event of its own. A CR that may be the first half of a CRLF is ambiguous at the end of the input:
//!
//! * on a blank line after a line that ended with a bare CR, the CR is the stream's line end and completes the event at
//!   once; an LF right after it counts as one more blank line, an event of its own that means nothing to a reader;
//! * on any other blank line the event is held until the next byte, or [`Framer::finish`], tells.
//!
//! **Invariants.** The pieces and the held tail, put together, are the input, byte for byte. Which bytes form one
//! event does not depend on how the input was split. An event longer than [`MAX_EVENT_BYTES`] is never held: all of it
//! comes as [`Piece::Raw`]. Between events nothing is allocated.

use memchr::memchr2;

/// Longest event that is held and delivered whole, in bytes.
pub const MAX_EVENT_BYTES: usize = 64 * 1024;

/// A stretch of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'p> {
    /// One whole event with its blank line.
    Event(&'p [u8]),
    /// Part of an event longer than [`MAX_EVENT_BYTES`]. The stream is between events again once
    /// [`Framer::in_overflow`] is `false`.
    Raw(&'p [u8]),
}

/// Frames one stream.
#[derive(Debug, Default)]
pub struct Framer {
    /// The incomplete event, unless in overflow.
    tail: Vec<u8>,
    /// The current line has bytes.
    line_started: bool,
    /// The last byte was a CR that an LF may still join.
    cr_pending: bool,
    /// The last line ended with a bare CR.
    bare_cr: bool,
    /// The current event has bytes, held or streamed through.
    event_started: bool,
    overflow: bool,
}

impl Framer {
    /// At the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// The last event is not complete.
    pub fn incomplete(&self) -> bool {
        self.event_started
    }

    /// Bytes of an incomplete event that wait for its end.
    pub fn held(&self) -> &[u8] {
        &self.tail
    }

    /// The incomplete event has partly been delivered as [`Piece::Raw`]: nothing may be put into the stream.
    pub fn in_overflow(&self) -> bool {
        self.overflow
    }

    /// Frames `input`, handing each piece to `sink` in order.
    pub fn push(&mut self, input: &[u8], mut sink: impl FnMut(Piece<'_>)) {
        let mut start = 0;
        let mut at = 0;
        while at < input.len() {
            let end = if self.cr_pending {
                self.resolve_cr(input[at] == b'\n', at, &mut at)
            } else {
                self.next_line_end(input, &mut at)
            };
            if let Some(end) = end {
                self.deliver(&input[start..end], true, &mut sink);
                start = end;
            }
        }
        let rest = &input[start..];
        if !rest.is_empty() {
            self.event_started = true;
            self.deliver(rest, false, &mut sink);
        }
    }

    /// The stream has ended: a last event whose blank line is a lone CR is complete after all.
    pub fn finish(&mut self, mut sink: impl FnMut(Piece<'_>)) {
        if self.cr_pending && self.resolve_cr(false, 0, &mut 0).is_some() {
            self.deliver(&[], true, &mut sink);
        }
    }

    /// Decides about a pending CR once the next byte, at `at`, is known; an LF is consumed. Gives the end of the event
    /// if the CR's line was blank.
    fn resolve_cr(&mut self, joined_by_lf: bool, at: usize, next: &mut usize) -> Option<usize> {
        self.cr_pending = false;
        self.bare_cr = !joined_by_lf;
        let end = if joined_by_lf { at + 1 } else { at };
        *next = end;
        let blank = !self.line_started;
        self.line_started = false;
        blank.then_some(end)
    }

    /// Goes to the next line end from `at`. Gives the end of the event if that line is blank.
    fn next_line_end(&mut self, input: &[u8], at: &mut usize) -> Option<usize> {
        let Some(offset) = memchr2(b'\n', b'\r', &input[*at..]) else {
            self.line_started = true;
            *at = input.len();
            return None;
        };
        self.line_started |= offset > 0;
        let line_end = *at + offset;
        *at = line_end + 1;
        let blank = !self.line_started;
        if input[line_end] == b'\r' && !(blank && self.bare_cr) {
            self.cr_pending = true;
            return None;
        }
        self.bare_cr = input[line_end] == b'\r';
        self.line_started = false;
        if blank {
            return Some(*at);
        }
        // Most events are one line and end with two LFs: no second search.
        (input.get(*at) == Some(&b'\n')).then(|| {
            *at += 1;
            *at
        })
    }

    /// Hands on or holds `bytes`, the next of the current event; `complete` if they are its last.
    fn deliver(&mut self, bytes: &[u8], complete: bool, sink: &mut impl FnMut(Piece<'_>)) {
        if !self.overflow && self.tail.len() + bytes.len() > MAX_EVENT_BYTES {
            self.overflow = true;
            let tail = std::mem::take(&mut self.tail);
            if !tail.is_empty() {
                sink(Piece::Raw(&tail));
            }
        }
        if self.overflow {
            if !bytes.is_empty() {
                sink(Piece::Raw(bytes));
            }
        } else if !complete {
            self.tail.extend_from_slice(bytes);
        } else if self.tail.is_empty() {
            sink(Piece::Event(bytes));
        } else {
            // Taken, so that an idle stream holds no buffer.
            let mut tail = std::mem::take(&mut self.tail);
            tail.extend_from_slice(bytes);
            sink(Piece::Event(&tail));
        }
        if complete {
            self.overflow = false;
            self.event_started = false;
        }
    }
}
