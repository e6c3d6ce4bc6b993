//! Writing heads and chunks, and the policy that says which header fields pass between clients and engines.
//!
//! **Invariant:** nothing that names this hop, its peers or their secrets passes in either direction. Underscores count
//! as hyphens here, since some engines' frameworks cannot tell them apart.

/// The end of a chunked body, without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// What follows each chunk's data.
pub const CHUNK_END: &[u8] = b"\r\n";

/// Most bytes of a chunk's size line.
const CHUNK_START_MAX: usize = 18;

/// The size line of a chunk, kept on the stack for vectored writes.
#[derive(Debug, Clone, Copy)]
pub struct ChunkStart {
    bytes: [u8; CHUNK_START_MAX],
    from: u8,
}

impl ChunkStart {
    /// Size line of a chunk of `len` bytes. `len` 0 would end the body: use [`LAST_CHUNK`] for that.
    pub fn new(len: usize) -> Self {
        debug_assert!(len > 0, "an empty chunk ends the body");
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut bytes = [0; CHUNK_START_MAX];
        bytes[CHUNK_START_MAX - 2..].copy_from_slice(b"\r\n");
        let mut from = CHUNK_START_MAX - 2;
        let mut rest = len;
        loop {
            from -= 1;
            bytes[from] = HEX[rest & 15];
            rest >>= 4;
            if rest == 0 {
                break;
            }
        }
        #[allow(clippy::cast_possible_truncation)] // below 18
        ChunkStart { bytes, from: from as u8 }
    }

    /// The line with its CRLF.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[usize::from(self.from)..]
    }
}

/// Appends the size line of a chunk of `len` bytes; see [`ChunkStart::new`].
pub fn put_chunk_start(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(ChunkStart::new(len).as_bytes());
}

/// Appends `HTTP/1.1 <status> <reason>` and CRLF.
pub fn put_status_line(out: &mut Vec<u8>, status: u16) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
    out.push(b' ');
    out.extend_from_slice(reason(status).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends `<method> <base_path><path>[?<query>] HTTP/1.1` and CRLF.
pub fn put_request_line(out: &mut Vec<u8>, method: &str, base_path: &str, path: &str, query: Option<&str>) {
    for part in [method, " ", base_path, path] {
        out.extend_from_slice(part.as_bytes());
    }
    if let Some(query) = query {
        out.push(b'?');
        out.extend_from_slice(query.as_bytes());
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

/// Appends one field. The value must hold no CR, LF or NUL: values of parsed heads never do.
pub fn put_header(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    debug_assert!(!value.iter().any(|b| matches!(b, b'\r' | b'\n' | 0)), "header injection in {name}");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends one field with a number.
pub fn put_header_u64(out: &mut Vec<u8>, name: &str, value: u64) {
    put_header(out, name, itoa::Buffer::new().format(value).as_bytes());
}

/// The reason phrase; empty for statuses without a registered one.
pub fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        102 => "Processing",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        424 => "Failed Dependency",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        508 => "Loop Detected",
        511 => "Network Authentication Required",
        _ => "",
    }
}

/// Fields of this hop alone (RFC 9110, 7.6.1), and those that older software treats so.
fn is_this_hops(name: &[u8]) -> bool {
    match name.len() {
        2 => name == b"te",
        7 => name == b"trailer" || name == b"upgrade",
        10 => name == b"connection" || name == b"keep-alive",
        14 => name == b"http2-settings",
        16 => name == b"proxy-connection",
        17 => name == b"transfer-encoding",
        18 => name == b"proxy-authenticate",
        19 => name == b"proxy-authorization",
        25 => name == b"proxy-authentication-info",
        _ => false,
    }
}

/// Written anew or of no business to an engine: framing, secrets, the client's address and origin, what other software
/// takes for another method, target or proxy, and what says something of answers or of parts, which some servers refuse
/// when it comes twice.
fn is_never_to_engines(name: &[u8]) -> bool {
    match name.len() {
        3 => name == b"via",
        4 => name == b"host" || name == b"etag",
        5 => name == b"proxy",
        6 => name == b"expect" || name == b"cookie" || name == b"origin" || name == b"server",
        7 => name == b"api-key" || name == b"cookie2" || name == b"referer",
        9 => name == b"x-api-key" || name == b"forwarded" || name == b"x-real-ip",
        12 => name == b"x-request-id" || name == b"max-forwards",
        13 => {
            name == b"authorization"
                || name == b"content-range"
                || name == b"x-rewrite-url"
                || name == b"x-http-method"
        }
        14 => name == b"content-length" || name == b"x-original-url",
        15 => name == b"accept-encoding",
        16 => name == b"content-location",
        17 => name == b"x-method-override",
        22 => name == b"x-http-method-override",
        _ => false,
    }
}
/// Says how the body is read: one spelled with an underscore would be a second one to some.
fn is_twin(name: &[u8], folded: &[u8]) -> bool {
    (folded == b"content-type" || folded == b"content-encoding") && name.contains(&b'_')
}
const NEVER_TO_ENGINES_PREFIXES: &[&str] =
    &["proxy-", "x-llmgw-", "x-tl-", "x-forwarded-", "access-control-", "sec-"];

/// Written anew, naming what is behind the gateway, or speaking to browsers for the gateway's whole origin.
fn is_never_to_clients(name: &[u8]) -> bool {
    match name.len() {
        3 => name == b"via" || name == b"nel",
        6 => name == b"server",
        7 => name == b"alt-svc" || name == b"refresh",
        8 => name == b"location",
        9 => name == b"report-to",
        10 => name == b"set-cookie",
        11 => name == b"set-cookie2",
        12 => name == b"x-request-id" || name == b"x-powered-by",
        14 => name == b"content-length",
        15 => name == b"clear-site-data" || name == b"public-key-pins",
        16 => name == b"content-location",
        19 => name == b"reporting-endpoints",
        22 => name == b"service-worker-allowed",
        23 => name == b"process-start-time-unix",
        25 => name == b"strict-transport-security",
        _ => false,
    }
}
const NEVER_TO_CLIENTS_PREFIXES: &[&str] =
    &["proxy-", "x-accel-", "access-control-", "x-llmgw-", "x-tl-", "x-ratelimit-"];

/// `true` for fields that never pass a hop, whoever sent them.
pub fn is_hop_by_hop(name: &str) -> bool {
    is_this_hops(Folded::new(name.as_bytes()).name())
}

/// `true` if a client's field may pass to an engine, unless `Connection` names it
/// ([`super::ConnectionNamed::contains`]).
pub fn forward_request_header(name: &str) -> bool {
    passes_to_engines(name.as_bytes())
}

fn passes_to_engines(name: &[u8]) -> bool {
    let folded = Folded::new(name);
    !is_twin(name, folded.name())
        && !is_this_hops(folded.name())
        && !is_never_to_engines(folded.name())
        && !folded.prefixed(NEVER_TO_ENGINES_PREFIXES)
}

/// `true` if an engine's field may pass to a client, unless `Connection` names it
/// ([`super::ConnectionNamed::contains`]).
pub fn forward_response_header(name: &str) -> bool {
    passes_to_clients(name.as_bytes())
}

fn passes_to_clients(name: &[u8]) -> bool {
    let name = Folded::new(name);
    !is_this_hops(name.name())
        && !is_never_to_clients(name.name())
        && !name.prefixed(NEVER_TO_CLIENTS_PREFIXES)
}

/// Longest name in the lists.
const FOLDED_MAX: usize = 32;

/// A field name's start in lower case, underscores turned into hyphens.
struct Folded {
    bytes: [u8; FOLDED_MAX],
    /// Of the whole name, so that a longer one equals no entry.
    len: usize,
}

impl Folded {
    #[inline]
    fn new(name: &[u8]) -> Self {
        let mut bytes = [0; FOLDED_MAX];
        let kept = name.len().min(FOLDED_MAX);
        bytes[..kept].copy_from_slice(&name[..kept]);
        for byte in &mut bytes {
            let lower = byte.to_ascii_lowercase();
            *byte = if lower == b'_' { b'-' } else { lower };
        }
        Folded { bytes, len: name.len() }
    }

    /// The whole name; empty if it is longer than any in the lists.
    #[inline]
    fn name(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    #[inline]
    fn prefixed(&self, prefixes: &[&str]) -> bool {
        prefixes.iter().any(|p| p.as_bytes()[0] == self.bytes[0] && self.bytes.starts_with(p.as_bytes()))
    }
}
