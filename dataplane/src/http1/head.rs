//! What request and response heads share: where a head ends, its fields, and the ways it can be malformed.
//!
//! **Invariant:** only CRLF ends a line and only an empty line ends a head. A bare LF ends the search at once, so that
//! such a head is refused instead of waited for.

use memchr::{memchr, memchr_iter};
use smallvec::SmallVec;
use std::fmt;

/// Index just after the head's empty line, or `None` while `buf` holds no complete head.
///
/// `from` is how many bytes an earlier call has already searched (0 at first), so that a head that arrives byte by byte
/// costs linear time. One empty line before the head is skipped (RFC 9112, 2.2); a second one ends the
/// "head", which the
/// parser then refuses. So does a bare LF: the index after it is returned and [`crate::http1::parse_request`] says why.
pub fn find_head_end(buf: &[u8], from: usize) -> Option<usize> {
    for offset in memchr_iter(b'\n', buf.get(from..)?) {
        let at = from + offset;
        if at == 0 || buf[at - 1] != b'\r' {
            return Some(at + 1);
        }
        if at >= 3 && buf[at - 2] == b'\n' {
            return Some(at + 1);
        }
    }
    None
}

/// Bounds on a head beyond its size in bytes, which whoever collects the head enforces.
#[derive(Debug, Clone, Copy)]
pub struct HeadLimits {
    /// Most header fields.
    pub max_headers: usize,
}

impl Default for HeadLimits {
    /// The documented default of `limits.max_headers`.
    fn default() -> Self {
        HeadLimits { max_headers: 100 }
    }
}

/// Header fields in the order they came. Names are tokens; values hold no control character but tab and are trimmed.
#[derive(Debug, Clone, Default)]
pub struct Headers<'b> {
    head: &'b [u8],
    list: SmallVec<[Place; 24]>,
}

/// Where a field lies in the head.
#[derive(Debug, Clone, Copy)]
struct Place {
    start: u32,
    name_end: u32,
    value: u32,
    value_end: u32,
}

/// A field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field<'b> {
    /// A token.
    pub(crate) name: &'b [u8],
    pub(crate) value: &'b [u8],
}

impl<'b> Headers<'b> {
    /// Value of the first field called `name` (any case).
    pub fn get(&self, name: &str) -> Option<&'b [u8]> {
        let name = name.as_bytes();
        let called = |place: &&Place| {
            (place.name_end - place.start) as usize == name.len()
                && self.part(place.start, place.name_end).eq_ignore_ascii_case(name)
        };
        self.list.iter().find(called).map(|place| self.part(place.value, place.value_end))
    }

    /// Value of the first field called `name` (any case), if it is UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&'b str> {
        self.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Every field as name and value.
    pub fn iter(&self) -> impl Iterator<Item = (&'b str, &'b [u8])> + '_ {
        self.fields().map(|field| (std::str::from_utf8(field.name).unwrap_or_default(), field.value))
    }

    /// Every field.
    #[inline]
    pub(crate) fn fields(&self) -> impl Iterator<Item = Field<'b>> + '_ {
        self.list.iter().map(|place| Field {
            name: self.part(place.start, place.name_end),
            value: self.part(place.value, place.value_end),
        })
    }

    #[inline]
    fn part(&self, from: u32, to: u32) -> &'b [u8] {
        self.head.get(from as usize..to as usize).unwrap_or_default()
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// No fields at all.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// Why a head is refused; the same for requests and responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadError {
    /// The bytes do not end with an empty line, or go on after it.
    Incomplete,
    /// No start line before the empty line, or more than one empty line before it.
    Empty,
    /// A line ends with LF alone.
    BareLineFeed,
    /// A field name is empty, not a token, followed by white space, or the line continues the one before.
    FieldName,
    /// A field value holds a control character or a bare CR.
    FieldValue,
    /// More fields than allowed.
    TooManyFields,
    /// `Content-Length` is not one plain decimal number.
    ContentLength,
    /// `Content-Length` occurs more than once.
    RepeatedContentLength,
    /// `Transfer-Encoding` is not `chunked`, or occurs more than once.
    TransferEncoding,
    /// `Transfer-Encoding` names a coding, besides `chunked`, that is not implemented.
    UnsupportedCoding,
    /// `Transfer-Encoding` in an HTTP/1.0 message.
    TransferEncodingVersion,
    /// Both `Content-Length` and `Transfer-Encoding`.
    LengthAndTransferEncoding,
    /// `Connection` is not a list of tokens, or the list is too long.
    Connection,
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HeadError::Incomplete => "the head does not end with one empty line",
            HeadError::Empty => "the head has no start line",
            HeadError::BareLineFeed => "a line of the head ends with LF alone; lines must end with CRLF",
            HeadError::FieldName => {
                "a header field name is not a token, is followed by white space, or its line is folded"
            }
            HeadError::FieldValue => "a header field value holds a control character",
            HeadError::TooManyFields => "too many header fields",
            HeadError::ContentLength => "Content-Length is not one plain decimal number",
            HeadError::RepeatedContentLength => "Content-Length occurs more than once",
            HeadError::TransferEncoding => "Transfer-Encoding must be chunked, once, and nothing else",
            HeadError::UnsupportedCoding => "only the transfer coding chunked is implemented",
            HeadError::TransferEncodingVersion => "Transfer-Encoding is not part of HTTP/1.0",
            HeadError::LengthAndTransferEncoding => "Content-Length and Transfer-Encoding exclude each other",
            HeadError::Connection => "Connection is not a short list of tokens",
        })
    }
}

impl std::error::Error for HeadError {}

/// Splits a complete head into its start line (without CRLF) and its fields.
pub(super) fn split_head<'b>(
    head: &'b [u8],
    limits: &HeadLimits,
) -> Result<(&'b [u8], Headers<'b>), HeadError> {
    let split = split_valid(head, limits);
    debug_assert_eq!(split.is_none(), complaint(head, limits).is_some(), "{}", head.escape_ascii());
    split.ok_or_else(|| complaint(head, limits).unwrap_or(HeadError::FieldValue))
}

/// In one pass; `None` for whatever is wrong.
fn split_valid<'b>(head: &'b [u8], limits: &HeadLimits) -> Option<(&'b [u8], Headers<'b>)> {
    // Places are kept in 32 bits.
    u32::try_from(head.len()).ok()?;
    let line_end = memchr(b'\n', head)?.checked_sub(1).filter(|end| *end > 0 && head[*end] == b'\r')?;
    let mut headers = Headers { head, list: SmallVec::new() };
    let mut at = line_end + 2;
    loop {
        let start = at;
        at += head.get(at..)?.iter().position(|byte| !is_token_byte(*byte))?;
        let name_end = at;
        if name_end == start {
            let ends = head.get(at..)? == b"\r\n";
            return ends.then_some((&head[..line_end], headers));
        }
        if head[at] != b':' || headers.list.len() == limits.max_headers {
            return None;
        }
        at += 1;
        while matches!(head.get(at)?, b' ' | b'\t') {
            at += 1;
        }
        let value = at;
        at = value_end(head, at)?;
        let mut value_end = at;
        while value_end > value && matches!(head[value_end - 1], b' ' | b'\t') {
            value_end -= 1;
        }
        at += 2;
        #[allow(clippy::cast_possible_truncation)] // the head's length fits
        headers.list.push(Place {
            start: start as u32,
            name_end: name_end as u32,
            value: value as u32,
            value_end: value_end as u32,
        });
    }
}

const ONES: u64 = u64::MAX / 255;

/// Place of the CRLF that ends the value at `at`; `None` if a control character comes first, or none.
#[inline]
fn value_end(head: &[u8], mut at: usize) -> Option<usize> {
    loop {
        while let Some(word) = head.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
            // For each byte its highest bit: a control character. Exact up to the lowest one, for it is the first
            // subtraction that borrows.
            let word = u64::from_le_bytes(*word);
            let delete = word ^ (ONES * 0x7f);
            let odd = word.wrapping_sub(ONES * 0x20) & !word | delete.wrapping_sub(ONES) & !delete;
            let odd = odd & (ONES << 7);
            if odd != 0 {
                at += odd.trailing_zeros() as usize / 8;
                break;
            }
            at += 8;
        }
        match head.get(at)? {
            b'\r' => return (head.get(at + 1) == Some(&b'\n')).then_some(at),
            b'\t' | 0x20..=0x7e | 0x80.. => at += 1,
            _ => return None,
        }
    }
}

/// What is wrong with a head, by the order in which complaints are told; `None` if nothing is.
#[cold]
fn complaint(head: &[u8], limits: &HeadLimits) -> Option<HeadError> {
    let mut lines = 0usize;
    for at in memchr_iter(b'\n', head) {
        if at == 0 || head[at - 1] != b'\r' {
            return Some(HeadError::BareLineFeed);
        }
        lines += 1;
    }
    let Some(line_end) = memchr(b'\n', head) else { return Some(HeadError::Incomplete) };
    if line_end <= 1 {
        return Some(HeadError::Empty);
    }
    if !head.ends_with(b"\r\n\r\n") {
        return Some(HeadError::Incomplete);
    }
    let fields = lines - 2;
    if fields > limits.max_headers {
        return Some(HeadError::TooManyFields);
    }
    let mut list: SmallVec<[_; 24]> = SmallVec::from_elem(httparse::EMPTY_HEADER, fields);
    let block = &head[line_end + 1..];
    // The fields are as many as the lines unless an empty line comes before the last one.
    match httparse::parse_headers(block, &mut list) {
        Ok(httparse::Status::Complete((used, _))) if used == block.len() => None,
        Ok(_) => Some(HeadError::Incomplete),
        Err(httparse::Error::HeaderName) => Some(HeadError::FieldName),
        Err(httparse::Error::TooManyHeaders) => Some(HeadError::TooManyFields),
        Err(_) => Some(HeadError::FieldValue),
    }
}

/// `true` for the characters of a token (RFC 9110, 5.6.2).
#[inline]
pub(super) fn is_token_byte(byte: u8) -> bool {
    TOKEN[usize::from(byte)]
}

static TOKEN: [bool; 256] = bytes_of(b"!#$%&'*+-.^_`|~");

/// A table of letters, digits and `others`.
pub(super) const fn bytes_of(others: &[u8]) -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = 0u8;
    while byte < 128 {
        table[byte as usize] = byte.is_ascii_alphanumeric();
        byte += 1;
    }
    let mut i = 0;
    while i < others.len() {
        table[others[i] as usize] = true;
        i += 1;
    }
    table
}

/// `true` if `bytes` is a token.
pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&b| is_token_byte(b))
}

/// Removes spaces and tabs at both ends.
pub(super) fn trim_ows(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}
