//! The two clocks of a driver, read once a wake-up.
//!
//! The monotonic clock is read at every [`Clock::tick`]; Unix time is that reading plus an offset, which is measured
//! again every [`WALL_REFRESH_NS`], so that a step of the system clock is seen soon and costs no second
//! reading each time.

use llmgw_routing::{MILLISECOND, Nanos, SECOND};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// How old the offset between the two clocks may be.
const WALL_REFRESH_NS: Nanos = 100 * MILLISECOND;

/// Monotonic time in nanoseconds since the kernel's own origin (`CLOCK_MONOTONIC`). The only reading of that clock in
/// the data plane.
pub fn monotonic_ns() -> Nanos {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// Unix time in nanoseconds (`CLOCK_REALTIME`).
pub fn wall_ns() -> u64 {
    nanos(clock_gettime(ClockId::Realtime))
}

/// A reading of both clocks that stands still between two ticks.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    now: Nanos,
    /// Unix time less monotonic time. Wraps: the origin of the monotonic clock is arbitrary.
    offset: u64,
    offset_read_at: Nanos,
}

impl Clock {
    /// Reads both clocks.
    pub fn new() -> Self {
        let now = monotonic_ns();
        Clock { now, offset: wall_ns().wrapping_sub(now), offset_read_at: now }
    }

    /// Reads the monotonic clock, and the other if the offset is old.
    pub fn tick(&mut self) {
        self.now = monotonic_ns();
        if self.now.saturating_sub(self.offset_read_at) >= WALL_REFRESH_NS {
            self.offset = wall_ns().wrapping_sub(self.now);
            self.offset_read_at = self.now;
        }
    }

    /// Monotonic time of the last tick.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Unix time in nanoseconds of the last tick.
    pub fn wall(&self) -> u64 {
        self.now.wrapping_add(self.offset)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// Times before the epoch and beyond the year 2554 do not occur: they read as 0 and as the last second.
fn nanos(t: Timespec) -> u64 {
    let seconds = u64::try_from(t.tv_sec).unwrap_or(0);
    seconds.saturating_mul(SECOND).saturating_add(u64::try_from(t.tv_nsec).unwrap_or(0))
}
