//! The control plane: decides what the world looks like, and tells the shards and the operator.
//!
//! It reads the configuration, publishes snapshots of it, probes endpoints that failed, serves `/healthz`, `/readyz`
//! and `/metrics`, and writes the log. It runs on threads of its own.
//!
//! **Invariant:** nothing here is on the path of a request. Shards read what was published last; if the control plane
//! stands still, requests go on and only metrics grow old.

pub mod admin;
pub mod config;
pub mod expo;
pub mod fleet;
pub mod health;
pub mod listener;
pub mod logs;
pub mod metrics;
pub mod plane;
pub mod probe;
pub mod process;
pub mod publisher;
pub mod refresh;
pub mod registry;
pub mod runtime;

#[cfg(test)]
mod fixture;
