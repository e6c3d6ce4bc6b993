//! Memory that a connection holds: unsent output, buffers on loan, and the process-wide account of held request bodies.

mod out;
mod quota;
mod spares;

pub use out::{HIGH_WATER, LOW_WATER, OutBuf};
pub use quota::Quota;
pub use spares::Spares;

#[cfg(test)]
mod tests;
