//! The epoll driver: edge-triggered, each descriptor registered once.
//!
//! # How it works
//!
//! [`Driver::poll`] turns what the kernel reports into facts about connections ([`slots::Flags`]) and queues those
//! that have something to tell. [`Driver::next_event`] gives each a turn; a turn does at most one `recv` into a lent
//! buffer. A connection whose read filled the buffer goes to the back of the queue and waits for the next poll, which
//! then does not wait: so the kernel's news of others comes between two buffers of one.
//!
//! # Invariants
//!
//! * Edges are remembered until used up: `READABLE` is cleared only by a read that came short or would have blocked.
//!   Pausing clears nothing.
//! * What the kernel reports carries the connection's token, and so does the queue: whatever concerns a connection
//!   closed since is dropped by its generation.
//! * `poll` does not wait while anything is queued.
//! * A connection holds no buffer; as many exist as the shard has not given back, and a few spare ones.

pub(super) mod bell;
pub(super) mod errno;
mod slots;
#[cfg(test)]
mod tests;

use super::clock::{Clock, monotonic_ns};
use super::listen::RECEIVE_BUFFER_BYTES;
use super::transmit::{Sent, transmit};
use super::{Bell, ConnError, Counters, Driver, Event, MAX_LATE_BYTES, SendError, Token};
use bell::EventfdBell;
use errno::{cannot_accept_now, connect_error, reset_error};
use llmgw_routing::{MILLISECOND, Nanos, SECOND};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, acceptfrom_with, connect, ipproto, recv,
    shutdown, socket_with, sockopt,
};
use slots::{Flags, Slots};
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a read buffer.
const BUFFER_BYTES: usize = MAX_LATE_BYTES;
/// Spare read buffers kept.
const SPARE_BUFFERS: usize = 2;
/// Kernel reports taken by one wait.
const REPORTS_PER_WAIT: usize = 512;
/// Connections accepted from one listener between two polls.
const ACCEPTS_PER_PASS: u32 = 64;
/// How long accepting pauses when descriptors or memory ran out.
const ACCEPT_BACKOFF_NS: Nanos = 100 * MILLISECOND;
/// Slot indexes from here up mean the doorbell and the listeners.
const RESERVED_INDEX: u32 = u32::MAX - 0xFFFF;
const BELL_INDEX: u32 = u32::MAX;

/// An accepted connection that is nobody's yet; dropping it closes it.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    peer: SocketAddr,
}

impl Socket {
    pub(super) fn new(fd: OwnedFd, peer: SocketAddr) -> Socket {
        Socket { fd, peer }
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }
}

/// Received bytes in a buffer of the driver's.
#[derive(Debug)]
pub struct Lent(Vec<u8>);

impl Deref for Lent {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

#[derive(Debug)]
struct Listener {
    fd: OwnedFd,
    /// Connections may be waiting.
    ready: bool,
    /// Accepts left in this pass.
    budget: u32,
}

/// See the module's documentation.
pub struct EpollDriver {
    epoll: OwnedFd,
    reports: Vec<epoll::Event>,
    bell: Arc<EventfdBell>,
    doorbell_rung: bool,
    listeners: Vec<Listener>,
    accepting: bool,
    /// Accepting failed and is to be tried again then.
    accept_again_at: Option<Nanos>,
    slots: Slots,
    /// Turns left in this pass.
    turns: usize,
    spare: Vec<Vec<u8>>,
    clock: Clock,
    counters: Counters,
}

impl EpollDriver {
    /// A driver that accepts from `listeners` (see [`super::listen::bind`]; non-blocking) until told to pause.
    ///
    /// # Errors
    ///
    /// The kernel gives no epoll instance or eventfd (out of descriptors or memory), or a listener is no socket.
    pub fn new(listeners: Vec<OwnedFd>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = Arc::new(EventfdBell::new()?);
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, bell.fd(), data(Token::new(BELL_INDEX, 0)), edge)?;
        let mut taken = Vec::with_capacity(listeners.len());
        for (fd, index) in listeners.into_iter().zip(RESERVED_INDEX..BELL_INDEX) {
            // Inherited by what it accepts.
            sockopt::set_tcp_nodelay(&fd, true)?;
            epoll::add(&epoll, &fd, data(Token::new(index, 0)), edge)?;
            taken.push(Listener { fd, ready: false, budget: 0 });
        }
        Ok(EpollDriver {
            epoll,
            reports: Vec::with_capacity(REPORTS_PER_WAIT),
            bell,
            doorbell_rung: false,
            listeners: taken,
            accepting: true,
            accept_again_at: None,
            slots: Slots::default(),
            turns: 0,
            spare: Vec::with_capacity(SPARE_BUFFERS),
            clock: Clock::new(),
            counters: Counters::default(),
        })
    }

    // === waiting ===

    /// Something can be told without waiting.
    fn work_queued(&self) -> bool {
        self.doorbell_rung || !self.slots.ready.is_empty() || self.may_accept()
    }

    fn may_accept(&self) -> bool {
        self.accepting && self.accept_again_at.is_none() && self.listeners.iter().any(|l| l.ready)
    }

    /// One wait of at most `timeout_ns`. Answers whether the kernel reported anything.
    fn wait(&mut self, timeout_ns: Option<Nanos>) -> bool {
        let timeout = timeout_ns.map(timespec);
        self.reports.clear();
        // rustix rounds up where only the call with milliseconds may be used.
        match epoll::wait(&self.epoll, spare_capacity(&mut self.reports), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // The arguments are ours and the descriptor is open: anything else is a bug.
            Err(errno) => debug_assert!(false, "epoll_wait: {errno}"),
        }
        self.counters.wakeups += 1;
        !self.reports.is_empty()
    }

    fn take_reports(&mut self) {
        for i in 0..self.reports.len() {
            let report = self.reports[i];
            let (token, flags) = (Token(report.data.u64()), report.flags);
            if token.index() == BELL_INDEX {
                continue; // `wake_up` says whether it was rung
            }
            if token.index() >= RESERVED_INDEX {
                let listener = usize::try_from(token.index() - RESERVED_INDEX).unwrap_or(usize::MAX);
                if let Some(listener) = self.listeners.get_mut(listener) {
                    listener.ready = true;
                }
                continue;
            }
            let Some(slot) = self.slots.get(token) else { continue };
            learn(&mut slot.flags, flags);
            self.slots.queue(token);
        }
    }

    // === telling ===

    fn accept_next(&mut self) -> Option<Event<Socket, Lent>> {
        if !self.may_accept() {
            return None;
        }
        for listener in &mut self.listeners {
            while listener.ready && listener.budget > 0 {
                listener.budget -= 1;
                self.counters.accept_calls += 1;
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                match acceptfrom_with(&listener.fd, flags) {
                    Ok((fd, peer)) => {
                        self.counters.accepts += 1;
                        let Some(peer) = peer.and_then(|p| SocketAddr::try_from(p).ok()) else { continue };
                        let ip: IpAddr = peer.ip().to_canonical();
                        return Some(Event::Accepted { socket: Socket { fd, peer }, peer: ip });
                    }
                    Err(Errno::AGAIN) => listener.ready = false,
                    Err(errno) if cannot_accept_now(errno) => {
                        self.accept_again_at = Some(self.clock.now().saturating_add(ACCEPT_BACKOFF_NS));
                        return Some(Event::AcceptFailed);
                    }
                    // That one connection is gone (ECONNABORTED and the network errors of accept(2)): on to the next.
                    Err(_) => {}
                }
            }
        }
        None
    }

    /// One turn of a connection.
    fn turn(&mut self, token: Token) -> Option<Event<Socket, Lent>> {
        let slot = self.slots.get(token)?;
        slot.flags.clear(Flags::QUEUED);
        if !slot.flags.actionable() {
            return None;
        }
        let flags = &mut slot.flags;
        if flags.has(Flags::LOCAL_FAILURE) {
            flags.set(Flags::DEAD);
            let error = slot.error.unwrap_or(ConnError::Local);
            return Some(if flags.has(Flags::CONNECTING) {
                Event::ConnectFailed(token, error)
            } else {
                Event::Reset(token, error)
            });
        }
        if flags.has(Flags::CONNECTING) {
            return Some(self.connect_done(token));
        }
        if flags.has(Flags::WRITABLE) {
            flags.clear(Flags::WRITABLE);
            return Some(Event::Writable(token));
        }
        if flags.has(Flags::PAUSED.or(Flags::EOF_TOLD)) {
            return self.closed_unread(token);
        }
        self.read(token)
    }

    fn connect_done(&mut self, token: Token) -> Event<Socket, Lent> {
        let slot = self.slots.get(token).filter(|s| s.fd.is_some());
        let Some(slot) = slot else { return Event::ConnectFailed(token, ConnError::Local) };
        let result =
            slot.fd.as_ref().map_or(Err(Errno::BADF), |fd| sockopt::socket_error(fd).and_then(|e| e));
        if let Err(errno) = result {
            slot.flags.set(Flags::DEAD);
            return Event::ConnectFailed(token, connect_error(errno));
        }
        slot.flags.clear(Flags::CONNECTING.or(Flags::CONNECT_DONE));
        if slot.flags.has(Flags::WANT_WRITE) {
            slot.flags.clear(Flags::WANT_WRITE);
            slot.flags.set(Flags::WRITABLE);
        }
        Event::Connected(token)
    }

    /// The peer closed or reset a connection that is paused or whose input has ended.
    fn closed_unread(&mut self, token: Token) -> Option<Event<Socket, Lent>> {
        let slot = self.slots.get(token)?;
        let fd = slot.fd.as_ref()?;
        if slot.flags.has(Flags::ERROR) {
            slot.flags.clear(Flags::ERROR);
            // Bytes before the reset are kept for a resume: they may be the whole answer.
            let nothing_left = slot.flags.has(Flags::EOF_TOLD) || ioctl_fionread(fd).unwrap_or(0) == 0;
            if nothing_left {
                slot.flags.set(Flags::DEAD);
                let errno = sockopt::socket_error(fd).and_then(|e| e).err();
                return Some(Event::Reset(token, errno.map_or(ConnError::Reset, reset_error)));
            }
        }
        if slot.flags.has(Flags::PEER_CLOSED) && !slot.flags.has(Flags::HANGUP_TOLD.or(Flags::EOF_TOLD)) {
            slot.flags.set(Flags::HANGUP_TOLD);
            return Some(Event::Hangup(token));
        }
        None
    }

    fn read(&mut self, token: Token) -> Option<Event<Socket, Lent>> {
        let mut buffer = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES));
        let slot = self.slots.get(token)?;
        let fd = slot.fd.as_ref()?;
        let received = loop {
            self.counters.recvs += 1;
            match recv(fd, spare_capacity(&mut buffer), RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                other => break other.map(|(n, _)| n),
            }
        };
        let flags = &mut slot.flags;
        let event = match received {
            Ok(0) if flags.has(Flags::SEND_RESET) => {
                flags.set(Flags::DEAD);
                Event::Reset(token, ConnError::Reset)
            }
            Ok(0) => {
                flags.clear(Flags::READABLE);
                flags.set(Flags::EOF_TOLD);
                Event::Eof(token)
            }
            Ok(n) => {
                self.counters.bytes_received += u64::try_from(n).unwrap_or(0);
                // Short: the kernel has no more, and the next byte is an edge. Not so for the end of input.
                let drained = n < BUFFER_BYTES && !flags.has(Flags::PEER_CLOSED.or(Flags::ERROR));
                if drained {
                    flags.clear(Flags::READABLE);
                }
                let full = n == BUFFER_BYTES;
                self.slots.queue(token);
                // What follows a full buffer waits for the next pass, after the others.
                self.turns += usize::from(!full && !drained);
                return Some(Event::Data(token, Lent(buffer)));
            }
            Err(Errno::AGAIN) => {
                flags.clear(Flags::READABLE);
                self.keep(buffer);
                return None;
            }
            Err(errno) => {
                flags.set(Flags::DEAD);
                Event::Reset(token, reset_error(errno))
            }
        };
        self.keep(buffer);
        Some(event)
    }

    fn keep(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    fn register(&self, token: Token, fd: &OwnedFd) -> Result<(), Errno> {
        debug_assert!(token.index() < RESERVED_INDEX);
        let interest =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.epoll, fd, data(token), interest)
    }

    fn start_connect(&self, token: Token, address: SocketAddr) -> Result<(OwnedFd, bool), Errno> {
        let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&fd, true)?;
        sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER_BYTES)?;
        let connected = match connect(&fd, &address) {
            Ok(()) => true,
            Err(Errno::INPROGRESS | Errno::INTR) => false,
            Err(errno) => return Err(errno),
        };
        // Only now: a socket that was not told to connect yet reports a hang-up.
        self.register(token, &fd)?;
        Ok((fd, connected))
    }
}

impl fmt::Debug for EpollDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EpollDriver")
            .field("listeners", &self.listeners)
            .field("accepting", &self.accepting)
            .field("ready", &self.slots.ready.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

// === impl Driver ===

impl Driver for EpollDriver {
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
            let accept_at = self.accept_again_at.filter(|_| self.accepting);
            let until = [deadline, accept_at].into_iter().flatten().min();
            let asleep = !self.work_queued() && self.bell.fall_asleep();
            // The shard worked since the last reading: how long to wait needs a fresh one.
            let timeout = if asleep { until.map(|t| t.saturating_sub(monotonic_ns())) } else { Some(0) };
            let reported = self.wait(timeout);
            self.clock.tick();
            self.doorbell_rung |= self.bell.wake_up();
            if self.accept_again_at.is_some_and(|t| t <= self.clock.now()) {
                self.accept_again_at = None;
            }
            self.take_reports();
            let due = deadline.is_some_and(|t| t <= self.clock.now());
            // A signal or a timeout cut short is no reason to bother the shard.
            if reported || due || !asleep || self.work_queued() {
                break;
            }
        }
        self.turns = self.slots.ready.len();
        for listener in &mut self.listeners {
            listener.budget = ACCEPTS_PER_PASS;
        }
    }

    fn next_event(&mut self) -> Option<Event<Socket, Lent>> {
        if std::mem::take(&mut self.doorbell_rung) {
            return Some(Event::Doorbell);
        }
        while self.turns > 0 {
            self.turns -= 1;
            let Some(token) = self.slots.ready.pop_front() else { break };
            if let Some(event) = self.turn(token) {
                if !matches!(event, Event::Data(..)) {
                    // A second piece of news of the same connection need not wait for a poll.
                    let before = self.slots.ready.len();
                    self.slots.queue(token);
                    self.turns += self.slots.ready.len() - before;
                }
                return Some(event);
            }
        }
        self.accept_next()
    }

    fn recycle(&mut self, lent: Lent) {
        self.keep(lent.0);
    }

    fn resume_accept(&mut self) {
        self.accepting = true;
    }

    fn pause_accept(&mut self) {
        self.accepting = false;
    }

    fn close_listeners(&mut self) {
        self.listeners.clear();
    }

    fn adopt(&mut self, token: Token, socket: Socket) {
        let (flags, error) = match self.register(token, &socket.fd) {
            Ok(()) => (Flags::default(), None),
            Err(_) => (Flags::LOCAL_FAILURE, Some(ConnError::Local)),
        };
        self.slots.insert(token, Some(socket.fd), flags, error);
    }

    fn connect(&mut self, token: Token, address: SocketAddr) {
        self.counters.connects += 1;
        let (fd, flags, error) = match self.start_connect(token, address) {
            Ok((fd, true)) => (Some(fd), Flags::CONNECTING.or(Flags::CONNECT_DONE), None),
            Ok((fd, false)) => (Some(fd), Flags::CONNECTING, None),
            Err(errno) => (None, Flags::CONNECTING.or(Flags::LOCAL_FAILURE), Some(connect_error(errno))),
        };
        self.slots.insert(token, fd, flags, error);
    }

    fn send(&mut self, token: Token, bufs: &[IoSlice<'_>]) -> Result<usize, SendError> {
        let slot = self.slots.get(token).ok_or(SendError)?;
        let fd = slot.fd.as_ref().filter(|_| !slot.flags.has(Flags::DEAD)).ok_or(SendError)?;
        if slot.flags.has(Flags::CONNECTING) {
            slot.flags.set(Flags::WANT_WRITE);
            return Ok(0);
        }
        match transmit(fd, bufs, &mut self.counters) {
            Sent::All(sent) => Ok(sent),
            Sent::Short(sent) => {
                slot.flags.set(Flags::WANT_WRITE);
                slot.flags.clear(Flags::WRITABLE);
                Ok(sent)
            }
            Sent::Failed { reset } => {
                if reset {
                    slot.flags.set(Flags::SEND_RESET);
                }
                Err(SendError)
            }
        }
    }

    fn pause(&mut self, token: Token) {
        if let Some(slot) = self.slots.get(token) {
            slot.flags.set(Flags::PAUSED);
            // The peer may have closed already.
            self.slots.queue(token);
        }
    }

    fn resume(&mut self, token: Token) {
        if let Some(slot) = self.slots.get(token) {
            slot.flags.clear(Flags::PAUSED);
            self.slots.queue(token);
        }
    }

    fn shutdown_write(&mut self, token: Token) {
        if let Some(fd) = self.slots.get(token).and_then(|slot| slot.fd.as_ref()) {
            // Fails only if the connection is gone, which is told by its events.
            let _ = shutdown(fd, Shutdown::Write);
        }
    }

    fn close(&mut self, token: Token, abort: bool) {
        if let Some(fd) = self.slots.remove(token) {
            if abort {
                let _ = sockopt::set_socket_linger(&fd, Some(Duration::ZERO));
            }
            drop(fd);
        }
    }
}

fn data(token: Token) -> epoll::EventData {
    epoll::EventData::new_u64(token.0)
}

fn timespec(ns: Nanos) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(ns / SECOND).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % SECOND).unwrap_or(0),
    }
}

/// What the kernel's report says about a connection.
fn learn(known: &mut Flags, report: epoll::EventFlags) {
    use epoll::EventFlags as E;
    if known.has(Flags::CONNECTING) && report.intersects(E::OUT | E::ERR | E::HUP) {
        known.set(Flags::CONNECT_DONE);
    }
    if report.contains(E::IN) {
        known.set(Flags::READABLE);
    }
    if report.intersects(E::RDHUP | E::HUP) {
        known.set(Flags::READABLE.or(Flags::PEER_CLOSED));
    }
    if report.contains(E::ERR) {
        known.set(Flags::READABLE.or(Flags::PEER_CLOSED).or(Flags::ERROR));
    }
    if report.contains(E::OUT) && known.has(Flags::WANT_WRITE) && !known.has(Flags::CONNECTING) {
        known.clear(Flags::WANT_WRITE);
        known.set(Flags::WRITABLE);
    }
}
