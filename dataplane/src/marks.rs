//! Coverage marks: rare branches are named where they are, and the seeded simulation must reach each of them.
//!
//! `crate::mark!(name)` is nothing without the feature `simtest`; with it, it counts in a table of the thread.
//! [`ALL`] lists every name in the crate; a test compares it with the source, so that neither can drift.

/// Every mark in this crate, sorted.
pub const ALL: &[&str] = &["client_short_write", "stale_token"];

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
