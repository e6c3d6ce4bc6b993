//! The lives of the latest requests, for tests that ask what a gateway really sent.
//!
//! Invariant: at most [`RECORDS_MAX`] records and [`BYTES_MAX`] bytes of bodies are kept; the oldest go first.

use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};

use super::clock::Clock;
use crate::model::Nanos;

/// Records kept.
pub const RECORDS_MAX: usize = 20_000;
/// Bytes of bodies kept, all records together.
pub const BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of one body kept.
const BODY_KEPT: usize = 64 * 1024;

/// One request's life.
#[derive(Clone, Debug)]
pub struct Record {
    /// `x-request-id`, else the engine's own id.
    pub id: String,
    /// Method and path.
    pub target: String,
    /// Fields as received.
    pub fields: Vec<(String, String)>,
    /// The body's beginning.
    pub body: String,
    /// The body's whole length in bytes.
    pub body_bytes: usize,
    /// When it was read.
    pub received: Nanos,
    /// When its first token left.
    pub first_token: Option<Nanos>,
    /// Tokens sent.
    pub tokens: u32,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Of them from the cache.
    pub cached_tokens: u32,
    /// `active`, `finished`, `aborted` (by the client), or `faulted`.
    pub outcome: &'static str,
    /// When the outcome was decided.
    pub ended: Option<Nanos>,
    /// The faults that struck it.
    pub faults: Vec<String>,
}

impl Record {
    /// A request that was just read.
    pub fn new(
        id: String,
        target: String,
        fields: Vec<(String, String)>,
        body: &[u8],
        received: Nanos,
    ) -> Self {
        let kept = &body[..body.len().min(BODY_KEPT)];
        Self {
            id,
            target,
            fields,
            body: String::from_utf8_lossy(kept).into_owned(),
            body_bytes: body.len(),
            received,
            first_token: None,
            tokens: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            outcome: "active",
            ended: None,
            faults: Vec::new(),
        }
    }

    fn json(&self, clock: &Clock) -> Value {
        let since = |at: Nanos| {
            u32::try_from(at.saturating_sub(self.received) / 1000)
                .map_or(f64::MAX, |us| f64::from(us) / 1000.0)
        };
        let aborted = self.ended.filter(|_| self.outcome == "aborted");
        json!({
            "id": self.id,
            "request": self.target,
            "headers": self.fields,
            "body": self.body,
            "body_bytes": self.body_bytes,
            "received_unix_us": clock.unix_us(self.received),
            "first_token_at_ms": self.first_token.map(since),
            "tokens_sent": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "outcome": self.outcome,
            "finished": self.outcome == "finished",
            "ended_at_ms": self.ended.map(since),
            "ended_unix_us": self.ended.map(|at| clock.unix_us(at)),
            "aborted_at_ms": aborted.map(since),
            "aborted_unix_us": aborted.map(|at| clock.unix_us(at)),
            "faults": self.faults,
        })
    }
}

/// The ring of records.
#[derive(Debug, Default)]
pub struct Records {
    ring: VecDeque<Record>,
    /// Number of the ring's first record.
    first: u64,
    bytes: usize,
    latest: HashMap<String, u64>,
}

impl Records {
    /// Adds a record; its number.
    pub fn push(&mut self, record: Record) -> u64 {
        let number = self.first + u64::try_from(self.ring.len()).unwrap_or(0);
        self.bytes += record.body.len();
        self.latest.insert(record.id.clone(), number);
        self.ring.push_back(record);
        while self.ring.len() > RECORDS_MAX || (self.bytes > BYTES_MAX && self.ring.len() > 1) {
            let Some(old) = self.ring.pop_front() else { break };
            self.bytes -= old.body.len();
            if self.latest.get(&old.id) == Some(&self.first) {
                self.latest.remove(&old.id);
            }
            self.first += 1;
        }
        number
    }

    /// A record that is still kept.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut Record> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.ring.get_mut(at)
    }

    /// The latest request of this id, and how many of that id are kept.
    pub fn find(&self, id: &str, clock: &Clock) -> Option<Value> {
        let at = usize::try_from(self.latest.get(id)?.checked_sub(self.first)?).ok()?;
        let mut value = self.ring.get(at)?.json(clock);
        value["seen"] = self.ring.iter().filter(|record| record.id == id).count().into();
        Some(value)
    }

    /// The latest records, newest first.
    pub fn latest(&self, count: usize, clock: &Clock) -> Value {
        self.ring.iter().rev().take(count).map(|record| record.json(clock)).collect()
    }
}
