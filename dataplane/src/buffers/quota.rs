//! `limits.buffered_total`: request bodies held by the process.
//!
//! The total is one atomic; a shard takes credit from it in large steps and hands it out locally, so that ordinary
//! small requests never touch the shared line.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Credit is moved between the shard and the process in steps of this many bytes.
const STEP: usize = 256 * 1024;

/// One shard's share of the process's body memory.
#[derive(Debug, Default)]
pub struct Quota {
    credit: usize,
    held: usize,
}

impl Quota {
    /// Bytes held by requests of this shard.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Takes `bytes`; `false` at the bound, with nothing taken.
    pub fn take(&mut self, total: &AtomicUsize, limit: usize, bytes: usize) -> bool {
        if self.credit < bytes {
            let missing = bytes - self.credit;
            // A whole step where it fits, else just what is missing: the last bytes of the limit are usable too.
            let step = missing.max(STEP);
            if !reserve(total, limit, step) {
                if !reserve(total, limit, missing) {
                    return false;
                }
                self.credit += missing;
            } else {
                self.credit += step;
            }
        }
        self.credit -= bytes;
        self.held += bytes;
        true
    }

    /// Gives `bytes` back.
    pub fn give(&mut self, total: &AtomicUsize, bytes: usize) {
        if crate::planted!(BufferNotReleased) {
            return;
        }
        debug_assert!(self.held >= bytes, "more bytes given back than taken");
        self.held -= bytes;
        self.credit += bytes;
        if self.credit > 2 * STEP {
            let excess = self.credit - STEP;
            self.credit = STEP;
            total.fetch_sub(excess, Ordering::Relaxed);
        }
    }

    /// Returns unused credit to the process: at shutdown, and while another shard waits for memory.
    pub fn surrender(&mut self, total: &AtomicUsize) {
        total.fetch_sub(self.credit, Ordering::Relaxed);
        self.credit = 0;
    }
}

fn reserve(total: &AtomicUsize, limit: usize, bytes: usize) -> bool {
    total
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            held.checked_add(bytes).filter(|sum| *sum <= limit)
        })
        .is_ok()
}
