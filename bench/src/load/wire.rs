//! What goes over the wire in the side-by-side runs, made once: requests, answers, events; and how they are told apart.
//!
//! A request names what it wants in a field of its body, `"user":"KNN"`: the kind of answer and a group of streams.
//! Fields of a body cross every gateway, headers need not.

use memchr::memmem;

/// Bytes of a small answer's body.
pub const JSON_BYTES: usize = 600;
/// Bytes of a large answer's body.
pub const LARGE_BYTES: usize = 1_000_000;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An answer of [`JSON_BYTES`].
    Json,
    /// An answer of [`LARGE_BYTES`].
    Large,
    /// A stream of this group, without end.
    Stream(u8),
    /// Anything else, as health checks are: a short answer.
    Other,
}

/// A request, to the byte. Groups go up to 99.
pub fn request(kind: Kind) -> Vec<u8> {
    let (mark, group, stream) = match kind {
        Kind::Json | Kind::Other => ('j', 0, false),
        Kind::Large => ('m', 0, false),
        Kind::Stream(group) => ('s', group, true),
    };
    let body = format!(
        "{{\"user\":\"{mark}{group:02}\",\"model\":\"bench\",\"messages\":[{{\"role\":\"system\",\"content\":\
         \"You are a helpful assistant.\"}},{{\"role\":\"user\",\"content\":\"Name three rivers of Europe and the \
         seas they flow into.\"}}],\"temperature\":0.2,\"max_tokens\":128,\"stream\":{stream}}}"
    );
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.example\r\nAccept: application/json\r\n\
         User-Agent: OpenAI/Python 1.99.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// What the engines send.
pub struct Answers {
    /// A whole small answer.
    pub json: Vec<u8>,
    /// A whole large answer.
    pub large: Vec<u8>,
    /// Head and first event of a stream.
    pub stream_start: Vec<u8>,
    /// One further event, as a chunk.
    pub event: Vec<u8>,
    /// To anything else.
    pub other: Vec<u8>,
}

impl Answers {
    /// Makes them.
    pub fn new() -> Self {
        let head = |kind: &str, framing: &str| {
            format!(
                "HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 22:49:42 GMT\r\nserver: uvicorn\r\n\
                 content-type: {kind}\r\n{framing}\r\n\r\n"
            )
        };
        let whole = |body: &str| {
            let framing = format!("content-length: {}", body.len());
            (head("application/json", &framing) + body).into_bytes()
        };
        let event = "data: {\"id\":\"chatcmpl-8de5e039c7f675c2\",\"object\":\"chat.completion.chunk\",\"created\":\
                     1796078983,\"model\":\"bench\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" river\"},\
                     \"finish_reason\":null}]}\n\n";
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        let start = head("text/event-stream; charset=utf-8", "transfer-encoding: chunked") + &chunk;
        Answers {
            json: whole(&completion(JSON_BYTES)),
            large: whole(&completion(LARGE_BYTES)),
            stream_start: start.into_bytes(),
            event: chunk.into_bytes(),
            other: whole("{\"status\":\"ok\"}"),
        }
    }
}

/// A chat completion of exactly `bytes`.
fn completion(bytes: usize) -> String {
    let before = "{\"id\":\"chatcmpl-8de5e039c7f675c2\",\"object\":\"chat.completion\",\"created\":1796078983,\
                  \"model\":\"bench\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"";
    let after = "\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":31,\
                 \"total_tokens\":159,\"completion_tokens\":128,\"prompt_tokens_details\":null}}";
    let filling = bytes - before.len() - after.len();
    let text: String = "The Danube flows into the Black Sea. ".chars().cycle().take(filling).collect();
    format!("{before}{text}{after}")
}

/// Reads one request at the start of `input`: what it asks for and how long it is; none while it is incomplete.
pub fn parse_request(input: &[u8]) -> Option<(Kind, usize)> {
    let body_at = memmem::find(input, b"\r\n\r\n")? + 4;
    let total = body_at + content_length(&input[..body_at]).unwrap_or(0);
    let body = input.get(body_at..total)?;
    // It comes first but for what a gateway may have put in front.
    let user = memmem::find(body, b"\"user\":\"").map(|at| &body[at + 8..]);
    let kind = match user {
        Some([b'j', ..]) => Kind::Json,
        Some([b'm', ..]) => Kind::Large,
        Some([b's', tens, ones, ..]) => {
            Kind::Stream(tens.wrapping_sub(b'0').wrapping_mul(10).wrapping_add(ones.wrapping_sub(b'0')))
        }
        _ => Kind::Other,
    };
    Some((kind, total))
}

/// The value of `Content-Length` in a head, however it is spelled.
pub fn content_length(head: &[u8]) -> Option<usize> {
    let mut from = 0;
    // Gateways write `Content-Length` or `content-length`.
    while let Some(at) = memmem::find(&head[from..], b"ength:") {
        let at = from + at;
        if at >= 9 && head[at - 9..at].eq_ignore_ascii_case(b"content-l") {
            let digits = head[at + 6..].trim_ascii_start().iter().take_while(|b| b.is_ascii_digit());
            return Some(digits.fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0')));
        }
        from = at + 6;
    }
    None
}

/// Events that end in `bytes`, where `last` is the byte before them.
pub fn events(last: u8, bytes: &[u8]) -> u64 {
    let across = u64::from(last == b'\n' && bytes.first() == Some(&b'\n'));
    across + memmem::find_iter(bytes, b"\n\n").count() as u64
}
