//! Workers that announce themselves: what they say, and who of them is alive.
//!
//! **Invariants**
//!
//! * A worker is live while less than `heartbeat_interval * heartbeat_miss_limit` has passed since its last heartbeat;
//!   at exactly that much it is gone.
//! * A status that is not believable changes nothing and is answered with the field's name.
//! * A heartbeat that changes no membership writes a few atomics and publishes nothing.

mod conn;
mod members;
mod serve;
mod status;

pub use members::{Drain, Member, Members, WorkerSpec};
pub use serve::{Listener, TlsError, tls};
pub use status::{InvalidStatus, Status};

use std::fmt;

#[cfg(test)]
mod tests;

/// Most workers registered at a time.
pub const WORKERS_MAX: u32 = 12_288;
/// Most models that workers may make known in the life of a process.
pub const MODELS_MAX: usize = 4096;

/// What a worker is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// Please drain: its model is being drained.
    pub drain: bool,
    /// Grows with every change of the route table.
    pub route_epoch: u64,
}

/// Why a heartbeat was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum HeartbeatError {
    /// A field of the status.
    Invalid(InvalidStatus),
    /// A worker that joins names its host: look it up and come again with the address.
    Unresolved { host: String, port: u16 },
    /// No room for another worker.
    TooManyWorkers,
    /// No room for another model.
    TooManyModels,
}

impl fmt::Display for HeartbeatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeartbeatError::Invalid(invalid) => invalid.fmt(f),
            HeartbeatError::Unresolved { host, port } => {
                write!(f, "http_address: {host}:{port} has not been looked up")
            }
            HeartbeatError::TooManyWorkers => {
                write!(f, "{WORKERS_MAX} workers are registered, and no more fit")
            }
            HeartbeatError::TooManyModels => {
                write!(
                    f,
                    "workers have named {MODELS_MAX} models since this process started, and no more fit"
                )
            }
        }
    }
}

impl std::error::Error for HeartbeatError {}
