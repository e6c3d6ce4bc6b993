//! The progress bar, and the counters it shows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::stats::Failure;

/// Counters that workers add to and the bar reads.
#[derive(Debug, Default)]
pub struct Tally {
    done: AtomicU64,
    failed: AtomicU64,
}

impl Tally {
    /// Counts one request.
    pub fn count(&self, failure: Option<Failure>) {
        self.done.fetch_add(1, Ordering::Relaxed);
        if failure.is_some() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A bar on standard error if that is a terminal, else nothing.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    bounded: bool,
}

impl Progress {
    /// A bar over `length`, or a count of requests where the length is not known.
    pub fn new(wanted: bool, length: Option<Duration>) -> Progress {
        if !wanted {
            return Progress { bar: ProgressBar::hidden(), bounded: false };
        }
        let bar = match length {
            Some(length) => ProgressBar::new(millis(length)),
            None => ProgressBar::new_spinner(),
        };
        let template =
            if length.is_some() { "{wide_bar} {percent}% {msg}" } else { "{spinner} {elapsed} {msg}" };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress { bar, bounded: length.is_some() }
    }

    /// Redraws.
    pub fn show(&self, tally: &Tally, elapsed: Duration) {
        if self.bounded {
            self.bar.set_position(millis(elapsed));
        } else {
            self.bar.tick();
        }
        let done = tally.done.load(Ordering::Relaxed);
        let failed = tally.failed.load(Ordering::Relaxed);
        self.bar.set_message(format!("{done} done, {failed} failed"));
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
