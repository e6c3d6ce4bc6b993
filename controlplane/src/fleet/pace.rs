//! How often changes of membership are published.
//!
//! A snapshot costs more the more workers it has, so each publication is paid for with time that grows with them. A few
//! may come at once: a worker that joins a quiet fleet is routed before its heartbeat is answered.

use llmgw_routing::Nanos;

/// Publications that may follow each other without a pause.
const BURST: u64 = 8;
/// Pause for each publication beyond: so much, and so much for each worker.
const BASE: Nanos = 2_000_000;
const EACH: Nanos = 40_000;

/// A token bucket whose refill depends on the fleet's size.
#[derive(Debug)]
pub struct Pace {
    tokens: u64,
    refilled: Nanos,
}

impl Pace {
    /// Full.
    pub fn new(now: Nanos) -> Self {
        Pace { tokens: BURST, refilled: now }
    }

    /// Takes one publication of a fleet of this size; `Err` is when the next is allowed.
    pub fn take(&mut self, now: Nanos, workers: usize) -> Result<(), Nanos> {
        let gap = BASE + EACH.saturating_mul(workers as u64);
        let earned = now.saturating_sub(self.refilled) / gap;
        if self.tokens + earned >= BURST {
            (self.tokens, self.refilled) = (BURST, now.max(self.refilled));
        } else {
            self.tokens += earned;
            self.refilled += earned * gap;
        }
        if self.tokens == 0 {
            return Err(self.refilled + gap);
        }
        self.tokens -= 1;
        Ok(())
    }
}
