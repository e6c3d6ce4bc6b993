//! The decisions of the gateway, pure.
//!
//! What a request asks for ([`scan`]), when it may proceed ([`admission`]), where it may go ([`pipeline`]), how loaded
//! each endpoint is ([`load`]) and whether a retry is allowed ([`budget`]). Nothing here does I/O, sleeps, reads a
//! clock, spawns or holds a lock on the request path: bytes, counters and a time come in, a decision comes out. So the
//! same code runs on a shard, in the cluster simulator in virtual time, and in tests.
#![forbid(unsafe_code)]

pub mod admission;
pub mod budget;
pub mod load;
pub mod pipeline;
pub mod prefix;
pub mod ring;
pub mod scan;
pub mod snapshot;

/// Nanoseconds on the process's monotonic clock (or on a simulator's virtual one). Only differences mean anything.
pub type Nanos = u64;

/// A second in [`Nanos`].
pub const SECOND: Nanos = 1_000_000_000;
/// A millisecond in [`Nanos`].
pub const MILLISECOND: Nanos = 1_000_000;
