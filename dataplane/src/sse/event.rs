//! A shallow look into one raw event: its data and its name, by the event stream grammar of the HTML standard.

use memchr::memchr2;
use std::borrow::Cow;

/// What an event's data says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind<'a> {
    /// No `data` line at all: comments, blank lines, other fields.
    Comment,
    /// The data is exactly `[DONE]`.
    Done,
    /// The data lines, joined with LF.
    Data(Cow<'a, [u8]>),
}

/// An event's meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventData<'a> {
    /// Its data.
    pub kind: EventKind<'a>,
    /// Its last `event` field, if that is UTF-8.
    pub event: Option<&'a str>,
}

/// Parses one raw event as [`super::Framer`] delivers it. Whoever reads a stream takes its byte order mark off first.
/// Allocates only for data of several lines.
pub fn parse_event(raw: &[u8]) -> EventData<'_> {
    if let Some(value) = single_data_line(raw) {
        return EventData { kind: kind_of(Cow::Borrowed(value)), event: None };
    }
    let mut rest = raw;
    let mut event = None;
    let mut data: Option<Cow<'_, [u8]>> = None;
    while !rest.is_empty() {
        let line = take_line(&mut rest);
        if let Some(value) = field(line, b"data") {
            match &mut data {
                None => data = Some(Cow::Borrowed(value)),
                Some(joined) => {
                    let joined = joined.to_mut();
                    joined.push(b'\n');
                    joined.extend_from_slice(value);
                }
            }
        } else if let Some(value) = field(line, b"event") {
            event = std::str::from_utf8(value).ok();
        }
    }
    EventData { kind: data.map_or(EventKind::Comment, kind_of), event }
}

fn kind_of(data: Cow<'_, [u8]>) -> EventKind<'_> {
    if *data == *b"[DONE]" { EventKind::Done } else { EventKind::Data(data) }
}

/// The data of the usual event: one `data` line and LFs.
fn single_data_line(raw: &[u8]) -> Option<&[u8]> {
    let value = field(raw.strip_suffix(b"\n\n")?, b"data")?;
    memchr2(b'\n', b'\r', value).is_none().then_some(value)
}

/// Cuts the first line, without its end, off `rest`. A CRLF counts as two ends, which only adds an empty line.
fn take_line<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    match memchr2(b'\n', b'\r', rest) {
        Some(at) => {
            let line = &rest[..at];
            *rest = &rest[at + 1..];
            line
        }
        None => std::mem::take(rest),
    }
}

/// The value of `line` if its field is `name`: after the colon and at most one space, or empty without a colon.
fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    match line.strip_prefix(name)? {
        [] => Some(&[]),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}
