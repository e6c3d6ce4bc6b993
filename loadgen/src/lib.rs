//! Load generation and stream checking for OpenAI-compatible servers: the library behind `loadgen`.
//!
//! Three questions, three functions: [`run`] (how fast, and is every token there), [`overhead`] (what a gateway adds),
//! [`disconnect`] (does an engine hear that a client has gone). Each blocks its caller and starts threads of its own.
//!
//! **Invariants.** Latency counts from the time a request was due, never from when the generator got round to it.
//! A time is taken right at the read that brought the bytes. Memory is bounded by the requests in flight.

pub mod abort;
pub mod checker;
pub mod cli;
pub mod client;
pub mod disconnect;
pub mod engines;
pub mod gun;
pub mod http;
pub mod overhead;
pub mod pacer;
mod progress;
pub mod prompts;
pub mod report;
pub mod run;
pub mod schedule;
pub mod sse;
pub mod stats;
pub mod tokens;
pub mod trace;
pub mod units;
pub mod workload;

pub use disconnect::{DisconnectConfig, DisconnectReport, disconnect};
pub use overhead::{OverheadConfig, OverheadReport, overhead};
pub use report::Report;
pub use run::{Load, RunConfig, RunError, StopHandle, run};
