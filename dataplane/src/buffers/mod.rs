//! Memory that a connection holds: unsent output, and the process-wide account of held request bodies.

mod out;
mod quota;

pub use out::{HIGH_WATER, LOW_WATER, OutBuf};
pub use quota::Quota;

#[cfg(test)]
mod tests;
