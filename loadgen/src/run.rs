//! `loadgen run`: an open or closed loop, sessions, or a trace as it was recorded.
//!
//! Each thread has its own runtime, connections and recorders; nothing is shared between threads but a few counters, so
//! measuring does not contend.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet, yield_now};

use crate::checker::TokenCheck;
use crate::client::{BadUrl, Target, scratch};
use crate::engines::AskError;
use crate::gun::{Gun, GunSpec, Recorder, Shot, nonce};
use crate::pacer::Pacer;
use crate::progress::{Progress, Tally};
use crate::prompts::{Prompts, Shaper};
use crate::report::Report;
use crate::schedule::{Arrivals, Schedule};
use crate::stats::Failure;
use crate::units::now;
use crate::workload::{Api, Lengths, Turn};

/// Longest conversation a session keeps, in bytes; then it starts over.
const HISTORY_MAX: usize = 4 << 20;
/// Pause after a refused connection in a closed loop, lest it spin.
const REFUSED_PAUSE: Duration = Duration::from_millis(10);

/// When requests leave.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// At times of their own, whatever the server does.
    Open {
        /// Requests a second.
        rate: f64,
        /// Their spacing.
        arrivals: Arrivals,
    },
    /// A number at a time, each as soon as one ends.
    Closed {
        /// How many.
        concurrency: usize,
    },
    /// Conversations, a number at a time, every turn sending all that was said before.
    Sessions {
        /// How many at a time.
        sessions: usize,
        /// Turns of each.
        turns: usize,
        /// Pause between an answer and the next turn.
        think: Duration,
    },
    /// At a trace's own times; the prompts must be the trace's too.
    Replay {
        /// How many times as fast as recorded.
        speed: f64,
    },
}

/// Ends a run early from another thread or a signal handler; the report covers what was done.
#[derive(Clone, Debug)]
pub struct StopHandle(Arc<watch::Sender<bool>>);

impl Default for StopHandle {
    fn default() -> Self {
        StopHandle(Arc::new(watch::Sender::new(false)))
    }
}

impl StopHandle {
    /// Stops.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    pub(crate) async fn stopped(&self) {
        // The sender lives in self, so waiting cannot fail.
        let _ = self.0.subscribe().wait_for(|stopped| *stopped).await;
    }
}

/// All of a run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// Base URL of the API.
    pub url: String,
    /// The model asked for.
    pub model: String,
    /// The call.
    pub api: Api,
    /// When requests leave.
    pub load: Load,
    /// What they ask.
    pub prompts: Prompts,
    /// Ask for streams.
    pub stream: bool,
    /// Ask for the usage chunk of streams.
    pub include_usage: bool,
    /// Requests due in this first part are not measured.
    pub warmup: Duration,
    /// Measured part; without it and without `requests`: ten seconds, or a trace's or the sessions' end.
    pub duration: Option<Duration>,
    /// Most measured requests.
    pub requests: Option<u64>,
    /// Longest time one request may take.
    pub timeout: Duration,
    /// Time for running requests to end after the measured part.
    pub drain: Duration,
    /// Failed requests accepted; failed checks never are.
    pub max_errors: u64,
    /// How far tokens are checked.
    pub check: TokenCheck,
    /// Worker threads.
    pub threads: usize,
    /// Where all drawing starts from.
    pub seed: u64,
    /// Extra `name: value` header lines.
    pub headers: Vec<String>,
    /// Most requests running at once in an open loop; beyond it requests leave late, which their latency shows.
    pub in_flight_max: usize,
    /// Show a progress bar if standard error is a terminal.
    pub progress: bool,
    /// Ends the run early.
    pub stop: StopHandle,
}

impl RunConfig {
    /// A closed loop of 16 short chats for ten seconds; set the fields that differ.
    pub fn new(url: impl Into<String>, model: impl Into<String>) -> RunConfig {
        RunConfig {
            url: url.into(),
            model: model.into(),
            api: Api::Chat,
            load: Load::Closed { concurrency: 16 },
            prompts: Prompts::Drawn {
                prompt: Lengths::Fixed(64),
                output: Lengths::Fixed(16),
                shared_prefix: 0,
            },
            stream: false,
            include_usage: false,
            warmup: Duration::ZERO,
            duration: None,
            requests: None,
            timeout: Duration::from_secs(600),
            drain: Duration::from_secs(60),
            max_errors: 0,
            check: TokenCheck::Auto,
            threads: 1,
            seed: 1,
            headers: Vec::new(),
            in_flight_max: 20_000,
            progress: false,
            stop: StopHandle::default(),
        }
    }
}

/// Why a run could not be done at all.
#[derive(Debug)]
pub enum RunError {
    /// The URL is of no use.
    Url(BadUrl),
    /// Settings that contradict each other or are out of range.
    Config(String),
    /// The machine refused a thread, timer or descriptor.
    Io(io::Error),
    /// An engine could not be asked what it saw.
    Engine(AskError),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Url(e) => e.fmt(f),
            RunError::Config(what) => f.write_str(what),
            RunError::Io(_) => f.write_str("the machine refused a thread, timer or descriptor"),
            RunError::Engine(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RunError::Io(e) => Some(e),
            _ => None,
        }
    }
}

impl From<BadUrl> for RunError {
    fn from(e: BadUrl) -> Self {
        RunError::Url(e)
    }
}

impl From<io::Error> for RunError {
    fn from(e: io::Error) -> Self {
        RunError::Io(e)
    }
}

/// Runs to the end and reports. Blocks the caller; starts its own threads and runtimes, so it may be called anywhere.
pub fn run(config: &RunConfig) -> Result<Report, RunError> {
    check_config(config)?;
    let target = Target::parse(&config.url)?;
    let plan = Arc::new(Plan::new(config, target, now()));
    let mut threads = Vec::new();
    let (done_tx, done_rx) = std::sync::mpsc::channel();
    for worker in 0..config.threads {
        let plan = plan.clone();
        let done = done_tx.clone();
        let spawned = std::thread::Builder::new().name(format!("loadgen-{worker}")).spawn(move || {
            // The receiver only goes when the run has failed already.
            let _ = done.send(run_worker(&plan, worker));
        });
        threads.push(spawned?);
    }
    drop(done_tx);
    let progress = Progress::new(config.progress, plan.length());
    let mut recorder = Recorder::default();
    let mut finished = 0;
    let mut first_error = None;
    while finished < threads.len() {
        match done_rx.recv_timeout(Duration::from_millis(100)) {
            Ok(Ok(part)) => {
                recorder.merge(&part);
                finished += 1;
            }
            Ok(Err(e)) => {
                config.stop.stop();
                first_error = Some(e);
                finished += 1;
            }
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                progress.show(&plan.tally, plan.start.elapsed());
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    progress.finish();
    for thread in threads {
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
    match first_error {
        Some(e) => Err(e.into()),
        None => Ok(Report::new(config, recorder, plan.measured_time())),
    }
}

fn check_config(config: &RunConfig) -> Result<(), RunError> {
    let positive = |value: f64| value.is_finite() && value > 0.0;
    let wrong = match &config.load {
        Load::Open { rate, .. } if !positive(*rate) => "--rate must be above 0",
        Load::Closed { concurrency: 0 } => "--concurrency must be at least 1",
        Load::Sessions { sessions, turns, .. } if *sessions == 0 || *turns == 0 => {
            "--sessions and --turns must be at least 1"
        }
        Load::Sessions { .. } if config.api != Api::Chat => "sessions are chats: leave out --api",
        Load::Replay { speed } if !positive(*speed) => "--time-scale must be above 0",
        Load::Replay { .. } if !matches!(config.prompts, Prompts::Trace { .. }) => "a replay needs a trace",
        _ if config.stream && config.api == Api::Embeddings => "embeddings do not stream: leave out --stream",
        _ if config.threads == 0 || config.threads > 256 => "--threads must be 1 to 256",
        _ if config.in_flight_max == 0 => "--max-in-flight must be at least 1",
        _ if config.timeout.is_zero() => "--timeout must be above 0",
        _ => return Ok(()),
    };
    Err(RunError::Config(wrong.to_owned()))
}

/// What all workers know.
struct Plan {
    config: RunConfig,
    target: Target,
    start: Instant,
    measure_from: Instant,
    /// No request starts at or after this.
    end: Option<Instant>,
    claimed: AtomicU64,
    tally: Tally,
    nonce: String,
    last_done: std::sync::Mutex<Option<Instant>>,
}

impl Plan {
    fn new(config: &RunConfig, target: Target, start: Instant) -> Plan {
        let measure_from = start + config.warmup;
        let unbounded =
            config.requests.is_some() || matches!(config.load, Load::Replay { .. } | Load::Sessions { .. });
        let default = (!unbounded).then_some(Duration::from_secs(10));
        Plan {
            config: config.clone(),
            target,
            start,
            measure_from,
            end: config.duration.or(default).map(|duration| measure_from + duration),
            claimed: AtomicU64::new(0),
            tally: Tally::default(),
            nonce: nonce(),
            last_done: std::sync::Mutex::new(None),
        }
    }

    fn length(&self) -> Option<Duration> {
        self.end.map(|end| end - self.start)
    }

    /// From the end of the warm-up to the end of the window, or of the last request if that was earlier.
    fn measured_time(&self) -> Duration {
        let last = self.last_done.lock().map_or(None, |last| *last).unwrap_or(self.start);
        let end = self.end.map_or(last, |end| end.min(last));
        end.saturating_duration_since(self.measure_from)
    }

    fn note_end(&self) {
        if let Ok(mut last) = self.last_done.lock() {
            *last = Some(now());
        }
    }

    /// Whether a request due then may start; counts it if it is measured.
    fn claim(&self, due: Instant) -> bool {
        if self.end.is_some_and(|end| due >= end) || self.config.stop.is_stopped() {
            return false;
        }
        match self.config.requests {
            Some(most) if due >= self.measure_from => self.claimed.fetch_add(1, Ordering::Relaxed) < most,
            _ => true,
        }
    }
}

fn run_worker(plan: &Arc<Plan>, index: usize) -> io::Result<Recorder> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let config = &plan.config;
        let spec = GunSpec {
            target: plan.target.clone(),
            api: config.api,
            model: config.model.clone(),
            stream: config.stream,
            include_usage: config.include_usage,
            timeout: config.timeout,
            check: config.check,
            fields: config.headers.clone(),
            id_prefix: format!("lg-{}-{index}-", plan.nonce),
        };
        let gun = Rc::new(Gun::new(spec, scratch()));
        let shaper = Shaper::new(config.prompts.clone(), index, config.threads, config.seed);
        let worker =
            Rc::new(Worker { plan: plan.clone(), index, gun: gun.clone(), shaper: RefCell::new(shaper) });
        let mut tasks = JoinSet::new();
        worker.start(&mut tasks).await?;
        worker.drain(&mut tasks).await;
        plan.note_end();
        let mut recorder = gun.take();
        let cut = gun.in_flight();
        tasks.shutdown().await;
        if !config.stop.is_stopped() {
            recorder.failures.add_many(Failure::Unfinished, cut);
        }
        Ok(recorder)
    })
}

struct Worker {
    plan: Arc<Plan>,
    index: usize,
    gun: Rc<Gun>,
    shaper: RefCell<Shaper>,
}

impl Worker {
    /// Starts the tasks of a closed loop, or dispatches all of an open loop's requests.
    async fn start(self: &Rc<Self>, tasks: &mut JoinSet<()>) -> io::Result<()> {
        let config = &self.plan.config;
        match config.load {
            Load::Closed { concurrency } => {
                for _ in 0..share(concurrency, self.index, config.threads) {
                    tasks.spawn_local(self.clone().closed_loop());
                }
                Ok(())
            }
            Load::Sessions { sessions, turns, think } => {
                for slot in 0..share(sessions, self.index, config.threads) {
                    tasks.spawn_local(self.clone().session_loop(slot, turns, think));
                }
                Ok(())
            }
            Load::Open { rate, arrivals } => {
                let (index, threads) = (as_u64(self.index), as_u64(config.threads));
                let due = Schedule::new(arrivals, rate, index, threads, config.seed);
                self.open_loop(due, tasks).await
            }
            Load::Replay { speed } => {
                let Prompts::Trace { requests, .. } = &config.prompts else { return Ok(()) };
                let due = requests.iter().skip(self.index).step_by(config.threads).map(|r| r.due(speed));
                self.open_loop(due, tasks).await
            }
        }
    }

    /// Fires requests at their times.
    async fn open_loop(
        self: &Rc<Self>,
        schedule: impl Iterator<Item = Duration>,
        tasks: &mut JoinSet<()>,
    ) -> io::Result<()> {
        let pacer = Pacer::new()?;
        let most = share(self.plan.config.in_flight_max, self.index, self.plan.config.threads).max(1);
        for (count, offset) in schedule.enumerate() {
            let due = self.plan.start + offset;
            if self.plan.end.is_some_and(|end| due >= end) {
                break;
            }
            tokio::select! {
                biased;
                () = self.plan.config.stop.stopped() => break,
                waited = pacer.wait_until(due) => waited?,
            }
            if !self.plan.claim(due) {
                break;
            }
            while tasks.try_join_next().is_some() {}
            while tasks.len() >= most && tasks.join_next().await.is_some() {}
            if count % 16 == 15 {
                yield_now().await; // when late, sending must not starve receiving
            }
            let worker = self.clone();
            tasks.spawn_local(async move {
                worker.fire_one(due).await;
            });
        }
        Ok(())
    }

    async fn closed_loop(self: Rc<Self>) {
        loop {
            let due = now();
            if !self.plan.claim(due) {
                return;
            }
            if self.fire_one(due).await == Some(Failure::Connect) {
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
        }
    }

    async fn fire_one(&self, due: Instant) -> Option<Failure> {
        let shape = self.shaper.borrow_mut().next_shape();
        let shot = Shot {
            prompt: &shape.prompt,
            history: &[],
            session: None,
            output: shape.output,
            due,
            measured: due >= self.plan.measure_from,
            window_end: self.plan.end,
            keep_text: false,
        };
        let (failure, _) = self.gun.fire(shot).await;
        self.plan.tally.count(failure);
        failure
    }

    /// Conversations one after the other; just one where neither a duration nor a number of requests bounds the run.
    async fn session_loop(self: Rc<Self>, slot: usize, turns: usize, think: Duration) {
        let once = self.plan.end.is_none() && self.plan.config.requests.is_none();
        for number in 0_u64.. {
            let name = format!("lg-{}-{}-{slot}-{number}", self.plan.nonce, self.index);
            if !self.session(&name, turns, think).await || once {
                return;
            }
        }
    }

    /// One conversation; false when the run is over.
    async fn session(&self, name: &str, turns: usize, think: Duration) -> bool {
        let mut history: Vec<Turn> = Vec::new();
        let mut bytes = 0;
        for turn in 0..turns {
            if turn > 0 && !think.is_zero() {
                tokio::select! {
                    () = self.plan.config.stop.stopped() => return false,
                    () = tokio::time::sleep(think) => {}
                }
            }
            let due = now();
            if !self.plan.claim(due) {
                return false;
            }
            let shape = self.shaper.borrow_mut().next_shape();
            let shot = Shot {
                prompt: &shape.prompt,
                history: &history,
                session: Some(name),
                output: shape.output,
                due,
                measured: due >= self.plan.measure_from,
                window_end: self.plan.end,
                keep_text: true,
            };
            let (failure, text) = self.gun.fire(shot).await;
            self.plan.tally.count(failure);
            if failure == Some(Failure::Connect) {
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
            bytes += shape.prompt.len() + text.len();
            if failure.is_some() || bytes > HISTORY_MAX {
                return true; // what was said is not known: a new conversation
            }
            history.push(Turn { user: shape.prompt, assistant: text });
        }
        true
    }

    /// Waits for what runs; after the window's end, the drain time, or a stop, no longer.
    async fn drain(&self, tasks: &mut JoinSet<()>) {
        let drained_by = self.plan.end.map(|end| end + self.plan.config.drain);
        let cut_off = async {
            match drained_by {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.plan.config.stop.stopped() => {}
            () = cut_off => {}
            () = async { while tasks.join_next().await.is_some() {} } => {}
        }
    }
}

fn share(total: usize, index: usize, workers: usize) -> usize {
    total / workers + usize::from(index < total % workers)
}

fn as_u64(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}
