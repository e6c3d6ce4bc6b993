//! What a driver tells its shard, and when.

use super::net::{DriverState, Due, Inner, Listener, Owner, SimEvent, State, trace};
use super::{Door, Lent, SimBell, Socket};
use crate::driver::{ConnError, Counters, Event, MAX_LATE_BYTES, Token};
use llmgw_routing::{MILLISECOND, Nanos};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How long accepting pauses after it failed.
const ACCEPT_BACKOFF_NS: Nanos = 100 * MILLISECOND;
/// What a poll takes, where polling moves the clock.
const POLL_NS: Nanos = 10_000;
/// Longest delay of a late event.
const LATE_MAX_NS: Nanos = 5 * MILLISECOND;

impl Inner {
    pub(super) fn add_driver(&mut self, addresses: &[SocketAddr], bell: Arc<SimBell>) -> (usize, Nanos) {
        let id = self.drivers.len();
        self.drivers.push(DriverState {
            tokens: HashMap::new(),
            listed: Vec::new(),
            gathered: VecDeque::new(),
            backlog: VecDeque::new(),
            bell,
            accepting: true,
            accept_again_at: 0,
            deadline: None,
            lent: 0,
            counters: Counters::default(),
        });
        for address in addresses {
            let new = || Listener { door: Door::Open, drivers: Vec::new(), backlog: VecDeque::new() };
            self.listeners.entry(*address).or_insert_with(new).drivers.push(id);
        }
        (id, self.now)
    }

    pub(super) fn close_listeners(&mut self, driver: usize) {
        for listener in self.listeners.values_mut() {
            listener.drivers.retain(|d| *d != driver);
        }
        self.listeners.retain(|_, l| !(l.drivers.is_empty() && l.backlog.is_empty() && l.door == Door::Open));
        for end in std::mem::take(&mut self.drivers[driver].backlog) {
            self.close_end(end, true);
        }
    }

    // === polling ===

    pub(super) fn driver_ready(&mut self, driver: usize) -> bool {
        self.bury();
        let d = &self.drivers[driver];
        !d.gathered.is_empty()
            || !d.listed.is_empty()
            || d.bell.0.load(Ordering::SeqCst)
            || self.may_accept(driver)
    }

    fn may_accept(&self, driver: usize) -> bool {
        let d = &self.drivers[driver];
        d.accepting && d.accept_again_at <= self.now && !d.backlog.is_empty()
    }

    pub(super) fn poll(&mut self, driver: usize, deadline: Option<Nanos>) {
        self.drivers[driver].deadline = deadline;
        self.drivers[driver].counters.wakeups += 1;
        self.bury();
        if self.poll_advances {
            // A call takes time too.
            self.advance_to(self.now + POLL_NS);
        }
        if !self.drivers[driver].gathered.is_empty() {
            return; // what the last poll gathered comes first
        }
        self.gather(driver);
        if !self.poll_advances {
            return;
        }
        while self.drivers[driver].gathered.is_empty() && deadline.is_none_or(|at| at > self.now) {
            let again_at = Some(self.drivers[driver].accept_again_at).filter(|at| *at > self.now);
            let next = [self.next_time(), deadline, again_at].into_iter().flatten().min();
            let deferred = !self.drivers[driver].listed.is_empty();
            match next {
                Some(at) if !deferred => self.advance_to(at),
                None if !deferred => return,
                _ => {}
            }
            self.gather(driver);
        }
    }

    /// Turns what is known into events.
    fn gather(&mut self, driver: usize) {
        if self.drivers[driver].bell.0.swap(false, Ordering::SeqCst) {
            self.drivers[driver].gathered.push_back(Event::Doorbell);
        }
        self.gather_accepts(driver);
        let mut listed = std::mem::take(&mut self.drivers[driver].listed);
        self.rng.shuffle(&mut listed);
        let defer = self.weather.defer;
        for id in listed {
            let owner = self.ends[id as usize].owner;
            let Owner::Driver { driver: holder, token } = owner else {
                self.ends[id as usize].listed = false;
                continue;
            };
            debug_assert_eq!(holder, driver);
            if self.chance(defer) {
                self.drivers[driver].listed.push(id);
                continue;
            }
            self.ends[id as usize].listed = false;
            self.tell(driver, token, id);
        }
    }

    fn gather_accepts(&mut self, driver: usize) {
        while self.may_accept(driver) {
            let fails = self.weather.accept_fails;
            if self.chance(fails) {
                self.drivers[driver].accept_again_at = self.now + ACCEPT_BACKOFF_NS;
                self.schedule(self.now + ACCEPT_BACKOFF_NS, Due::Wake);
                self.drivers[driver].gathered.push_back(Event::AcceptFailed);
                return;
            }
            let Some(end) = self.drivers[driver].backlog.pop_front() else { return };
            self.drivers[driver].counters.accepts += 1;
            let peer = self.ends[end as usize].ip;
            let socket = Socket { end, owned: true, dropped: Arc::clone(&self.dropped) };
            self.drivers[driver].gathered.push_back(Event::Accepted { socket, peer });
        }
    }

    /// Events of one connection for one poll: at most one read, and what else there is.
    fn tell(&mut self, driver: usize, token: Token, id: u32) {
        let end = &mut self.ends[id as usize];
        if end.dead {
            return;
        }
        let mut events: Vec<SimEvent> = Vec::new();
        if end.state == State::Connecting {
            return;
        }
        if !end.connect_told {
            if end.state == State::Failed {
                end.dead = true;
                let error = end.failure.unwrap_or(ConnError::Reset);
                self.drivers[driver].gathered.push_back(Event::ConnectFailed(token, error));
                return;
            }
            end.connect_told = true;
            events.push(Event::Connected(token));
        }
        if end.writable {
            end.writable = false;
            events.push(Event::Writable(token));
        }
        if !end.paused && !end.inbox.is_empty() {
            let bytes = self.read(id, MAX_LATE_BYTES);
            let d = &mut self.drivers[driver];
            d.lent += 1;
            d.counters.recvs += 1;
            d.counters.bytes_received += bytes.len() as u64;
            events.push(Event::Data(token, Lent(bytes)));
        }
        self.tell_end(token, id, &mut events);
        // News of room may come before or after the bytes.
        if events.len() == 2 && matches!(events[0], Event::Writable(_)) && self.rng.bool() {
            let last_words = matches!(events[1], Event::Reset(..));
            if !last_words {
                events.swap(0, 1);
            }
        }
        self.drivers[driver].gathered.extend(events);
        let end = &self.ends[id as usize];
        let more =
            !end.dead && !end.paused && (!end.inbox.is_empty() || (end.fin && !end.eof_told) || end.rst);
        if more {
            self.news(id);
        }
    }

    fn tell_end(&mut self, token: Token, id: u32, events: &mut Vec<SimEvent>) {
        let end = &mut self.ends[id as usize];
        if end.rst {
            let unread = !end.inbox.is_empty();
            if !unread || (end.paused && self.rng.bool()) {
                end.inbox.clear();
                end.dead = true;
                events.push(Event::Reset(token, ConnError::Reset));
            } else if end.paused && !end.hangup_told && !end.eof_told {
                end.hangup_told = true;
                events.push(Event::Hangup(token));
            }
        } else if end.fin && !end.eof_told {
            if end.paused {
                if !end.hangup_told {
                    end.hangup_told = true;
                    events.push(Event::Hangup(token));
                }
            } else if end.inbox.is_empty() {
                end.eof_told = true;
                events.push(Event::Eof(token));
            }
        }
    }

    /// Takes bytes from an inbox: all, or as few as the weather likes.
    pub(super) fn read(&mut self, id: u32, most: usize) -> Vec<u8> {
        let there = self.ends[id as usize].inbox.len().min(most);
        let there = if self.rng.u8(..32) == 0 { there } else { there.min(self.weather.read_max) };
        let n = if self.rng.bool() { there } else { self.rng.usize(1..=there) };
        let bytes: Vec<u8> = self.ends[id as usize].inbox.drain(..n).collect();
        self.consumed(id);
        bytes
    }

    pub(super) fn next_event(&mut self, driver: usize) -> Option<SimEvent> {
        let event = self.drivers[driver].gathered.pop_front()?;
        if self.trace {
            let text = match &event {
                Event::Data(token, bytes) => format!("Data({token:x?}, {:?})", Clip(bytes)),
                Event::Accepted { socket, .. } => format!("Accepted({})", socket.end),
                other => format!("{other:x?}"),
            };
            trace!(self, "driver {driver}: {text}");
        }
        Some(event)
    }

    // === commands ===

    pub(super) fn adopt(&mut self, driver: usize, token: Token, id: u32) {
        let end = &mut self.ends[id as usize];
        end.owner = Owner::Driver { driver, token };
        end.connect_told = true;
        self.drivers[driver].tokens.insert(token, id);
        trace!(self, "driver {driver}: adopts {id} as {token:x?}");
        self.news(id);
    }

    pub(super) fn pause(&mut self, driver: usize, token: Token) {
        let Some(id) = self.drivers[driver].tokens.get(&token).copied() else { return };
        self.ends[id as usize].paused = true;
        // The peer may have closed already: that must still be told.
        self.news(id);
    }

    pub(super) fn resume(&mut self, driver: usize, token: Token) {
        let Some(id) = self.drivers[driver].tokens.get(&token).copied() else { return };
        self.ends[id as usize].paused = false;
        self.news(id);
    }

    pub(super) fn close_token(&mut self, driver: usize, token: Token, abort: bool) {
        let Some(id) = self.drivers[driver].tokens.remove(&token) else { return };
        self.leave_late_events(driver, token, id);
        self.close_end(id, abort);
    }

    /// What was under way for a connection that is being closed: dropped, told all the same, or told later.
    fn leave_late_events(&mut self, driver: usize, token: Token, id: u32) {
        let late = self.weather.late;
        let gathered = std::mem::take(&mut self.drivers[driver].gathered);
        for event in gathered {
            if token_of(&event) != Some(token) || (late > 0 && self.rng.bool()) {
                self.drivers[driver].gathered.push_back(event);
            } else if self.chance(late) {
                let at = self.now + self.rng.u64(..LATE_MAX_NS);
                self.schedule(at, Due::Late { driver, event: Box::new(event) });
            } else if let Event::Data(..) = event {
                self.drivers[driver].lent -= 1;
            }
        }
        if !self.chance(late) {
            return;
        }
        let end = &self.ends[id as usize];
        let mut events = Vec::new();
        match end.state {
            State::Connecting if self.rng.bool() => events.push(Event::Connected(token)),
            State::Connecting => events.push(Event::ConnectFailed(token, ConnError::Refused)),
            State::Failed => {}
            State::Open => {
                if end.want_write || end.writable {
                    events.push(Event::Writable(token));
                }
                let ended = end.fin && end.inbox.is_empty();
                if !end.inbox.is_empty() && !end.paused {
                    let bytes = self.read(id, MAX_LATE_BYTES);
                    self.drivers[driver].lent += 1;
                    events.push(Event::Data(token, Lent(bytes)));
                }
                let end = &self.ends[id as usize];
                if end.rst || (!end.eof_told && !ended && self.rng.bool()) {
                    events.push(Event::Reset(token, ConnError::Reset));
                } else if !end.eof_told {
                    events.push(Event::Eof(token));
                }
            }
        }
        let mut at = self.now;
        for event in events {
            at += self.rng.u64(..LATE_MAX_NS);
            self.schedule(at, Due::Late { driver, event: Box::new(event) });
        }
    }
}

fn token_of(event: &SimEvent) -> Option<Token> {
    match event {
        Event::Accepted { .. } | Event::AcceptFailed | Event::Doorbell => None,
        Event::Connected(token)
        | Event::ConnectFailed(token, _)
        | Event::Data(token, _)
        | Event::Eof(token)
        | Event::Hangup(token)
        | Event::Reset(token, _)
        | Event::Writable(token) => Some(*token),
    }
}

/// The beginning of some bytes, readable.
struct Clip<'b>(&'b [u8]);

impl std::fmt::Debug for Clip<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.0[..self.0.len().min(80)];
        write!(f, "{} bytes \"{}\"", self.0.len(), shown.escape_ascii())
    }
}
