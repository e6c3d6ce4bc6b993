//! Hostile clients and engines against the built `llmgw`, over real sockets.
//!
//! `limits`: what each kind of attack is answered with. `attack`: what a crowd of attackers costs in memory, and what
//! it does to clients that behave. `inject`: nothing that a peer says chooses an address, or gets unescaped into a
//! header, a log line or a metric; `anything`: the same as a property of any text in any place. The harness is that of
//! the end-to-end tests.

mod anything;
mod attack;
#[allow(dead_code)] // the harness serves two sets of tests
#[path = "../e2e/client.rs"]
mod client;
#[allow(dead_code)] // as above
#[path = "../e2e/engine.rs"]
mod engine;
#[allow(dead_code)] // as above
#[path = "../e2e/gateway.rs"]
mod gateway;
mod inject;
mod limits;
mod raw;

use std::time::Duration;

/// How long anything is waited for; far beyond what it takes, so that a busy machine fails no test.
pub const PATIENCE: Duration = Duration::from_secs(20);
