//! `llmgw-bench load`: the measuring side of `cargo xtask bench peers`.
//!
//! Reads a plan, serves three engines, and runs slices of load through each gateway in turn. Every slice is one line
//! of JSON on standard output; what to make of them is xtask's.
//!
//! **Invariants**
//!
//! * A slice is measured from rest to rest: CPU time is read while the gateway sleeps, so that nothing is missing.
//! * Within a round every gateway has one slice, in random order.
//! * Connections of a measure stay open over all its rounds.

mod client;
mod engine;
mod gateway;
mod stage;
#[cfg(test)]
mod tests;
mod wire;
mod world;

use serde::Deserialize;
use serde_json::json;
use stage::{Mode, quantile};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use wire::{JSON_BYTES, Kind, LARGE_BYTES};
use world::World;

/// Connections that saturate, and those that large answers come over.
const CONNECTIONS: usize = 64;
const LARGE_CONNECTIONS: usize = 8;
/// Time between two events of one stream.
const EVENT_INTERVAL: Duration = Duration::from_millis(5);
/// The fixed rate stays below this share of what the slowest gateway can do.
const RATE_SHARE_MAX: f64 = 0.6;
/// How long a gateway may take to answer at first.
const PATIENCE: Duration = Duration::from_secs(15);
/// Streams opened at once.
const OPENING: usize = 32;

/// What to measure.
#[derive(Deserialize)]
struct Plan {
    /// Ports of the engines.
    engines: Vec<u16>,
    targets: Vec<Target>,
    rounds: usize,
    slice_ms: u64,
    warm_ms: u64,
    settle_ms: u64,
    /// Requests a second of the fixed rate, where the gateways can do so much.
    rate: f64,
    /// Streams of the memory measure.
    idle_streams: usize,
    /// Names of the measures to take; empty: all.
    #[serde(default)]
    only: Vec<String>,
}

/// A gateway, or an engine itself.
#[derive(Deserialize)]
struct Target {
    name: String,
    /// One address, or several that connections take turns at.
    addresses: Vec<SocketAddr>,
    /// None for the engines.
    pid: Option<u32>,
}

/// A way of loading gateways.
struct Measure {
    name: &'static str,
    mode: Mode,
    kind: Kind,
    connections: usize,
    /// The engines alone take part too.
    direct: bool,
}

/// Runs the plan in `file`.
pub fn run(file: &str) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
    let plan: Plan = serde_json::from_str(&text).map_err(|e| format!("{file}: {e}"))?;
    raise_nofile()?;
    let world = World::new(&plan.engines).map_err(|e| format!("engines cannot listen: {e}"))?;
    let mut run = Run { plan, world };
    run.greet()?;
    run.memory()?;
    let closed =
        |name, kind, connections| Measure { name, mode: Mode::Closed, kind, connections, direct: true };
    let saturated = run.measure(&closed("saturated", Kind::Json, CONNECTIONS))?;
    // Not measured: the rates asked for are taken as they are.
    let slowest = saturated.into_iter().filter(|rate| *rate > 0.0).fold(f64::INFINITY, f64::min);
    let slowest = if slowest.is_finite() { slowest } else { run.plan.rate / RATE_SHARE_MAX };
    let rate = run.plan.rate.min((slowest * RATE_SHARE_MAX / 100.0).round() * 100.0);
    for (name, rate) in [("paced", rate), ("third", (slowest / 300.0).round() * 100.0)] {
        say(&json!({"settings": name, "rate": rate}));
        let mode = Mode::Paced { mean_ns: 1e9 / rate };
        run.measure(&Measure { name, mode, kind: Kind::Json, connections: CONNECTIONS, direct: true })?;
    }
    for (name, connections) in [("events_200", 200), ("events_40", 40)] {
        let kind = Kind::Stream(0);
        run.measure(&Measure { name, mode: Mode::Off, kind, connections, direct: false })?;
    }
    run.measure(&closed("large", Kind::Large, LARGE_CONNECTIONS))?;
    Ok(())
}

#[allow(clippy::print_stdout)] // its output
fn say(value: &serde_json::Value) {
    println!("{value}");
}

fn raise_nofile() -> Result<(), String> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).map_err(|e| format!("open files: {e}"))
}

struct Run {
    plan: Plan,
    world: World,
}

impl Run {
    fn open(
        &mut self,
        target: usize,
        kind: Kind,
        count: usize,
        clients: &mut Vec<usize>,
    ) -> Result<(), String> {
        // Those that were closed in between are replaced.
        let (open, gone): (Vec<usize>, Vec<usize>) = clients.iter().partition(|c| self.world.is_open(**c));
        gone.into_iter().for_each(|client| self.world.close(client));
        *clients = open;
        let Target { name, addresses, .. } = &self.plan.targets[target];
        while clients.len() < count {
            let address = addresses[clients.len() % addresses.len()];
            let client = self.world.open(target, address, kind).map_err(|e| format!("{name}: {e}"))?;
            clients.push(client);
            if let Kind::Stream(_) = kind {
                let now = self.world.now();
                self.world.ask(client, now);
                let opening = clients[clients.len().saturating_sub(OPENING)];
                if !self.world.until(|world| world.streams(opening) || !world.is_open(opening)) {
                    let why = self.world.stage.failure.take().unwrap_or_default();
                    return Err(format!("{name}: a stream did not begin: {why}"));
                }
            }
        }
        if let Kind::Stream(_) = kind
            && !self.world.until(|world| clients.iter().all(|c| world.streams(*c)))
        {
            let why = self.world.stage.failure.take().unwrap_or_default();
            return Err(format!("{name}: not every stream began: {why}"));
        }
        Ok(())
    }

    /// Waits until every gateway answers, and lets each do a little.
    fn greet(&mut self) -> Result<(), String> {
        for target in 0..self.plan.targets.len() {
            let end = Instant::now() + PATIENCE;
            loop {
                let mut clients = Vec::new();
                let opened = self.open(target, Kind::Json, CONNECTIONS, &mut clients);
                let before = self.world.stage.failures;
                self.world.stage.start(target, Mode::Closed, &[], 0);
                clients.iter().for_each(|client| self.world.ask(*client, 0));
                self.world.spin(Duration::from_millis(50));
                self.world.stage.stop();
                let idle = self.world.until(|world| world.all_idle(&clients));
                let (answers, failures) = (self.world.stage.answers, self.world.stage.failures - before);
                clients.into_iter().for_each(|client| self.world.close(client));
                let why = self.world.stage.failure.take();
                if opened.is_ok() && idle && answers > 0 && failures == 0 {
                    break;
                }
                if Instant::now() > end {
                    let name = &self.plan.targets[target].name;
                    return Err(format!(
                        "{name} does not serve: {answers} answers, {}",
                        why.unwrap_or_default()
                    ));
                }
                self.world.rest(Duration::from_millis(100));
            }
        }
        // What failed before a gateway had found its engines is no fault.
        self.world.stage.failures = 0;
        self.world.rest(Duration::from_millis(300));
        Ok(())
    }

    /// Resident memory that quiet streams take, each gateway once and before it was loaded.
    fn memory(&mut self) -> Result<(), String> {
        if !self.wanted("idle") {
            return Ok(());
        }
        let count = self.plan.idle_streams;
        for target in 0..self.plan.targets.len() {
            let Some(pid) = self.plan.targets[target].pid else { continue };
            let before = gateway::rss_kib(pid);
            let mut clients = Vec::new();
            self.open(target, Kind::Stream(99), count, &mut clients)?;
            self.world.rest(Duration::from_millis(500));
            let after = gateway::rss_kib(pid);
            let name = &self.plan.targets[target].name;
            say(
                &json!({"measure": "idle", "target": name, "streams": count, "before_kib": before, "kib": after}),
            );
            clients.into_iter().for_each(|client| self.world.close(client));
            self.world.rest(Duration::from_millis(200));
        }
        Ok(())
    }

    fn wanted(&self, measure: &str) -> bool {
        self.plan.only.is_empty() || self.plan.only.iter().any(|name| name == measure)
    }

    /// All rounds of one measure. Answers each gateway's median requests a second; nothing if it is not wanted.
    fn measure(&mut self, measure: &Measure) -> Result<Vec<f64>, String> {
        if !self.wanted(measure.name) {
            return Ok(Vec::new());
        }
        let count = self.plan.targets.len();
        let takes_part = |run: &Run, t: usize| measure.direct || run.plan.targets[t].pid.is_some();
        let mut order: Vec<usize> = (0..count).filter(|t| takes_part(self, *t)).collect();
        let mut clients = vec![Vec::new(); count];
        let mut rates = vec![Vec::new(); count];
        for round in 0..self.plan.rounds {
            fastrand::shuffle(&mut order);
            for &target in &order {
                let slice = self.slice(measure, target, &mut clients[target])?;
                rates[target].push(slice);
                self.report(measure, round, target, slice);
            }
        }
        clients.into_iter().flatten().for_each(|client| self.world.close(client));
        self.world.rest(Duration::from_millis(100));
        let gateways = (0..count).filter(|t| self.plan.targets[*t].pid.is_some());
        let median = |mut rates: Vec<Slice>| {
            rates.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
            rates.get(rates.len() / 2).map_or(0.0, Slice::rate)
        };
        Ok(gateways.map(|t| median(std::mem::take(&mut rates[t]))).collect())
    }

    fn slice(&mut self, measure: &Measure, target: usize, clients: &mut Vec<usize>) -> Result<Slice, String> {
        let group = u8::try_from(target).unwrap_or(u8::MAX);
        let kind = if let Kind::Stream(_) = measure.kind { Kind::Stream(group) } else { measure.kind };
        self.open(target, kind, measure.connections, clients)?;
        self.load(measure, kind, target, clients, Duration::from_millis(self.plan.warm_ms))?;
        let pid = self.plan.targets[target].pid;
        let cpu = || pid.map_or(0, gateway::cpu_ns);
        let before = cpu();
        let wall_ns = self.load(measure, kind, target, clients, Duration::from_millis(self.plan.slice_ms))?;
        let cpu_ns = cpu() - before;
        let stage = &self.world.stage;
        let units = match kind {
            Kind::Stream(_) => stage.events,
            _ => stage.answers,
        };
        Ok(Slice { cpu_ns, units, wall_ns })
    }

    /// Loads a gateway for a time and lets it come to rest. Answers how long the load took in nanoseconds.
    fn load(
        &mut self,
        measure: &Measure,
        kind: Kind,
        target: usize,
        clients: &[usize],
        time: Duration,
    ) -> Result<u64, String> {
        let begin = self.world.now();
        self.world.stage.start(target, measure.mode, clients, begin);
        if let Mode::Closed = measure.mode {
            clients.iter().for_each(|client| self.world.ask(*client, begin));
        }
        let idle = if let Kind::Stream(group) = kind {
            let interval_ns = u64::try_from(EVENT_INTERVAL.as_nanos()).unwrap_or(u64::MAX);
            self.world.engines.activate(Some(group), interval_ns, begin);
            self.world.spin(time);
            let emitted = self.world.engines.emitted;
            self.world.engines.activate(None, interval_ns, begin);
            self.world.stage.last_ns = self.world.now();
            self.world.until(|world| world.stage.events >= emitted)
        } else {
            self.world.spin(time);
            self.world.stage.latencies_ns.sort_unstable();
            let sorted = std::mem::take(&mut self.world.stage.latencies_ns);
            self.world.stage.stop();
            let idle = self.world.until(|world| world.all_idle(clients));
            self.world.stage.latencies_ns = sorted;
            idle
        };
        if !idle {
            return Err(format!(
                "{}: {} did not finish its slice",
                self.plan.targets[target].name, measure.name
            ));
        }
        let end = self.world.stage.last_ns;
        self.world.rest(Duration::from_millis(self.plan.settle_ms));
        Ok(end.saturating_sub(begin).max(1))
    }

    fn report(&mut self, measure: &Measure, round: usize, target: usize, slice: Slice) {
        let stage = &mut self.world.stage;
        let sorted = &stage.latencies_ns;
        say(&json!({
            "measure": measure.name, "round": round, "target": self.plan.targets[target].name,
            "cpu_ns": slice.cpu_ns, "units": slice.units, "wall_ns": slice.wall_ns,
            "p50_ns": quantile(sorted, 0.5), "p99_ns": quantile(sorted, 0.99),
            "failures": stage.failures, "failure": stage.failure.take(),
            "unit_bytes": if measure.kind == Kind::Large { LARGE_BYTES } else { JSON_BYTES },
        }));
        stage.failures = 0;
    }
}

/// What one slice cost.
#[derive(Debug, Clone, Copy)]
struct Slice {
    cpu_ns: u64,
    /// Answers or events.
    units: u64,
    wall_ns: u64,
}

impl Slice {
    /// Units a second.
    #[allow(clippy::cast_precision_loss)] // below 2^53
    fn rate(&self) -> f64 {
        self.units as f64 * 1e9 / self.wall_ns as f64
    }
}
