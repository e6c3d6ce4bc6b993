//! How many retries after 503 and 429 are allowed, over all shards.
//!
//! Every request earns a fraction of a retry, every retry spends one. Savings are bounded by [`SAVINGS_MAX`] retries,
//! so a quiet hour does not pay for a storm. Besides, [`FLOOR_PER_SECOND`] retries a second are always allowed, so
//! that a small fleet is never without. Retries that the floor allows spend savings too, and the other way round: in
//! the long run retries are at most the larger of the two, not their sum.
//!
//! **Invariant:** connection-level failures never ask this budget; their bound is the endpoint's cooldown.

use crate::{Nanos, SECOND};
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(test)]
mod tests;

/// Most retries that can be saved up.
pub const SAVINGS_MAX: u64 = 100;
/// Retries a second that are always allowed.
pub const FLOOR_PER_SECOND: u64 = 3;

/// One retry in the fixed-point unit of the balance.
const ONE: u64 = 1 << 32;
/// Time after which the floor allows one more.
const FLOOR_STEP: Nanos = SECOND / FLOOR_PER_SECOND;
/// How far the floor may be drawn on at once: [`FLOOR_PER_SECOND`] retries.
const FLOOR_BURST: Nanos = FLOOR_STEP * (FLOOR_PER_SECOND - 1);

/// The budget, shared by all shards. Lock-free; while no retries happen, requests only read it.
#[derive(Debug)]
pub struct RetryBudget {
    /// Saved retries, in units of 1/[`ONE`].
    balance: CachePadded<AtomicU64>,
    /// When the floor will be back at its full allowance.
    floor_full_at: CachePadded<AtomicU64>,
    /// What a request earns, in units of 1/[`ONE`].
    earn: AtomicU64,
}

impl RetryBudget {
    /// Retries may be `ratio` (0 to 1) of requests. Starts without savings.
    pub fn new(ratio: f64) -> Self {
        RetryBudget {
            balance: CachePadded::new(AtomicU64::new(0)),
            floor_full_at: CachePadded::new(AtomicU64::new(0)),
            earn: AtomicU64::new(fixed(ratio)),
        }
    }

    /// Changes the ratio; savings stay.
    pub fn set_ratio(&self, ratio: f64) {
        self.earn.store(fixed(ratio), Ordering::Relaxed);
    }

    /// A request (not a retry) was sent to an engine.
    pub fn record_request(&self) {
        let earn = self.earn.load(Ordering::Relaxed);
        // No change once the savings are full: then nothing is written, and no line moves between cores.
        let _ = self.balance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |balance| {
            let more = (balance + earn).min(SAVINGS_MAX * ONE);
            (more != balance).then_some(more)
        });
    }

    /// Whether a retry after 503 or 429 may happen at `now`; if so it is counted.
    pub fn try_withdraw(&self, now: Nanos) -> bool {
        let paid = self
            .balance
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |balance| balance.checked_sub(ONE))
            .is_ok();
        let within_floor = self
            .floor_full_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
                (full_at.saturating_sub(now) <= FLOOR_BURST).then(|| full_at.max(now) + FLOOR_STEP)
            })
            .is_ok();
        if within_floor && !paid {
            // Less than one retry is saved: the floor's retry takes what there is.
            self.balance.store(0, Ordering::Relaxed);
        }
        paid || within_floor
    }
}

fn fixed(ratio: f64) -> u64 {
    let ratio = if ratio.is_finite() { ratio.clamp(0.0, 1.0) } else { 0.0 };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // within 0..=ONE by the clamp
    // Rounded up: five requests at 0.2 earn a whole retry.
    let fixed = (ratio * ONE as f64).ceil() as u64;
    fixed
}
