//! The events that the gateway itself puts into a stream. They may stand only between events.

use memchr::memchr2;

/// A comment that keeps an idle stream alive; readers ignore it.
pub const KEEP_ALIVE_COMMENT: &[u8] = b": keep-alive\n\n";

/// Appends one event whose data is `json`. Line ends within it become several `data` lines, which readers join again.
pub fn error_event(out: &mut Vec<u8>, json: &[u8]) {
    let mut rest = json;
    loop {
        out.extend_from_slice(b"data: ");
        let Some(at) = memchr2(b'\n', b'\r', rest) else { break };
        out.extend_from_slice(&rest[..at]);
        out.push(b'\n');
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    out.extend_from_slice(b"\n\n");
}
