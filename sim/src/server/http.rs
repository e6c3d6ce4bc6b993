//! HTTP/1.1 as this server speaks it: heads in by `httparse`, bodies sized or chunked, heads out by hand so that faults
//! can bend them.

use std::fmt::Write as _;

/// Most bytes of a request's head.
pub const HEAD_MAX: usize = 64 * 1024;
/// Most bytes of a request's body.
pub const BODY_MAX: usize = 64 * 1024 * 1024;
const FIELDS_MAX: usize = 128;

/// A request's head.
#[derive(Clone, Debug)]
pub struct Head {
    /// The method, as sent.
    pub method: String,
    /// The path without its query.
    pub path: String,
    /// Names (as sent) and values.
    pub fields: Vec<(String, String)>,
    /// How the body is framed.
    pub body: BodyFraming,
    /// The connection may serve another request.
    pub keep_alive: bool,
    /// The client waits for 100 Continue.
    pub expect_continue: bool,
    /// HTTP/1.1, so chunked answers are understood.
    pub chunked_ok: bool,
}

/// How a request's body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// So many bytes.
    Sized(usize),
    /// Chunked.
    Chunked,
}

/// A request that cannot be understood: status and reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRequest(pub u16, pub &'static str);

impl Head {
    /// The first field of this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// Parses a head from the buffer's start: the head and its length, or None while it is incomplete.
pub fn parse_head(buf: &[u8]) -> Result<Option<(Head, usize)>, BadRequest> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    let length = match request.parse(buf) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if buf.len() > HEAD_MAX => {
            return Err(BadRequest(431, "request head too large"));
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(BadRequest(431, "too many header fields")),
        Err(_) => return Err(BadRequest(400, "Invalid HTTP request received.")),
    };
    let target = request.path.unwrap_or("/");
    let http11 = request.version == Some(1);
    let mut head = Head {
        method: request.method.unwrap_or_default().to_owned(),
        path: target.split('?').next().unwrap_or_default().to_owned(),
        fields: Vec::with_capacity(request.headers.len()),
        body: BodyFraming::Sized(0),
        keep_alive: http11,
        expect_continue: false,
        chunked_ok: http11,
    };
    let mut length_seen = None;
    let mut chunked = false;
    for field in request.headers.iter() {
        let value = String::from_utf8_lossy(field.value).into_owned();
        if field.name.eq_ignore_ascii_case("content-length") {
            let size = value.trim().parse().map_err(|_| BadRequest(400, "bad content-length"))?;
            if length_seen.is_some_and(|seen| seen != size) {
                return Err(BadRequest(400, "two content-lengths"));
            }
            length_seen = Some(size);
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = value.trim().eq_ignore_ascii_case("chunked");
            if !chunked {
                return Err(BadRequest(400, "unknown transfer-encoding"));
            }
        } else if field.name.eq_ignore_ascii_case("connection") {
            let has = |token: &str| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(token));
            head.keep_alive = (head.keep_alive || has("keep-alive")) && !has("close");
        } else if field.name.eq_ignore_ascii_case("expect") {
            head.expect_continue = value.eq_ignore_ascii_case("100-continue");
        }
        head.fields.push((field.name.to_owned(), value));
    }
    head.body = match (chunked, length_seen) {
        (true, Some(_)) => return Err(BadRequest(400, "both content-length and transfer-encoding")),
        (true, None) => BodyFraming::Chunked,
        (false, size) => BodyFraming::Sized(size.unwrap_or(0)),
    };
    if matches!(head.body, BodyFraming::Sized(size) if size > BODY_MAX) {
        return Err(BadRequest(413, "request body too large"));
    }
    Ok(Some((head, length)))
}

/// Takes one piece of a chunked body from the buffer's start.
#[derive(Debug, PartialEq, Eq)]
pub enum ChunkStep {
    /// More bytes are needed.
    Partial,
    /// Data at this range; drop `used` bytes.
    Data {
        /// Start and end of the data.
        range: (usize, usize),
        /// Bytes the chunk takes with its framing.
        used: usize,
    },
    /// The last chunk, trailers included: drop so many bytes.
    End(usize),
}

/// Reads the next chunk, whole.
pub fn parse_chunk(buf: &[u8]) -> Result<ChunkStep, BadRequest> {
    let bad = BadRequest(400, "bad chunk");
    let (start, size) = match httparse::parse_chunk_size(buf) {
        Ok(httparse::Status::Complete(found)) => found,
        Ok(httparse::Status::Partial) => return Ok(ChunkStep::Partial),
        Err(_) => return Err(bad),
    };
    if size == 0 {
        // Trailers are dropped; the section ends with an empty line.
        let mut at = start;
        loop {
            let Some(end) = memchr::memchr(b'\n', &buf[at..]) else { return Ok(ChunkStep::Partial) };
            let line = &buf[at..at + end];
            at += end + 1;
            if line.is_empty() || line == b"\r" {
                return Ok(ChunkStep::End(at));
            }
        }
    }
    let size = usize::try_from(size).ok().filter(|size| *size <= BODY_MAX);
    let Some(size) = size else { return Err(BadRequest(413, "request body too large")) };
    let end = start + size;
    if buf.len() < end + 2 {
        return Ok(ChunkStep::Partial);
    }
    if &buf[end..end + 2] != b"\r\n" {
        return Err(bad);
    }
    Ok(ChunkStep::Data { range: (start, end), used: end + 2 })
}

/// The reason phrase of a status.
pub fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Status",
    }
}

/// A whole sized answer. `extra` holds further field lines, each with its CRLF.
pub fn response(status: u16, content_type: &str, extra: &str, body: &[u8], keep_alive: bool) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status} {}\r\nserver: llmgw-sim\r\n", reason(status));
    if !content_type.is_empty() {
        let _ = write!(head, "content-type: {content_type}\r\n");
    }
    let connection = if keep_alive { "" } else { "connection: close\r\n" };
    let _ = write!(head, "content-length: {}\r\n{connection}{extra}\r\n", body.len());
    let mut out = head.into_bytes();
    out.extend_from_slice(body);
    out
}

/// The head of an event stream.
pub fn stream_head(request_id: &str, chunked: bool, keep_alive: bool) -> String {
    let framing = if chunked { "transfer-encoding: chunked\r\n" } else { "" };
    let connection = if keep_alive && chunked { "" } else { "connection: close\r\n" };
    format!(
        "HTTP/1.1 200 OK\r\nserver: llmgw-sim\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
         x-request-id: {request_id}\r\n{framing}{connection}\r\n"
    )
}

/// Appends `data` as one chunk.
pub fn push_chunk(out: &mut Vec<u8>, data: &[u8]) {
    push_hex(out, data.len());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Appends a number in lower-case hexadecimal.
pub fn push_hex(out: &mut Vec<u8>, value: usize) {
    let digits = (usize::BITS - value.leading_zeros()).div_ceil(4).max(1);
    for place in (0..digits).rev() {
        out.push(b"0123456789abcdef"[(value >> (place * 4)) & 15]);
    }
}
