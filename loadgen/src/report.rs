//! What a run found, as a table and as JSON, and whether it passed.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::checker::TokenCounts;
use crate::gun::Recorder;
use crate::run::RunConfig;
use crate::stats::{Failures, Summary};

/// The outcome of [`crate::run`].
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Base URL of the API.
    pub url: String,
    /// The model asked for.
    pub model: String,
    /// Streams were asked for.
    pub stream: bool,
    /// Measured time, in seconds.
    pub duration_s: f64,
    /// Requests by outcome.
    pub requests: RequestCounts,
    /// Requests that succeeded within the measured time, a second.
    pub rate_rps: f64,
    /// Events with text within the measured time, a second; for streams.
    pub token_events_per_s: f64,
    /// Tokens as numbered by a simulated engine.
    pub tokens: TokenCounts,
    /// Failures by kind; failed checks of the warm-up are among them.
    pub errors: BTreeMap<String, u64>,
    /// Failures of the warm-up by kind.
    pub warmup_errors: BTreeMap<String, u64>,
    /// Failed checks among the errors.
    pub failed_checks: u64,
    /// Latencies.
    pub latency: Latency,
    /// Bytes of bodies received.
    pub body_bytes: u64,
    /// The run was ended early.
    pub interrupted: bool,
    /// No check failed and errors stayed within what was accepted.
    pub passed: bool,
    /// The same failures for programs.
    #[serde(skip)]
    pub failures: Failures,
    /// All histograms, for programs that want other percentiles.
    #[serde(skip)]
    pub recorder: Recorder,
}

/// Requests by outcome.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RequestCounts {
    /// Succeeded.
    pub ok: u64,
    /// Failed.
    pub failed: u64,
    /// Fired in the warm-up, not measured.
    pub warmup: u64,
    /// Stale connections replaced on the way.
    pub stale_retries: u64,
}

/// Latencies in milliseconds; from the intended time of sending, save for inter-token.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    /// To the last byte, of requests that succeeded.
    pub total: Summary,
    /// To the first token, of streams.
    pub ttft: Summary,
    /// Between tokens, of streams.
    pub inter_token: Summary,
    /// To the moment the request was written: the generator's own delay.
    pub send_lag: Summary,
}

impl Report {
    /// Draws the conclusions.
    pub fn new(config: &RunConfig, recorder: Recorder, measured: Duration) -> Report {
        let seconds = measured.as_secs_f64();
        #[allow(clippy::cast_precision_loss)] // counts far below 2^53
        let per_s =
            |count: u64| if seconds > 0.0 { (count as f64 / seconds * 10.0).round() / 10.0 } else { 0.0 };
        let failures = recorder.failures.clone();
        let failed_checks = failures.checks();
        let errors = failures.total() - failed_checks;
        Report {
            url: config.url.clone(),
            model: config.model.clone(),
            stream: config.stream,
            duration_s: (seconds * 1e3).round() / 1e3,
            requests: RequestCounts {
                ok: recorder.ok,
                failed: failures.total(),
                warmup: recorder.warmup,
                stale_retries: recorder.stale_retries,
            },
            rate_rps: per_s(recorder.ok_in_window),
            token_events_per_s: per_s(recorder.events_in_window),
            tokens: recorder.tokens,
            errors: failures.by_name(),
            warmup_errors: recorder.warmup_failures.by_name(),
            failed_checks,
            latency: Latency {
                total: recorder.total.summary(),
                ttft: recorder.ttft.summary(),
                inter_token: recorder.inter_token.summary(),
                send_lag: recorder.send_lag.summary(),
            },
            body_bytes: recorder.body_bytes,
            interrupted: config.stop.is_stopped(),
            // Nothing answered at all is no success either, unless the user ended it.
            passed: failed_checks == 0
                && errors <= config.max_errors
                && (recorder.ok > 0 || errors > 0 || config.stop.is_stopped()),
            failures,
            recorder,
        }
    }

    /// The report for people.
    pub fn table(&self) -> String {
        let mut latencies = latency_table();
        let rows = [
            ("total", &self.latency.total),
            ("ttft", &self.latency.ttft),
            ("inter-token", &self.latency.inter_token),
        ];
        for (name, summary) in rows.into_iter().chain([("send lag", &self.latency.send_lag)]) {
            if summary.count > 0 {
                latencies.add_row(latency_row(name, summary));
            }
        }
        let requests = &self.requests;
        let mut text = format!(
            "{} ok, {} failed in {:.2} s: {:.1} requests/s",
            requests.ok, requests.failed, self.duration_s, self.rate_rps
        );
        if self.token_events_per_s > 0.0 {
            text.push_str(&format!(", {:.1} token events/s", self.token_events_per_s));
        }
        if requests.warmup > 0 {
            text.push_str(&format!(" (after {} for warm-up)", requests.warmup));
        }
        text.push_str(&format!("\n{latencies}\n"));
        let tokens = &self.tokens;
        if tokens.numbered > 0 {
            text.push_str(&format!(
                "tokens: {} checked, {} lost, {} repeated, {} foreign\n",
                tokens.numbered, tokens.lost, tokens.repeated, tokens.foreign
            ));
        }
        if !self.errors.is_empty() {
            let mut table = plain_table();
            table.set_header(["error", "count"]);
            for (kind, count) in &self.errors {
                table.add_row([kind.clone(), count.to_string()]);
            }
            text.push_str(&format!("{table}\n"));
        }
        if self.interrupted {
            text.push_str("ended early\n");
        }
        text.push_str(if self.passed { "passed" } else { "FAILED" });
        text
    }
}

pub(crate) fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table
}

fn latency_table() -> Table {
    let mut table = plain_table();
    table.set_header(["ms", "count", "mean", "min", "p50", "p90", "p95", "p99", "p99.9", "max"]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn latency_row(name: &str, s: &Summary) -> Vec<String> {
    let values = [s.mean_ms, s.min_ms, s.p50_ms, s.p90_ms, s.p95_ms, s.p99_ms, s.p999_ms, s.max_ms];
    let head = [name.to_owned(), s.count.to_string()];
    head.into_iter().chain(values.iter().map(|v| format!("{v:.3}"))).collect()
}
