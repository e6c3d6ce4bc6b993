//! Connections, listeners and the queue of timed events.

use super::{Door, SimBell, Socket, Weather};
use crate::driver::{ConnError, Counters, Event, Token};
use llmgw_routing::{MILLISECOND, Nanos, SECOND};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

/// Who holds an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// Waits in a backlog, in a mailbox, or was closed.
    Nobody,
    /// An actor.
    Peer,
    /// A shard.
    Driver { driver: usize, token: Token },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Connecting,
    Open,
    Failed,
}

/// One end of a connection; the other is `id ^ 1`.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // independent facts
pub(super) struct End {
    pub(super) owner: Owner,
    pub(super) state: State,
    pub(super) ip: IpAddr,
    /// Arrived and unread.
    pub(super) inbox: VecDeque<u8>,
    /// Sent by the other end and not arrived.
    pub(super) under_way: usize,
    pub(super) fin: bool,
    pub(super) rst: bool,
    /// Why a connect failed.
    pub(super) failure: Option<ConnError>,
    /// Bytes under way are lost.
    pub(super) doomed: bool,
    pub(super) fin_sent: bool,
    pub(super) closed: bool,
    pub(super) rst_sent: bool,
    /// Nothing sent by this end arrives before this.
    pub(super) arrives_from: Nanos,
    /// A short write is owed news.
    pub(super) want_write: bool,
    pub(super) write_timer: bool,
    pub(super) writable: bool,
    // What a driver told or was told.
    pub(super) paused: bool,
    pub(super) connect_told: bool,
    pub(super) eof_told: bool,
    pub(super) hangup_told: bool,
    pub(super) dead: bool,
    pub(super) listed: bool,
}

impl End {
    fn new(owner: Owner, ip: IpAddr, state: State) -> Self {
        End {
            owner,
            state,
            ip,
            inbox: VecDeque::new(),
            under_way: 0,
            fin: false,
            rst: false,
            failure: None,
            doomed: false,
            fin_sent: false,
            closed: false,
            rst_sent: false,
            arrives_from: 0,
            want_write: false,
            write_timer: false,
            writable: false,
            paused: false,
            connect_told: false,
            eof_told: false,
            hangup_told: false,
            dead: false,
            listed: false,
        }
    }
}

pub(super) type SimEvent = Event<Socket, super::Lent>;

pub(super) enum Due {
    Bytes {
        to: u32,
        bytes: Vec<u8>,
    },
    Fin {
        to: u32,
    },
    Rst {
        to: u32,
    },
    Syn {
        to: u32,
        address: SocketAddr,
    },
    Connected {
        end: u32,
    },
    ConnectFailed {
        end: u32,
        error: ConnError,
    },
    Writable {
        end: u32,
    },
    Late {
        driver: usize,
        event: Box<SimEvent>,
    },
    Timer {
        key: u64,
    },
    /// Only makes somebody look.
    Wake,
}

pub(super) struct Timed {
    pub(super) at: Nanos,
    seq: u64,
    due: Due,
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Timed {}
impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timed {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

pub(super) struct Listener {
    pub(super) door: Door,
    pub(super) drivers: Vec<usize>,
    /// Waiting to be accepted by an actor.
    pub(super) backlog: VecDeque<u32>,
}

pub(super) struct DriverState {
    pub(super) tokens: HashMap<Token, u32>,
    /// Ends with something to tell.
    pub(super) listed: Vec<u32>,
    /// Gathered, not taken.
    pub(super) gathered: VecDeque<SimEvent>,
    pub(super) backlog: VecDeque<u32>,
    pub(super) bell: Arc<SimBell>,
    pub(super) accepting: bool,
    pub(super) accept_again_at: Nanos,
    pub(super) deadline: Option<Nanos>,
    pub(super) lent: i64,
    pub(super) counters: Counters,
}

/// A world's state.
pub struct Inner {
    pub(super) now: Nanos,
    pub(super) rng: fastrand::Rng,
    pub(super) weather: Weather,
    pub(super) queue: BinaryHeap<Reverse<Timed>>,
    seq: u64,
    pub(super) ends: Vec<End>,
    pub(super) listeners: BTreeMap<SocketAddr, Listener>,
    pub(super) drivers: Vec<DriverState>,
    pub(super) dropped: Arc<Mutex<Vec<u32>>>,
    pub(super) changed: Vec<u32>,
    pub(super) timers: Vec<u64>,
    pub(super) poll_advances: bool,
    pub(super) trace: bool,
}

/// Prints if the world is traced.
macro_rules! trace {
    ($world:expr, $($arg:tt)*) => {
        if $world.trace {
            #[allow(clippy::print_stderr)] // asked for by whoever replays a seed
            {
                eprintln!("{:>12.6}ms {}", $world.millis(), format_args!($($arg)*));
            }
        }
    };
}
pub(super) use trace;

impl Inner {
    pub(super) fn new(seed: u64, weather: Weather) -> Self {
        Inner {
            now: 1000 * SECOND,
            rng: fastrand::Rng::with_seed(seed),
            weather,
            queue: BinaryHeap::new(),
            seq: 0,
            ends: Vec::new(),
            listeners: BTreeMap::new(),
            drivers: Vec::new(),
            dropped: Arc::default(),
            changed: Vec::new(),
            timers: Vec::new(),
            poll_advances: true,
            trace: false,
        }
    }

    #[allow(clippy::cast_precision_loss)] // for people
    pub(super) fn millis(&self) -> f64 {
        (self.now - 1000 * SECOND) as f64 / MILLISECOND as f64
    }

    pub(super) fn chance(&mut self, in_256: u8) -> bool {
        in_256 > 0 && self.rng.u8(..) < in_256
    }

    pub(super) fn delay(&mut self) -> Nanos {
        let max = self.weather.delay_max;
        self.rng.u64(..=max)
    }

    pub(super) fn schedule(&mut self, at: Nanos, due: Due) {
        self.seq += 1;
        self.queue.push(Reverse(Timed { at, seq: self.seq, due }));
    }

    /// Schedules what end `from` sends, after all it sent before.
    fn emit(&mut self, from: u32, due: Due) {
        let at = (self.now + self.delay()).max(self.ends[from as usize].arrives_from);
        self.ends[from as usize].arrives_from = at;
        self.schedule(at, due);
    }

    pub(super) fn set_timer(&mut self, at: Nanos, key: u64) {
        self.schedule(at, Due::Timer { key });
    }

    // === time ===

    pub(super) fn next_time(&self) -> Option<Nanos> {
        self.queue.peek().map(|Reverse(timed)| timed.at)
    }

    pub(super) fn advance_to(&mut self, to: Nanos) {
        self.bury();
        while let Some(at) = self.next_time().filter(|at| *at <= to) {
            self.now = self.now.max(at);
            if let Some(Reverse(timed)) = self.queue.pop() {
                self.happen(timed.due);
            }
        }
        self.now = self.now.max(to);
    }

    /// Closes the sockets that were dropped before anybody adopted them.
    pub(super) fn bury(&mut self) {
        let dropped = std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        for end in dropped {
            self.close_end(end, false);
        }
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Bytes { to, bytes } => self.arrive(to, &bytes),
            Due::Fin { to } => {
                let end = &mut self.ends[to as usize];
                if !end.closed && !end.rst && !end.doomed {
                    end.fin = true;
                    trace!(self, "{to}: FIN arrives");
                    self.news(to);
                }
            }
            Due::Rst { to } => self.reset_arrives(to),
            Due::Syn { to, address } => self.knock(to, address),
            Due::Connected { end } => {
                if self.ends[end as usize].state == State::Connecting {
                    self.ends[end as usize].state = State::Open;
                    self.news(end);
                    if self.ends[end as usize].want_write {
                        self.offer_write(end);
                    }
                }
            }
            Due::ConnectFailed { end, error } => {
                let e = &mut self.ends[end as usize];
                if e.state == State::Connecting {
                    e.state = State::Failed;
                    e.failure = Some(error);
                    self.news(end);
                }
            }
            Due::Writable { end } => {
                let space = self.space(end);
                trace!(self, "{end}: has room for {space}");
                let e = &mut self.ends[end as usize];
                e.write_timer = false;
                if e.want_write && space > 0 && !e.closed && e.state == State::Open {
                    e.want_write = false;
                    e.writable = true;
                    self.news(end);
                }
            }
            Due::Late { driver, event } => self.drivers[driver].gathered.push_back(*event),
            Due::Timer { key } => self.timers.push(key),
            Due::Wake => {}
        }
    }

    /// Something about an end changed: tells its owner.
    pub(super) fn news(&mut self, id: u32) {
        let end = &mut self.ends[id as usize];
        if end.listed {
            return;
        }
        match end.owner {
            Owner::Nobody => {}
            Owner::Peer => {
                end.listed = true;
                self.changed.push(id);
            }
            Owner::Driver { driver, .. } => {
                end.listed = true;
                self.drivers[driver].listed.push(id);
            }
        }
    }

    // === connecting ===

    pub(super) fn connect(&mut self, owner: Owner, ip: IpAddr, address: SocketAddr) -> u32 {
        let id = u32::try_from(self.ends.len()).expect("fewer than 2^31 connections");
        self.ends.push(End::new(owner, ip, State::Connecting));
        self.ends.push(End::new(Owner::Nobody, ip, State::Connecting));
        trace!(self, "{id}: connects to {address}");
        self.emit(id, Due::Syn { to: id + 1, address });
        id
    }

    /// A connect reaches its address.
    fn knock(&mut self, to: u32, address: SocketAddr) {
        let from = to ^ 1;
        let door = self.listeners.get(&address).map_or(Door::Fails(ConnError::Refused), |l| l.door);
        match door {
            Door::Silent => {}
            Door::Fails(error) => self.emit(to, Due::ConnectFailed { end: from, error }),
            Door::Open => {
                self.ends[to as usize].state = State::Open;
                self.emit(to, Due::Connected { end: from });
                let Some(listener) = self.listeners.get_mut(&address) else { return };
                if listener.drivers.is_empty() {
                    listener.backlog.push_back(to);
                    self.ends[to as usize].owner = Owner::Peer;
                    self.news(to);
                } else {
                    let driver = listener.drivers[self.rng.usize(..listener.drivers.len())];
                    self.drivers[driver].backlog.push_back(to);
                }
            }
        }
    }

    // === sending ===

    pub(super) fn space(&self, from: u32) -> usize {
        let to = &self.ends[(from ^ 1) as usize];
        self.weather.window.saturating_sub(to.under_way + to.inbox.len())
    }

    /// Takes what the window has room for, or less; `None` if the connection is gone.
    pub(super) fn send(&mut self, from: u32, bufs: &[IoSlice<'_>]) -> Option<usize> {
        let end = &self.ends[from as usize];
        if end.closed || end.rst || end.fin_sent || end.state == State::Failed {
            return None;
        }
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        if total == 0 {
            return Some(0);
        }
        if end.state == State::Connecting {
            self.ends[from as usize].want_write = true;
            return Some(0);
        }
        let mut room = self.space(from).min(total);
        let short = self.weather.short_write;
        if room > 0 && self.chance(short) {
            room = self.rng.usize(..=room);
        }
        let mut left = room;
        let mut bytes = Vec::with_capacity(room);
        for buf in bufs {
            let n = left.min(buf.len());
            bytes.extend_from_slice(&buf[..n]);
            left -= n;
        }
        trace!(self, "{from}: sends {room} of {total}");
        self.ends[(from ^ 1) as usize].under_way += room;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            // Now and then all that is left: large bodies in single bytes would only take long.
            let most =
                if self.rng.u8(..64) == 0 { rest.len() } else { self.weather.segment_max.min(rest.len()) };
            let n = if self.rng.bool() { self.rng.usize(1..=most) } else { most };
            let (segment, after) = rest.split_at(n);
            self.emit(from, Due::Bytes { to: from ^ 1, bytes: segment.to_vec() });
            rest = after;
        }
        if room < total {
            self.ends[from as usize].want_write = true;
            if self.space(from) > 0 {
                self.offer_write(from);
            }
        }
        Some(room)
    }

    /// News of room for a writer who is owed it.
    pub(super) fn offer_write(&mut self, id: u32) {
        if self.ends[id as usize].write_timer {
            return;
        }
        self.ends[id as usize].write_timer = true;
        let at = self.now + self.delay();
        self.schedule(at, Due::Writable { end: id });
    }

    fn arrive(&mut self, to: u32, bytes: &[u8]) {
        let end = &mut self.ends[to as usize];
        end.under_way -= bytes.len();
        if end.doomed || end.rst {
            return;
        }
        if end.closed {
            self.send_reset(to);
            return;
        }
        end.inbox.extend(bytes);
        trace!(self, "{to}: {} bytes arrive", bytes.len());
        self.news(to);
    }

    /// `n` bytes were taken out of the inbox of `id`.
    pub(super) fn consumed(&mut self, id: u32) {
        let writer = id ^ 1;
        if self.ends[writer as usize].want_write && self.ends[writer as usize].state == State::Open {
            self.offer_write(writer);
        }
    }

    // === ending ===

    pub(super) fn shutdown_write(&mut self, id: u32) {
        let end = &mut self.ends[id as usize];
        if !end.fin_sent && !end.closed && !end.rst {
            end.fin_sent = true;
            trace!(self, "{id}: sends FIN");
            self.emit(id, Due::Fin { to: id ^ 1 });
        }
    }

    fn send_reset(&mut self, from: u32) {
        if self.ends[from as usize].rst_sent || self.ends[from as usize].rst {
            return;
        }
        self.ends[from as usize].rst_sent = true;
        trace!(self, "{from}: sends RST");
        let drops = self.weather.reset_drops;
        // What was sent before may be lost, but a connection must be there before it is reset.
        if self.chance(drops) && self.ends[(from ^ 1) as usize].state == State::Open {
            self.ends[(from ^ 1) as usize].doomed = true;
        }
        self.emit(from, Due::Rst { to: from ^ 1 });
    }

    fn reset_arrives(&mut self, to: u32) {
        let drops = self.weather.reset_drops;
        let destroys = self.chance(drops);
        let end = &mut self.ends[to as usize];
        if end.closed || end.rst {
            return;
        }
        end.rst = true;
        end.state = if end.state == State::Connecting { State::Failed } else { end.state };
        end.failure = Some(ConnError::Reset);
        if destroys {
            end.inbox.clear();
        }
        trace!(self, "{to}: RST arrives");
        self.news(to);
    }

    pub(super) fn close_end(&mut self, id: u32, abort: bool) {
        let end = &mut self.ends[id as usize];
        if end.closed {
            return;
        }
        trace!(self, "{id}: closes (abort {abort})");
        let end = &mut self.ends[id as usize];
        end.closed = true;
        end.owner = Owner::Nobody;
        let unread = !end.inbox.is_empty();
        end.inbox = VecDeque::new();
        if abort || unread || end.state == State::Connecting {
            self.send_reset(id);
        } else if !end.fin_sent && end.state == State::Open {
            end.fin_sent = true;
            self.emit(id, Due::Fin { to: id ^ 1 });
        }
    }
}
