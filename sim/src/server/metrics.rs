//! `/metrics` in the names of the engine that is imitated.

use std::fmt::Write as _;

use super::hub::Hub;
use crate::args::MetricsFormat;
use crate::model::Nanos;

/// Upper bounds of the latency buckets, in seconds: those of vLLM's first-token histogram.
const BOUNDS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];

/// A latency histogram.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    counts: [u64; BOUNDS.len()],
    count: u64,
    sum_s: f64,
}

impl Histogram {
    /// Counts one latency.
    pub fn add(&mut self, latency: Nanos) {
        let seconds = std::time::Duration::from_nanos(latency).as_secs_f64();
        if let Some(at) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.counts[at] += 1;
        }
        self.count += 1;
        self.sum_s += seconds;
    }

    fn render(&self, out: &mut String, name: &str, help: &str, labels: &str) {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} histogram\n");
        let mut below = 0;
        for (bound, count) in BOUNDS.iter().zip(&self.counts) {
            below += count;
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound:?}\"}} {below}.0");
        }
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {}.0", self.count);
        let _ = writeln!(out, "{name}_count{{{labels}}} {}.0", self.count);
        let _ = writeln!(out, "{name}_sum{{{labels}}} {}", self.sum_s);
    }
}

struct Page {
    out: String,
    labels: String,
}

impl Page {
    fn put(&mut self, kind: &str, name: &str, help: &str, value: impl std::fmt::Display) {
        let labels = if self.labels.is_empty() { String::new() } else { format!("{{{}}}", self.labels) };
        let _ = write!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{labels} {value}\n");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.put("gauge", name, help, value);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.put("counter", name, help, value);
    }
}

/// The page.
pub fn render(hub: &Hub) -> String {
    hub.pump();
    let name = hub.config.model.replace('\\', "\\\\").replace('"', "\\\"");
    match hub.config.metrics_format {
        MetricsFormat::Vllm => vllm(hub, format!("engine=\"0\",model_name=\"{name}\"")),
        MetricsFormat::Sglang => {
            sglang(hub, format!("engine_type=\"unified\",model_name=\"{name}\",tp_rank=\"0\""))
        }
        MetricsFormat::Llamacpp => llamacpp(hub),
    }
}

fn share(part: u64, whole: u64) -> f64 {
    // Ratios for a human's eye: 32 bits of either are plenty.
    let f = |n: u64| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
    if whole == 0 { 0.0 } else { f(part) / f(whole) }
}

fn vllm(hub: &Hub, labels: String) -> String {
    let core = hub.core.borrow();
    let (totals, stats, pool) = (&core.board.totals, core.model.stats(), core.model.pool());
    let mut page = Page { out: String::new(), labels };
    page.gauge(
        "vllm:num_requests_running",
        "Number of requests in model execution batches.",
        core.model.running(),
    );
    page.gauge(
        "vllm:num_requests_waiting",
        "Number of requests waiting to be processed.",
        core.model.waiting(),
    );
    page.gauge(
        "vllm:kv_cache_usage_perc",
        "KV-cache usage. 1 means 100 percent usage.",
        share(u64::from(pool.used()), u64::from(pool.capacity())),
    );
    page.counter("vllm:prefix_cache_queries_total", "Prefix cache queries, in tokens.", stats.queried_tokens);
    page.counter("vllm:prefix_cache_hits_total", "Prefix cache hits, in tokens.", stats.cached_tokens);
    page.counter("vllm:num_preemptions_total", "Cumulative number of preemptions.", stats.preemptions);
    page.counter("vllm:prompt_tokens_total", "Number of prefill tokens processed.", stats.prompt_tokens);
    page.counter("vllm:prompt_tokens_cached_total", "Number of cached prompt tokens.", stats.cached_tokens);
    page.counter(
        "vllm:generation_tokens_total",
        "Number of generation tokens processed.",
        stats.generated_tokens,
    );
    let labels = page.labels.clone();
    let mut out = page.out;
    let success = "vllm:request_success_total";
    let _ =
        write!(out, "# HELP {success} Count of successfully processed requests.\n# TYPE {success} counter\n");
    for (reason, count) in [
        ("stop", totals.stopped),
        ("length", totals.limited),
        ("abort", totals.aborted),
        ("error", totals.faulted),
    ] {
        let _ = writeln!(out, "{success}{{{labels},finished_reason=\"{reason}\"}} {count}");
    }
    let info = "vllm:cache_config_info";
    let _ = write!(out, "# HELP {info} Information of the LLMEngine CacheConfig\n# TYPE {info} gauge\n");
    let _ = writeln!(
        out,
        "{info}{{block_size=\"{}\",num_gpu_blocks=\"{}\",enable_prefix_caching=\"True\",engine=\"0\"}} 1.0",
        core.model.config().block_size,
        pool.capacity()
    );
    let help = "Histogram of time to first token in seconds.";
    totals.ttft.render(&mut out, "vllm:time_to_first_token_seconds", help, &labels);
    let help = "Histogram of end to end request latency in seconds.";
    totals.latency.render(&mut out, "vllm:e2e_request_latency_seconds", help, &labels);
    out
}

fn sglang(hub: &Hub, labels: String) -> String {
    let core = hub.core.borrow();
    let (totals, stats, pool) = (&core.board.totals, core.model.stats(), core.model.pool());
    let block = u64::from(core.model.config().block_size);
    let (used, capacity) = (u64::from(pool.used()) * block, u64::from(pool.capacity()) * block);
    let mut page = Page { out: String::new(), labels };
    page.gauge("sglang:num_running_reqs", "The number of running requests.", core.model.running());
    page.gauge("sglang:num_queue_reqs", "The number of requests in the waiting queue.", core.model.waiting());
    page.gauge("sglang:num_used_tokens", "The number of used tokens.", used);
    page.gauge("sglang:token_usage", "The token usage.", share(used, capacity));
    page.gauge(
        "sglang:max_total_num_tokens",
        "Maximum total number of tokens in the KV cache pool.",
        capacity,
    );
    page.gauge("sglang:page_size", "Tokens a page holds.", block);
    page.gauge(
        "sglang:cache_hit_rate",
        "The prefix cache hit rate.",
        share(stats.cached_tokens, stats.queried_tokens),
    );
    page.counter("sglang:prompt_tokens_total", "Number of prefill tokens processed.", stats.prompt_tokens);
    page.counter("sglang:cached_tokens_total", "Number of cached prompt tokens.", stats.cached_tokens);
    page.counter(
        "sglang:generation_tokens_total",
        "Number of generation tokens processed.",
        stats.generated_tokens,
    );
    page.counter("sglang:num_requests_total", "Number of requests processed.", totals.completed);
    page.counter("sglang:num_aborted_requests_total", "Number of requests aborted.", totals.aborted);
    let Page { mut out, labels } = page;
    let help = "Histogram of time to first token in seconds.";
    totals.ttft.render(&mut out, "sglang:time_to_first_token_seconds", help, &labels);
    let help = "Histogram of End-to-end request latency in seconds";
    totals.latency.render(&mut out, "sglang:e2e_request_latency_seconds", help, &labels);
    out
}

fn llamacpp(hub: &Hub) -> String {
    let core = hub.core.borrow();
    let stats = core.model.stats();
    let computed = stats.prompt_tokens.saturating_sub(stats.cached_tokens);
    let mut page = Page { out: String::new(), labels: String::new() };
    page.counter(
        "llamacpp:prompt_tokens_total",
        "Number of prompt tokens processed, excluding cached tokens",
        computed,
    );
    page.counter(
        "llamacpp:prompt_tokens_cached_total",
        "Number of prompt tokens reused from the cache",
        stats.cached_tokens,
    );
    page.counter(
        "llamacpp:tokens_predicted_total",
        "Number of generation tokens processed",
        stats.generated_tokens,
    );
    page.gauge("llamacpp:requests_processing", "Number of requests processing", core.model.running());
    page.gauge("llamacpp:requests_deferred", "Number of requests deferred", core.model.waiting());
    page.out
}
