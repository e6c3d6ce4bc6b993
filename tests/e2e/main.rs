//! End-to-end tests: the built `llmgw` over real sockets, between raw clients and engines of this process.
//!
//! No test waits for time to pass: each waits for what it is about (bytes on a socket, a line of the log, a metric),
//! and fails when that does not come within [`PATIENCE`].

mod admin;
mod client;
mod ctl;
mod engine;
mod errors;
mod failover;
mod fleet;
mod gateway;
mod http;
mod lifecycle;
mod limits;
mod pool;
mod registry;
mod reload;
mod routes;
mod start;
mod streams;

use std::time::Duration;

/// How long anything is waited for; far beyond what it takes, so that a busy machine fails no test.
pub const PATIENCE: Duration = Duration::from_secs(20);
