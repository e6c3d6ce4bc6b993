//! Fires single requests and records what came of them. One gun a thread and target; the loops decide when it fires.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::checker::{Checker, EventKind, TokenCheck, TokenCounts, Verdict, Violation};
use crate::client::{Exchanged, HeadTemplate, Pool, Sink, Target};
use crate::http::{Head, Part};
use crate::sse::SseParser;
use crate::stats::{Failure, Failures, Latencies};
use crate::units::ns;
use crate::workload::{Api, BodySpec, Turn, write_body};

/// Longest answer read when it is not streamed, in bytes.
const BODY_MAX: usize = 64 << 20;

/// What all requests of a gun have in common.
#[derive(Clone, Debug)]
pub struct GunSpec {
    /// Where to.
    pub target: Target,
    /// The call.
    pub api: Api,
    /// The model asked for.
    pub model: String,
    /// Ask for streams.
    pub stream: bool,
    /// Ask for the usage chunk.
    pub include_usage: bool,
    /// Longest time one request may take.
    pub timeout: Duration,
    /// How far tokens are checked.
    pub check: TokenCheck,
    /// Extra `name: value` lines.
    pub fields: Vec<String>,
    /// Begins every request id; unique to this gun.
    pub id_prefix: String,
}

/// Everything measured so far.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    /// From the due time to the last byte, of requests that succeeded.
    pub total: Latencies,
    /// From the due time to the first token, of streams that brought one.
    pub ttft: Latencies,
    /// Between tokens of a stream.
    pub inter_token: Latencies,
    /// From the due time to the moment the request was written: the generator's own delay.
    pub send_lag: Latencies,
    /// Requests that succeeded.
    pub ok: u64,
    /// Requests that did not.
    pub failures: Failures,
    /// Requests of the warm-up, whatever came of them.
    pub warmup: u64,
    /// Failures within the warm-up; failed checks count as failures all the same.
    pub warmup_failures: Failures,
    /// Tokens of all answers.
    pub tokens: TokenCounts,
    /// Of the requests that succeeded, those that ended within the measured window: what a rate is made of.
    pub ok_in_window: u64,
    /// Events that carried text within the window.
    pub events_in_window: u64,
    /// Comment lines in streams.
    pub comments: u64,
    /// Stale connections replaced.
    pub stale_retries: u64,
    /// Body bytes received.
    pub body_bytes: u64,
}

impl Recorder {
    /// Adds another's measurements.
    pub fn merge(&mut self, other: &Recorder) {
        self.total.merge(&other.total);
        self.ttft.merge(&other.ttft);
        self.inter_token.merge(&other.inter_token);
        self.send_lag.merge(&other.send_lag);
        self.ok += other.ok;
        self.failures.merge(&other.failures);
        self.warmup += other.warmup;
        self.warmup_failures.merge(&other.warmup_failures);
        self.tokens.merge(&other.tokens);
        self.ok_in_window += other.ok_in_window;
        self.events_in_window += other.events_in_window;
        self.comments += other.comments;
        self.stale_retries += other.stale_retries;
        self.body_bytes += other.body_bytes;
    }
}

/// One request to fire.
#[derive(Clone, Debug)]
pub struct Shot<'a> {
    /// The prompt, or the last turn of one.
    pub prompt: &'a str,
    /// Turns before it.
    pub history: &'a [Turn],
    /// `x-session-id`.
    pub session: Option<&'a str>,
    /// Tokens asked for.
    pub output: u32,
    /// When it was to leave.
    pub due: Instant,
    /// False within the warm-up.
    pub measured: bool,
    /// End of the measured window, where there is one.
    pub window_end: Option<Instant>,
    /// Keep the answer's text.
    pub keep_text: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Gun {
    spec: GunSpec,
    head: HeadTemplate,
    pool: Pool,
    recorder: RefCell<Recorder>,
    next_id: Cell<u64>,
    in_flight: Cell<u64>,
}

impl Gun {
    /// A gun with an empty pool.
    pub fn new(spec: GunSpec, scratch: Rc<RefCell<Box<[u8]>>>) -> Gun {
        Gun {
            head: HeadTemplate::post(&spec.target, spec.api.path(), &spec.fields),
            pool: Pool::new(spec.target.address, scratch),
            spec,
            recorder: RefCell::default(),
            next_id: Cell::new(0),
            in_flight: Cell::new(0),
        }
    }

    /// Requests begun and not ended.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.get()
    }

    /// Takes what was recorded and starts anew.
    pub fn take(&self) -> Recorder {
        self.recorder.take()
    }

    /// Fires and records. Returns the failure if there was one, and the answer's text if it was to be kept.
    pub async fn fire(&self, shot: Shot<'_>) -> (Option<Failure>, String) {
        let id = format!("{}{}", self.spec.id_prefix, self.next_id.replace(self.next_id.get() + 1));
        let body = write_body(
            BodySpec {
                api: self.spec.api,
                model: &self.spec.model,
                stream: self.spec.stream,
                include_usage: self.spec.include_usage,
                max_tokens: shot.output,
            },
            shot.history,
            shot.prompt,
        );
        let request = self.head.request(&id, shot.session, &body);
        drop(body);
        self.in_flight.set(self.in_flight.get() + 1);
        let _guard = InFlight(&self.in_flight);
        let mut answer = Answer::new(self, &shot, &id);
        let exchanged =
            tokio::time::timeout(self.spec.timeout, self.pool.exchange(request, &mut answer)).await;
        let first_token_at = answer.first_token_at;
        let (failure, verdict) = match exchanged {
            Ok(exchanged) => {
                let (failure, verdict) = answer.judge(&exchanged, shot.output);
                self.record(&shot, &exchanged, first_token_at, failure, &verdict);
                (failure, verdict)
            }
            Err(_) => {
                self.record_failure(&shot, Failure::Timeout);
                (Some(Failure::Timeout), Verdict::default())
            }
        };
        (failure, verdict.text)
    }

    fn record(
        &self,
        shot: &Shot<'_>,
        exchanged: &Exchanged,
        first_token_at: Option<Instant>,
        failure: Option<Failure>,
        verdict: &Verdict,
    ) {
        let since_due = |at: Instant| ns(at.saturating_duration_since(shot.due));
        {
            let mut recorder = self.recorder.borrow_mut();
            recorder.tokens.merge(&verdict.counts);
            recorder.stale_retries += u64::from(exchanged.retried_stale);
            if shot.measured {
                recorder.send_lag.record(since_due(exchanged.sent_at));
                if let Some(at) = first_token_at {
                    recorder.ttft.record(since_due(at));
                }
                if failure.is_none() {
                    recorder.ok += 1;
                    let inside = shot.window_end.is_none_or(|end| exchanged.ended_at <= end);
                    recorder.ok_in_window += u64::from(inside);
                    recorder.total.record(since_due(exchanged.ended_at));
                }
            } else {
                recorder.warmup += 1;
            }
        }
        if let Some(failure) = failure {
            self.record_failure(shot, failure);
        }
    }

    fn record_failure(&self, shot: &Shot<'_>, failure: Failure) {
        let mut recorder = self.recorder.borrow_mut();
        if shot.measured || failure.is_check() {
            recorder.failures.add(failure);
        } else {
            recorder.warmup_failures.add(failure);
        }
    }
}

struct InFlight<'a>(&'a Cell<u64>);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// One answer as it comes in.
struct Answer<'a> {
    gun: &'a Gun,
    measured: bool,
    window_end: Option<Instant>,
    head: Head,
    sse: SseParser,
    checker: Checker,
    body: Vec<u8>,
    broken: bool,
    first_token_at: Option<Instant>,
    last_token_at: Option<Instant>,
}

impl<'a> Answer<'a> {
    fn new(gun: &'a Gun, shot: &Shot<'_>, id: &str) -> Answer<'a> {
        Answer {
            gun,
            measured: shot.measured,
            window_end: shot.window_end,
            head: Head::default(),
            sse: SseParser::default(),
            checker: Checker::new(gun.spec.check, id, shot.keep_text),
            body: Vec::new(),
            broken: false,
            first_token_at: None,
            last_token_at: None,
        }
    }

    fn events(&mut self, bytes: &[u8], at: Instant) {
        let Answer { sse, checker, first_token_at, last_token_at, gun, measured, window_end, .. } = self;
        let comments = sse.comments();
        let fed = sse.feed(bytes, |data| {
            if checker.event(data) != EventKind::Content {
                return;
            }
            first_token_at.get_or_insert(at);
            let before = last_token_at.replace(at);
            if *measured {
                let mut recorder = gun.recorder.borrow_mut();
                recorder.events_in_window += u64::from(window_end.is_none_or(|end| at <= end));
                if let Some(before) = before {
                    recorder.inter_token.record(ns(at.saturating_duration_since(before)));
                }
            }
        });
        self.broken |= fed.is_err();
        gun.recorder.borrow_mut().comments += sse.comments() - comments;
    }

    /// What came of the request.
    fn judge(mut self, exchanged: &Exchanged, asked: u32) -> (Option<Failure>, Verdict) {
        if self.head.status == 0 || !(200..300).contains(&self.head.status) {
            let failure = match self.head.status {
                0 => exchanged.failure.unwrap_or(Failure::ClosedBeforeHead),
                status => exchanged.failure.unwrap_or(Failure::Status(status)),
            };
            return (Some(failure), Verdict::default());
        }
        if self.head.event_stream != self.gun.spec.stream {
            let failure = exchanged.failure.unwrap_or(Failure::Check(Violation::WrongKind));
            return (Some(failure), Verdict::default());
        }
        if !self.head.event_stream && exchanged.failure.is_none() {
            if self.gun.spec.api == Api::Embeddings {
                let valid = serde_json::from_slice::<serde::de::IgnoredAny>(&self.body).is_ok();
                let failure = (!valid || self.broken).then_some(Failure::Check(Violation::BadJson));
                return (failure, Verdict::default());
            }
            self.checker.body(&self.body);
        }
        let verdict = self.checker.finish(asked);
        // A broken connection explains a missing terminator, but not a token out of order.
        let check = verdict.violation.map(Failure::Check);
        let failure = match (exchanged.failure, check) {
            (_, None) if verdict.error_event => Some(Failure::ErrorEvent),
            (Some(transport), None | Some(Failure::Check(Violation::MissingTerminator))) => Some(transport),
            (_, Some(check)) => Some(check),
            (None, None) if self.broken => Some(Failure::Check(Violation::BadJson)),
            (None, None) => None,
        };
        (failure, verdict)
    }
}

impl Sink for Answer<'_> {
    fn part(&mut self, part: Part<'_>, at: Instant) {
        match part {
            Part::Head(head) => self.head = head.clone(),
            Part::Body(bytes) => {
                self.gun.recorder.borrow_mut().body_bytes += u64::try_from(bytes.len()).unwrap_or(0);
                if self.head.event_stream {
                    self.events(bytes, at);
                } else if self.body.len() + bytes.len() <= BODY_MAX {
                    self.body.extend_from_slice(bytes);
                } else {
                    self.broken = true;
                }
            }
        }
    }
}

/// A part of request ids that no other run on this machine has at this time.
pub fn nonce() -> String {
    format!("{:08x}", fastrand::u32(..))
}
