//! Counters of a shard: plain relaxed atomics with one writer, merged by the control plane when it is scraped.

use crate::record::Outcome;
use llmgw_routing::Nanos;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A counter with a single writing thread: an addition is a load and a store, no locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds; only the owning shard may.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
    /// Sets; only the owning shard may.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }
    /// Reads, from anywhere.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of histogram buckets, in nanoseconds: 250 us doubling to about 1,049 s; one more for what is above.
pub const BUCKETS: usize = 23;

/// A histogram of durations in powers of two from 250 us.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [Counter; BUCKETS + 1],
    sum_ns: Counter,
}

impl Histogram {
    /// Upper bound of bucket `i` in nanoseconds; `None` is infinity.
    pub fn bound(i: usize) -> Option<Nanos> {
        (i < BUCKETS).then(|| 250_000 << i)
    }

    /// Records a duration.
    pub fn record(&self, ns: Nanos) {
        // Smallest i with ns <= 250_000 << i.
        let steps = ns.saturating_sub(1) / 250_000;
        let i = (64 - steps.leading_zeros()) as usize;
        self.counts[i.min(BUCKETS)].add(1);
        self.sum_ns.add(ns);
    }

    /// Count in bucket `i` (not cumulative).
    pub fn count(&self, i: usize) -> u64 {
        self.counts[i].get()
    }

    /// Sum of all recorded durations, nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns.get()
    }
}

/// Statuses that are counted by name; everything else counts as `other`.
pub const STATUSES: [u16; 22] = [
    200, 204, 400, 401, 403, 404, 405, 408, 409, 413, 414, 415, 417, 422, 429, 431, 499, 500, 501, 502, 503,
    504,
];

/// Requests of one (model, pool) on one shard.
#[derive(Debug, Default)]
pub struct SeriesStats {
    /// By index into [`STATUSES`]; the last is `other`.
    pub requests: [Counter; STATUSES.len() + 1],
    /// By [`Outcome`] order: completed, engine_error, rejected, client_gone, broken, shutdown.
    pub outcomes: [Counter; 6],
    /// Whole life.
    pub duration: Histogram,
    /// Time to first token (first body byte when not streamed).
    pub ttft: Histogram,
    /// Prompt tokens reported by engines.
    pub prompt_tokens: Counter,
    /// Of those, cached.
    pub cached_tokens: Counter,
    /// Completion tokens reported by engines.
    pub completion_tokens: Counter,
}

impl SeriesStats {
    /// Counts a request's status and outcome.
    pub fn count(&self, status: u16, outcome: Outcome) {
        let i = STATUSES.iter().position(|s| *s == status).unwrap_or(STATUSES.len());
        self.requests[i].add(1);
        self.outcomes[outcome as usize].add(1);
    }
}

macro_rules! shard_stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one shard.
        #[derive(Debug, Default)]
        pub struct ShardStats { $($(#[$doc])* pub $name: Counter,)* }
        impl ShardStats {
            /// Every counter with its name, for exposition.
            pub fn each(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

shard_stats! {
    /// Client connections open now.
    connections,
    /// Upstream connections open now, idle ones included.
    upstream_connections,
    /// Upstream connections idle in the pool now.
    upstream_idle,
    /// Request body bytes held now.
    buffered_bytes,
    /// Client connections accepted.
    accepted,
    /// Accepted sockets handed to a less loaded shard.
    handed_over,
    /// Connections refused because the shard was full.
    refused_shard_full,
    /// Connections refused because their address had too many.
    refused_address_full,
    /// Accept failures for want of descriptors or memory.
    accept_failed,
    /// Requests whose head was malformed, too large or too late.
    bad_heads,
    /// Connections opened to engines.
    connects,
    /// Requests sent on a pooled connection.
    reused,
    /// Pooled connections found dead when used and replaced without counting as a try.
    stale_reuse,
    /// Tries after a failure before the request was sent (refused, connect timeout).
    retries_never_sent,
    /// Tries after a failure that followed the request (reset or close before an answer, malformed head).
    retries_sent,
    /// Tries after 503 or 429.
    retries_busy,
    /// Retries refused by the retry budget.
    retry_budget_exhausted,
    /// Upstream timeouts: connect.
    timeout_connect,
    /// Upstream timeouts: first token.
    timeout_first_token,
    /// Upstream timeouts: between tokens.
    timeout_between_tokens,
    /// Upstream timeouts: total.
    timeout_total,
    /// Client timeouts: head, body, and clients that stopped reading.
    timeout_client,
    /// Engine connections closed because the client left.
    cancelled,
    /// Streams cut by their engine after the first byte.
    broken_streams,
    /// Usage chunks withheld from clients that did not ask.
    usage_withheld,
    /// Keep-alive comments sent.
    keep_alive_comments,
    /// Times an engine was paused for a slow client.
    backpressure_pauses,
    /// Bodies that had to wait for memory.
    body_waits,
    /// Settlement records dropped because the control plane was too far behind.
    records_dropped,
    /// Bytes received from clients.
    bytes_in,
    /// Bytes handed to clients.
    bytes_out,
    /// Driver wake-ups.
    wakeups,
    /// Driver events handled.
    events,
}

/// Identifies a (model, pool) pair; 0 stands for requests that never had an endpoint.
pub type SeriesId = u32;

/// Where shards register the series they touch, and the scraper finds them.
#[derive(Debug, Default)]
pub struct SeriesRegistry(Mutex<HashMap<(SeriesId, usize), Arc<SeriesStats>>>);

impl SeriesRegistry {
    /// The stats of a series on a shard; made at first use.
    pub fn get(&self, series: SeriesId, shard: usize) -> Arc<SeriesStats> {
        let mut map = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Arc::clone(map.entry((series, shard)).or_default())
    }

    /// All series, summed by the caller; those for which `keep` is false are forgotten.
    pub fn collect(
        &self,
        mut keep: impl FnMut(SeriesId) -> bool,
    ) -> Vec<(SeriesId, usize, Arc<SeriesStats>)> {
        let mut map = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        map.retain(|(series, _), _| keep(*series));
        map.iter().map(|((series, shard), stats)| (*series, *shard, Arc::clone(stats))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Histogram;

    #[test]
    fn durations_fall_at_or_below_their_bound() {
        for ns in [0, 1, 250_000, 250_001, 500_000, 500_001, 1_000_000, 7_777_777_777, u64::MAX / 2] {
            let histogram = Histogram::default();
            histogram.record(ns);
            let i = (0..=super::BUCKETS).find(|i| histogram.count(*i) == 1).unwrap();
            assert!(Histogram::bound(i).is_none_or(|bound| ns <= bound), "{ns} in bucket {i}");
            assert!(i == 0 || Histogram::bound(i - 1).unwrap() < ns, "{ns} in bucket {i}");
        }
    }
}
