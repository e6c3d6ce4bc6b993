//! Bytes that the client's socket has not taken yet.

use crate::driver::{Driver, SendError, Token};
use std::io::IoSlice;

/// Above this many unsent bytes the engine's connection is paused.
pub const HIGH_WATER: usize = 64 * 1024;
/// Below this many it is resumed.
pub const LOW_WATER: usize = 16 * 1024;

/// Unsent output of one connection; holds no memory when everything was sent.
#[derive(Debug, Default)]
pub struct OutBuf {
    bytes: Vec<u8>,
    start: usize,
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

    /// Sends what can be sent now and keeps the rest. Order is kept: with unsent bytes waiting, new ones queue.
    /// Returns bytes handed to the socket.
    pub fn write<D: Driver>(
        &mut self,
        driver: &mut D,
        token: Token,
        bufs: &[IoSlice<'_>],
    ) -> Result<usize, SendError> {
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        let mut skip = 0;
        if self.is_empty() {
            skip = driver.send(token, bufs)?;
            if skip == total {
                return Ok(total);
            }
            crate::mark!(client_short_write);
        }
        let sent = skip;
        self.bytes.reserve(total - skip);
        for buf in bufs {
            if skip >= buf.len() {
                skip -= buf.len();
            } else {
                self.bytes.extend_from_slice(&buf[skip..]);
                skip = 0;
            }
        }
        Ok(sent)
    }

    /// Sends more after [`crate::driver::Event::Writable`]. Returns bytes handed to the socket.
    pub fn flush<D: Driver>(&mut self, driver: &mut D, token: Token) -> Result<usize, SendError> {
        if self.is_empty() {
            return Ok(0);
        }
        let sent = driver.send(token, &[IoSlice::new(&self.bytes[self.start..])])?;
        self.start += sent;
        if self.start == self.bytes.len() {
            self.bytes = Vec::new();
            self.start = 0;
        } else if self.start >= HIGH_WATER {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        Ok(sent)
    }
}
