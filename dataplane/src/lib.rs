//! The data plane: shards that move bytes between clients and engines.
//!
//! One [`shard::Shard`] a thread, each over its own [`driver::Driver`]. A shard reads the published snapshot, its own
//! memory and the counters in [`shared::Shared`]; it never waits for the control plane, a file, a name lookup or a
//! lock held across a system call.
//!
//! **Invariants**
//!
//! * Protocol and decisions are sans-IO: bytes, events and a time go in, calls on the driver come out. The same code
//!   runs over epoll, io_uring and the simulated driver.
//! * Heads and framing are regenerated, never relayed; body bytes are relayed as they are.
//! * A request has exactly one outcome, recorded once, by `shard::settle`, which also gives back its lease and its
//!   buffered bytes.

pub mod buffers;
pub mod driver;
pub mod error;
pub mod exchange;
pub mod http1;
pub mod marks;
pub mod metrics;
pub mod planted;
pub mod record;
pub mod shard;
pub mod shared;
pub mod slab;
pub mod sse;
pub mod timer;
pub mod upstream;
