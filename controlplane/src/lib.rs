//! The control plane.
pub mod config;
