//! Server-sent events without I/O: framing of an engine's stream into raw events, a shallow look into one event, and
//! the few events the gateway writes itself.
//!
//! **Invariant:** the bytes of events that pass are the engine's own; the gateway only decides between events.

pub mod event;
pub mod framer;
pub mod write;

#[cfg(test)]
mod tests;

pub use event::{EventData, EventKind, parse_event};
pub use framer::{Framer, MAX_EVENT_BYTES, Piece};
pub use write::{KEEP_ALIVE_COMMENT, error_event};
