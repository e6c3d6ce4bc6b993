//! Request heads from clients.
//!
//! One empty line before the request line is ignored, as RFC 9112 (2.2) asks; more are refused. `CONNECT` is not
//! implemented. Targets are origin-form, absolute-form with the same authority as `Host`, or `*` for OPTIONS.

use super::fields::{ConnectionNamed, Fields};
use super::head::{HeadError, HeadLimits, Headers, is_token, split_head};
use super::target::{Target, check_host, parse_target, same_authority};
use memchr::{memchr, memchr_iter};
use std::fmt;

/// Methods the gateway tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// GET.
    Get,
    /// HEAD.
    Head,
    /// POST.
    Post,
    /// OPTIONS.
    Options,
    /// Any other token; see [`RequestHead::method_str`].
    Other,
}

/// How the request's body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestBody {
    /// Neither length nor coding: no body.
    None,
    /// `Content-Length` in bytes; may be 0.
    Sized(u64),
    /// Chunked.
    Chunked,
}

impl RequestBody {
    /// `true` if no byte of body follows the head.
    pub fn is_empty(self) -> bool {
        matches!(self, RequestBody::None | RequestBody::Sized(0))
    }
}

/// A valid request head, borrowed from its bytes.
#[derive(Debug, Clone)]
pub struct RequestHead<'b> {
    /// The method, if it is one the gateway knows.
    pub method: Method,
    /// The method as sent; a token, case as sent.
    pub method_str: &'b str,
    /// Path without query, percent-encoding as sent; `*` for OPTIONS of the server itself.
    pub path: &'b str,
    /// What follows the `?`.
    pub query: Option<&'b str>,
    /// HTTP/1.1; otherwise HTTP/1.0.
    pub http11: bool,
    /// All fields.
    pub headers: Headers<'b>,
    /// Fields that `Connection` keeps on this hop.
    pub connection: ConnectionNamed<'b>,
    /// Framing of what follows.
    pub body: RequestBody,
    /// The client wants to use the connection further.
    pub keep_alive: bool,
    /// The client waits for `100 Continue` before it sends its body. Only with a body to come and HTTP/1.1.
    pub expect_continue: bool,
}

/// Why a request head is refused. The connection closes after the answer, for its framing is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestError {
    /// Malformed in a way that responses could be too.
    Head(HeadError),
    /// The request line is not `method SP target SP version`.
    RequestLine,
    /// The target is malformed or of a form the method does not allow.
    Target,
    /// The target alone exceeds the head's limit.
    TargetTooLong,
    /// The head exceeds its limit in bytes.
    HeadTooLarge,
    /// An HTTP version other than 1.0 and 1.1.
    Version,
    /// HTTP/1.1 without `Host`.
    MissingHost,
    /// `Host` twice.
    RepeatedHost,
    /// `Host` is no `host[:port]`.
    Host,
    /// An absolute target names another authority than `Host`.
    HostMismatch,
    /// `Content-Type` twice: servers differ in which one they believe.
    RepeatedContentType,
    /// CONNECT.
    Connect,
    /// An expectation other than `100-continue`.
    Expectation,
}

impl RequestError {
    /// The HTTP status to answer with.
    pub fn status(&self) -> u16 {
        match self {
            RequestError::Head(HeadError::TooManyFields) | RequestError::HeadTooLarge => 431,
            RequestError::Head(HeadError::UnsupportedCoding) | RequestError::Connect => 501,
            RequestError::TargetTooLong => 414,
            RequestError::Version => 505,
            RequestError::Expectation => 417,
            _ => 400,
        }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RequestError::Head(error) => return error.fmt(f),
            RequestError::RequestLine => {
                "the request line is not a method, a target and a version, each one space apart"
            }
            RequestError::Target => "the request target is malformed",
            RequestError::TargetTooLong => "the request target is too long",
            RequestError::HeadTooLarge => "the request's head is too large",
            RequestError::Version => "only HTTP/1.0 and HTTP/1.1 are supported",
            RequestError::MissingHost => "HTTP/1.1 requests need a Host header",
            RequestError::RepeatedHost => "Host occurs more than once",
            RequestError::Host => "Host is not a host name or address with an optional port",
            RequestError::HostMismatch => "the request target and Host name different authorities",
            RequestError::RepeatedContentType => "Content-Type occurs more than once",
            RequestError::Connect => "CONNECT is not implemented",
            RequestError::Expectation => "the only expectation supported is 100-continue",
        })
    }
}

impl std::error::Error for RequestError {}

impl From<HeadError> for RequestError {
    fn from(error: HeadError) -> Self {
        RequestError::Head(error)
    }
}

/// What to answer when `partial`, the start of a head, has reached the limit in bytes: 414 if not even the request
/// line has ended, else 431.
pub fn head_over_limit(partial: &[u8]) -> RequestError {
    if memchr(b'\n', skip_empty_line(partial)).is_none() {
        RequestError::TargetTooLong
    } else {
        RequestError::HeadTooLarge
    }
}

/// Parses a complete head: everything up to the index that [`super::find_head_end`] gave.
pub fn parse_request<'b>(head: &'b [u8], limits: &HeadLimits) -> Result<RequestHead<'b>, RequestError> {
    let (line, headers) = split_head(skip_empty_line(head), limits)?;
    let (method_str, target, http11) = parse_request_line(line)?;
    let method = match method_str {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "OPTIONS" => Method::Options,
        "CONNECT" => return Err(RequestError::Connect),
        _ => Method::Other,
    };
    let target = parse_target(target, method).ok_or(RequestError::Target)?;
    let fields = Fields::read(&headers, http11)?;
    check_authority(&fields, &target, http11)?;
    if fields.repeated_content_type {
        return Err(RequestError::RepeatedContentType);
    }
    let body = match fields.content_length {
        Some(bytes) => RequestBody::Sized(bytes),
        None if fields.chunked => RequestBody::Chunked,
        None => RequestBody::None,
    };
    // An HTTP/1.0 client cannot wait for 100 (RFC 9110, 10.1.1), so its expectation is ignored.
    let expects = http11 && fields.expect;
    if expects && fields.other_expect {
        return Err(RequestError::Expectation);
    }
    Ok(RequestHead {
        method,
        method_str,
        path: target.path,
        query: target.query,
        http11,
        body,
        keep_alive: fields.persistent(http11),
        expect_continue: expects && !body.is_empty(),
        connection: fields.connection,
        headers,
    })
}

fn skip_empty_line(head: &[u8]) -> &[u8] {
    head.strip_prefix(b"\r\n").unwrap_or(head)
}

/// Method, target and whether the version is 1.1.
fn parse_request_line(line: &[u8]) -> Result<(&str, &str, bool), RequestError> {
    let mut parts = memchr_iter(b' ', line);
    let (Some(first), Some(second), None) = (parts.next(), parts.next(), parts.next()) else {
        return Err(RequestError::RequestLine);
    };
    let (method, target, version) = (&line[..first], &line[first + 1..second], &line[second + 1..]);
    if !is_token(method) || target.is_empty() {
        return Err(RequestError::RequestLine);
    }
    let http11 = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            return Err(RequestError::Version);
        }
        _ => return Err(RequestError::RequestLine),
    };
    let method = std::str::from_utf8(method).map_err(|_| RequestError::RequestLine)?;
    let target = std::str::from_utf8(target).map_err(|_| RequestError::Target)?;
    Ok((method, target, http11))
}

/// Checks `Host` and, for an absolute target, that both name the same authority.
fn check_authority(fields: &Fields<'_>, target: &Target<'_>, http11: bool) -> Result<(), RequestError> {
    if fields.repeated_host {
        return Err(RequestError::RepeatedHost);
    }
    let Some(host) = fields.host else {
        return if http11 { Err(RequestError::MissingHost) } else { Ok(()) };
    };
    let host = std::str::from_utf8(host).map_err(|_| RequestError::Host)?;
    if !check_host(host) {
        return Err(RequestError::Host);
    }
    match target.authority {
        Some(authority) if !same_authority(authority, host, target.default_port) => {
            Err(RequestError::HostMismatch)
        }
        _ => Ok(()),
    }
}
