//! Between the facts about connections and the operations in flight: what a completion teaches, and what to begin.
//!
//! Nothing begins at the moment it is wished for. A call of the shard or a completion changes facts and marks the
//! connection dirty; [`UringDriver::begin_all`] then compares what should be in flight with what is, just before the
//! next enter. So a pause and a resume between two polls cost nothing, a resume finds out by itself that a cancelled
//! receive has not ended yet, and a cancellation that the kernel could not place is made again.

use super::conns::{Conn, Flags, Key, Purpose, Target};
use super::ring::{Completion, Op, Ring};
use super::{ACCEPT_BACKOFF_NS, HELD_MAX, Socket, Stats, UringDriver};
use crate::driver::ConnError;
use crate::driver::epoll::errno::{cannot_accept_now, reset_error};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::getpeername;
use std::net::SocketAddr;
use std::rc::Rc;

/// Masks of `poll(2)`.
pub(super) mod poll {
    pub(crate) const IN: u32 = 0x1;
    pub(crate) const OUT: u32 = 0x4;
    pub(crate) const ERR: u32 = 0x8;
    pub(crate) const HUP: u32 = 0x10;
    pub(crate) const RDHUP: u32 = 0x2000;
}

/// Flushes of completions that did not fit, in one poll.
const FLUSHES_MAX: u32 = 64;

impl UringDriver {
    // === beginning ===

    /// Pushes everything that should be in flight and is not, and cancels what should not be.
    pub(super) fn begin_all(&mut self) {
        if !self.bell_armed {
            self.bell_armed = true;
            let data = Key { index: 0, generation: 0 }.user_data(Purpose::Bell);
            self.ring.push(self.bell.fd().as_fd(), Op::PollMany(poll::IN), data);
        }
        self.begin_accepts();
        // As many as there are buffers, in the order in which they went without.
        for _ in 0..self.ring.pool().available() {
            let Some(key) = self.conns.starved.pop_front() else { break };
            if let Some(conn) = self.conns.get(key) {
                conn.flags.clear(Flags::STARVED);
                self.conns.touch(key);
            }
        }
        let mut dirty = std::mem::take(&mut self.conns.dirty);
        for key in dirty.drain(..) {
            if let Some(conn) = self.conns.get(key) {
                begin(&mut self.ring, &mut self.stats, conn, key);
            }
        }
        debug_assert!(self.conns.dirty.is_empty());
        self.conns.dirty = dirty;
    }

    fn begin_accepts(&mut self) {
        let wanted = self.accepting && self.accept_again_at.is_none();
        for (index, listener) in (0u32..).zip(&mut self.listeners) {
            let Some(fd) = &listener.fd else { continue };
            let key = Key { index, generation: 0 };
            if wanted && !listener.closing && !listener.armed {
                listener.armed = true;
                self.ring.push(fd.as_fd(), Op::AcceptMany, key.user_data(Purpose::Accept));
            }
            let unwanted = listener.closing || !self.accepting;
            if unwanted && listener.armed && !listener.cancelling {
                listener.cancelling = true;
                let target = key.user_data(Purpose::Accept);
                self.ring.push_cancel(target, key.user_data(Purpose::CancelAccept));
            }
            if listener.closing && !listener.armed && !listener.cancelling {
                listener.fd = None;
            }
        }
    }

    // === learning ===

    /// Takes every completion there is.
    pub(super) fn take_completions(&mut self) {
        for _ in 0..FLUSHES_MAX {
            while let Some(completion) = self.ring.next() {
                self.take(completion);
            }
            if !self.ring.overflowed() {
                break;
            }
            self.ring.enter(Some(0));
        }
    }

    pub(super) fn take(&mut self, completion: Completion) {
        let (purpose, key) = Key::parse(completion.user_data);
        match purpose {
            Purpose::Bell => self.bell_armed = completion.more,
            Purpose::Accept => self.accepted(key, completion),
            Purpose::CancelAccept => {
                if let Some(listener) = self.listener(key) {
                    listener.cancelling = false;
                }
            }
            Purpose::CancelAll => {}
            Purpose::Receive => self.received(key, completion),
            Purpose::Hangup => self.hung_up(key, completion),
            Purpose::Output => self.output(key),
            Purpose::Cancel(_) => {
                if let Some(conn) = self.conns.get(key) {
                    conn.in_flight.end(purpose);
                    let missed = completion.result.is_err();
                    self.stats.cancels_missed += u64::from(missed);
                }
            }
        }
        if matches!(purpose, Purpose::Receive | Purpose::Hangup | Purpose::Output | Purpose::Cancel(_)) {
            debug_assert!(self.conns.get(key).is_some(), "{purpose:?} completed after its entry was freed");
            // A cancellation that found nothing, a receive that ended: what is to be done now?
            if !completion.more {
                self.conns.touch(key);
            }
            self.conns.free_if_settled(key);
        }
    }

    fn listener(&mut self, key: Key) -> Option<&mut super::Listener> {
        self.listeners.get_mut(usize::try_from(key.index).ok()?)
    }

    fn accepted(&mut self, key: Key, completion: Completion) {
        self.counters.accept_calls += 1;
        if let Some(listener) = self.listener(key).filter(|_| !completion.more) {
            listener.armed = false;
        }
        match completion.result {
            Ok(descriptor) => {
                self.counters.accepts += 1;
                let fd = Ring::accepted(descriptor);
                // A connection that is gone already has no peer: nobody misses it.
                let peer = getpeername(&fd).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
                if let Some(peer) = peer {
                    self.accepted.push_back(Socket::new(fd, peer));
                }
            }
            Err(Errno::CANCELED) => {}
            Err(errno) if cannot_accept_now(errno) => {
                self.accept_again_at = Some(self.clock.now().saturating_add(ACCEPT_BACKOFF_NS));
                self.accept_failed = true;
            }
            Err(_) => {}
        }
    }

    fn received(&mut self, key: Key, completion: Completion) {
        let pool = Rc::clone(self.ring.pool());
        let len = completion.result.unwrap_or(0);
        if let Some(buffer) = completion.buffer {
            pool.taken(buffer, len);
            if len == 0 {
                pool.give_back(buffer);
            }
        }
        let buffer = completion.buffer.filter(|_| len > 0);
        let Some(conn) = self.conns.get(key) else { return };
        if !completion.more {
            conn.in_flight.end(Purpose::Receive);
        }
        self.counters.recvs += 1;
        if conn.flags.has(Flags::CLOSING) {
            self.stats.late_after_close += 1;
            buffer.into_iter().for_each(|buffer| pool.give_back(buffer));
            return;
        }
        let flags = &mut conn.flags;
        match completion.result {
            Ok(0) if flags.has(Flags::SEND_RESET) => {
                flags.set(Flags::FAILED);
                conn.error = Some(ConnError::Reset);
            }
            Ok(0) => flags.set(Flags::EOF),
            Ok(_) => {
                let Some(buffer) = buffer else { return };
                self.counters.bytes_received += u64::from(len);
                flags.clear(Flags::BULK);
                if len == pool.buffer_bytes() {
                    flags.set(Flags::BULK);
                }
                conn.held.push(&pool, buffer);
                if conn.flags.has(Flags::PAUSED) {
                    self.stats.spilled_bytes += conn.spill_held(&pool);
                } else if conn.held.len() == HELD_MAX {
                    self.conns.touch(key);
                }
            }
            Err(Errno::NOBUFS) => {
                self.stats.no_buffers += 1;
                pool.ran_out();
                flags.set(Flags::STARVED);
                self.conns.starved.push_back(key);
            }
            Err(Errno::CANCELED | Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => {
                flags.set(Flags::FAILED);
                conn.error = Some(reset_error(errno));
            }
        }
        self.conns.queue(key);
    }

    fn hung_up(&mut self, key: Key, completion: Completion) {
        let Some(conn) = self.conns.get(key) else { return };
        conn.in_flight.end(Purpose::Hangup);
        let Ok(mask) = completion.result else { return };
        if mask & (poll::RDHUP | poll::HUP | poll::ERR) != 0 {
            conn.flags.set(Flags::PEER_CLOSED);
        }
        if mask & (poll::HUP | poll::ERR) != 0 {
            conn.flags.set(Flags::HUNG_UP);
        }
        if mask & poll::ERR != 0 {
            conn.flags.set(Flags::ERROR);
        }
    }

    fn output(&mut self, key: Key) {
        let Some(conn) = self.conns.get(key) else { return };
        conn.in_flight.end(Purpose::Output);
        // Whatever it says: a connect is answered, and a send finds out.
        if conn.flags.has(Flags::CONNECTING) {
            conn.flags.set(Flags::CONNECT_DONE);
        } else if conn.flags.has(Flags::WANT_WRITE) {
            conn.flags.clear(Flags::WANT_WRITE);
            conn.flags.set(Flags::WRITABLE);
        }
    }
}

/// Begins what should be in flight for a connection, and cancels what should not be.
fn begin(ring: &mut Ring, stats: &mut Stats, conn: &mut Conn, key: Key) {
    conn.flags.clear(Flags::DIRTY);
    let flags = conn.flags;
    if flags.has(Flags::CLOSING) {
        for target in Target::ALL {
            cancel(ring, stats, conn, key, target);
        }
        return;
    }
    if flags.has(Flags::DEAD.or(Flags::LOCAL_FAILURE)) {
        return;
    }
    if flags.has(Flags::CONNECTING) {
        if !flags.has(Flags::CONNECT_DONE) {
            start(ring, conn, key, Purpose::Output, Op::Poll(poll::OUT));
        }
        return;
    }
    if flags.has(Flags::WANT_WRITE) {
        start(ring, conn, key, Purpose::Output, Op::Poll(poll::OUT));
    }
    let ended = flags.has(Flags::EOF.or(Flags::EOF_TOLD).or(Flags::FAILED));
    if flags.has(Flags::PAUSED) || conn.held.len() >= HELD_MAX {
        cancel(ring, stats, conn, key, Target::Receive);
    } else if !ended && !flags.has(Flags::STARVED) && !conn.holds() {
        let op = if flags.has(Flags::BULK) { Op::ReceiveOne } else { Op::ReceiveMany };
        start(ring, conn, key, Purpose::Receive, op);
    }
    let unwatched = flags.has(Flags::PAUSED.or(Flags::EOF_TOLD));
    if unwatched && !flags.has(Flags::HUNG_UP.or(Flags::FAILED)) {
        let known = flags.has(Flags::PEER_CLOSED.or(Flags::EOF).or(Flags::EOF_TOLD));
        let mask = if known { 0 } else { poll::RDHUP };
        start(ring, conn, key, Purpose::Hangup, Op::Poll(mask));
    }
}

fn start(ring: &mut Ring, conn: &mut Conn, key: Key, purpose: Purpose, op: Op) {
    let Some(fd) = conn.fd.as_ref().filter(|_| !conn.in_flight.has(purpose)) else { return };
    ring.push(fd.as_fd(), op, key.user_data(purpose));
    conn.in_flight.begin(purpose);
}

fn cancel(ring: &mut Ring, stats: &mut Stats, conn: &mut Conn, key: Key, target: Target) {
    let (purpose, own) = (target.purpose(), Purpose::Cancel(target));
    if conn.in_flight.has(purpose) && !conn.in_flight.has(own) {
        ring.push_cancel(key.user_data(purpose), key.user_data(own));
        conn.in_flight.begin(own);
        stats.cancels += 1;
    }
}
