//! `loadgen disconnect`: does an engine hear that a client has gone, and how soon.
//!
//! Clients leave at random points of a request's life, in waves; after each wave the engines are asked what became of
//! every request. A request that was sent whole must be seen aborted by an engine, or never have arrived; at the end
//! nothing may run or wait anywhere. Delays compare the client's clock with the engine's: both must be one machine's.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use tokio::net::TcpStream;
use tokio::task::{JoinSet, LocalSet};

use crate::abort::{Attempt, Leave, Left, Phase};
use crate::client::{HeadTemplate, Pool, Target, scratch};
use crate::engines::{Engine, EngineState, Seen};
use crate::gun::nonce;
use crate::overhead::first_model;
use crate::progress::{Progress, Tally};
use crate::run::{RunError, StopHandle};
use crate::stats::{Failure, Failures, Latencies, Summary};
use crate::units::{now, ns};
use crate::workload::{Api, BodySpec, Lengths, push_text, write_body};

/// Between two looks at an engine.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// A request no engine knows by then has not arrived: that it may still be on its way ends here.
const SETTLE: Duration = Duration::from_millis(200);
/// Tokens after which an engine is told to fall silent, for quiet streams.
const QUIET_AFTER: u32 = 2;

/// All of a disconnect check.
#[derive(Clone, Debug)]
pub struct DisconnectConfig {
    /// Base URL that clients use: a gateway's, or an engine's.
    pub url: String,
    /// Base URLs of all engines behind it.
    pub engines: Vec<String>,
    /// The model asked for; without it the first that is listed.
    pub model: Option<String>,
    /// Clients in all.
    pub requests: usize,
    /// Clients at a time.
    pub concurrency: usize,
    /// Prompt length.
    pub prompt: Lengths,
    /// Tokens asked for; generating them must take longer than a client stays.
    pub output: u32,
    /// Longest time a client stays once it has reached its phase.
    pub stay: Duration,
    /// Phases that clients leave in, evenly.
    pub phases: Vec<Phase>,
    /// Make streams quiet by setting `stall` on engines that have no fault set. Without it a stream counts as quiet as
    /// soon as nothing has come for the client's stay.
    pub stall: bool,
    /// Greatest 99th percentile of the delay that passes.
    pub max_delay: Duration,
    /// Time after which a request that still runs counts as missed.
    pub deadline: Duration,
    /// Longest time until a phase is reached.
    pub timeout: Duration,
    /// Attempts accepted that never reached their phase.
    pub max_errors: u64,
    /// Where all drawing starts from.
    pub seed: u64,
    /// Extra `name: value` header lines.
    pub headers: Vec<String>,
    /// Show a progress bar if standard error is a terminal.
    pub progress: bool,
    /// Ends the check early.
    pub stop: StopHandle,
}

impl DisconnectConfig {
    /// Two hundred clients in all phases; set the fields that differ.
    pub fn new(url: impl Into<String>, engines: Vec<String>) -> DisconnectConfig {
        DisconnectConfig {
            url: url.into(),
            engines,
            model: None,
            requests: 200,
            concurrency: 40,
            prompt: Lengths::Uniform(16, 512),
            output: 8_192,
            stay: Duration::from_millis(200),
            phases: Phase::ALL.to_vec(),
            stall: true,
            max_delay: Duration::from_millis(50),
            deadline: Duration::from_secs(5),
            timeout: Duration::from_secs(30),
            max_errors: 0,
            seed: 1,
            headers: Vec::new(),
            progress: false,
            stop: StopHandle::default(),
        }
    }
}

/// What engines noticed.
#[derive(Clone, Debug, Serialize)]
pub struct DisconnectReport {
    /// Base URL that clients used.
    pub url: String,
    /// All phases and both ways of leaving.
    pub all: Noticed,
    /// By phase.
    pub phases: BTreeMap<String, Noticed>,
    /// By way of leaving.
    pub leaves: BTreeMap<String, Noticed>,
    /// Attempts that never reached their phase, by kind.
    pub errors: BTreeMap<String, u64>,
    /// Engines at the end.
    pub engines: Vec<EngineState>,
    /// Bound on the 99th percentile of the delay, in milliseconds.
    pub max_delay_ms: f64,
    /// Quiet streams were made so by the engines' `stall`.
    pub stalled: bool,
    /// It was ended early.
    pub interrupted: bool,
    /// Nothing missed, delays within the bound, engines idle, at least one abort seen.
    pub passed: bool,
}

/// Outcomes of some of the clients.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Noticed {
    /// Clients that left.
    pub left: u64,
    /// Seen aborted by an engine.
    pub aborted: u64,
    /// Known to no engine; fine for those that had no answer yet.
    pub never_arrived: u64,
    /// Ended by itself before the client left, or within the allowed delay.
    pub ended_first: u64,
    /// Still running at the deadline, ran to their end, or answered by no known engine.
    pub missed: u64,
    /// From the client's leaving to the engine's notice.
    pub delay: Summary,
    #[serde(skip)]
    delays: Latencies,
}

/// Checks and reports. Blocks the caller; starts its own thread and runtime, so it may be called anywhere.
pub fn disconnect(config: &DisconnectConfig) -> Result<DisconnectReport, RunError> {
    let wrong = match config {
        c if c.engines.is_empty() => "--engine is needed: without an engine nobody can be asked",
        c if c.requests == 0 || c.concurrency == 0 => "--requests and --concurrency must be at least 1",
        c if c.phases.is_empty() => "at least one phase is needed",
        _ => "",
    };
    if !wrong.is_empty() {
        return Err(RunError::Config(wrong.to_owned()));
    }
    let target = Target::parse(&config.url)?;
    let engines = config.engines.iter().map(|url| Target::parse(url)).collect::<Result<Vec<_>, _>>()?;
    std::thread::scope(|scope| {
        let checking =
            std::thread::Builder::new().name("loadgen-disconnect".into()).spawn_scoped(scope, || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                LocalSet::new().block_on(&runtime, check(config, target, engines))
            });
        checking.map_err(RunError::Io)?.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

async fn check(
    config: &DisconnectConfig,
    target: Target,
    engines: Vec<Target>,
) -> Result<DisconnectReport, RunError> {
    let scratch = scratch();
    let engine = |(url, target): (&String, Target)| {
        let pool = Pool::new(target.address, scratch.clone());
        Engine::new(url, target, pool)
    };
    let engines: Vec<Engine> = config.engines.iter().zip(engines).map(engine).collect();
    let mut checker = Checks::new(config, target, engines, scratch.clone()).await?;
    let progress = Progress::new(config.progress, None);
    let tally = Tally::default();
    let started = now();
    // Quiet streams come last and by themselves: while engines are told to stall, no other stream could go on.
    let (quiet, lively): (Vec<Phase>, Vec<Phase>) =
        config.phases.iter().partition(|p| **p == Phase::QuietStream);
    let quiet_share = config.requests * quiet.len() / config.phases.len();
    for (phases, clients, stall) in
        [(&lively, config.requests - quiet_share, false), (&quiet, quiet_share, config.stall)]
    {
        if phases.is_empty() || clients == 0 {
            continue;
        }
        let stalled = stall && checker.stall().await?;
        checker.stalled |= stalled;
        let mut next = 0;
        let mut outcome = Ok(());
        while next < clients && !config.stop.is_stopped() && outcome.is_ok() {
            let wave = config.concurrency.min(clients - next);
            let plans = (next..next + wave).map(|n| checker.plan(phases[n % phases.len()])).collect();
            outcome = checker.wave(plans, &tally).await;
            next += wave;
            progress.show(&tally, started.elapsed());
        }
        if stalled {
            for engine in &checker.engines {
                engine.clear_faults().await.map_err(asked)?;
            }
        }
        outcome?;
    }
    progress.finish();
    checker.conclude().await
}

/// The check under way.
struct Checks<'a> {
    config: &'a DisconnectConfig,
    target: Target,
    model: String,
    engines: Vec<Engine>,
    scratch: Rc<RefCell<Box<[u8]>>>,
    rng: fastrand::Rng,
    head: HeadTemplate,
    id_prefix: String,
    planned: u64,
    noticed: BTreeMap<(Phase, Leave), Noticed>,
    failures: Failures,
    stalled: bool,
}

impl<'a> Checks<'a> {
    async fn new(
        config: &'a DisconnectConfig,
        target: Target,
        engines: Vec<Engine>,
        scratch: Rc<RefCell<Box<[u8]>>>,
    ) -> Result<Checks<'a>, RunError> {
        for engine in &engines {
            engine.state().await.map_err(asked)?; // tell now, not after the aborts, that it is no simulated engine
        }
        let model = match &config.model {
            Some(model) => model.clone(),
            None => first_model(&Pool::new(target.address, scratch.clone()), &target).await?,
        };
        Ok(Checks {
            config,
            model,
            engines,
            scratch,
            rng: fastrand::Rng::with_seed(config.seed),
            head: HeadTemplate::post(&target, Api::Chat.path(), &config.headers),
            target,
            id_prefix: format!("lgd-{}-", nonce()),
            planned: 0,
            noticed: BTreeMap::new(),
            failures: Failures::default(),
            stalled: false,
        })
    }

    /// Tells all engines to fall silent mid-stream; false, and nothing told, if one has faults of its own.
    async fn stall(&self) -> Result<bool, RunError> {
        for engine in &self.engines {
            if engine.has_faults().await.map_err(asked)? {
                return Ok(false);
            }
        }
        for engine in &self.engines {
            engine.set_fault(&format!("stall={QUIET_AFTER}")).await.map_err(asked)?;
        }
        Ok(true)
    }

    fn plan(&mut self, phase: Phase) -> Attempt {
        let id = format!("{}{}", self.id_prefix, self.planned);
        self.planned += 1;
        let rng = &mut self.rng;
        let mut prompt = String::new();
        push_text(&mut prompt, self.config.prompt.draw(rng).max(1), rng);
        let spec = BodySpec {
            api: Api::Chat,
            model: &self.model,
            stream: match phase {
                Phase::WaitingHead => false, // a whole answer takes its time
                Phase::MidStream | Phase::QuietStream => true,
                Phase::BeforeHead | Phase::DuringBody => rng.bool(),
            },
            include_usage: false,
            max_tokens: self.config.output,
        };
        let body = write_body(spec, &[], &prompt);
        let request = self.head.request(&id, None, &body);
        let head = request.len() - body.len();
        let sent_bytes = match phase {
            Phase::BeforeHead => rng.usize(0..head),
            Phase::DuringBody => rng.usize(head..request.len()),
            _ => request.len(),
        };
        let stay = u64::try_from(self.config.stay.as_micros()).unwrap_or(u64::MAX);
        let wait = match phase {
            // Silence must last to count, and not all are to leave at once.
            Phase::QuietStream => self.config.stay + Duration::from_micros(rng.u64(0..=stay)),
            _ => Duration::from_micros(rng.u64(0..=stay)),
        };
        let leave = if rng.bool() { Leave::Fin } else { Leave::Rst };
        let events = rng.u32(1..=20);
        Attempt { id, phase, leave, request, sent_bytes, wait, events, timeout: self.config.timeout }
    }

    /// Some clients at once, then what became of them.
    async fn wave(&mut self, plans: Vec<Attempt>, tally: &Tally) -> Result<(), RunError> {
        let mut clients = JoinSet::new();
        for plan in plans {
            let (address, scratch) = (self.target.address, self.scratch.clone());
            clients.spawn_local(async move {
                let left = plan.run(address, scratch).await;
                (plan, left)
            });
        }
        let mut gone: Vec<Departed> = Vec::new();
        while let Some(joined) = clients.join_next().await {
            let Ok((plan, left)) = joined else { continue };
            match left {
                Left::Gone { at_unix_ns, kept } => {
                    tally.count(None);
                    let Attempt { id, phase, leave, .. } = plan;
                    gone.push(Departed { id, phase, leave, at_unix_ns, _kept: kept });
                }
                Left::Completed => {
                    tally.count(None);
                    self.noticed.entry((plan.phase, plan.leave)).or_default().count(Fate::EndedFirst);
                }
                Left::Failed(failure) => self.fail(failure, tally),
            }
        }
        for departed in gone {
            let fate = self.fate(&departed).await?;
            self.noticed.entry((departed.phase, departed.leave)).or_default().count(fate);
        }
        Ok(())
    }

    fn fail(&mut self, failure: Failure, tally: &Tally) {
        tally.count(Some(failure));
        self.failures.add(failure);
    }

    /// Asks the engines until they know what became of a request.
    async fn fate(&self, departed: &Departed) -> Result<Fate, RunError> {
        let allowed = ns(self.config.max_delay);
        loop {
            let waited = crate::units::unix_ns().saturating_sub(departed.at_unix_ns);
            let mut aborted_at = None;
            let mut ended_at = None;
            let mut active = false;
            for engine in &self.engines {
                match engine.seen(&departed.id).await.map_err(asked)? {
                    Seen::Never => {}
                    Seen::Active => active = true,
                    Seen::Aborted(at) => aborted_at = aborted_at.max(Some(at)),
                    Seen::Ended(at) => ended_at = ended_at.max(Some(at)),
                }
            }
            let overdue = waited >= ns(self.config.deadline);
            match (active, aborted_at, ended_at) {
                (true, ..) if overdue => return Ok(Fate::Missed),
                (true, ..) => {}
                (false, Some(at), _) => return Ok(Fate::Aborted(at.saturating_sub(departed.at_unix_ns))),
                (false, None, Some(at)) if at <= departed.at_unix_ns.saturating_add(allowed) => {
                    return Ok(Fate::EndedFirst);
                }
                (false, None, Some(_)) => return Ok(Fate::Missed),
                (false, None, None) if departed.phase.has_arrived() => return Ok(Fate::Missed),
                (false, None, None) if !departed.phase.is_sent() || waited >= ns(SETTLE) => {
                    return Ok(Fate::NeverArrived);
                }
                (false, None, None) => {}
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    async fn conclude(self) -> Result<DisconnectReport, RunError> {
        let mut engines = Vec::new();
        let until = now() + self.config.deadline;
        for engine in &self.engines {
            let mut state = engine.state().await.map_err(asked)?;
            while !state.is_idle() && now() < until {
                tokio::time::sleep(LOOK_AGAIN).await;
                state = engine.state().await.map_err(asked)?;
            }
            engines.push(state);
        }
        let mut all = Noticed::default();
        let mut phases: BTreeMap<String, Noticed> = BTreeMap::new();
        let mut leaves: BTreeMap<String, Noticed> = BTreeMap::new();
        for ((phase, leave), noticed) in &self.noticed {
            let leave = if *leave == Leave::Fin { "fin" } else { "rst" };
            all.merge(noticed);
            phases.entry(phase.to_string()).or_default().merge(noticed);
            leaves.entry(leave.to_owned()).or_default().merge(noticed);
        }
        let interrupted = self.config.stop.is_stopped();
        let within = all.delays.quantile_ns(0.99) <= ns(self.config.max_delay);
        let sent = self.config.phases.iter().any(|phase| phase.is_sent());
        Ok(DisconnectReport {
            url: self.config.url.clone(),
            passed: all.missed == 0
                && within
                && engines.iter().all(EngineState::is_idle)
                && self.failures.total() <= self.config.max_errors
                && (all.aborted > 0 || !sent || interrupted),
            all,
            phases,
            leaves,
            errors: self.failures.by_name(),
            engines,
            max_delay_ms: self.config.max_delay.as_secs_f64() * 1e3,
            stalled: self.stalled,
            interrupted,
        })
    }
}

fn asked(e: crate::engines::AskError) -> RunError {
    RunError::Engine(e)
}

/// A client that left.
struct Departed {
    id: String,
    phase: Phase,
    leave: Leave,
    at_unix_ns: u64,
    /// Open until the engines were asked: closing it might tell what the FIN did not.
    _kept: Option<TcpStream>,
}

#[derive(Clone, Copy)]
enum Fate {
    Aborted(u64),
    NeverArrived,
    EndedFirst,
    Missed,
}

impl Noticed {
    fn count(&mut self, fate: Fate) {
        self.left += 1;
        match fate {
            Fate::Aborted(delay_ns) => {
                self.aborted += 1;
                self.delays.record(delay_ns);
            }
            Fate::NeverArrived => self.never_arrived += 1,
            Fate::EndedFirst => self.ended_first += 1,
            Fate::Missed => self.missed += 1,
        }
        self.delay = self.delays.summary();
    }

    fn merge(&mut self, other: &Noticed) {
        self.left += other.left;
        self.aborted += other.aborted;
        self.never_arrived += other.never_arrived;
        self.ended_first += other.ended_first;
        self.missed += other.missed;
        self.delays.merge(&other.delays);
        self.delay = self.delays.summary();
    }
}

impl DisconnectReport {
    /// The report for people.
    pub fn table(&self) -> String {
        let mut table = crate::report::plain_table();
        table.set_header([
            "",
            "left",
            "aborted",
            "never arrived",
            "ended first",
            "missed",
            "delay p50 ms",
            "p99",
            "max",
        ]);
        let groups = self.phases.iter().chain(&self.leaves).map(|(name, noticed)| (name.as_str(), noticed));
        for (name, noticed) in groups.chain([("all", &self.all)]) {
            let counts =
                [noticed.left, noticed.aborted, noticed.never_arrived, noticed.ended_first, noticed.missed];
            let delays = [noticed.delay.p50_ms, noticed.delay.p99_ms, noticed.delay.max_ms];
            let counts = counts.iter().map(u64::to_string);
            let delays = delays
                .iter()
                .map(|ms| if noticed.delay.count > 0 { format!("{ms:.3}") } else { String::new() });
            table.add_row([name.to_owned()].into_iter().chain(counts).chain(delays));
        }
        let mut text = format!("{table}\n");
        for (kind, count) in &self.errors {
            text.push_str(&format!("{count} clients never reached their phase: {kind}\n"));
        }
        for engine in self.engines.iter().filter(|engine| !engine.is_idle()) {
            text.push_str(&format!(
                "{}: {} running, {} waiting\n",
                engine.url, engine.running, engine.waiting
            ));
        }
        if self.all.ended_first > 0 {
            text.push_str(
                "some requests ended before their clients left: slow the engines or raise --output-tokens\n",
            );
        }
        if !self.stalled && self.phases.contains_key("quiet_stream") {
            text.push_str("quiet streams: engines were not told to stall\n");
        }
        text.push_str(&format!("bound on the delay's p99: {} ms\n", self.max_delay_ms));
        text.push_str(if self.passed { "passed" } else { "FAILED" });
        text
    }
}
