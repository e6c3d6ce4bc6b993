//! Connections by slot, and what is known of each: sixteen bytes a connection.

use super::super::{ConnError, Token};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;

/// A set of facts about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Flags(u16);

impl Flags {
    /// Connecting; nothing is read or sent.
    pub(super) const CONNECTING: Flags = Flags(1);
    /// The kernel has an answer to the connect.
    pub(super) const CONNECT_DONE: Flags = Flags(1 << 1);
    /// It failed on this side before the kernel could answer; the slot's `error` is to be told.
    pub(super) const LOCAL_FAILURE: Flags = Flags(1 << 2);
    /// There may be bytes or an end of input to read.
    pub(super) const READABLE: Flags = Flags(1 << 3);
    /// The peer's FIN or a reset arrived (perhaps behind unread bytes).
    pub(super) const PEER_CLOSED: Flags = Flags(1 << 4);
    /// The socket carries an error that was not looked at yet.
    pub(super) const ERROR: Flags = Flags(1 << 5);
    /// The shard paused it.
    pub(super) const PAUSED: Flags = Flags(1 << 6);
    /// A send came short: tell when it can take more.
    pub(super) const WANT_WRITE: Flags = Flags(1 << 7);
    /// It can take more, to be told.
    pub(super) const WRITABLE: Flags = Flags(1 << 8);
    /// Told once.
    pub(super) const HANGUP_TOLD: Flags = Flags(1 << 9);
    /// End of input was told.
    pub(super) const EOF_TOLD: Flags = Flags(1 << 10);
    /// A send took the socket's reset error with it: a later end of input is really a reset.
    pub(super) const SEND_RESET: Flags = Flags(1 << 11);
    /// A reset or failed connect was told; nothing may follow.
    pub(super) const DEAD: Flags = Flags(1 << 12);
    /// In the ready queue.
    pub(super) const QUEUED: Flags = Flags(1 << 13);

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

    /// Whether a turn of this connection would have something to tell.
    pub(super) const fn actionable(self) -> bool {
        if self.has(Flags::DEAD) {
            return false;
        }
        if self.has(Flags::CONNECTING) {
            return self.has(Flags::CONNECT_DONE.or(Flags::LOCAL_FAILURE));
        }
        if self.has(Flags::WRITABLE.or(Flags::LOCAL_FAILURE)) {
            return true;
        }
        if self.has(Flags::EOF_TOLD) {
            return self.has(Flags::ERROR);
        }
        if self.has(Flags::PAUSED) {
            return self.has(Flags::ERROR) || self.has(Flags::PEER_CLOSED) && !self.has(Flags::HANGUP_TOLD);
        }
        self.has(Flags::READABLE)
    }
}

/// A slot; free when it holds no descriptor and no failure to tell.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) fd: Option<OwnedFd>,
    pub(super) flags: Flags,
    pub(super) error: Option<ConnError>,
}

/// The slots of a driver and the queue of those that have something to tell.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// May name connections that were closed since: they are passed over by their generation.
    pub(super) ready: VecDeque<Token>,
}

impl Slots {
    /// The slot of a connection that is still open.
    pub(super) fn get(&mut self, token: Token) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::try_from(token.index()).ok()?)?;
        let open = slot.fd.is_some() || slot.error.is_some();
        (open && slot.generation == token.generation()).then_some(slot)
    }

    /// Fills a slot. What it held before is closed.
    pub(super) fn insert(
        &mut self,
        token: Token,
        fd: Option<OwnedFd>,
        flags: Flags,
        error: Option<ConnError>,
    ) {
        let index = usize::try_from(token.index()).unwrap_or(usize::MAX);
        while self.slots.len() <= index {
            self.slots.push(Slot { generation: 0, fd: None, flags: Flags::default(), error: None });
        }
        debug_assert!(self.slots[index].fd.is_none(), "slot {index} reused while open");
        self.slots[index] = Slot { generation: token.generation(), fd, flags, error };
        self.queue(token);
    }

    /// Empties a slot; `None` if it is another's by now.
    pub(super) fn remove(&mut self, token: Token) -> Option<OwnedFd> {
        let slot = self.get(token)?;
        slot.error = None;
        slot.flags = Flags::default();
        slot.fd.take()
    }

    /// Queues a connection for a turn, if it has something to tell and is not queued yet.
    pub(super) fn queue(&mut self, token: Token) {
        let Some(slot) = self.get(token) else { return };
        if slot.flags.actionable() && !slot.flags.has(Flags::QUEUED) {
            slot.flags.set(Flags::QUEUED);
            self.ready.push_back(token);
        }
    }
}
