//! Coverage marks: rare branches are named where they are, and the seeded simulation must reach each of them.
//!
//! `crate::mark!(name)` is nothing without the feature `simtest`; with it, it counts in a table of the thread.
//! [`ALL`] lists every name in the crate; a test compares it with the source, so that neither can drift.

/// Every mark in this crate, sorted.
pub const ALL: &[&str] = &[
    "address_full",
    "bad_head",
    "bad_json",
    "bad_request_chunk",
    "bad_upstream_chunk",
    "body_timeout",
    "body_too_large",
    "busy_engine",
    "bytes_after_response",
    "client_fin_aborts",
    "client_fin_allowed",
    "client_hangup_aborts",
    "client_input_paused",
    "client_send_failed",
    "client_short_write",
    "client_stalled",
    "connect_refused",
    "connect_timeout",
    "cors_preflight",
    "cut_answer",
    "drain",
    "drain_cut",
    "early_answer",
    "engine_error",
    "engine_error_event",
    "engine_redirects",
    "error_event",
    "exchange_timeout",
    "expect_continue",
    "handed_over",
    "head_too_large",
    "header_timeout",
    "idle_upstream_closed",
    "interim_head",
    "keep_alive_comment",
    "known_answer",
    "known_request",
    "lost_before_first_byte",
    "malformed_head",
    "model_not_found",
    "no_endpoint",
    "no_terminator",
    "removed_endpoint_closed",
    "retry_budget_exhausted",
    "shard_full",
    "sse_overflow",
    "stale_reuse",
    "stale_token",
    "starved",
    "starved_timeout",
    "stopped_hard",
    "tail_ended_well",
    "tries_exhausted",
    "unexpected_upstream_bytes",
    "unstarved",
    "upstream_head_too_large",
    "upstream_idle_timeout",
    "upstream_paused",
    "upstream_resumed",
    "upstream_send_failed",
    "upstream_short_write",
    "upstream_tail",
    "usage_withheld",
];

/// Notes that this branch was taken (feature `simtest`; nothing without it).
#[cfg(feature = "simtest")]
#[macro_export]
macro_rules! mark {
    ($name:ident) => {
        $crate::marks::hit(stringify!($name))
    };
}

/// Notes that this branch was taken (feature `simtest`; nothing without it).
#[cfg(not(feature = "simtest"))]
#[macro_export]
macro_rules! mark {
    ($name:ident) => {
        ()
    };
}

#[cfg(feature = "simtest")]
pub use table::{hit, hits, reset};

#[cfg(feature = "simtest")]
mod table {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    thread_local! {
        static HITS: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
    }

    /// Counts a hit of `name` on this thread.
    pub fn hit(name: &'static str) {
        HITS.with_borrow_mut(|hits| *hits.entry(name).or_default() += 1);
    }

    /// Hits on this thread since the last [`reset`].
    pub fn hits() -> BTreeMap<&'static str, u64> {
        HITS.with_borrow(Clone::clone)
    }

    /// Forgets this thread's hits.
    pub fn reset() {
        HITS.with_borrow_mut(BTreeMap::clear);
    }
}
