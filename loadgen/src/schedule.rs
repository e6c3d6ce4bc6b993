//! When requests are due: the open loop's arrival times, computed from a seed alone.
//!
//! A due time never depends on how the server answers, which is what keeps coordinated omission out: latency is counted
//! from the due time even if the request left late.

use std::time::Duration;

/// How arrivals are spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Evenly.
    Constant,
    /// Independently of each other, as users do: exponential gaps.
    Poisson,
}

impl std::str::FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "constant" => Ok(Arrivals::Constant),
            "poisson" => Ok(Arrivals::Poisson),
            _ => Err(format!("`{text}` is no arrival process: use constant or poisson")),
        }
    }
}

/// Due times of one worker's share of the arrivals, as offsets from the start, never decreasing.
#[derive(Clone, Debug)]
pub struct Schedule {
    arrivals: Arrivals,
    rate: f64,
    rng: fastrand::Rng,
    next_index: u64,
    stride: u64,
    clock_s: f64,
}

impl Schedule {
    /// The arrivals of worker `worker` of `workers` that together make `rate` requests a second.
    pub fn new(arrivals: Arrivals, rate: f64, worker: u64, workers: u64, seed: u64) -> Schedule {
        let rng = fastrand::Rng::with_seed(seed ^ worker.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        // Independent Poisson streams superpose to one of the summed rate; even spacing is dealt out in turn.
        #[allow(clippy::cast_precision_loss)] // a few workers
        let rate = if arrivals == Arrivals::Poisson { rate / workers as f64 } else { rate };
        Schedule { arrivals, rate, rng, next_index: worker, stride: workers, clock_s: 0.0 }
    }
}

impl Iterator for Schedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        match self.arrivals {
            Arrivals::Constant => {
                // From the index each time: adding gaps up would drift.
                #[allow(clippy::cast_precision_loss)] // exact below 2^53 requests
                let at = self.next_index as f64 / self.rate;
                self.next_index += self.stride;
                Duration::try_from_secs_f64(at).ok()
            }
            Arrivals::Poisson => {
                // 1 - u lies in (0, 1], so the logarithm is finite.
                self.clock_s += -(1.0 - self.rng.f64()).ln() / self.rate;
                Duration::try_from_secs_f64(self.clock_s).ok()
            }
        }
    }
}

#[cfg(test)]
mod tests;
