//! Deadlines of connections: a heap with lazy entries.
//!
//! A connection has one deadline armed at most. Progress moves real deadlines later, never earlier, so the armed entry
//! is left alone: when it fires, the connection looks at what is really due and arms again. Only a phase with an
//! earlier deadline pushes a new entry. In steady state a connection pushes about once a keep-alive interval, however
//! many requests it carries.

use crate::driver::Token;
use llmgw_routing::Nanos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No deadline.
pub const NEVER: Nanos = Nanos::MAX;

/// The deadlines of one shard.
#[derive(Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(Nanos, Token)>>,
}

impl Timers {
    /// Arms `token` at `at`; `armed` is the connection's memory of its armed deadline.
    pub fn arm(&mut self, token: Token, armed: &mut Nanos, at: Nanos) {
        let lost = crate::planted!(DeadlineNotRearmed) && *armed != NEVER;
        if at < *armed && !lost {
            *armed = at;
            self.heap.push(Reverse((at, token)));
        }
    }

    /// The earliest entry, live or stale.
    pub fn next(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes an entry that is due. The caller compares its time with the connection's memory: unequal means stale.
    pub fn pop_due(&mut self, now: Nanos) -> Option<(Nanos, Token)> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// Drops stale entries once they outnumber live connections by far, so that churn cannot grow the heap.
    pub fn prune(&mut self, live: usize, mut is_live: impl FnMut(Token, Nanos) -> bool) {
        if self.heap.len() > 1024 + 4 * live {
            self.heap.retain(|Reverse((at, token))| is_live(*token, *at));
        }
    }

    /// Entries held.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// No entries.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}
