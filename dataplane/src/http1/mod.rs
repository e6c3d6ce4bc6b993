//! HTTP/1.1 without I/O: heads, framing and the header policy between clients and engines.
//!
//! **Invariants.** What RFC 9112 leaves ambiguous is refused, never repaired: a request gets 400 and its connection
//! closes, an engine's answer becomes 502. Nothing is relayed as it came: heads and framing are written anew from
//! what was parsed. Every parser is bounded, resumes at any byte, and gives the same answer however the bytes were
//! split.

pub mod chunked;
mod fields;
pub mod head;
pub mod memo;
pub mod request;
pub mod response;
mod target;
pub mod write;

#[cfg(test)]
mod tests;

pub use chunked::{Chunk, ChunkError, Decoder};
pub use fields::ConnectionNamed;
pub use head::{HeadError, HeadLimits, Headers, find_head_end};
pub use request::{Method, RequestBody, RequestError, RequestHead, head_over_limit, parse_request};
pub use response::{ResponseBody, ResponseError, ResponseHead, parse_response};
