//! A driver that does nothing: events are put into it, what is sent is dropped. What remains is the shard's own cost.

use llmgw_dataplane::driver::{Bell, Driver, Event, SendError, Token};
use llmgw_dataplane::slab::{Kind, kind_of};
use llmgw_routing::Nanos;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;

/// How far the clock moves a turn.
const TURN: Nanos = 20_000;
const WALL_AT_ZERO_NS: u64 = 1_700_000_000_000_000_000;

/// Bytes given to the shard.
pub type Bytes = Arc<[u8]>;

/// The driver.
#[derive(Default)]
pub struct StubDriver {
    /// Told at the next turn.
    pub events: VecDeque<Event<(), Bytes>>,
    /// The connection adopted last.
    pub client: Option<Token>,
    /// The engine's connection used last.
    pub upstream: Option<Token>,
    /// Bytes sent.
    pub sent: usize,
    now: Nanos,
}

struct NoBell;

impl Bell for NoBell {
    fn ring(&self) {}
}

impl Driver for StubDriver {
    type Socket = ();
    type Lent = Bytes;

    fn now(&self) -> Nanos {
        self.now
    }
    fn wall(&self) -> u64 {
        WALL_AT_ZERO_NS + self.now
    }
    fn bell(&self) -> Arc<dyn Bell> {
        Arc::new(NoBell)
    }
    fn poll(&mut self, _deadline: Option<Nanos>) {
        self.now += TURN;
    }
    fn next_event(&mut self) -> Option<Event<(), Bytes>> {
        self.events.pop_front()
    }
    fn recycle(&mut self, lent: Bytes) {
        drop(lent);
    }
    fn resume_accept(&mut self) {}
    fn pause_accept(&mut self) {}
    fn close_listeners(&mut self) {}
    fn adopt(&mut self, token: Token, (): ()) {
        self.client = Some(token);
    }
    fn connect(&mut self, token: Token, _address: SocketAddr) {
        self.upstream = Some(token);
        self.events.push_back(Event::Connected(token));
    }
    fn send(&mut self, token: Token, bufs: &[IoSlice<'_>]) -> Result<usize, SendError> {
        let taken = bufs.iter().map(|buf| buf.len()).sum();
        self.sent += taken;
        if kind_of(token) == Kind::Upstream {
            self.upstream = Some(token);
        }
        Ok(taken)
    }
    fn pause(&mut self, _token: Token) {}
    fn resume(&mut self, _token: Token) {}
    fn shutdown_write(&mut self, _token: Token) {}
    fn close(&mut self, _token: Token, _abort: bool) {}
}
