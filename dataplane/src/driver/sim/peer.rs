//! The other ends: operations of scripted clients and engines.

use super::net::{Inner, Listener, Owner, State, trace};
use super::{Door, PeerId, World};
use crate::driver::ConnError;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};

/// How far a peer's connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerState {
    /// The connect was not answered yet.
    Connecting,
    /// Connected; the other side may have sent FIN.
    Open,
    /// The connect failed.
    Failed(ConnError),
    /// The other side reset the connection.
    Reset,
    /// This side closed it.
    Closed,
}

impl World {
    /// Listens at `address` for actors, or changes what those who connect there find.
    pub fn listen(&self, address: SocketAddr, door: Door) {
        let new = || Listener { door, drivers: Vec::new(), backlog: VecDeque::new() };
        self.0.borrow_mut().listeners.entry(address).or_insert_with(new).door = door;
    }

    /// The next connection made to an actor's listener.
    pub fn accept(&self, address: SocketAddr) -> Option<PeerId> {
        let mut inner = self.0.borrow_mut();
        inner.listeners.get_mut(&address)?.backlog.pop_front().map(PeerId)
    }

    /// Connects from `ip`.
    pub fn connect(&self, ip: IpAddr, address: SocketAddr) -> PeerId {
        PeerId(self.0.borrow_mut().connect(Owner::Peer, ip, address))
    }

    /// Peers to which something happened since the last call, each once.
    pub fn take_changed(&self) -> Vec<PeerId> {
        let inner = &mut *self.0.borrow_mut();
        let changed = std::mem::take(&mut inner.changed);
        changed.iter().for_each(|end| inner.ends[*end as usize].listed = false);
        changed.into_iter().map(PeerId).collect()
    }

    fn with<T>(&self, peer: PeerId, f: impl FnOnce(&mut Inner, u32) -> T) -> T {
        f(&mut self.0.borrow_mut(), peer.0)
    }

    /// How far the connection is.
    pub fn state(&self, peer: PeerId) -> PeerState {
        self.with(peer, |inner, id| {
            let end = &inner.ends[id as usize];
            match end.state {
                _ if end.closed => PeerState::Closed,
                _ if end.rst => PeerState::Reset,
                State::Connecting => PeerState::Connecting,
                State::Failed => PeerState::Failed(end.failure.unwrap_or(ConnError::Reset)),
                State::Open => PeerState::Open,
            }
        })
    }

    /// Sends what can be sent now; 0 also when the connection is gone.
    pub fn write(&self, peer: PeerId, bytes: &[u8]) -> usize {
        self.with(peer, |inner, id| inner.send(id, &[IoSlice::new(bytes)]).unwrap_or(0))
    }

    /// Reads at most `most` of what has arrived.
    pub fn read(&self, peer: PeerId, most: usize) -> Vec<u8> {
        self.with(peer, |inner, id| {
            let end = &mut inner.ends[id as usize];
            let n = end.inbox.len().min(most);
            let bytes: Vec<u8> = end.inbox.drain(..n).collect();
            if n > 0 {
                trace!(inner, "{id}: reads {n} bytes");
                inner.consumed(id);
            }
            bytes
        })
    }

    /// Bytes that have arrived and were not read.
    pub fn unread(&self, peer: PeerId) -> usize {
        self.with(peer, |inner, id| inner.ends[id as usize].inbox.len())
    }

    /// Bytes written here that the other side has not read.
    pub fn unacknowledged(&self, peer: PeerId) -> usize {
        self.with(peer, |inner, id| {
            let other = &inner.ends[(id ^ 1) as usize];
            other.inbox.len() + other.under_way
        })
    }

    /// The other side's FIN has arrived and everything before it was read.
    pub fn at_end(&self, peer: PeerId) -> bool {
        self.with(peer, |inner, id| inner.ends[id as usize].fin && inner.ends[id as usize].inbox.is_empty())
    }

    /// The other side's FIN or RST has arrived, whatever was read.
    pub fn hung_up(&self, peer: PeerId) -> bool {
        self.with(peer, |inner, id| inner.ends[id as usize].fin || inner.ends[id as usize].rst)
    }

    /// Sends FIN.
    pub fn shutdown(&self, peer: PeerId) {
        self.with(peer, |inner, id| inner.shutdown_write(id));
    }

    /// Closes: FIN, or RST if bytes were unread.
    pub fn close(&self, peer: PeerId) {
        self.with(peer, |inner, id| inner.close_end(id, false));
    }

    /// Resets.
    pub fn reset(&self, peer: PeerId) {
        self.with(peer, |inner, id| inner.close_end(id, true));
    }
}
