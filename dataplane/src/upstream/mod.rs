//! Connections to engines, and the shard's pool of idle ones.
//!
//! **Invariant:** a connection is in the pool only if its last response was read to its end and its last request was
//! sent to its end; anything else is closed. Bytes or an end of input on an idle connection close it.

use crate::driver::Token;
use crate::exchange::UpReader;
use crate::http1::memo::Place;
use crate::timer::NEVER;
use llmgw_routing::Nanos;
use llmgw_routing::snapshot::Endpoint;
use std::sync::Arc;

/// Idle connections kept for one endpoint on one shard.
pub const MAX_IDLE: usize = 512;

/// What a connection to an engine is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpState {
    /// The TCP handshake is under way.
    Connecting,
    /// It carries an exchange.
    Busy,
    /// Its answer was relayed to the end, and only the end of its framing is missing.
    Tail,
    /// In the pool.
    Idle,
}

/// A connection to an engine.
// Laid out by hand: what every event of a stream touches comes first, in as few cache lines as may be.
#[repr(C, align(64))]
pub struct Up {
    /// State.
    pub state: UpState,
    /// Response bytes of this exchange were seen.
    pub answered: bool,
    /// The engine keeps the connection open after this response.
    pub keep_alive: bool,
    /// Reading is paused.
    pub paused: bool,
    /// It came from the pool.
    pub reused: bool,
    /// The client whose exchange it carries.
    pub client: Option<Token>,
    /// What comes next.
    pub reader: UpReader,
    /// A response head that arrived in pieces.
    pub input: Vec<u8>,
    /// Whom it leads to; keeps the endpoint's counters alive.
    pub endpoint: Arc<Endpoint>,
    /// Number of the snapshot that the endpoint was last known to be in.
    pub version: u64,
    /// Request head toward the engine; empty once sent.
    pub request: Vec<u8>,
    /// Bytes of head and body sent so far.
    pub sent: usize,
    /// Bytes of head and body together.
    pub total: usize,
    /// Where to go on looking for the head's end.
    pub scanned: usize,
    /// Where its last head is remembered.
    pub place: Place,
    /// How long it may idle: ours, or less if the engine says so.
    pub idle_for: Nanos,
    /// Deadline of the idle and tail states.
    pub deadline: Nanos,
    /// Armed timer.
    pub armed: Nanos,
}

impl Up {
    /// A connection about to be opened.
    pub fn new(endpoint: Arc<Endpoint>, version: u64, client: Token, idle_for: Nanos) -> Self {
        Up {
            endpoint,
            version,
            state: UpState::Connecting,
            client: Some(client),
            request: Vec::new(),
            sent: 0,
            total: 0,
            reused: false,
            answered: false,
            input: Vec::new(),
            scanned: 0,
            place: Place::default(),
            reader: UpReader::Head,
            keep_alive: true,
            idle_for,
            paused: false,
            deadline: NEVER,
            armed: NEVER,
        }
    }

    /// The whole request was handed to the socket.
    pub fn request_sent(&self) -> bool {
        self.total > 0 && self.sent == self.total
    }

    /// Prepares a pooled connection for another exchange.
    pub fn reuse(&mut self, client: Token) {
        self.state = UpState::Busy;
        self.client = Some(client);
        self.sent = 0;
        self.total = 0;
        self.reused = true;
        self.answered = false;
        self.scanned = 0;
        self.reader = UpReader::Head;
        self.deadline = NEVER;
    }
}

/// Idle connections by endpoint slot, last in, first out: the freshest is the least likely to be stale.
#[derive(Default)]
pub struct Pool {
    /// By slot; slots are few and reused.
    idle: Vec<Vec<Token>>,
    len: usize,
}

impl Pool {
    /// Idle connections in all.
    pub fn len(&self) -> usize {
        self.len
    }

    /// None idle.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes the freshest idle connection of an endpoint.
    pub fn take(&mut self, slot: u32) -> Option<Token> {
        let token = self.idle.get_mut(slot as usize)?.pop()?;
        self.len -= 1;
        Some(token)
    }

    /// Puts a connection back; `false` when the endpoint's share is full.
    pub fn put(&mut self, slot: u32, token: Token) -> bool {
        let slot = slot as usize;
        if slot >= self.idle.len() {
            self.idle.resize_with(slot + 1, Vec::new);
        }
        let idle = &mut self.idle[slot];
        if idle.len() >= MAX_IDLE {
            return false;
        }
        idle.push(token);
        self.len += 1;
        true
    }

    /// Forgets a connection that was closed while idle.
    pub fn forget(&mut self, slot: u32, token: Token) {
        if let Some(idle) = self.idle.get_mut(slot as usize) {
            let before = idle.len();
            idle.retain(|t| *t != token);
            self.len -= before - idle.len();
        }
    }
}
