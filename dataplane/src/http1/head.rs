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
    list: SmallVec<[httparse::Header<'b>; 24]>,
}

impl<'b> Headers<'b> {
    /// Value of the first field called `name` (any case).
    pub fn get(&self, name: &str) -> Option<&'b [u8]> {
        self.list.iter().find(|h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value)
    }

    /// Value of the first field called `name` (any case), if it is UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&'b str> {
        self.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Every field as name and value.
    pub fn iter(&self) -> impl Iterator<Item = (&'b str, &'b [u8])> + '_ {
        self.list.iter().map(|h| (h.name, h.value))
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
    let mut lines = 0usize;
    for at in memchr_iter(b'\n', head) {
        if at == 0 || head[at - 1] != b'\r' {
            return Err(HeadError::BareLineFeed);
        }
        lines += 1;
    }
    let line_end = memchr(b'\n', head).ok_or(HeadError::Incomplete)?;
    if line_end <= 1 {
        return Err(HeadError::Empty);
    }
    if !head.ends_with(b"\r\n\r\n") {
        return Err(HeadError::Incomplete);
    }
    let fields = lines - 2;
    if fields > limits.max_headers {
        return Err(HeadError::TooManyFields);
    }
    let mut headers = Headers { list: SmallVec::from_elem(httparse::EMPTY_HEADER, fields) };
    let block = &head[line_end + 1..];
    // The fields are as many as the lines unless an empty line comes before the last one.
    match httparse::parse_headers(block, &mut headers.list) {
        Ok(httparse::Status::Complete((used, _))) if used == block.len() => {
            Ok((&head[..line_end - 1], headers))
        }
        Ok(_) => Err(HeadError::Incomplete),
        Err(httparse::Error::HeaderName) => Err(HeadError::FieldName),
        Err(httparse::Error::TooManyHeaders) => Err(HeadError::TooManyFields),
        Err(_) => Err(HeadError::FieldValue),
    }
}

/// `true` for the characters of a token (RFC 9110, 5.6.2).
pub(super) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
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
