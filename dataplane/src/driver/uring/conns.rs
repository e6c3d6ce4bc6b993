//! Connections as the ring sees them: what is known, and which operations are in flight.
//!
//! A connection of the shard's ([`Token`]) has an entry here under a [`Key`] of our own, because an entry outlives its
//! token: it is freed, and its descriptor closed, only after the last completion of its last operation.

use super::super::{ConnError, Token};
use super::pool::{Chain, Lent, Pool};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::rc::Rc;

/// Bits of a generation in an operation's user data.
const GENERATION_MASK: u32 = 0xFF_FFFF;
const FREE: u32 = u32::MAX;

/// A set of facts about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Flags(u32);

impl Flags {
    /// Connecting; nothing is received or sent.
    pub(super) const CONNECTING: Flags = Flags(1);
    /// The kernel has an answer to the connect.
    pub(super) const CONNECT_DONE: Flags = Flags(1 << 1);
    /// It failed on this side before the kernel could answer; `error` is to be told.
    pub(super) const LOCAL_FAILURE: Flags = Flags(1 << 2);
    /// The end of input was received; it is to be told after what is held.
    pub(super) const EOF: Flags = Flags(1 << 3);
    /// End of input was told.
    pub(super) const EOF_TOLD: Flags = Flags(1 << 4);
    /// Receiving failed; `error` is to be told after what is held.
    pub(super) const FAILED: Flags = Flags(1 << 5);
    /// The peer's FIN or a reset arrived (perhaps behind unread bytes).
    pub(super) const PEER_CLOSED: Flags = Flags(1 << 6);
    /// The socket carries an error that was not looked at yet.
    pub(super) const ERROR: Flags = Flags(1 << 7);
    /// A poll for hang-ups has nothing more to find out.
    pub(super) const HUNG_UP: Flags = Flags(1 << 8);
    /// The shard paused it.
    pub(super) const PAUSED: Flags = Flags(1 << 9);
    /// A send came short: tell when it can take more.
    pub(super) const WANT_WRITE: Flags = Flags(1 << 10);
    /// It can take more, to be told.
    pub(super) const WRITABLE: Flags = Flags(1 << 11);
    /// Told once.
    pub(super) const HANGUP_TOLD: Flags = Flags(1 << 12);
    /// A send took the socket's reset error with it: a later end of input is really a reset.
    pub(super) const SEND_RESET: Flags = Flags(1 << 13);
    /// A reset or failed connect was told; nothing may follow.
    pub(super) const DEAD: Flags = Flags(1 << 14);
    /// The shard closed it; it is freed once nothing is in flight.
    pub(super) const CLOSING: Flags = Flags(1 << 15);
    /// The last receive filled its buffer: the next ones are made one at a time.
    pub(super) const BULK: Flags = Flags(1 << 16);
    /// There was no buffer; it waits for one.
    pub(super) const STARVED: Flags = Flags(1 << 17);
    /// In the queue of those that have something to tell.
    pub(super) const QUEUED: Flags = Flags(1 << 18);
    /// In the queue of those whose operations are to be looked at.
    pub(super) const DIRTY: Flags = Flags(1 << 19);

    pub(super) const fn has(self, any: Flags) -> bool {
        self.0 & any.0 != 0
    }
    pub(super) const fn set(&mut self, flags: Flags) {
        self.0 |= flags.0;
    }
    pub(super) const fn clear(&mut self, flags: Flags) {
        self.0 &= !flags.0;
    }
    pub(super) const fn or(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// What an operation is for; the top byte of its user data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Receive.
    Receive,
    /// Wait for the peer's hang-up or an error.
    Hangup,
    /// Wait until a connect is answered or more can be sent.
    Output,
    /// End one of those.
    Cancel(Target),
    /// Accept; the key's index is the listener's.
    Accept,
    /// End that.
    CancelAccept,
    /// The doorbell.
    Bell,
    /// End everything.
    CancelAll,
}

/// Which of a connection's operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// See [`Purpose`].
    Receive,
    /// See [`Purpose`].
    Hangup,
    /// See [`Purpose`].
    Output,
}

impl Target {
    pub(super) const ALL: [Target; 3] = [Target::Receive, Target::Hangup, Target::Output];

    pub(super) fn purpose(self) -> Purpose {
        match self {
            Target::Receive => Purpose::Receive,
            Target::Hangup => Purpose::Hangup,
            Target::Output => Purpose::Output,
        }
    }
}

const PURPOSES: [Purpose; 10] = [
    Purpose::Receive,
    Purpose::Hangup,
    Purpose::Output,
    Purpose::Cancel(Target::Receive),
    Purpose::Cancel(Target::Hangup),
    Purpose::Cancel(Target::Output),
    Purpose::Accept,
    Purpose::CancelAccept,
    Purpose::Bell,
    Purpose::CancelAll,
];

/// Names an entry; never names a later one at the same index, short of 16 million in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl Key {
    /// The user data of an operation: purpose 8, generation 24, index 32 bits.
    pub(super) fn user_data(self, purpose: Purpose) -> u64 {
        let code = PURPOSES.iter().position(|p| *p == purpose).unwrap_or(0);
        let high = u64::try_from(code).unwrap_or(0) << 24 | u64::from(self.generation & GENERATION_MASK);
        high << 32 | u64::from(self.index)
    }

    /// The reverse.
    #[allow(clippy::cast_possible_truncation)] // fields of a packed word
    pub(super) fn parse(user_data: u64) -> (Purpose, Key) {
        let purpose = usize::from((user_data >> 56) as u8);
        let generation = (user_data >> 32) as u32 & GENERATION_MASK;
        (PURPOSES[purpose.min(PURPOSES.len() - 1)], Key { index: user_data as u32, generation })
    }
}

/// Operations in flight, each at most once: those of [`Target`] and a cancellation of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct InFlight(u8);

impl InFlight {
    pub(super) fn has(self, purpose: Purpose) -> bool {
        self.0 & bit(purpose) != 0
    }
    pub(super) fn begin(&mut self, purpose: Purpose) {
        debug_assert!(!self.has(purpose), "{purpose:?} begun twice");
        self.0 |= bit(purpose);
    }
    pub(super) fn end(&mut self, purpose: Purpose) {
        debug_assert!(self.has(purpose), "{purpose:?} ended twice");
        self.0 &= !bit(purpose);
    }
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

fn bit(purpose: Purpose) -> u8 {
    match purpose {
        Purpose::Receive => 1,
        Purpose::Hangup => 2,
        Purpose::Output => 4,
        Purpose::Cancel(Target::Receive) => 8,
        Purpose::Cancel(Target::Hangup) => 16,
        Purpose::Cancel(Target::Output) => 32,
        _ => 0,
    }
}

/// Bytes received before a pause took effect, in pieces of at most a buffer, in order.
pub(super) type Spill = VecDeque<Vec<u8>>;

/// An entry.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) token: Token,
    pub(super) fd: Option<OwnedFd>,
    pub(super) flags: Flags,
    pub(super) in_flight: InFlight,
    pub(super) error: Option<ConnError>,
    /// Received, not told; after the spill.
    pub(super) held: Chain,
    pub(super) spill: Option<Box<Spill>>,
    generation: u32,
}

impl Conn {
    /// Moves what is held out of the provided buffers, and says how many bytes that were.
    pub(super) fn spill_held(&mut self, pool: &Rc<Pool>) -> u64 {
        let mut moved = 0;
        while let Some(lent) = self.held.pop(pool) {
            moved += u64::try_from(lent.len()).unwrap_or(0);
            self.spill.get_or_insert_default().push_back(lent.to_vec());
        }
        moved
    }

    /// Takes the first of what is held.
    pub(super) fn take_held(&mut self, pool: &Rc<Pool>) -> Option<Lent> {
        let Some(spill) = &mut self.spill else { return self.held.pop(pool) };
        let bytes = spill.pop_front();
        if spill.is_empty() {
            self.spill = None;
        }
        bytes.map(Lent::moved)
    }

    /// Bytes are held.
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty() || self.spill.is_some()
    }

    /// Whether a turn of this connection would have something to tell.
    pub(super) fn actionable(&self) -> bool {
        let flags = self.flags;
        if flags.has(Flags::DEAD.or(Flags::CLOSING)) {
            return false;
        }
        if flags.has(Flags::CONNECTING) {
            return flags.has(Flags::CONNECT_DONE.or(Flags::LOCAL_FAILURE));
        }
        if flags.has(Flags::WRITABLE.or(Flags::LOCAL_FAILURE)) {
            return true;
        }
        if flags.has(Flags::EOF_TOLD) {
            return flags.has(Flags::ERROR.or(Flags::FAILED));
        }
        if flags.has(Flags::PAUSED) {
            let seen = flags.has(Flags::PEER_CLOSED.or(Flags::EOF).or(Flags::FAILED));
            let told = flags.has(Flags::HANGUP_TOLD);
            return flags.has(Flags::ERROR) || seen && !told || flags.has(Flags::FAILED) && !self.holds();
        }
        self.holds() || flags.has(Flags::EOF.or(Flags::FAILED))
    }
}

/// All entries, and the queues of those that need attention.
#[derive(Debug, Default)]
pub(super) struct Conns {
    entries: Vec<Conn>,
    free: Vec<u32>,
    /// Entry of each token's index.
    by_token: Vec<u32>,
    /// Those that have something to tell. May name entries freed since.
    pub(super) ready: VecDeque<Key>,
    /// Those whose operations are to be looked at. The same.
    pub(super) dirty: Vec<Key>,
    /// Those that wait for a buffer. The same.
    pub(super) starved: VecDeque<Key>,
}

impl Conns {
    pub(super) fn get(&mut self, key: Key) -> Option<&mut Conn> {
        let conn = self.entries.get_mut(usize::try_from(key.index).ok()?)?;
        (conn.generation == key.generation).then_some(conn)
    }

    /// The entry of a connection that is open.
    pub(super) fn find(&self, token: Token) -> Option<Key> {
        let index = *self.by_token.get(usize::try_from(token.index()).ok()?)?;
        let conn = self.entries.get(usize::try_from(index).ok()?)?;
        (conn.token == token).then_some(Key { index, generation: conn.generation })
    }

    /// Makes an entry.
    pub(super) fn insert(
        &mut self,
        token: Token,
        fd: Option<OwnedFd>,
        flags: Flags,
        error: Option<ConnError>,
    ) -> Key {
        let at = usize::try_from(token.index()).unwrap_or(usize::MAX);
        if self.by_token.len() <= at {
            self.by_token.resize(at + 1, FREE);
        }
        debug_assert_eq!(self.by_token[at], FREE, "index {at} reused while open");
        let (held, in_flight) = (Chain::default(), InFlight::default());
        let mut conn = Conn { token, fd, flags, in_flight, error, held, spill: None, generation: 0 };
        let index = if let Some(index) = self.free.pop() {
            let entry = &mut self.entries[usize::try_from(index).unwrap_or(usize::MAX)];
            conn.generation = entry.generation;
            *entry = conn;
            index
        } else {
            self.entries.push(conn);
            u32::try_from(self.entries.len() - 1).unwrap_or(FREE)
        };
        self.by_token[at] = index;
        let key =
            Key { index, generation: self.entries[usize::try_from(index).unwrap_or(usize::MAX)].generation };
        self.touch(key);
        key
    }

    /// The shard's index is free; the entry stays.
    pub(super) fn detach(&mut self, token: Token) {
        if let Some(at) = self.by_token.get_mut(usize::try_from(token.index()).unwrap_or(usize::MAX)) {
            *at = FREE;
        }
    }

    /// Frees a detached entry and closes its descriptor, if nothing is in flight any more.
    pub(super) fn free_if_settled(&mut self, key: Key) {
        let Some(conn) = self.get(key) else { return };
        if !conn.flags.has(Flags::CLOSING) || !conn.in_flight.is_empty() {
            return;
        }
        debug_assert!(!conn.holds());
        conn.generation = (conn.generation + 1) & GENERATION_MASK;
        conn.fd = None;
        conn.error = None;
        conn.flags = Flags::default();
        self.free.push(key.index);
    }

    /// Has its operations looked at and, if it has something to tell, queues it for a turn.
    pub(super) fn touch(&mut self, key: Key) {
        let Some(conn) = self.get(key) else { return };
        if !conn.flags.has(Flags::DIRTY) {
            conn.flags.set(Flags::DIRTY);
            self.dirty.push(key);
        }
        self.queue(key);
    }

    /// Queues it for a turn, if it has something to tell and is not queued yet.
    pub(super) fn queue(&mut self, key: Key) {
        let Some(conn) = self.get(key) else { return };
        if conn.actionable() && !conn.flags.has(Flags::QUEUED) {
            conn.flags.set(Flags::QUEUED);
            self.ready.push_back(key);
        }
    }

    /// Entries, free ones included.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Every entry in use.
    pub(super) fn keys(&self) -> Vec<Key> {
        let used = (0u32..)
            .zip(&self.entries)
            .filter(|(_, conn)| conn.fd.is_some() || conn.error.is_some() || !conn.in_flight.is_empty());
        used.map(|(index, conn)| Key { index, generation: conn.generation }).collect()
    }
}
