//! Latency histograms, their summaries, and errors counted by kind.
//!
//! Values are nanoseconds in HDR histograms of three significant digits, so a summary is within 0.1% of the truth and
//! a recorder's size does not depend on how much it saw.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::checker::Violation;

/// Longest latency told apart: one hour. Longer ones count as this.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// A histogram of nanoseconds.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3);
        Latencies(histogram.unwrap_or_else(|e| unreachable!("constant bounds are valid: {e}")))
    }
}

impl Latencies {
    /// Counts one value.
    pub fn record(&mut self, value_ns: u64) {
        self.0.saturating_record(value_ns);
    }

    /// Adds all of another's values.
    pub fn merge(&mut self, other: &Latencies) {
        self.0.add(&other.0).unwrap_or_else(|e| unreachable!("same bounds: {e}"));
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The value at a quantile of 0..=1, in nanoseconds; 0 when empty.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.value_at_quantile(quantile) }
    }

    /// Forgets all values.
    pub fn reset(&mut self) {
        self.0.reset();
    }

    /// The percentiles people read.
    pub fn summary(&self) -> Summary {
        if self.0.is_empty() {
            return Summary::default();
        }
        let ms = |ns: u64| Micros(ns).ms();
        Summary {
            count: self.0.len(),
            mean_ms: (self.0.mean() / 1e3).round() / 1e3,
            min_ms: ms(self.0.min()),
            p50_ms: ms(self.quantile_ns(0.5)),
            p90_ms: ms(self.quantile_ns(0.9)),
            p95_ms: ms(self.quantile_ns(0.95)),
            p99_ms: ms(self.quantile_ns(0.99)),
            p999_ms: ms(self.quantile_ns(0.999)),
            max_ms: ms(self.0.max()),
        }
    }
}

/// Nanoseconds shown as milliseconds with three decimals.
struct Micros(u64);

impl Micros {
    #[allow(clippy::cast_precision_loss)] // below an hour in microseconds: exact in f64
    fn ms(&self) -> f64 {
        (self.0.saturating_add(500) / 1_000) as f64 / 1e3
    }
}

/// Percentiles of one measured quantity, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Summary {
    pub count: u64,
    pub mean_ms: f64,
    pub min_ms: f64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
}

/// The middle of several measurements and how far they spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Spread {
    pub min: f64,
    pub q1: f64,
    pub median: f64,
    pub q3: f64,
    pub max: f64,
}

impl Spread {
    /// Quartiles by linear interpolation between ranks (the method of R's default and NumPy's); zeros when empty.
    pub fn of(values: &[f64]) -> Spread {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| interpolate(&sorted, share);
        Spread { min: at(0.0), q1: at(0.25), median: at(0.5), q3: at(0.75), max: at(1.0) }
    }
}

#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // ranks are small
fn interpolate(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let rank = share * last as f64;
    let below = (rank.floor() as usize).min(last);
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (rank - below as f64)
}

/// Why a request did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// No connection: refused, unreachable, or out of descriptors.
    Connect,
    /// The request took longer than the limit.
    Timeout,
    /// The connection ended before the head of the answer.
    ClosedBeforeHead,
    /// The connection ended inside the body.
    ClosedInBody,
    /// The answer was not valid HTTP/1.1.
    Malformed,
    /// An answer that is not 2xx.
    Status(u16),
    /// The stream carried an error event.
    ErrorEvent,
    /// The answer's content failed a check.
    Check(Violation),
    /// Still running when the run ended and its drain time had passed.
    Unfinished,
}

impl Failure {
    /// Whether the answer itself was wrong, as opposed to absent.
    pub fn is_check(self) -> bool {
        matches!(self, Failure::Check(_))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Connect => f.write_str("connect"),
            Failure::Timeout => f.write_str("timeout"),
            Failure::ClosedBeforeHead => f.write_str("closed_before_head"),
            Failure::ClosedInBody => f.write_str("closed_in_body"),
            Failure::Malformed => f.write_str("malformed_http"),
            Failure::Status(code) => write!(f, "status_{code}"),
            Failure::ErrorEvent => f.write_str("error_event"),
            Failure::Check(violation) => violation.fmt(f),
            Failure::Unfinished => f.write_str("unfinished"),
        }
    }
}

/// Failures by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures(BTreeMap<Failure, u64>);

impl Failures {
    /// Counts one.
    pub fn add(&mut self, failure: Failure) {
        self.add_many(failure, 1);
    }

    /// Counts several of a kind.
    pub fn add_many(&mut self, failure: Failure, count: u64) {
        if count > 0 {
            *self.0.entry(failure).or_default() += count;
        }
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Failures) {
        for (&failure, &count) in &other.0 {
            self.add_many(failure, count);
        }
    }

    /// All failures.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Failed checks: lost, repeated or foreign tokens, missing terminators and the like.
    pub fn checks(&self) -> u64 {
        self.0.iter().filter(|(failure, _)| failure.is_check()).map(|(_, count)| count).sum()
    }

    /// The failed checks alone.
    pub fn only_checks(&self) -> Failures {
        Failures(self.0.iter().filter(|(failure, _)| failure.is_check()).map(|(&f, &c)| (f, c)).collect())
    }

    /// How many of one kind.
    pub fn count(&self, failure: Failure) -> u64 {
        self.0.get(&failure).copied().unwrap_or(0)
    }

    /// Kinds by name.
    pub fn by_name(&self) -> BTreeMap<String, u64> {
        self.0.iter().map(|(failure, &count)| (failure.to_string(), count)).collect()
    }
}

#[cfg(test)]
mod tests;
