//! Behaviour tables and properties of heads, chunks and the header policy.

mod chunked;
mod engines;
mod head;
mod memo;
mod request;
mod response;
mod write;
