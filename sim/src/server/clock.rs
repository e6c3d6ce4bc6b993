//! The one place that reads the machine's clocks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::model::Nanos;

/// Time since the engine's start.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    unix_origin: Duration,
}

impl Clock {
    /// Starts at zero.
    #[allow(clippy::disallowed_methods)] // the engine is a program of its own: this is where its time comes from
    pub fn start() -> Self {
        let unix_origin = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { origin: Instant::now(), unix_origin }
    }

    /// Nanoseconds since the start.
    pub fn now(&self) -> Nanos {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The instant of a time.
    pub fn instant(&self, at: Nanos) -> Instant {
        self.origin + Duration::from_nanos(at)
    }

    /// Wall clock of a time, in seconds.
    pub fn unix_s(&self, at: Nanos) -> u64 {
        (self.unix_origin + Duration::from_nanos(at)).as_secs()
    }

    /// Wall clock of a time, in microseconds.
    pub fn unix_us(&self, at: Nanos) -> u64 {
        u64::try_from((self.unix_origin + Duration::from_nanos(at)).as_micros()).unwrap_or(u64::MAX)
    }
}
