//! The io_uring driver: multishot accept and receive into provided buffers, plain sends.
//!
//! # How it works
//!
//! A shard has a ring of its own (`SINGLE_ISSUER`, `DEFER_TASKRUN`: the kernel works for it only while it is in
//! [`Driver::poll`]). [`work`] keeps in flight what should be: a receive for each connection that is not paused, a
//! poll for hang-ups where none is, a poll for output after a short send. Completions become facts and held buffers
//! ([`conns`]); [`Driver::next_event`] gives each connection a turn with one buffer.
//!
//! # Invariants
//!
//! * A descriptor is closed, and an entry freed, after the last completion of the last operation on it. At most one
//!   operation of each purpose is in flight for a connection, and one cancellation of each; user data name the entry
//!   by index and generation.
//! * A receive begins only when the one before has ended and everything it brought was told: a connection never has
//!   two, and bytes keep their order. After a full buffer, receives are made one at a time.
//! * Provided buffers are held only for connections that will be told of them in this pass or the next ones: what came
//!   for a paused connection is moved to the heap, so that slow clients cannot take the buffers of all.
//! * `poll` does not wait while anything can be told, and never for more than one completion.
//! * An idle connection holds no buffer.

mod conns;
mod pool;
mod probe;
mod ring;
#[cfg(test)]
mod tests;
mod work;

pub use super::epoll::Socket;
pub use pool::Lent;
pub use probe::{Unusable, self_test};

use super::clock::{Clock, monotonic_ns};
use super::epoll::bell::EventfdBell;
use super::epoll::errno::{connect_error, reset_error};
use super::listen::RECEIVE_BUFFER_BYTES;
use super::transmit::{Sent, transmit};
use super::{Bell, ConnError, Counters, Driver, Event, SendError, Token};
use conns::{Conns, Flags, Key, Purpose};
use llmgw_routing::{MILLISECOND, Nanos};
use ring::{Ring, Sizes};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, connect, ipproto, shutdown, socket_with, sockopt,
};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A shard's ring: 8 MiB of buffers if all of them are ever used.
const SIZES: Sizes =
    Sizes { submissions: 1024, completions: 16 * 1024, buffers: 256, buffer_bytes: 32 * 1024 };
/// Buffers held for one connection beyond which it receives no more.
const HELD_MAX: u16 = 2;
/// How long accepting pauses when descriptors or memory ran out.
const ACCEPT_BACKOFF_NS: Nanos = 100 * MILLISECOND;
/// How long a driver that is dropped waits for the last completions.
const DRAIN_NS: Nanos = 100 * MILLISECOND;

/// What the ring had to go through, for tests and metrics. Counts only grow, but `in_flight`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Operations whose last completion is to come.
    pub in_flight: usize,
    /// Receives that found no buffer.
    pub no_buffers: u64,
    /// Operations that were cancelled.
    pub cancels: u64,
    /// Cancellations that found nothing to cancel, or could not at that moment.
    pub cancels_missed: u64,
    /// Polls that found more completions than the queue takes.
    pub overflows: u64,
    /// Bytes moved out of provided buffers because their connection was paused.
    pub spilled_bytes: u64,
    /// Completions of a receive after its connection was closed.
    pub late_after_close: u64,
    /// Buffers that no connection holds.
    pub buffers: u16,
}

#[derive(Debug)]
struct Listener {
    /// Until closed.
    fd: Option<OwnedFd>,
    armed: bool,
    cancelling: bool,
    closing: bool,
}

/// See the module's documentation.
pub struct UringDriver {
    ring: Ring,
    bell: Arc<EventfdBell>,
    bell_armed: bool,
    doorbell_rung: bool,
    listeners: Vec<Listener>,
    accepting: bool,
    accepted: VecDeque<Socket>,
    accept_failed: bool,
    /// Accepting failed and is to be tried again then.
    accept_again_at: Option<Nanos>,
    conns: Conns,
    /// Turns left in this pass.
    turns: usize,
    clock: Clock,
    counters: Counters,
    stats: Stats,
}

impl UringDriver {
    /// A driver that accepts from `listeners` (see [`super::listen::bind`]; non-blocking) until told to pause. It
    /// belongs to the thread that makes it.
    ///
    /// # Errors
    ///
    /// The kernel gives no ring (see [`Unusable`] for what that means) or eventfd, or a listener is no socket.
    pub fn new(listeners: Vec<OwnedFd>) -> io::Result<Self> {
        Self::with_sizes(listeners, SIZES)
    }

    fn with_sizes(listeners: Vec<OwnedFd>, sizes: Sizes) -> io::Result<Self> {
        let ring = Ring::new(sizes)?;
        let bell = Arc::new(EventfdBell::new()?);
        let mut taken = Vec::with_capacity(listeners.len());
        for fd in listeners {
            // Inherited by what it accepts.
            sockopt::set_tcp_nodelay(&fd, true)?;
            taken.push(Listener { fd: Some(fd), armed: false, cancelling: false, closing: false });
        }
        Ok(UringDriver {
            ring,
            bell,
            bell_armed: false,
            doorbell_rung: false,
            listeners: taken,
            accepting: true,
            accepted: VecDeque::new(),
            accept_failed: false,
            accept_again_at: None,
            conns: Conns::default(),
            turns: 0,
            clock: Clock::new(),
            counters: Counters::default(),
            stats: Stats::default(),
        })
    }

    /// See [`Stats`].
    pub fn stats(&self) -> Stats {
        Stats {
            in_flight: self.ring.in_flight(),
            overflows: self.ring.overflows(),
            buffers: self.ring.pool().free(),
            ..self.stats
        }
    }

    /// Something can be told without waiting.
    fn work_queued(&self) -> bool {
        let accepted = self.accepting && !self.accepted.is_empty();
        self.doorbell_rung || self.accept_failed || accepted || !self.conns.ready.is_empty()
    }

    // === telling ===

    /// One turn of a connection.
    fn turn(&mut self, key: Key) -> Option<Event<Socket, Lent>> {
        let conn = self.conns.get(key)?;
        conn.flags.clear(Flags::QUEUED);
        if !conn.actionable() {
            return None;
        }
        let token = conn.token;
        let flags = &mut conn.flags;
        if flags.has(Flags::LOCAL_FAILURE) {
            flags.set(Flags::DEAD);
            let error = conn.error.unwrap_or(ConnError::Local);
            return Some(if flags.has(Flags::CONNECTING) {
                Event::ConnectFailed(token, error)
            } else {
                Event::Reset(token, error)
            });
        }
        if flags.has(Flags::CONNECTING) {
            return Some(self.connect_done(key, token));
        }
        if flags.has(Flags::WRITABLE) {
            flags.clear(Flags::WRITABLE);
            return Some(Event::Writable(token));
        }
        if flags.has(Flags::PAUSED.or(Flags::EOF_TOLD)) {
            return self.closed_unread(key);
        }
        if let Some(lent) = conn.take_held(self.ring.pool()) {
            if !conn.holds() && !conn.in_flight.has(Purpose::Receive) {
                self.conns.touch(key);
            }
            return Some(Event::Data(token, lent));
        }
        if conn.flags.has(Flags::FAILED) {
            conn.flags.set(Flags::DEAD);
            return Some(Event::Reset(token, conn.error.unwrap_or(ConnError::Reset)));
        }
        conn.flags.clear(Flags::EOF);
        conn.flags.set(Flags::EOF_TOLD);
        // What becomes of the sending direction is worth knowing.
        self.conns.touch(key);
        Some(Event::Eof(token))
    }

    fn connect_done(&mut self, key: Key, token: Token) -> Event<Socket, Lent> {
        let Some(conn) = self.conns.get(key) else { return Event::ConnectFailed(token, ConnError::Local) };
        let result =
            conn.fd.as_ref().map_or(Err(Errno::BADF), |fd| sockopt::socket_error(fd).and_then(|e| e));
        if let Err(errno) = result {
            conn.flags.set(Flags::DEAD);
            return Event::ConnectFailed(token, connect_error(errno));
        }
        conn.flags.clear(Flags::CONNECTING.or(Flags::CONNECT_DONE));
        if conn.flags.has(Flags::WANT_WRITE) {
            conn.flags.clear(Flags::WANT_WRITE);
            conn.flags.set(Flags::WRITABLE);
        }
        self.conns.touch(key);
        Event::Connected(token)
    }

    /// The peer closed or reset a connection that is paused or whose input has ended.
    fn closed_unread(&mut self, key: Key) -> Option<Event<Socket, Lent>> {
        let conn = self.conns.get(key)?;
        let token = conn.token;
        if conn.flags.has(Flags::ERROR.or(Flags::FAILED)) && !conn.holds() {
            conn.flags.clear(Flags::ERROR);
            // Bytes before the reset are kept for a resume: they may be the whole answer.
            let fd = conn.fd.as_ref()?;
            let known = conn.flags.has(Flags::EOF_TOLD.or(Flags::EOF).or(Flags::FAILED));
            if known || ioctl_fionread(fd).unwrap_or(0) == 0 {
                conn.flags.set(Flags::DEAD);
                let found = sockopt::socket_error(fd).and_then(|e| e).err().map(reset_error);
                return Some(Event::Reset(token, conn.error.or(found).unwrap_or(ConnError::Reset)));
            }
        }
        conn.flags.clear(Flags::ERROR);
        if !conn.flags.has(Flags::HANGUP_TOLD.or(Flags::EOF_TOLD)) {
            conn.flags.set(Flags::HANGUP_TOLD);
            return Some(Event::Hangup(token));
        }
        None
    }
}

fn start_connect(address: SocketAddr) -> Result<(OwnedFd, bool), Errno> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_tcp_nodelay(&fd, true)?;
    sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER_BYTES)?;
    match connect(&fd, &address) {
        Ok(()) => Ok((fd, true)),
        Err(Errno::INPROGRESS | Errno::INTR) => Ok((fd, false)),
        Err(errno) => Err(errno),
    }
}

impl fmt::Debug for UringDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UringDriver")
            .field("listeners", &self.listeners)
            .field("accepting", &self.accepting)
            .field("ready", &self.conns.ready.len())
            .field("counters", &self.counters)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Drop for UringDriver {
    /// Ends every operation and waits for it, so that no descriptor is still referred to when this returns.
    fn drop(&mut self) {
        self.close_listeners();
        for key in self.conns.keys() {
            let token = self.conns.get(key).map(|conn| conn.token);
            if let Some(token) = token.filter(|token| self.conns.find(*token) == Some(key)) {
                self.close(token, false);
            }
        }
        let deadline = monotonic_ns() + DRAIN_NS;
        while self.ring.in_flight() > 0 && monotonic_ns() < deadline {
            // Nothing is begun any more: all that is in flight is to end.
            self.ring.push_cancel_all(Key { index: 0, generation: 0 }.user_data(Purpose::CancelAll));
            if self.ring.try_enter(Some(MILLISECOND)).is_err() {
                break;
            }
            self.take_completions();
        }
    }
}

// === impl Driver ===

impl Driver for UringDriver {
    type Socket = Socket;
    type Lent = Lent;

    fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn wall(&self) -> u64 {
        self.clock.wall()
    }

    fn bell(&self) -> Arc<dyn Bell> {
        Arc::clone(&self.bell) as Arc<dyn Bell>
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn poll(&mut self, deadline: Option<Nanos>) {
        loop {
            self.begin_all();
            let accept_at = self.accept_again_at.filter(|_| self.accepting);
            let until = [deadline, accept_at].into_iter().flatten().min();
            let asleep = !self.work_queued() && self.bell.fall_asleep();
            // The shard worked since the last reading: how long to wait needs a fresh one.
            let timeout = if asleep { until.map(|t| t.saturating_sub(monotonic_ns())) } else { Some(0) };
            self.ring.enter(timeout);
            self.counters.wakeups += 1;
            self.clock.tick();
            self.doorbell_rung |= self.bell.wake_up();
            if self.accept_again_at.is_some_and(|t| t <= self.clock.now()) {
                self.accept_again_at = None;
            }
            self.take_completions();
            let due = deadline.is_some_and(|t| t <= self.clock.now());
            // An operation's end, a signal or a timeout cut short is no reason to bother the shard.
            if due || !asleep || self.work_queued() {
                break;
            }
        }
        self.turns = self.conns.ready.len();
    }

    fn next_event(&mut self) -> Option<Event<Socket, Lent>> {
        if std::mem::take(&mut self.doorbell_rung) {
            return Some(Event::Doorbell);
        }
        while self.turns > 0 {
            self.turns -= 1;
            let Some(key) = self.conns.ready.pop_front() else { break };
            let Some(event) = self.turn(key) else { continue };
            let before = self.conns.ready.len();
            self.conns.queue(key);
            // A second piece of news of the same connection need not wait for a poll, unless it is a second buffer.
            let more_bytes =
                matches!(event, Event::Data(..)) && self.conns.get(key).is_some_and(|c| c.holds());
            if !more_bytes {
                self.turns += self.conns.ready.len() - before;
            }
            return Some(event);
        }
        if std::mem::take(&mut self.accept_failed) {
            return Some(Event::AcceptFailed);
        }
        if !self.accepting {
            return None;
        }
        let socket = self.accepted.pop_front()?;
        let peer: IpAddr = socket.peer().ip().to_canonical();
        Some(Event::Accepted { socket, peer })
    }

    fn recycle(&mut self, lent: Lent) {
        drop(lent);
    }

    fn resume_accept(&mut self) {
        self.accepting = true;
    }

    fn pause_accept(&mut self) {
        self.accepting = false;
    }

    fn close_listeners(&mut self) {
        for listener in &mut self.listeners {
            listener.closing = true;
        }
        // At once, as far as the kernel goes along: the address is free when this returns.
        for _ in 0..8 {
            self.begin_all();
            if self.listeners.iter().all(|listener| listener.fd.is_none()) {
                break;
            }
            if self.ring.try_enter(Some(MILLISECOND)).is_err() {
                break;
            }
            self.take_completions();
        }
    }

    fn adopt(&mut self, token: Token, socket: Socket) {
        self.conns.insert(token, Some(socket.into_fd()), Flags::default(), None);
    }

    fn connect(&mut self, token: Token, address: SocketAddr) {
        self.counters.connects += 1;
        let (fd, flags, error) = match start_connect(address) {
            Ok((fd, true)) => (Some(fd), Flags::CONNECTING.or(Flags::CONNECT_DONE), None),
            Ok((fd, false)) => (Some(fd), Flags::CONNECTING, None),
            Err(errno) => (None, Flags::CONNECTING.or(Flags::LOCAL_FAILURE), Some(connect_error(errno))),
        };
        self.conns.insert(token, fd, flags, error);
    }

    fn send(&mut self, token: Token, bufs: &[IoSlice<'_>]) -> Result<usize, SendError> {
        let key = self.conns.find(token).ok_or(SendError)?;
        let conn = self.conns.get(key).ok_or(SendError)?;
        let fd = conn.fd.as_ref().filter(|_| !conn.flags.has(Flags::DEAD)).ok_or(SendError)?;
        if conn.flags.has(Flags::CONNECTING) {
            conn.flags.set(Flags::WANT_WRITE);
            return Ok(0);
        }
        match transmit(fd, bufs, &mut self.counters) {
            Sent::All(sent) => Ok(sent),
            Sent::Short(sent) => {
                conn.flags.set(Flags::WANT_WRITE);
                conn.flags.clear(Flags::WRITABLE);
                self.conns.touch(key);
                Ok(sent)
            }
            Sent::Failed { reset } => {
                if reset {
                    conn.flags.set(Flags::SEND_RESET);
                }
                Err(SendError)
            }
        }
    }

    fn pause(&mut self, token: Token) {
        let Some(key) = self.conns.find(token) else { return };
        let pool = Rc::clone(self.ring.pool());
        if let Some(conn) = self.conns.get(key) {
            conn.flags.set(Flags::PAUSED);
            self.stats.spilled_bytes += conn.spill_held(&pool);
            // The peer may have closed already.
            self.conns.touch(key);
        }
    }

    fn resume(&mut self, token: Token) {
        let Some(key) = self.conns.find(token) else { return };
        if let Some(conn) = self.conns.get(key) {
            conn.flags.clear(Flags::PAUSED);
            self.conns.touch(key);
        }
    }

    fn shutdown_write(&mut self, token: Token) {
        let Some(key) = self.conns.find(token) else { return };
        if let Some(fd) = self.conns.get(key).and_then(|conn| conn.fd.as_ref()) {
            // Fails only if the connection is gone, which is told by its events.
            let _ = shutdown(fd, Shutdown::Write);
        }
    }

    fn close(&mut self, token: Token, abort: bool) {
        let Some(key) = self.conns.find(token) else { return };
        self.conns.detach(token);
        let pool = Rc::clone(self.ring.pool());
        let Some(conn) = self.conns.get(key) else { return };
        conn.flags.set(Flags::CLOSING);
        conn.spill = None;
        while let Some(lent) = conn.held.pop(&pool) {
            drop(lent);
        }
        if abort && let Some(fd) = &conn.fd {
            let _ = sockopt::set_socket_linger(fd, Some(Duration::ZERO));
        }
        self.conns.touch(key);
        self.conns.free_if_settled(key);
    }
}
