//! Response heads from engines, as strict as requests: an ambiguous answer is a `bad_upstream_response`.

use super::fields::{ConnectionNamed, Fields};
use super::head::{HeadError, HeadLimits, Headers, split_head, trim_ows};
use std::fmt;

/// How the response's body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseBody {
    /// No body: 1xx, 204, 304, or the answer to HEAD.
    None,
    /// `Content-Length` in bytes; may be 0.
    Sized(u64),
    /// Chunked.
    Chunked,
    /// Neither length nor coding: until the engine closes.
    UntilClose,
}

/// A valid response head, borrowed from its bytes.
#[derive(Debug, Clone)]
pub struct ResponseHead<'b> {
    /// 100 to 599; never 101.
    pub status: u16,
    /// HTTP/1.1; otherwise HTTP/1.0.
    pub http11: bool,
    /// All fields.
    pub headers: Headers<'b>,
    /// Fields that `Connection` keeps on this hop.
    pub connection: ConnectionNamed<'b>,
    /// Framing of what follows.
    pub body: ResponseBody,
    /// The connection may be used again after the body.
    pub keep_alive: bool,
    /// How long the engine keeps an idle connection, from `Keep-Alive: timeout=`, in seconds.
    pub keep_alive_timeout_s: Option<u64>,
}

impl ResponseHead<'_> {
    /// An interim (1xx) answer: the final one is still to come.
    pub fn interim(&self) -> bool {
        self.status < 200
    }
}

/// Why a response head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseError {
    /// Malformed in a way that requests could be too.
    Head(HeadError),
    /// The status line is not `version SP status SP reason`.
    StatusLine,
    /// Neither HTTP/1.0 nor HTTP/1.1.
    Version,
    /// 101, though no upgrade was asked for.
    SwitchingProtocols,
    /// An answer that cannot have a body (1xx, 204, 205) announces one.
    UnexpectedBody,
}

impl fmt::Display for ResponseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ResponseError::Head(error) => return error.fmt(f),
            ResponseError::StatusLine => "the status line is not a version, a status and a reason",
            ResponseError::Version => "the answer is neither HTTP/1.0 nor HTTP/1.1",
            ResponseError::SwitchingProtocols => "the answer switches protocols, which was not asked for",
            ResponseError::UnexpectedBody => "an answer that cannot have a body announces one",
        })
    }
}

impl std::error::Error for ResponseError {}

impl From<HeadError> for ResponseError {
    fn from(error: HeadError) -> Self {
        ResponseError::Head(error)
    }
}

/// Parses a complete head: everything up to the index that [`super::find_head_end`] gave. `request_was_head`: the
/// request's method was HEAD, so the head announces a body that does not follow.
pub fn parse_response<'b>(
    head: &'b [u8],
    limits: &HeadLimits,
    request_was_head: bool,
) -> Result<ResponseHead<'b>, ResponseError> {
    let (line, headers) = split_head(head, limits)?;
    let (status, http11) = parse_status_line(line)?;
    if status == 101 {
        return Err(ResponseError::SwitchingProtocols);
    }
    let fields = Fields::read(&headers, http11)?;
    let bodiless = status < 200 || status == 204;
    // 205 is framed as any other, but some clients know that it is empty and take its body for the next answer.
    let reset_content = status == 205 && fields.content_length != Some(0);
    if reset_content || bodiless && (fields.chunked || fields.content_length.is_some_and(|bytes| bytes > 0)) {
        return Err(ResponseError::UnexpectedBody);
    }
    let body = if bodiless || status == 304 || request_was_head {
        ResponseBody::None
    } else if let Some(bytes) = fields.content_length {
        ResponseBody::Sized(bytes)
    } else if fields.chunked {
        ResponseBody::Chunked
    } else {
        ResponseBody::UntilClose
    };
    Ok(ResponseHead {
        status,
        http11,
        body,
        keep_alive: fields.persistent(http11) && body != ResponseBody::UntilClose,
        keep_alive_timeout_s: headers.get("keep-alive").and_then(keep_alive_timeout),
        connection: fields.connection,
        headers,
    })
}

/// Status, and whether the version is 1.1. A missing reason, with or without its space, is no ambiguity.
fn parse_status_line(line: &[u8]) -> Result<(u16, bool), ResponseError> {
    let (http11, rest) = match line.split_at_checked(8) {
        Some((b"HTTP/1.1", rest)) => (true, rest),
        Some((b"HTTP/1.0", rest)) => (false, rest),
        _ => return Err(ResponseError::Version),
    };
    let [b' ', a @ b'1'..=b'5', b @ b'0'..=b'9', c @ b'0'..=b'9', reason @ ..] = rest else {
        return Err(ResponseError::StatusLine);
    };
    let reason_valid = match reason {
        [] => true,
        [b' ', text @ ..] => text.iter().all(|&byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f)),
        _ => false,
    };
    if !reason_valid {
        return Err(ResponseError::StatusLine);
    }
    let digit = |byte: &u8| u16::from(byte - b'0');
    Ok((digit(a) * 100 + digit(b) * 10 + digit(c), http11))
}

/// `timeout` of `Keep-Alive: timeout=5, max=100`; a malformed one is absent.
fn keep_alive_timeout(value: &[u8]) -> Option<u64> {
    value.split(|&b| b == b',').find_map(|item| {
        let (name, seconds) = trim_ows(item).split_at_checked(8)?;
        if !name.eq_ignore_ascii_case(b"timeout=") {
            return None;
        }
        std::str::from_utf8(seconds).ok().filter(|s| s.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
    })
}
