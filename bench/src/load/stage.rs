//! What one slice of a run counts, and when its requests are due.

use std::collections::VecDeque;

/// How requests are made.
#[derive(Debug, Clone, Copy, Default)]
pub enum Mode {
    /// None; answers under way are awaited.
    #[default]
    Off,
    /// The next one as soon as an answer is complete.
    Closed,
    /// At random times with this mean distance, whatever was answered.
    Paced {
        /// Nanoseconds.
        mean_ns: f64,
    },
}

/// Counts of one slice.
#[derive(Default)]
pub struct Stage {
    /// The gateway measured.
    pub target: usize,
    /// How requests are made.
    pub mode: Mode,
    /// Answers completed.
    pub answers: u64,
    /// Bytes received by clients of any target.
    pub bytes: u64,
    /// Events received by clients of any target.
    pub events: u64,
    /// Time of the last answer.
    pub last_ns: u64,
    /// From when a request was due to its answer; paced slices only.
    pub latencies_ns: Vec<u64>,
    /// Connections without a request.
    pub idle: Vec<usize>,
    /// Requests that are due and found no connection.
    pub late: VecDeque<u64>,
    /// Things that went wrong.
    pub failures: u64,
    /// The first of them.
    pub failure: Option<String>,
    next_ns: u64,
}

impl Stage {
    /// Starts a slice over `idle` connections.
    pub fn start(&mut self, target: usize, mode: Mode, idle: &[usize], now: u64) {
        self.target = target;
        self.mode = mode;
        (self.answers, self.bytes, self.events, self.last_ns, self.next_ns) = (0, 0, 0, now, now);
        self.latencies_ns.clear();
        self.late.clear();
        self.idle.clear();
        self.idle.extend_from_slice(idle);
    }

    /// No further requests.
    pub fn stop(&mut self) {
        self.mode = Mode::Off;
        self.late.clear();
    }

    /// An answer is complete.
    pub fn done(&mut self, now: u64, since: u64) {
        self.answers += 1;
        self.last_ns = now;
        if matches!(self.mode, Mode::Paced { .. }) {
            self.latencies_ns.push(now.saturating_sub(since));
        }
    }

    /// The next request's time, if it has come.
    pub fn due(&mut self, now: u64) -> Option<u64> {
        let Mode::Paced { mean_ns } = self.mode else { return None };
        if self.next_ns > now {
            return None;
        }
        let due = self.next_ns;
        self.next_ns += gap(mean_ns);
        Some(due)
    }

    /// Something went wrong.
    pub fn fail(&mut self, what: &str) {
        self.failures += 1;
        self.failure.get_or_insert_with(|| what.to_owned());
    }
}

/// An exponentially distributed distance in nanoseconds.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // finite and positive
pub fn gap(mean_ns: f64) -> u64 {
    (-(1.0 - fastrand::f64()).ln() * mean_ns) as u64
}

/// The value below which a share of `sorted` lies.
pub fn quantile(sorted: &[u64], share: f64) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    // few values
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}
