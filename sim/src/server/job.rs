//! One generation's answer: what has been sent, what the faults do to it, and how it ends.
//!
//! The driver calls [`Job::token`] and [`Job::choice_done`] from the model's events; both write straight to
//! the client's socket. Invariant: once [`Job::end`] is set nothing more is sent and the job's sequences are dead.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::api::{Generation, Surface};
use super::http::{self, push_chunk};
use super::out::Out;
use super::render::{self, Choice, Delta, Identity, Template, Usage};
use crate::fault::{Missing, Plan};
use crate::model::SeqId;
use crate::tokens;

/// What becomes of the connection when a job is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Serve the next request.
    KeepAlive,
    /// Close.
    Close,
    /// Close with RST.
    Reset,
    /// The client is gone.
    Aborted,
}

/// What the driver must do with the sequence it just reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Go,
    /// The job is over: cancel its sequences.
    Over,
    /// Freeze its sequences.
    Freeze,
}

/// One request being answered.
pub struct Job {
    /// The client's socket.
    pub out: Rc<Out>,
    /// The record's number.
    pub record: u64,
    /// What goes wrong.
    pub plan: Plan,
    /// The request.
    pub generation: Generation,
    /// Set once: the job is over.
    pub end: Cell<Option<End>>,
    /// Its sequences that live.
    pub seqs: RefCell<Vec<SeqId>>,
    /// Tokens sent, all choices together.
    pub tokens: Cell<u32>,
    /// Prompt tokens from the cache, each prompt once.
    pub cached: Cell<u32>,
    identity: Identity,
    choices: Vec<Choice>,
    templates: Vec<Template>,
    progress: RefCell<Vec<Progress>>,
    remaining: Cell<usize>,
    request_id: String,
    keep_alive: bool,
    chunked: bool,
    head_sent: Cell<bool>,
    /// `stall` struck: nothing more is said.
    frozen: Cell<bool>,
    held: RefCell<Vec<u8>>,
}

/// How far a choice is.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    begun: bool,
    offset: usize,
}

/// What a job is made of.
pub struct Parts {
    /// The client's socket.
    pub out: Rc<Out>,
    /// The record's number.
    pub record: u64,
    /// What goes wrong.
    pub plan: Plan,
    /// The request.
    pub generation: Generation,
    /// Id, time, model.
    pub identity: Identity,
    /// The choices.
    pub choices: Vec<Choice>,
    /// `x-request-id` to echo.
    pub request_id: String,
    /// The client keeps the connection.
    pub keep_alive: bool,
    /// The client understands chunks.
    pub chunked: bool,
}

impl Job {
    /// A job of which nothing has been sent.
    pub fn new(parts: Parts) -> Self {
        let fast =
            parts.generation.stream && parts.generation.logprobs.is_none() && parts.generation.tool.is_none();
        let templates = if fast && !parts.generation.continuous_usage {
            let template = |choice| Template::new(&parts.identity, parts.generation.surface, choice);
            parts.choices.iter().map(template).collect()
        } else {
            Vec::new()
        };
        Self {
            progress: RefCell::new(vec![Progress::default(); parts.choices.len()]),
            remaining: Cell::new(parts.choices.len()),
            out: parts.out,
            record: parts.record,
            plan: parts.plan,
            generation: parts.generation,
            end: Cell::new(None),
            seqs: RefCell::default(),
            tokens: Cell::new(0),
            cached: Cell::new(0),
            identity: parts.identity,
            choices: parts.choices,
            templates,
            request_id: parts.request_id,
            keep_alive: parts.keep_alive,
            chunked: parts.chunked,
            head_sent: Cell::new(false),
            frozen: Cell::new(false),
            held: RefCell::default(),
        }
    }

    /// The job has stalled.
    pub fn frozen(&self) -> bool {
        self.frozen.get()
    }

    /// The choices.
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// Sends a stream's head if it has not been sent.
    pub fn send_head(&self) {
        if !self.head_sent.replace(true) {
            self.out.send(http::stream_head(&self.request_id, self.chunked, self.keep_alive).as_bytes());
        }
    }

    /// Token `index` of choice `number` is there.
    pub fn token(&self, number: usize, index: u32, scratch: &mut Vec<u8>) -> Verdict {
        let struck = self.strike(0);
        if struck != Verdict::Go {
            return struck;
        }
        self.tokens.set(self.tokens.get() + 1);
        if self.generation.stream {
            self.send_head();
            self.token_event(number, index, scratch);
        }
        self.strike(self.tokens.get())
    }

    fn token_event(&self, number: usize, index: u32, scratch: &mut Vec<u8>) {
        let choice = &self.choices[number];
        let begun = {
            let mut progress = self.progress.borrow_mut();
            std::mem::replace(&mut progress[number].begun, true)
        };
        if !begun {
            self.begin(choice);
        }
        let visible = choice.visible;
        if let (Some(template), None) = (self.templates.get(number), visible) {
            scratch.clear();
            template.event(scratch, index);
            self.event(scratch);
            return;
        }
        let mut piece = tokens::token(&choice.tag, index);
        {
            let mut progress = self.progress.borrow_mut();
            let offset = progress[number].offset;
            progress[number].offset += piece.len();
            if let Some(visible) = visible {
                piece.truncate(visible.saturating_sub(offset));
            }
        }
        if piece.is_empty() {
            return;
        }
        let logprobs = self
            .generation
            .logprobs
            .map(|k| render::logprobs(self.generation.surface, choice, index..index + 1, k));
        if self.generation.tool.is_some() {
            if index == 0 {
                piece.insert_str(0, render::TOOL_OPEN);
            }
            if index + 1 == choice.length {
                piece.push_str(render::TOOL_CLOSE);
            }
            self.chunk(choice, &Delta::ToolArguments(&piece), logprobs.as_deref());
        } else {
            self.chunk(choice, &Delta::Text(&piece), logprobs.as_deref());
        }
    }

    /// What comes in front of a choice's first token.
    fn begin(&self, choice: &Choice) {
        if self.generation.surface == Surface::Chat {
            self.chunk(choice, &Delta::Role, None);
        }
        if let Some(tool) = &self.generation.tool {
            self.chunk(choice, &Delta::ToolBegin(&render::call_id(choice), tool), None);
        }
        if let Some(echo) = &choice.echo {
            self.chunk(choice, &Delta::Text(echo), None);
        }
    }

    /// A choice has all its tokens. True when it was the last.
    pub fn choice_done(&self, number: usize) -> bool {
        let choice = &self.choices[number];
        let all_missing = self.plan.missing == Some(Missing::All);
        if self.generation.stream && !all_missing {
            self.chunk(choice, &Delta::Finish, None);
        }
        self.remaining.set(self.remaining.get() - 1);
        if self.remaining.get() > 0 {
            return false;
        }
        let end = if self.generation.stream { self.end_stream() } else { self.send_whole() };
        self.finish(end);
        true
    }

    fn end_stream(&self) -> End {
        let keep = if self.keep_alive && self.chunked { End::KeepAlive } else { End::Close };
        if self.plan.missing != Some(Missing::All) {
            if self.generation.include_usage {
                let usage = render::usage_chunk(&self.identity, self.generation.surface, self.usage());
                self.event(format!("data: {usage}\n\n").as_bytes());
            }
            if self.plan.missing != Some(Missing::Done) {
                self.event(b"data: [DONE]\n\n");
            }
        }
        self.release_held();
        match self.plan.missing {
            Some(Missing::All | Missing::Chunk) => End::Close,
            _ => {
                if self.chunked {
                    self.out.send(b"0\r\n\r\n");
                }
                keep
            }
        }
    }

    fn send_whole(&self) -> End {
        let body = render::whole(&self.identity, &self.generation, &self.choices, self.usage());
        let extra = format!("x-request-id: {}\r\n", self.request_id);
        let mut answer = http::response(200, "application/json", &extra, body.as_bytes(), self.keep_alive);
        if self.plan.missing.is_some() {
            answer.truncate(answer.len() - body.len() / 2);
            self.out.send(&answer);
            return End::Close;
        }
        self.out.send(&answer);
        if self.keep_alive { End::KeepAlive } else { End::Close }
    }

    /// Applies the faults that strike after so many tokens.
    fn strike(&self, tokens: u32) -> Verdict {
        if self.plan.reset_after == Some(tokens) {
            self.release_held();
            self.finish(End::Reset);
            return Verdict::Over;
        }
        if self.plan.bad_chunk == Some(tokens) {
            if self.generation.stream {
                self.send_head();
                self.release_held();
            } else {
                let head = http::stream_head(&self.request_id, true, false);
                self.out
                    .send(head.replace("text/event-stream; charset=utf-8", "application/json").as_bytes());
            }
            self.out.send(b"zz\r\ndata: {\r\n");
            self.finish(End::Close);
            return Verdict::Over;
        }
        if self.plan.stall == Some(tokens) {
            if self.generation.stream {
                self.send_head();
                self.release_held();
            }
            self.frozen.set(true);
            return Verdict::Freeze;
        }
        Verdict::Go
    }

    /// The job is over; the connection's task takes it from here.
    pub fn finish(&self, end: End) {
        if self.end.get().is_none() {
            self.end.set(Some(end));
            self.out.notify.notify_one();
        }
    }

    /// Token counts so far.
    pub fn usage(&self) -> Usage {
        let prompt = self.generation.prompts.iter().map(|prompt| prompt.tokens).sum();
        Usage { prompt, cached: self.cached.get(), completion: self.tokens.get() }
    }

    fn chunk(&self, choice: &Choice, delta: &Delta<'_>, logprobs: Option<&str>) {
        let usage = self.generation.continuous_usage.then(|| self.usage());
        let chunk = render::chunk(&self.identity, self.generation.surface, choice, delta, logprobs, usage);
        self.event(format!("data: {chunk}\n\n").as_bytes());
    }

    /// Sends an event, alone or in a pair.
    fn event(&self, event: &[u8]) {
        if !self.plan.two_events {
            return self.send_data(event);
        }
        let mut held = self.held.borrow_mut();
        if held.is_empty() {
            held.extend_from_slice(event);
        } else {
            held.extend_from_slice(event);
            let pair = std::mem::take(&mut *held);
            self.send_data(&pair);
        }
    }

    fn release_held(&self) {
        let held = std::mem::take(&mut *self.held.borrow_mut());
        if !held.is_empty() {
            self.send_data(&held);
        }
    }

    fn send_data(&self, data: &[u8]) {
        if self.chunked {
            let mut framed = Vec::with_capacity(data.len() + 16);
            push_chunk(&mut framed, data);
            self.out.send(&framed);
        } else {
            self.out.send(data);
        }
    }
}
