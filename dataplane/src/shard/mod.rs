//! A shard: one thread, one driver, its clients and its engine connections.
//!
//! The loop selects events, decides, applies: [`Shard::turn`] waits for the driver, handles every event, fires what is
//! due and returns. All state is the shard's own but for [`crate::shared::Shared`].

mod accept;
mod answer;
mod client;
mod dispatch;
mod input;
mod local;
mod relay;
mod settle;
mod stop;
mod upstream;

use crate::buffers::{OutBuf, Quota, Spares};
use crate::driver::{Driver, Event, Token};
use crate::exchange::Exchange;
use crate::http1::memo::{Memo, Place};
use crate::metrics::{SeriesId, SeriesStats, ShardStats};
use crate::shared::{RecordProducer, Shared, Stop};
use crate::slab::{Kind, Slab, kind_of};
use crate::timer::{NEVER, Timers};
use crate::upstream::{Pool, Up};
use arc_swap::{ArcSwap, Cache};
use llmgw_routing::pipeline::PickState;
use llmgw_routing::snapshot::{Settings, Snapshot};
use llmgw_routing::{MILLISECOND, Nanos};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// How long a client may take to close after our last byte.
const LINGER: Nanos = 2_000 * MILLISECOND;
/// How often bodies that wait for memory try again.
const STARVED_RETRY: Nanos = 20 * MILLISECOND;
/// How long the end of an already relayed response may take before its connection is given up.
const TAIL: Nanos = 1_000 * MILLISECOND;

/// What a client's connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientState {
    /// Between requests.
    Idle,
    /// A head has begun.
    Head,
    /// A body is arriving.
    Body,
    /// The request is complete; its answer is awaited or under way.
    Answer,
    /// Our last byte is out (or on its way); waiting for the client to close.
    Linger,
}

/// A client's connection.
// Laid out by hand: what every event of a stream touches comes first, in as few cache lines as may be.
#[repr(C, align(64))]
struct Client {
    exchange: Option<Box<Exchange>>,
    out: OutBuf,
    /// Last time unsent output shrank, while there is some.
    out_since: Nanos,
    state: ClientState,
    /// The client's FIN was seen.
    fin: bool,
    /// Reading is paused.
    paused: bool,
    /// Waiting for body memory.
    starved: bool,
    /// Answered so often in this turn that the others come first.
    yielded: bool,
    armed: Nanos,
    /// Start of the phase, or its last progress, as its deadline needs.
    since: Nanos,
    peer: IpAddr,
    /// Bytes that arrived and were not consumed yet.
    input: Vec<u8>,
    /// Where to go on looking for a head's end in `input`.
    scanned: usize,
    /// Where its last head is remembered.
    place: Place,
}

/// One shard.
pub struct Shard<D: Driver> {
    id: usize,
    driver: D,
    shared: Arc<Shared<D::Socket>>,
    snapshot: Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>,
    seen_version: u64,
    /// The last number of drains that was looked at, see [`llmgw_routing::load::LoadTable::cuts`]; 0 before any.
    seen_cuts: u64,
    /// Settings of the snapshot last seen; an exchange keeps those it began with.
    current: Arc<Settings>,
    now: Nanos,
    clients: Slab<Client>,
    ups: Slab<Up>,
    pool: Pool,
    timers: Timers,
    quota: Quota,
    picks: PickState,
    rng: fastrand::Rng,
    records: RecordProducer,
    series: HashMap<SeriesId, Arc<SeriesStats>>,
    /// Output under construction; empty between events.
    scratch: Vec<u8>,
    spares: Spares,
    /// Clients' heads, and engines'.
    requests: Memo<input::KnownRequest>,
    responses: Memo<answer::KnownAnswer>,
    /// Settled exchanges, for requests to come. They hold nothing but their own memory.
    #[allow(clippy::vec_box)] // the boxes are what is kept
    exchanges: Vec<Box<Exchange>>,
    /// Clients whose kept input can be looked at again.
    ready: Vec<Token>,
    /// Clients that go on in the next turn.
    later: Vec<Token>,
    /// Clients waiting for body memory.
    starved: Vec<Token>,
    /// Until then an idle shard goes on looking instead of sleeping.
    busy_until: Nanos,
    stop: Stop,
    stop_at: Nanos,
}

impl<D: Driver> Shard<D> {
    /// Builds a shard over a driver whose listeners are bound. `seed` feeds request ids and tie-breaking.
    pub fn new(
        id: usize,
        driver: D,
        shared: Arc<Shared<D::Socket>>,
        records: RecordProducer,
        seed: u64,
    ) -> Self {
        let _ = shared.seats[id].bell.set(driver.bell());
        let mut snapshot = Cache::new(Arc::clone(&shared.snapshot));
        let (seen_version, current) =
            (snapshot.load().version, Arc::new((*snapshot.load().settings).clone()));
        let now = driver.now();
        Shard {
            id,
            driver,
            snapshot,
            seen_version,
            seen_cuts: 0,
            current,
            now,
            clients: Slab::new(Kind::Client),
            ups: Slab::new(Kind::Upstream),
            pool: Pool::default(),
            timers: Timers::default(),
            quota: Quota::default(),
            picks: PickState::new(seed),
            rng: fastrand::Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ id as u64),
            records,
            series: HashMap::new(),
            scratch: Vec::new(),
            spares: Spares::default(),
            requests: Memo::default(),
            responses: Memo::default(),
            exchanges: Vec::new(),
            ready: Vec::new(),
            later: Vec::new(),
            starved: Vec::new(),
            busy_until: 0,
            stop: Stop::No,
            stop_at: NEVER,
            shared,
        }
    }

    /// Serves until told to stop and done.
    pub fn run(mut self) {
        while self.turn() {}
    }

    /// One turn of the loop; `false` when the shard has stopped.
    pub fn turn(&mut self) -> bool {
        let deadline = if self.busy_until > self.now { Some(self.now) } else { self.next_deadline() };
        self.driver.poll(deadline);
        self.now = self.driver.now();
        self.stats().wakeups.add(1);
        let mut events = 0;
        while let Some(event) = self.driver.next_event() {
            events += 1;
            self.handle(event);
            self.serve_ready();
        }
        if events > 0 && self.current.busy_poll > 0 {
            self.busy_until = self.now + self.current.busy_poll;
        }
        self.fire_timers();
        self.retry_starved();
        self.serve_ready();
        self.serve_yielded();
        self.stats().events.add(events);
        self.publish_gauges();
        self.check_stop()
    }

    fn next_deadline(&self) -> Option<Nanos> {
        if !self.later.is_empty() {
            return Some(self.now);
        }
        let mut at = self.timers.next().unwrap_or(NEVER).min(self.stop_at);
        if !self.starved.is_empty() {
            at = at.min(self.now + STARVED_RETRY);
        }
        (at != NEVER).then_some(at)
    }

    fn handle(&mut self, event: Event<D::Socket, D::Lent>) {
        match event {
            Event::Accepted { socket, peer } => self.accepted(socket, peer),
            Event::AcceptFailed => self.stats().accept_failed.add(1),
            Event::Doorbell => self.doorbell(),
            Event::Data(token, lent) => {
                match kind_of(token) {
                    Kind::Client => self.client_data(token, &lent),
                    Kind::Upstream => self.up_data(token, &lent),
                }
                self.driver.recycle(lent);
            }
            Event::Writable(token) => match kind_of(token) {
                Kind::Client => self.client_writable(token),
                Kind::Upstream => self.up_writable(token),
            },
            Event::Eof(token) => match kind_of(token) {
                Kind::Client => self.client_fin(token),
                Kind::Upstream => self.up_eof(token),
            },
            Event::Hangup(token) => match kind_of(token) {
                Kind::Client => self.client_hangup(token),
                // What the engine sent before it closed is still to be read.
                Kind::Upstream => {}
            },
            Event::Reset(token, _) => match kind_of(token) {
                Kind::Client => self.client_gone(token),
                Kind::Upstream => self.up_reset(token),
            },
            Event::Connected(token) => self.up_connected(token),
            Event::ConnectFailed(token, error) => self.up_connect_failed(token, error),
        }
    }

    fn stats(&self) -> &ShardStats {
        &self.shared.seats[self.id].stats
    }

    fn settings(&self) -> &Arc<Settings> {
        &self.current
    }

    fn publish_gauges(&mut self) {
        let stats = &self.shared.seats[self.id].stats;
        stats.connections.set(self.clients.len() as u64);
        stats.upstream_connections.set(self.ups.len() as u64);
        stats.upstream_idle.set(self.pool.len() as u64);
        stats.buffered_bytes.set(self.quota.held() as u64);
    }

    fn fire_timers(&mut self) {
        while let Some((at, token)) = self.timers.pop_due(self.now) {
            match kind_of(token) {
                Kind::Client => {
                    if let Some(client) = self.clients.get_mut(token)
                        && client.armed == at
                    {
                        client.armed = NEVER;
                        self.client_timer(token);
                    }
                }
                Kind::Upstream => {
                    if let Some(up) = self.ups.get_mut(token)
                        && up.armed == at
                    {
                        up.armed = NEVER;
                        self.up_timer(token);
                    }
                }
            }
        }
        let (clients, ups) = (&self.clients, &self.ups);
        self.timers.prune(clients.len() + ups.len(), |token, at| match kind_of(token) {
            Kind::Client => clients.get(token).is_some_and(|client| client.armed == at),
            Kind::Upstream => ups.get(token).is_some_and(|up| up.armed == at),
        });
    }

    /// Looks again at input that was kept back while an answer was under way.
    fn serve_ready(&mut self) {
        while let Some(token) = self.ready.pop() {
            self.resume_input(token);
        }
    }

    /// Goes on with those that gave way in an earlier turn.
    fn serve_yielded(&mut self) {
        for token in std::mem::take(&mut self.later) {
            if let Some(client) = self.clients.get_mut(token) {
                client.yielded = false;
                self.resume_input(token);
                self.serve_ready();
            }
        }
    }

    /// Connections, upstream connections, pooled ones, held bytes: for tests and assertions at shutdown.
    pub fn census(&self) -> Census {
        Census {
            clients: self.clients.len(),
            upstreams: self.ups.len(),
            idle: self.pool.len(),
            held: self.quota.held(),
            unsent: self.unsent(),
        }
    }

    fn unsent(&self) -> usize {
        let of = |token: &Token| {
            self.clients.get(*token).map_or(0, |client| client.out.len() + client.input.len())
        };
        self.clients.tokens().iter().map(of).max().unwrap_or(0)
    }

    /// The driver, for simulations.
    pub fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }
}

/// What a shard holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Census {
    /// Client connections.
    pub clients: usize,
    /// Engine connections, idle ones included.
    pub upstreams: usize,
    /// Idle engine connections.
    pub idle: usize,
    /// Request body bytes.
    pub held: usize,
    /// Most bytes kept for one client in either direction.
    pub unsent: usize,
}
