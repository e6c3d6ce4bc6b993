//! `loadgen overhead`: what a gateway adds, by pairs of short slices.
//!
//! A machine's speed drifts by tens of percent over minutes, so the two ways are measured a few hundred milliseconds
//! apart, in random order within a round, at the same times and with the same lengths; percentiles are subtracted
//! within a round and the differences summed up by their median and quartiles.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use tokio::task::{JoinSet, LocalSet, yield_now};

use crate::checker::TokenCheck;
use crate::client::{Pool, Target, scratch};
use crate::gun::{Gun, GunSpec, Recorder, Shot, nonce};
use crate::pacer::Pacer;
use crate::progress::{Progress, Tally};
use crate::prompts::{Prompts, Shaper};
use crate::run::{RunError, StopHandle};
use crate::schedule::{Arrivals, Schedule};
use crate::stats::{Failures, Latencies, Spread, Summary};
use crate::units::{now, ns};
use crate::workload::{Api, Lengths};

/// All of a comparison.
#[derive(Clone, Debug)]
pub struct OverheadConfig {
    /// Base URL of the engine itself.
    pub direct: String,
    /// Base URL of the gateway before it.
    pub via: String,
    /// The model asked for; without it the first that the engine lists.
    pub model: Option<String>,
    /// The call.
    pub api: Api,
    /// Requests a second within a slice.
    pub rate: f64,
    /// Their spacing.
    pub arrivals: Arrivals,
    /// What they ask; a trace does not fit here, its texts would be cached by the first of a pair.
    pub prompt: Lengths,
    /// Tokens asked for.
    pub output: Lengths,
    /// Ask for streams.
    pub stream: bool,
    /// Ask for the usage chunk of streams.
    pub include_usage: bool,
    /// Length of one slice.
    pub slice: Duration,
    /// Pairs measured.
    pub rounds: usize,
    /// Pairs before them that are not.
    pub warmup_rounds: usize,
    /// Longest time one request may take.
    pub timeout: Duration,
    /// How far tokens are checked.
    pub check: TokenCheck,
    /// Where all drawing starts from.
    pub seed: u64,
    /// Extra `name: value` header lines.
    pub headers: Vec<String>,
    /// Greatest added p99 that passes: of the total, or of streams' time to first token and inter-token time.
    pub max_p99_overhead: Option<Duration>,
    /// Failed requests accepted on both ways together; failed checks never are.
    pub max_errors: u64,
    /// Show a progress bar if standard error is a terminal.
    pub progress: bool,
    /// Ends the comparison early.
    pub stop: StopHandle,
}

impl OverheadConfig {
    /// Twenty rounds of short chats at 500 a second; set the fields that differ.
    pub fn new(direct: impl Into<String>, via: impl Into<String>) -> OverheadConfig {
        OverheadConfig {
            direct: direct.into(),
            via: via.into(),
            model: None,
            api: Api::Chat,
            rate: 500.0,
            arrivals: Arrivals::Constant,
            prompt: Lengths::Fixed(64),
            output: Lengths::Fixed(16),
            stream: false,
            include_usage: false,
            slice: Duration::from_millis(300),
            rounds: 20,
            warmup_rounds: 2,
            timeout: Duration::from_secs(60),
            check: TokenCheck::Auto,
            seed: 1,
            headers: Vec::new(),
            max_p99_overhead: None,
            max_errors: 0,
            progress: false,
            stop: StopHandle::default(),
        }
    }
}

/// What a gateway added.
#[derive(Clone, Debug, Serialize)]
pub struct OverheadReport {
    /// Base URL of the engine.
    pub direct: String,
    /// Base URL of the gateway.
    pub via: String,
    /// Pairs measured.
    pub rounds: usize,
    /// Length of one slice, in milliseconds.
    pub slice_ms: f64,
    /// Requests a second within a slice.
    pub rate_rps: f64,
    /// Streams were asked for.
    pub stream: bool,
    /// To the last byte.
    pub total: Added,
    /// To the first token, of streams.
    pub ttft: Option<Added>,
    /// Between tokens, of streams.
    pub inter_token: Option<Added>,
    /// Failures on the way without the gateway, by kind.
    pub direct_errors: std::collections::BTreeMap<String, u64>,
    /// Failures on the way through it, by kind.
    pub via_errors: std::collections::BTreeMap<String, u64>,
    /// The bound on the added p99, in milliseconds.
    pub max_p99_overhead_ms: Option<f64>,
    /// It was ended early.
    pub interrupted: bool,
    /// Within the bound, without failures beyond those accepted, and at least one pair was measured.
    pub passed: bool,
}

/// One quantity on both ways.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Added {
    /// All slices without the gateway.
    pub direct: Summary,
    /// All slices through it.
    pub via: Summary,
    /// Difference of the medians, in milliseconds, over the rounds.
    pub p50_ms: Spread,
    /// Difference of the 99th percentiles, in milliseconds, over the rounds.
    pub p99_ms: Spread,
    /// Difference of the 99.9th percentiles, in milliseconds, over the rounds; of the greatest values where a slice
    /// holds fewer than a thousand.
    pub p999_ms: Spread,
}

/// Both slices of a round.
#[derive(Clone, Debug, Default)]
pub struct Pair {
    /// It only warmed up: of its failures the failed checks count, of its times none.
    pub warmup: bool,
    /// Without the gateway.
    pub direct: Recorder,
    /// Through it.
    pub via: Recorder,
}

/// Compares and reports. Blocks the caller; starts its own thread and runtime, so it may be called anywhere.
pub fn overhead(config: &OverheadConfig) -> Result<OverheadReport, RunError> {
    check_config(config)?;
    let targets = [Target::parse(&config.direct)?, Target::parse(&config.via)?];
    let pairs = std::thread::scope(|scope| {
        let measuring = std::thread::Builder::new()
            .name("loadgen-overhead".into())
            .spawn_scoped(scope, || measure(config, targets))
            .map_err(RunError::Io)?;
        measuring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    Ok(conclude(config, &pairs))
}

fn check_config(config: &OverheadConfig) -> Result<(), RunError> {
    let wrong = if !(config.rate.is_finite() && config.rate > 0.0) {
        "--rate must be above 0"
    } else if config.rounds == 0 {
        "--rounds must be at least 1"
    } else if config.slice.is_zero() {
        "--slice must be above 0"
    } else if config.stream && config.api == Api::Embeddings {
        "embeddings do not stream: leave out --stream"
    } else {
        return Ok(());
    };
    Err(RunError::Config(wrong.to_owned()))
}

fn measure(config: &OverheadConfig, targets: [Target; 2]) -> Result<Vec<Pair>, RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let scratch = scratch();
        let model = match &config.model {
            Some(model) => model.clone(),
            None => first_model(&Pool::new(targets[0].address, scratch.clone()), &targets[0]).await?,
        };
        let nonce = nonce();
        let mut sides = ["d", "v"].into_iter();
        let guns = targets.map(|target| {
            let side = sides.next().unwrap_or_default();
            let spec = GunSpec {
                target,
                api: config.api,
                model: model.clone(),
                stream: config.stream,
                include_usage: config.include_usage,
                timeout: config.timeout,
                check: config.check,
                fields: config.headers.clone(),
                id_prefix: format!("lgo-{nonce}-{side}-"),
            };
            Rc::new(Gun::new(spec, scratch.clone()))
        });
        rounds(config, &guns).await
    })
}

async fn rounds(config: &OverheadConfig, guns: &[Rc<Gun>; 2]) -> Result<Vec<Pair>, RunError> {
    let pacer = Pacer::new()?;
    let tally = Rc::new(Tally::default());
    let mut order = fastrand::Rng::with_seed(config.seed);
    let all = config.warmup_rounds + config.rounds;
    let progress = Progress::new(config.progress, None);
    let started = now();
    let mut pairs = Vec::new();
    for round in 0..all {
        let via_first = order.bool();
        for via in [via_first, !via_first] {
            let gun = &guns[usize::from(via)];
            slice(config, &pacer, gun, round, via, &tally).await?;
            progress.show(&tally, started.elapsed());
        }
        let warmup = round < config.warmup_rounds || config.stop.is_stopped(); // half a round compares nothing
        pairs.push(Pair { warmup, direct: guns[0].take(), via: guns[1].take() });
        if config.stop.is_stopped() {
            break;
        }
    }
    progress.finish();
    Ok(pairs)
}

/// One slice: the same due times and lengths on both ways, other text.
async fn slice(
    config: &OverheadConfig,
    pacer: &Pacer,
    gun: &Rc<Gun>,
    round: usize,
    via: bool,
    tally: &Rc<Tally>,
) -> Result<(), RunError> {
    let number = u64::try_from(round).unwrap_or(0);
    let seed = config.seed.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let prompts = Prompts::Drawn { prompt: config.prompt, output: config.output, shared_prefix: 0 };
    let shaper = Shaper::new(prompts, 0, 1, seed).with_text_seed(seed.rotate_left(17) ^ u64::from(via));
    let shaper = Rc::new(RefCell::new(shaper));
    let start = now();
    let mut tasks = JoinSet::new();
    for (count, offset) in Schedule::new(config.arrivals, config.rate, 0, 1, seed).enumerate() {
        if offset >= config.slice {
            break;
        }
        let due = start + offset;
        tokio::select! {
            biased;
            () = config.stop.stopped() => break,
            waited = pacer.wait_until(due) => waited?,
        }
        if count % 16 == 15 {
            yield_now().await;
        }
        let (gun, shaper, tally) = (gun.clone(), shaper.clone(), tally.clone());
        tasks.spawn_local(async move {
            let shape = shaper.borrow_mut().next_shape();
            let shot = Shot {
                prompt: &shape.prompt,
                history: &[],
                session: None,
                output: shape.output,
                due,
                measured: true,
                window_end: None,
                keep_text: false,
            };
            tally.count(gun.fire(shot).await.0);
        });
    }
    tokio::select! {
        () = config.stop.stopped() => {}
        () = async { while tasks.join_next().await.is_some() {} } => {}
    }
    Ok(())
}

/// The first model that a server lists.
pub(crate) async fn first_model(pool: &Pool, target: &Target) -> Result<String, RunError> {
    let wrong = |what: String| RunError::Config(format!("{}: {what}: give --model", target.authority));
    let (status, list) =
        pool.get_json(target, "/v1/models").await.map_err(|e| wrong(format!("GET /v1/models: {e}")))?;
    match list["data"][0]["id"].as_str() {
        Some(id) if status == 200 => Ok(id.to_owned()),
        _ => Err(wrong(format!("GET /v1/models lists no model (status {status})"))),
    }
}

/// What the pairs say.
pub fn conclude(config: &OverheadConfig, pairs: &[Pair]) -> OverheadReport {
    let of = |pick: fn(&Recorder) -> &Latencies| added(pairs, pick);
    let total = of(|r| &r.total);
    let streamed = config.stream.then(|| (of(|r| &r.ttft), of(|r| &r.inter_token)));
    let mut errors = [Failures::default(), Failures::default()];
    for pair in pairs {
        for (errors, slice) in errors.iter_mut().zip([&pair.direct, &pair.via]) {
            errors.merge(&if pair.warmup { slice.failures.only_checks() } else { slice.failures.clone() });
        }
    }
    let checks = errors[0].checks() + errors[1].checks();
    let failed = errors[0].total() + errors[1].total() - checks;
    let bound_ms = config.max_p99_overhead.map(|bound| to_ms(ns(bound)));
    let asserted = match &streamed {
        Some((ttft, inter_token)) => vec![ttft, inter_token],
        None => vec![&total],
    };
    let measured = asserted.iter().all(|added| added.direct.count > 0 && added.via.count > 0);
    let within = bound_ms.is_none_or(|bound| asserted.iter().all(|added| added.p99_ms.median <= bound));
    OverheadReport {
        direct: config.direct.clone(),
        via: config.via.clone(),
        rounds: pairs.iter().filter(|pair| !pair.warmup).count(),
        slice_ms: to_ms(ns(config.slice)),
        rate_rps: config.rate,
        stream: config.stream,
        total,
        ttft: streamed.map(|(ttft, _)| ttft),
        inter_token: streamed.map(|(_, inter_token)| inter_token),
        direct_errors: errors[0].by_name(),
        via_errors: errors[1].by_name(),
        max_p99_overhead_ms: bound_ms,
        interrupted: config.stop.is_stopped(),
        passed: measured && within && checks == 0 && failed <= config.max_errors,
    }
}

fn added(pairs: &[Pair], pick: fn(&Recorder) -> &Latencies) -> Added {
    let mut direct = Latencies::default();
    let mut via = Latencies::default();
    let mut differences: [Vec<f64>; 3] = Default::default();
    for pair in pairs.iter().filter(|pair| !pair.warmup) {
        let (without, with) = (pick(&pair.direct), pick(&pair.via));
        direct.merge(without);
        via.merge(with);
        if without.count() == 0 || with.count() == 0 {
            continue;
        }
        for (differences, quantile) in differences.iter_mut().zip([0.5, 0.99, 0.999]) {
            differences.push(to_ms(with.quantile_ns(quantile)) - to_ms(without.quantile_ns(quantile)));
        }
    }
    let [p50_ms, p99_ms, p999_ms] = differences.map(|values| Spread::of(&values));
    Added { direct: direct.summary(), via: via.summary(), p50_ms, p99_ms, p999_ms }
}

#[allow(clippy::cast_precision_loss)] // below an hour in nanoseconds: exact in f64
fn to_ms(value_ns: u64) -> f64 {
    value_ns as f64 / 1e6
}

impl OverheadReport {
    /// The report for people.
    pub fn table(&self) -> String {
        let mut table = crate::report::plain_table();
        table.set_header(["ms", "", "direct", "via", "added (median)", "quartiles", "range"]);
        let parts = [
            ("total", Some(&self.total)),
            ("ttft", self.ttft.as_ref()),
            ("inter-token", self.inter_token.as_ref()),
        ];
        for (name, added) in parts.into_iter().filter_map(|(name, added)| Some((name, added?))) {
            let rows = [
                ("p50", added.direct.p50_ms, added.via.p50_ms, added.p50_ms),
                ("p99", added.direct.p99_ms, added.via.p99_ms, added.p99_ms),
                ("p99.9", added.direct.p999_ms, added.via.p999_ms, added.p999_ms),
            ];
            for (percentile, direct, via, spread) in rows {
                table.add_row([
                    name.to_owned(),
                    percentile.to_owned(),
                    format!("{direct:.3}"),
                    format!("{via:.3}"),
                    format!("{:+.3}", spread.median),
                    format!("{:+.3} .. {:+.3}", spread.q1, spread.q3),
                    format!("{:+.3} .. {:+.3}", spread.min, spread.max),
                ]);
            }
        }
        let mut text = format!(
            "{} rounds of paired {} ms slices at {}/s\n{table}\n",
            self.rounds, self.slice_ms, self.rate_rps
        );
        for (way, errors) in [("direct", &self.direct_errors), ("via", &self.via_errors)] {
            for (kind, count) in errors {
                text.push_str(&format!("{way}: {count} {kind}\n"));
            }
        }
        if let Some(bound) = self.max_p99_overhead_ms {
            text.push_str(&format!("bound on the added p99: {bound} ms\n"));
        }
        text.push_str(if self.passed { "passed" } else { "FAILED" });
        text
    }
}

#[cfg(test)]
mod tests;
