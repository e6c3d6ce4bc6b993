//! The engine's one owner of state: the model, the jobs, the faults, the counters.
//!
//! Everything here runs on the engine's thread; no borrow is held across an await. The driver task sleeps until the
//! model's next event and pumps it; connections pump it too before they submit or cancel, so that the model's clock
//! never runs backwards.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::api::{self, ApiError, Generation, Limits, Surface};
use super::clock::Clock;
use super::http::Head;
use super::job::{End, Job, Parts, Verdict};
use super::metrics::Histogram;
use super::out::Out;
use super::record::{Record, Records};
use super::render::{self, Choice, Identity};
use crate::args::Config;
use crate::fault::{Fault, FaultSet, Plan};
use crate::model::{Event, Model, Nanos, Request, SeqId, SubmitError};
use crate::tokens;

/// Longest text searched for a stop text, in tokens.
const STOP_SEARCH_MAX: u32 = 65_536;

/// The engine, shared by its tasks.
pub struct Hub {
    /// How it is set up.
    pub config: Config,
    /// Its time.
    pub clock: Clock,
    /// The model and all that follows it.
    pub core: RefCell<Core>,
    /// The model's next event may have moved.
    pub wake: Notify,
    /// A fault was set or cleared.
    pub faults_changed: Notify,
    /// The listener was closed: idle connections go too.
    pub refused: Notify,
    /// The listener's state has followed the faults.
    pub settled: Notify,
    /// The listener is open.
    pub listening: Cell<bool>,
    /// Connections accepted.
    pub connections: Cell<u64>,
    /// Of them open.
    pub open: Cell<u64>,
    /// No new generation requests are taken.
    pub draining: Cell<bool>,
}

/// The model and its jobs.
pub struct Core {
    /// The model.
    pub model: Model,
    /// What its events work on.
    pub board: Board,
}

/// Jobs, records and counters.
pub struct Board {
    seqs: Vec<Option<Entry>>,
    scratch: Vec<u8>,
    deeds: Vec<(Rc<Job>, Verdict)>,
    rng: fastrand::Rng,
    made: u64,
    /// Lives of the latest requests.
    pub records: Records,
    /// What goes wrong.
    pub faults: FaultSet,
    /// Counters.
    pub totals: Totals,
}

struct Entry {
    id: SeqId,
    job: Rc<Job>,
    choice: usize,
}

/// Counters since the start.
#[derive(Debug, Default)]
pub struct Totals {
    /// Generation requests read.
    pub requests: u64,
    /// Being answered.
    pub active: u64,
    /// Answered to the end.
    pub completed: u64,
    /// Ended by the client.
    pub aborted: u64,
    /// Ended by a fault.
    pub faulted: u64,
    /// Refused as wrong, or with 503 while loading.
    pub rejected: u64,
    /// Choices that ended by themselves or a stop text.
    pub stopped: u64,
    /// Choices that reached their limit.
    pub limited: u64,
    /// Tokens written to clients.
    pub tokens: u64,
    /// Time to first token.
    pub ttft: Histogram,
    /// Whole request.
    pub latency: Histogram,
}

/// How a generation request goes on.
pub enum Start {
    /// This answer, at once; the connection stays if true.
    Answer(Vec<u8>, bool),
    /// These bytes, then close.
    Raw(&'static [u8]),
    /// RST.
    Reset,
    /// The driver answers it.
    Job(Rc<Job>),
}

impl Hub {
    /// An idle engine whose time starts now.
    pub fn new(config: Config) -> Self {
        let mut faults = FaultSet::default();
        config.faults.iter().cloned().for_each(|fault| faults.set(fault));
        let mut model = Model::new(config.engine.clone());
        model.set_slowdown(0, faults.slow_permille());
        let board = Board {
            seqs: Vec::new(),
            scratch: Vec::new(),
            deeds: Vec::new(),
            rng: fastrand::Rng::new(),
            made: 0,
            records: Records::default(),
            faults,
            totals: Totals::default(),
        };
        Self {
            config,
            clock: Clock::start(),
            core: RefCell::new(Core { model, board }),
            wake: Notify::new(),
            faults_changed: Notify::new(),
            refused: Notify::new(),
            settled: Notify::new(),
            listening: Cell::new(false),
            connections: Cell::new(0),
            open: Cell::new(0),
            draining: Cell::new(false),
        }
    }

    /// The model is not loaded yet.
    pub fn loading(&self) -> bool {
        u128::from(self.clock.now()) < self.config.load_time.as_nanos()
    }

    /// What requests are checked against.
    pub fn limits(&self) -> Limits<'_> {
        Limits {
            model: &self.config.model,
            max_model_len: self.config.max_model_len,
            block_size: self.config.engine.block_size,
        }
    }

    /// Lets the model catch up with the clock; when it next has something to do.
    pub fn pump(&self) -> Option<Nanos> {
        self.core.borrow_mut().pump(self.clock.now())
    }

    /// Begins a generation request.
    pub fn generate(&self, surface: Surface, head: &Head, body: &[u8], out: &Rc<Out>) -> Start {
        self.pump();
        let now = self.clock.now();
        let mut core = self.core.borrow_mut();
        let Core { model, board } = &mut *core;
        board.totals.requests += 1;
        board.made += 1;
        let own_id = format!(
            "{:016x}",
            (u64::from(std::process::id()) << 40) ^ board.rng.u64(..1 << 40) ^ (board.made << 44)
        );
        let request_id = head.field("x-request-id").unwrap_or(&own_id).to_owned();
        let target = format!("{} {}", head.method, head.path);
        let mut record = Record::new(request_id.clone(), target, head.fields.clone(), body, now);
        let plan = board.faults.draw(&mut board.rng);
        record.faults.clone_from(&plan.struck);
        let parsed = if self.loading() {
            Err(loading_error())
        } else if self.draining.get() {
            Err(draining_error())
        } else {
            api::parse(surface, body, self.limits())
        };
        let early = early_fault(&plan, &parsed, head.keep_alive, &request_id);
        if let Some(start) = early {
            record.ended = Some(now);
            record.outcome = if plan.struck.is_empty() { "rejected" } else { "faulted" };
            if plan.struck.is_empty() {
                board.totals.rejected += 1;
            } else {
                board.totals.faulted += 1;
            }
            board.records.push(record);
            return start;
        }
        let Ok(generation) = parsed else { return Start::Reset };
        record.prompt_tokens = generation.prompts.iter().map(|prompt| prompt.tokens).sum();
        let choices = self.choices(&generation, &request_id, &own_id);
        let prefix = match surface {
            Surface::Chat => "chatcmpl",
            Surface::Completion => "cmpl",
            Surface::Embedding => "embd",
        };
        out.set_split(plan.split_bytes);
        let job = Rc::new(Job::new(Parts {
            out: Rc::clone(out),
            record: board.records.push(record),
            plan,
            generation,
            identity: Identity {
                id: format!("{prefix}-{own_id}"),
                created: self.clock.unix_s(now),
                model: self.config.model.clone(),
            },
            choices,
            request_id,
            keep_alive: head.keep_alive,
            chunked: head.chunked_ok,
        }));
        board.totals.active += 1;
        if job.plan.hang {
            return Start::Job(job);
        }
        if let Err(error) = board.submit(model, now, &job) {
            board.end(model, now, &job, "rejected");
            board.totals.rejected += 1;
            let error = ApiError::bad("input_tokens", error.to_string());
            return Start::Answer(error_answer(&error, head.keep_alive), head.keep_alive);
        }
        drop(core);
        if job.generation.stream && self.config.metrics_format != crate::MetricsFormat::Llamacpp {
            job.send_head();
        }
        self.wake.notify_one();
        Start::Job(job)
    }

    /// The client of a job is gone.
    pub fn abort(&self, job: &Rc<Job>) {
        self.pump();
        let mut core = self.core.borrow_mut();
        if job.end.get().is_none() {
            job.finish(End::Aborted);
            let Core { model, board } = &mut *core;
            board.totals.aborted += 1;
            board.end(model, self.clock.now(), job, "aborted");
            self.wake.notify_one();
        }
    }

    /// Sets a fault, and waits until the listener follows.
    pub async fn set_fault(&self, fault: Fault) {
        self.core.borrow_mut().board.faults.set(fault);
        self.follow_faults().await;
    }

    /// Clears all faults, and waits until the listener follows.
    pub async fn clear_faults(&self) {
        self.core.borrow_mut().board.faults.clear();
        self.follow_faults().await;
    }

    async fn follow_faults(&self) {
        self.pump();
        let refusing = {
            let mut core = self.core.borrow_mut();
            let slow = core.board.faults.slow_permille();
            core.model.set_slowdown(self.clock.now(), slow);
            core.board.faults.refusing().is_some()
        };
        self.wake.notify_one();
        self.faults_changed.notify_one();
        while self.listening.get() == refusing {
            let settled = self.settled.notified();
            if self.listening.get() != refusing {
                break;
            }
            settled.await;
        }
    }

    /// How busy it is.
    pub fn load(&self) -> super::Load {
        self.pump();
        let core = self.core.borrow();
        let (model, pool) = (&core.model, core.model.pool());
        super::Load {
            waiting: model.waiting(),
            running: model.running(),
            free_blocks: pool.capacity().saturating_sub(pool.used()),
            blocks: pool.capacity(),
        }
    }

    /// The engine's state as `/sim/state` shows it.
    pub fn state(&self) -> Value {
        self.pump();
        let core = self.core.borrow();
        let (totals, stats, pool) = (&core.board.totals, core.model.stats(), core.model.pool());
        json!({
            "model": self.config.model,
            "loading": self.loading(),
            "draining": self.draining.get(),
            "uptime_ms": self.clock.now() / 1_000_000,
            "running": core.model.running(),
            "waiting": core.model.waiting(),
            "active": totals.active,
            "requests": totals.requests,
            "completed": totals.completed,
            "aborted": totals.aborted,
            "faulted": totals.faulted,
            "rejected": totals.rejected,
            "tokens_emitted": totals.tokens,
            "prompt_tokens": stats.prompt_tokens,
            "preemptions": stats.preemptions,
            "connections_seen": self.connections.get(),
            "connections_open": self.open.get(),
            "cache": {
                "blocks": pool.capacity(),
                "blocks_used": pool.used(),
                "blocks_idle": pool.idle(),
                "blocks_evicted": pool.evicted(),
                "queried_tokens": stats.queried_tokens,
                "cached_tokens": stats.cached_tokens,
            },
            "faults": core.board.faults.active().map(fault_json).collect::<Vec<_>>(),
            "faults_injected": core.board.faults.injected,
        })
    }

    fn choices(&self, generation: &Generation, request_id: &str, own_id: &str) -> Vec<Choice> {
        let hash = generation.hashes.iter().fold(0_u64, |all, hash| all.rotate_left(5) ^ hash);
        let base = match &generation.tag {
            Some(tag) => tag.clone(),
            None if generation.deterministic => format!("{hash:016x}"),
            None => tokens::sanitize_tag(request_id).unwrap_or_else(|| own_id.to_owned()),
        };
        let mut choices = Vec::new();
        for (p, prompt) in generation.prompts.iter().enumerate() {
            for _ in 0..generation.n {
                let limit = self.config.max_model_len.saturating_sub(prompt.tokens);
                let asked = generation.max_tokens.or_else(|| generation.ignore_eos.then_some(limit));
                let mut choice = Choice {
                    index: u32::try_from(choices.len()).unwrap_or(u32::MAX),
                    tag: tokens::choice_tag(&base, choices.len()),
                    length: asked.unwrap_or(self.config.default_tokens).min(limit),
                    finish: if asked.is_some() { "length" } else { "stop" },
                    stop: None,
                    visible: None,
                    hash: generation.hashes[p],
                    echo: generation.echo.get(p).cloned(),
                };
                apply_stop(&mut choice, &generation.stop);
                if generation.tool.is_some() {
                    choice.finish = "tool_calls";
                }
                choices.push(choice);
            }
        }
        choices
    }
}

impl Core {
    fn pump(&mut self, now: Nanos) -> Option<Nanos> {
        let Self { model, board } = self;
        model.advance(now, &mut |at, id, event| board.on_event(at, id, event));
        while let Some((job, verdict)) = board.deeds.pop() {
            match verdict {
                Verdict::Over => {
                    board.totals.faulted += 1;
                    board.end(model, now, &job, "faulted");
                }
                Verdict::Freeze => {
                    for id in job.seqs.borrow().iter() {
                        model.hold(now, *id);
                    }
                }
                Verdict::Go => {}
            }
        }
        model.next_event_at()
    }
}

impl Board {
    fn submit(&mut self, model: &mut Model, now: Nanos, job: &Rc<Job>) -> Result<(), SubmitError> {
        let n = usize::try_from(job.generation.n).unwrap_or(1);
        for (number, choice) in job.choices().iter().enumerate() {
            let prompt = job.generation.prompts[number / n].clone();
            let id = model.submit(now, Request { prompt, output_tokens: choice.length })?;
            job.seqs.borrow_mut().push(id);
            if self.seqs.len() <= id.slot() {
                self.seqs.resize_with(id.slot() + 1, || None);
            }
            self.seqs[id.slot()] = Some(Entry { id, job: Rc::clone(job), choice: number });
        }
        Ok(())
    }

    fn on_event(&mut self, at: Nanos, id: SeqId, event: Event) {
        let Some(Some(entry)) = self.seqs.get(id.slot()) else { return };
        if entry.id != id || entry.job.end.get().is_some() || entry.job.frozen() {
            return;
        }
        let job = &entry.job;
        match event {
            Event::Preempted => {}
            Event::Prefilled { cached_tokens } => {
                let n = usize::try_from(job.generation.n).unwrap_or(1);
                if entry.choice % n == 0
                    && let Some(record) = self.records.get_mut(job.record)
                    && record.first_token.is_none()
                {
                    job.cached.set(job.cached.get() + cached_tokens);
                    record.cached_tokens = job.cached.get();
                }
            }
            Event::Token { index } => {
                let before = job.tokens.get();
                let verdict = job.token(entry.choice, index, &mut self.scratch);
                self.totals.tokens += u64::from(job.tokens.get() - before);
                if let Some(record) = self.records.get_mut(job.record) {
                    record.tokens = job.tokens.get();
                    if record.first_token.is_none() {
                        record.first_token = Some(at);
                        self.totals.ttft.add(at.saturating_sub(record.received));
                    }
                }
                if verdict != Verdict::Go {
                    self.deeds.push((Rc::clone(job), verdict));
                }
            }
            Event::Finished => {
                let (job, number) = (Rc::clone(job), entry.choice);
                self.seqs[id.slot()] = None;
                job.seqs.borrow_mut().retain(|other| *other != id);
                if job.choices()[number].finish == "length" {
                    self.totals.limited += 1;
                } else {
                    self.totals.stopped += 1;
                }
                if job.choice_done(number) {
                    let outcome = if job.plan.missing.is_some() { "faulted" } else { "finished" };
                    if job.plan.missing.is_some() {
                        self.totals.faulted += 1;
                    } else {
                        self.totals.completed += 1;
                    }
                    self.close(at, &job, outcome);
                }
            }
        }
    }

    /// Ends a job early: its sequences die.
    fn end(&mut self, model: &mut Model, now: Nanos, job: &Rc<Job>, outcome: &'static str) {
        for id in job.seqs.borrow_mut().drain(..) {
            model.cancel(now, id);
            if self.seqs[id.slot()].as_ref().is_some_and(|entry| entry.id == id) {
                self.seqs[id.slot()] = None;
            }
        }
        self.close(now, job, outcome);
    }

    fn close(&mut self, now: Nanos, job: &Job, outcome: &'static str) {
        self.totals.active -= 1;
        if let Some(record) = self.records.get_mut(job.record) {
            record.outcome = outcome;
            record.ended = Some(now);
            self.totals.latency.add(now.saturating_sub(record.received));
        }
    }
}

/// A fault as `/sim/state` shows it.
pub fn fault_json(fault: &Fault) -> Value {
    json!({ "fault": fault.text, "count": fault.count, "probability": fault.probability })
}

/// The answer to a wrong request.
pub fn error_answer(error: &ApiError, keep_alive: bool) -> Vec<u8> {
    super::http::response(error.status, "application/json", "", &error.body(), keep_alive)
}

/// What requests get while the model loads.
pub fn loading_error() -> ApiError {
    ApiError { status: 503, message: "Loading model".to_owned(), kind: "unavailable_error", param: None }
}

/// What requests get while the engine drains.
fn draining_error() -> ApiError {
    ApiError { status: 503, message: "Draining".to_owned(), kind: "unavailable_error", param: None }
}

/// Faults that strike before the head, and wrong requests.
fn early_fault(
    plan: &Plan,
    parsed: &Result<Generation, ApiError>,
    keep_alive: bool,
    request_id: &str,
) -> Option<Start> {
    use crate::fault::BadHead;
    if plan.reset_before_head {
        return Some(Start::Reset);
    }
    if let Some(bad) = plan.bad_head {
        return Some(Start::Raw(match bad {
            BadHead::Status => b"HTTP/1.1 2OO OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
            BadHead::Length => b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 7\r\n\r\n{}",
            BadHead::Both => {
                b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
            }
            BadHead::Nul => b"HTTP/1.1 200 OK\r\nx-bad: a\0b\r\ncontent-length: 2\r\n\r\n{}",
        }));
    }
    if let Some((status, retry_after)) = plan.status {
        let mut extra = format!("x-request-id: {request_id}\r\n");
        if let Some(seconds) = retry_after {
            extra.push_str(&format!("retry-after: {seconds}\r\n"));
        }
        let kind = match status {
            429 => "RateLimitError",
            503 => "ServiceUnavailableError",
            _ => "InternalServerError",
        };
        let message = format!("injected fault: {}", super::http::reason(status));
        let error = ApiError { status, message, kind, param: None };
        let answer = super::http::response(status, "application/json", &extra, &error.body(), keep_alive);
        return Some(Start::Answer(answer, keep_alive));
    }
    match parsed {
        Err(error) => Some(Start::Answer(error_answer(error, keep_alive), keep_alive)),
        Ok(_) => None,
    }
}

/// Cuts a choice at the first stop text.
fn apply_stop(choice: &mut Choice, stops: &[String]) {
    if stops.is_empty() {
        return;
    }
    let probe = Choice { length: choice.length.min(STOP_SEARCH_MAX), ..choice.clone() };
    let text = render::text(&probe);
    let hit = stops
        .iter()
        .filter(|stop| !stop.is_empty())
        .filter_map(|stop| text.find(stop.as_str()).map(|at| (at, stop)))
        .min_by_key(|(at, stop)| at + stop.len());
    let Some((at, stop)) = hit else { return };
    let mut end = 0;
    for index in 0..choice.length {
        end += tokens::token(&choice.tag, index).len();
        if end >= at + stop.len() {
            choice.length = index + 1;
            break;
        }
    }
    choice.finish = "stop";
    choice.stop = Some(stop.clone());
    choice.visible = Some(at);
}
