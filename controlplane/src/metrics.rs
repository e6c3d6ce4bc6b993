//! `/metrics`: the shards' counters, merged when asked for, and the control plane's own.
//!
//! **Invariant:** label sets are bounded: models, pools and replicas are those of the published snapshot, of which
//! there are at most the endpoints of the configuration and the workers registered now; everything else is a fixed
//! word. A series whose endpoints are gone is forgotten at the next scrape.

use crate::expo::{Exposition, Kind};
use crate::plane::DataPlane;
use crate::process::Readings;
use llmgw_dataplane::metrics::{BUCKETS, Histogram, STATUSES, SeriesStats, ShardStats};
use llmgw_dataplane::record::Outcome;
use llmgw_routing::load::Health;
use llmgw_routing::snapshot::Snapshot;
use llmgw_routing::{Nanos, SECOND};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(test)]
mod tests;

/// Counters of the control plane.
#[derive(Debug, Default)]
pub struct OwnStats {
    /// Reloads that were taken.
    pub reloads: AtomicU64,
    /// Reloads that were refused.
    pub reloads_refused: AtomicU64,
    /// The last reload was refused.
    pub last_reload_refused: AtomicBool,
    /// Unix seconds of the last configuration taken.
    pub configured_at: AtomicU64,
    /// Probes by outcome: up, unwell, unreachable.
    pub probes: [AtomicU64; 3],
    /// Access lines that could not be written.
    pub access_lines_lost: AtomicU64,
    /// Heartbeats that were taken.
    pub heartbeats: AtomicU64,
    /// Heartbeats that were refused.
    pub heartbeats_refused: AtomicU64,
    /// Workers registered now.
    pub workers: AtomicU64,
    /// Workers that lost their place for want of heartbeats.
    pub workers_evicted: AtomicU64,
    /// Connections of workers open now.
    pub registry_connections: AtomicU64,
    /// Connections of workers closed at the bound.
    pub registry_refused: AtomicU64,
    /// No new work is taken: the process is about to end.
    pub draining: AtomicBool,
    /// Requests of the admin API.
    pub admin_requests: RequestCounts,
}

/// Requests by route and status. Routes are fixed words and statuses those that the code answers, so it stays small.
#[derive(Debug, Default)]
pub struct RequestCounts(Mutex<BTreeMap<(&'static str, u16), u64>>);

impl RequestCounts {
    /// Counts a request.
    pub fn count(&self, route: &'static str, status: u16) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((route, status)).or_default() += 1;
    }

    fn all(&self) -> BTreeMap<(&'static str, u16), u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Outcomes in the order of [`SeriesStats::outcomes`].
const OUTCOMES: [Outcome; 6] = [
    Outcome::Completed,
    Outcome::EngineError,
    Outcome::Rejected,
    Outcome::ClientGone,
    Outcome::Broken,
    Outcome::Shutdown,
];

/// A family made of shard counters: name, kind, help, and for each counter its labels.
type ShardFamily =
    (&'static str, Kind, &'static str, &'static [(&'static str, &'static [(&'static str, &'static str)])]);

/// Where each of the shards' counters is shown. One that is missing here is shown under its own name.
const SHARD_FAMILIES: &[ShardFamily] = &[
    (
        "llmgw_connections",
        Kind::Gauge,
        "Connections open now.",
        &[("connections", &[("side", "client")]), ("upstream_connections", &[("side", "upstream")])],
    ),
    (
        "llmgw_upstream_idle_connections",
        Kind::Gauge,
        "Engine connections idle in the pools.",
        &[("upstream_idle", &[])],
    ),
    ("llmgw_buffered_bytes", Kind::Gauge, "Request body bytes held now.", &[("buffered_bytes", &[])]),
    ("llmgw_connections_accepted_total", Kind::Counter, "Client connections accepted.", &[("accepted", &[])]),
    (
        "llmgw_connections_handed_over_total",
        Kind::Counter,
        "Accepted sockets handed to a less loaded shard.",
        &[("handed_over", &[])],
    ),
    (
        "llmgw_connections_refused_total",
        Kind::Counter,
        "Client connections refused.",
        &[
            ("refused_shard_full", &[("reason", "shard_full")]),
            ("refused_address_full", &[("reason", "address_full")]),
            ("accept_failed", &[("reason", "accept_failed")]),
        ],
    ),
    (
        "llmgw_bad_heads_total",
        Kind::Counter,
        "Request heads that were malformed, too large or too late.",
        &[("bad_heads", &[])],
    ),
    ("llmgw_upstream_connects_total", Kind::Counter, "Connections opened to engines.", &[("connects", &[])]),
    (
        "llmgw_upstream_reused_total",
        Kind::Counter,
        "Requests sent on a pooled connection.",
        &[("reused", &[])],
    ),
    (
        "llmgw_upstream_stale_total",
        Kind::Counter,
        "Pooled connections found dead when used.",
        &[("stale_reuse", &[])],
    ),
    (
        "llmgw_retries_total",
        Kind::Counter,
        "Further tries, by what went before.",
        &[
            ("retries_never_sent", &[("kind", "never_sent")]),
            ("retries_sent", &[("kind", "sent")]),
            ("retries_busy", &[("kind", "busy")]),
        ],
    ),
    (
        "llmgw_retry_budget_exhausted_total",
        Kind::Counter,
        "Retries that the retry budget refused.",
        &[("retry_budget_exhausted", &[])],
    ),
    (
        "llmgw_timeouts_total",
        Kind::Counter,
        "Timeouts by phase.",
        &[
            ("timeout_connect", &[("phase", "connect")]),
            ("timeout_first_token", &[("phase", "first_token")]),
            ("timeout_between_tokens", &[("phase", "between_tokens")]),
            ("timeout_total", &[("phase", "total")]),
            ("timeout_client", &[("phase", "client")]),
        ],
    ),
    (
        "llmgw_cancelled_total",
        Kind::Counter,
        "Engine requests ended because the client left.",
        &[("cancelled", &[])],
    ),
    (
        "llmgw_broken_streams_total",
        Kind::Counter,
        "Streams cut by their engine after the first byte.",
        &[("broken_streams", &[])],
    ),
    (
        "llmgw_usage_withheld_total",
        Kind::Counter,
        "Usage chunks withheld from clients that did not ask.",
        &[("usage_withheld", &[])],
    ),
    (
        "llmgw_keep_alive_comments_total",
        Kind::Counter,
        "Keep-alive comments sent.",
        &[("keep_alive_comments", &[])],
    ),
    (
        "llmgw_backpressure_pauses_total",
        Kind::Counter,
        "Times an engine was paused for a slow client.",
        &[("backpressure_pauses", &[])],
    ),
    (
        "llmgw_body_waits_total",
        Kind::Counter,
        "Request bodies that had to wait for memory.",
        &[("body_waits", &[])],
    ),
    (
        "llmgw_records_dropped_total",
        Kind::Counter,
        "Settlement records lost because the log was too slow.",
        &[("records_dropped", &[])],
    ),
    (
        "llmgw_client_bytes_total",
        Kind::Counter,
        "Bytes exchanged with clients.",
        &[("bytes_in", &[("direction", "in")]), ("bytes_out", &[("direction", "out")])],
    ),
    ("llmgw_shard_wakeups_total", Kind::Counter, "Driver wake-ups.", &[("wakeups", &[])]),
    ("llmgw_shard_events_total", Kind::Counter, "Driver events handled.", &[("events", &[])]),
];

/// The whole text.
pub fn render(plane: &dyn DataPlane, own: &OwnStats, process: &Readings, now: Nanos) -> String {
    let mut out = Exposition::default();
    let snapshot = plane.snapshot();
    requests(&mut out, plane, &snapshot);
    endpoints(&mut out, plane, &snapshot, now);
    shards(&mut out, plane);
    control(&mut out, plane, &snapshot, own);
    registry(&mut out, own);
    process_metrics(&mut out, process);
    out.into_text()
}

/// Counters of a (model, pool), summed over shards.
struct Merged {
    model: String,
    pool: String,
    shards: Vec<Arc<SeriesStats>>,
}

impl Merged {
    fn labels(&self) -> [(&str, &str); 2] {
        [("model", &self.model), ("pool", &self.pool)]
    }
    fn sum(&self, of: impl Fn(&SeriesStats) -> u64) -> u64 {
        self.shards.iter().map(|stats| of(stats)).sum()
    }
}

fn merged(plane: &dyn DataPlane, snapshot: &Snapshot) -> Vec<Merged> {
    // 0 stands for requests that never had an endpoint; its labels are empty.
    let mut names: HashMap<u32, (&str, &str)> = HashMap::from([(0, ("", ""))]);
    for endpoint in &snapshot.endpoints {
        names.insert(endpoint.series, (&endpoint.served_model, &endpoint.pool));
    }
    let mut merged: BTreeMap<(&str, &str), Vec<Arc<SeriesStats>>> = BTreeMap::new();
    for (series, _, stats) in plane.series().collect(|series| names.contains_key(&series)) {
        if let Some(name) = names.get(&series) {
            merged.entry(*name).or_default().push(stats);
        }
    }
    let named = |((model, pool), shards): ((&str, &str), _)| Merged {
        model: model.into(),
        pool: pool.into(),
        shards,
    };
    merged.into_iter().map(named).collect()
}

fn requests(out: &mut Exposition, plane: &dyn DataPlane, snapshot: &Snapshot) {
    let merged = merged(plane, snapshot);
    let name = "llmgw_requests_total";
    out.family(name, Kind::Counter, "Settled requests by status.");
    for series in &merged {
        for i in 0..=STATUSES.len() {
            let count = series.sum(|stats| stats.requests[i].get());
            let status = STATUSES.get(i).map_or("other".to_owned(), ToString::to_string);
            let [model, pool] = series.labels();
            if count > 0 {
                out.sample(name, &[model, pool, ("status", &status)], count);
            }
        }
    }
    let name = "llmgw_request_outcomes_total";
    out.family(name, Kind::Counter, "Settled requests by outcome.");
    for series in &merged {
        for (i, outcome) in OUTCOMES.iter().enumerate() {
            let count = series.sum(|stats| stats.outcomes[i].get());
            let [model, pool] = series.labels();
            if count > 0 {
                out.sample(name, &[model, pool, ("outcome", outcome.name())], count);
            }
        }
    }
    histogram(out, "llmgw_request_duration_seconds", "Whole life of requests.", &merged, |stats| {
        &stats.duration
    });
    histogram(out, "llmgw_ttft_seconds", "Time to the first token.", &merged, |stats| &stats.ttft);
    tokens(out, &merged);
}

fn histogram(
    out: &mut Exposition,
    name: &str,
    help: &str,
    merged: &[Merged],
    of: impl Fn(&SeriesStats) -> &Histogram,
) {
    out.family(name, Kind::Histogram, help);
    for series in merged {
        let mut total = 0;
        let mut buckets = Vec::with_capacity(BUCKETS);
        for i in 0..=BUCKETS {
            total += series.sum(|stats| of(stats).count(i));
            if let Some(bound) = Histogram::bound(i) {
                buckets.push((seconds(bound), total));
            }
        }
        let sum = series.sum(|stats| of(stats).sum_ns());
        out.histogram(name, &series.labels(), buckets.into_iter(), total, seconds(sum));
    }
}

fn tokens(out: &mut Exposition, merged: &[Merged]) {
    let mut by_model: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    for series in merged.iter().filter(|series| !series.model.is_empty()) {
        let sums = by_model.entry(&series.model).or_default();
        sums[0] += series.sum(|stats| stats.prompt_tokens.get());
        sums[1] += series.sum(|stats| stats.completion_tokens.get());
        sums[2] += series.sum(|stats| stats.cached_tokens.get());
    }
    let name = "llmgw_tokens_total";
    out.family(name, Kind::Counter, "Tokens reported by engines.");
    for (model, [prompt, completion, _]) in &by_model {
        out.sample(name, &[("model", model), ("direction", "prompt")], prompt);
        out.sample(name, &[("model", model), ("direction", "completion")], completion);
    }
    let name = "llmgw_cached_tokens_total";
    out.family(name, Kind::Counter, "Prompt tokens that engines took from their prefix caches.");
    for (model, [_, _, cached]) in &by_model {
        out.sample(name, &[("model", model)], cached);
    }
}

fn endpoints(out: &mut Exposition, plane: &dyn DataPlane, snapshot: &Snapshot, now: Nanos) {
    let loads = plane.loads();
    let name = "llmgw_endpoint_inflight";
    out.family(name, Kind::Gauge, "Requests in flight.");
    for endpoint in &snapshot.endpoints {
        out.sample(name, &[("replica", &endpoint.id)], loads.inflight(endpoint.slot.index()));
    }
    let name = "llmgw_endpoint_queue_depth";
    out.family(name, Kind::Gauge, "Requests admitted by the engine and not yet running, as it reports.");
    for endpoint in &snapshot.endpoints {
        out.sample(name, &[("replica", &endpoint.id)], loads.queue_depth(endpoint.slot.index()));
    }
    let health: Vec<Health> = snapshot.endpoints.iter().map(|e| loads.health(e.slot.index(), now)).collect();
    let name = "llmgw_endpoint_health";
    out.family(name, Kind::Gauge, "1 in the endpoint's state, 0 in others.");
    for (endpoint, health) in snapshot.endpoints.iter().zip(&health) {
        for state in STATES {
            let is = u8::from(state_name(*health) == state);
            out.sample(name, &[("replica", &endpoint.id), ("state", state)], is);
        }
    }
    let name = "llmgw_endpoint_cooldown_seconds";
    out.family(name, Kind::Gauge, "Time left until the endpoint is tried again.");
    for (endpoint, health) in snapshot.endpoints.iter().zip(&health) {
        let left = match health {
            Health::Ready | Health::Draining => 0,
            Health::Busy { until } | Health::Failed { until } => until.saturating_sub(now),
        };
        out.sample(name, &[("replica", &endpoint.id)], seconds(left));
    }
    let mut replicas: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for (endpoint, health) in snapshot.endpoints.iter().zip(&health) {
        for state in STATES {
            *replicas.entry((&endpoint.served_model, state)).or_default() +=
                u64::from(state_name(*health) == state);
        }
    }
    let name = "llmgw_replicas";
    out.family(name, Kind::Gauge, "Endpoints of a model by state.");
    for ((model, state), count) in replicas {
        out.sample(name, &[("model", model), ("state", state)], count);
    }
}

const STATES: [&str; 4] = ["ready", "busy", "failed", "draining"];

fn state_name(health: Health) -> &'static str {
    match health {
        Health::Ready => "ready",
        Health::Busy { .. } => "busy",
        Health::Failed { .. } => "failed",
        Health::Draining => "draining",
    }
}

fn shards(out: &mut Exposition, plane: &dyn DataPlane) {
    let shards = || (0..plane.shards()).map(|shard| plane.stats(shard));
    let mut sums: Vec<(&'static str, u64)> = ShardStats::default().each();
    for stats in shards() {
        for (sum, (_, value)) in sums.iter_mut().zip(stats.each()) {
            sum.1 += value;
        }
    }
    for (family, kind, help, members) in SHARD_FAMILIES {
        out.family(family, *kind, help);
        for (counter, labels) in *members {
            if let Some((_, value)) = sums.iter().find(|(name, _)| name == counter) {
                out.sample(family, labels, value);
            }
        }
    }
    let shown = |name: &str| SHARD_FAMILIES.iter().any(|f| f.3.iter().any(|(counter, _)| *counter == name));
    for (name, value) in sums.iter().filter(|(name, _)| !shown(name)) {
        out.single(&format!("llmgw_{name}_total"), Kind::Counter, "A counter of the shards.", value);
    }
    let name = "llmgw_shard_connections";
    out.family(name, Kind::Gauge, "Client connections by shard.");
    for (shard, stats) in shards().enumerate() {
        out.sample(name, &[("shard", &shard.to_string())], stats.connections.get());
    }
}

fn control(out: &mut Exposition, plane: &dyn DataPlane, snapshot: &Snapshot, own: &OwnStats) {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let name = "llmgw_build_info";
    out.family(name, Kind::Gauge, "Always 1; the labels tell.");
    out.sample(name, &[("version", env!("CARGO_PKG_VERSION"))], 1);
    out.single("llmgw_shards", Kind::Gauge, "Shards of this process.", plane.shards());
    out.single(
        "llmgw_buffered_reserved_bytes",
        Kind::Gauge,
        "Of limits.buffered_total, what shards have reserved.",
        plane.buffered(),
    );
    out.single("llmgw_snapshot_version", Kind::Gauge, "Number of the published snapshot.", snapshot.version);
    let name = "llmgw_config_reloads_total";
    out.family(name, Kind::Counter, "Reloads of the configuration by result.");
    out.sample(name, &[("result", "taken")], get(&own.reloads));
    out.sample(name, &[("result", "refused")], get(&own.reloads_refused));
    let good = u8::from(!own.last_reload_refused.load(Ordering::Relaxed));
    out.single("llmgw_config_last_reload_successful", Kind::Gauge, "0 after a refused reload.", good);
    out.single(
        "llmgw_config_last_success_timestamp_seconds",
        Kind::Gauge,
        "Unix time of the configuration in use.",
        get(&own.configured_at),
    );
    let name = "llmgw_probes_total";
    out.family(name, Kind::Counter, "Probes of endpoints by outcome.");
    for (outcome, count) in ["up", "unwell", "unreachable"].iter().zip(&own.probes) {
        out.sample(name, &[("outcome", outcome)], get(count));
    }
    let name = "llmgw_admin_requests_total";
    out.family(name, Kind::Counter, "Requests of the admin API by route and status.");
    for ((route, status), count) in own.admin_requests.all() {
        out.sample(name, &[("route", route), ("status", &status.to_string())], count);
    }
    out.single(
        "llmgw_access_lines_lost_total",
        Kind::Counter,
        "Access log lines that could not be written.",
        get(&own.access_lines_lost),
    );
}

fn registry(out: &mut Exposition, own: &OwnStats) {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    out.single("llmgw_workers", Kind::Gauge, "Workers registered now.", get(&own.workers));
    let name = "llmgw_workers_evicted_total";
    out.single(name, Kind::Counter, "Workers gone for want of heartbeats.", get(&own.workers_evicted));
    let name = "llmgw_heartbeats_total";
    out.family(name, Kind::Counter, "Heartbeats of workers by result.");
    out.sample(name, &[("result", "taken")], get(&own.heartbeats));
    out.sample(name, &[("result", "refused")], get(&own.heartbeats_refused));
    let name = "llmgw_registry_connections";
    out.single(name, Kind::Gauge, "Connections of workers open now.", get(&own.registry_connections));
    let name = "llmgw_registry_connections_refused_total";
    out.single(name, Kind::Counter, "Connections closed at the bound.", get(&own.registry_refused));
}

fn process_metrics(out: &mut Exposition, process: &Readings) {
    let mut put = |name: &str, kind, help: &str, value: Option<String>| {
        if let Some(value) = value {
            out.single(name, kind, help, value);
        }
    };
    let text = |n: Option<u64>| n.map(|n| n.to_string());
    let real = |x: Option<f64>| x.map(|x| x.to_string());
    put("process_cpu_seconds_total", Kind::Counter, "User and system time.", real(process.cpu_seconds));
    put("process_resident_memory_bytes", Kind::Gauge, "Resident memory.", text(process.resident_bytes));
    put("process_virtual_memory_bytes", Kind::Gauge, "Address space.", text(process.virtual_bytes));
    put("process_threads", Kind::Gauge, "Threads.", text(process.threads));
    put("process_open_fds", Kind::Gauge, "Open descriptors.", text(process.open_fds));
    put("process_max_fds", Kind::Gauge, "Limit of open descriptors.", text(process.max_fds));
    put("process_start_time_seconds", Kind::Gauge, "Unix time of the start.", real(process.start_seconds));
}

fn seconds(ns: Nanos) -> f64 {
    ns as f64 / SECOND as f64
}
