//! The conformance suite over the ring, and what is peculiar to it.

mod conformance;
