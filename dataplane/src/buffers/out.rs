//! Bytes that the client's socket has not taken yet.

use super::Spares;
use crate::driver::{Driver, SendError, Token};
use smallvec::SmallVec;
use std::io::IoSlice;

/// Above this many unsent bytes the engine's connection is paused.
pub const HIGH_WATER: usize = 64 * 1024;
/// Below this many it is resumed.
pub const LOW_WATER: usize = 16 * 1024;
/// More than this is offered to the socket at once.
const STAGED_MAX: usize = 16 * 1024;

/// Unsent output of one connection; holds no memory when everything was sent.
///
/// It is either *staged*, for the end of the shard's turn, when the socket is offered everything at once; or
/// *blocked*: the socket took less than it was offered, and [`crate::driver::Event::Writable`] will follow.
#[derive(Debug, Default)]
pub struct OutBuf {
    bytes: Vec<u8>,
    start: usize,
    blocked: bool,
}

impl OutBuf {
    /// Unsent bytes.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Everything was sent.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The socket takes no more.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// There are bytes that the socket was not offered yet.
    pub fn is_staged(&self) -> bool {
        !self.blocked && !self.is_empty()
    }

    /// Adds a few bytes for the next [`OutBuf::flush`], order kept; `wire` is taken, or copied and given to `spares`.
    /// `false` when there are too many by now to wait.
    pub fn stage(&mut self, wire: Vec<u8>, spares: &mut Spares) -> bool {
        if self.bytes.is_empty() && !wire.is_empty() {
            self.bytes = wire;
        } else {
            self.bytes.extend_from_slice(&wire);
            spares.give(wire);
        }
        self.blocked || self.len() <= STAGED_MAX
    }

    /// Sends what can be sent now and keeps the rest. Order is kept: staged bytes go first, and behind what blocks
    /// new ones queue. Returns bytes handed to the socket.
    pub fn write<D: Driver>(
        &mut self,
        driver: &mut D,
        token: Token,
        bufs: &[IoSlice<'_>],
        spares: &mut Spares,
    ) -> Result<usize, SendError> {
        if !self.blocked {
            let staged = self.len();
            let total = staged + bufs.iter().map(|buf| buf.len()).sum::<usize>();
            let sent = if staged == 0 {
                driver.send(token, bufs)?
            } else {
                let own = IoSlice::new(&self.bytes[self.start..]);
                let pieces: SmallVec<[IoSlice<'_>; 4]> =
                    std::iter::once(own).chain(bufs.iter().copied()).collect();
                driver.send(token, &pieces)?
            };
            self.took(sent.min(staged), spares);
            if sent == total {
                return Ok(sent);
            }
            crate::mark!(client_short_write);
            self.blocked = true;
            self.keep(bufs, sent.saturating_sub(staged));
            return Ok(sent);
        }
        self.keep(bufs, 0);
        Ok(0)
    }

    /// Sends more: what was staged, or after [`crate::driver::Event::Writable`]. Returns bytes handed to the socket.
    pub fn flush<D: Driver>(
        &mut self,
        driver: &mut D,
        token: Token,
        spares: &mut Spares,
    ) -> Result<usize, SendError> {
        if self.is_empty() {
            return Ok(0);
        }
        let sent = driver.send(token, &[IoSlice::new(&self.bytes[self.start..])])?;
        if sent < self.len() && !self.blocked {
            crate::mark!(client_short_write);
        }
        self.blocked = sent < self.len();
        self.took(sent, spares);
        Ok(sent)
    }

    fn took(&mut self, sent: usize, spares: &mut Spares) {
        self.start += sent;
        if self.start == self.bytes.len() {
            spares.give(std::mem::take(&mut self.bytes));
            self.start = 0;
        } else if self.start >= HIGH_WATER {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }

    fn keep(&mut self, bufs: &[IoSlice<'_>], mut skip: usize) {
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        self.bytes.reserve(total - skip);
        for buf in bufs {
            if skip >= buf.len() {
                skip -= buf.len();
            } else {
                self.bytes.extend_from_slice(&buf[skip..]);
                skip = 0;
            }
        }
    }
}
