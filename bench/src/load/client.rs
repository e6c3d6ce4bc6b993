//! A client's connection: sends one request at a time and finds the end of its answer.

use super::stage::Stage;
use super::wire::{content_length, events};
use super::world::drain;
use memchr::memmem;
use std::io::{self, Write};
use std::net::TcpStream;

/// One connection.
pub struct Client {
    /// None once it was closed by either side.
    pub stream: Option<TcpStream>,
    /// The gateway it talks to.
    pub target: usize,
    /// A request is unanswered. Streams are busy for ever.
    pub busy: bool,
    /// When the request was due.
    pub since: u64,
    /// Events received.
    pub events: u64,
    request: Vec<u8>,
    is_stream: bool,
    /// The answer's head, while it is incomplete.
    head: Vec<u8>,
    /// Bytes of the body to come; none while the head is awaited.
    left: Option<usize>,
    last: u8,
}

impl Client {
    /// Over an open connection.
    pub fn new(target: usize, stream: TcpStream, request: Vec<u8>, is_stream: bool) -> io::Result<Self> {
        let stream = Some(stream);
        let (busy, since, events, head, left, last) = (false, 0, 0, Vec::new(), None, 0);
        Ok(Client { stream, target, busy, since, events, request, is_stream, head, left, last })
    }

    /// Sends the request; false when the connection is gone.
    pub fn ask(&mut self, since: u64) -> bool {
        self.since = since;
        // A request is far smaller than an empty send buffer.
        let sent = self
            .stream
            .as_ref()
            .is_some_and(|mut s| matches!(s.write(&self.request), Ok(n) if n == self.request.len()));
        self.busy = sent;
        if !sent {
            self.stream = None;
        }
        sent
    }

    /// Takes what has arrived. True when an answer is complete.
    pub fn receive(&mut self, scratch: &mut [u8], to_the_end: bool, stage: &mut Stage) -> bool {
        let Some(stream) = self.stream.take() else { return false };
        let mut done = false;
        let open = drain(&stream, scratch, to_the_end, |bytes| {
            stage.bytes += bytes.len() as u64;
            if self.is_stream && self.left.is_some() {
                self.count(bytes, stage);
                return true;
            }
            match self.take(bytes) {
                Ok(complete) => done |= complete,
                Err(what) => {
                    stage.fail(what);
                    return false;
                }
            }
            if self.is_stream {
                self.count(bytes, stage);
            }
            true
        });
        if open {
            self.stream = Some(stream);
        } else if self.busy && !done {
            self.busy = false;
            stage.fail("a connection was closed before its answer was complete");
        }
        if done {
            self.busy = false;
        }
        done
    }

    fn count(&mut self, bytes: &[u8], stage: &mut Stage) {
        let new = events(self.last, bytes);
        self.events += new;
        stage.events += new;
        self.last = bytes.last().copied().unwrap_or(self.last);
    }

    /// True when the answer is complete.
    fn take(&mut self, bytes: &[u8]) -> Result<bool, &'static str> {
        if let Some(left) = self.left {
            let rest = left.checked_sub(bytes.len()).ok_or("more bytes than the answer's length")?;
            self.left = (rest > 0).then_some(rest);
            return Ok(rest == 0);
        }
        // Heads come whole but for rare cases.
        let joined;
        let bytes = if self.head.is_empty() {
            bytes
        } else {
            self.head.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.head);
            &joined
        };
        let Some(end) = memmem::find(bytes, b"\r\n\r\n") else {
            self.head = bytes.to_vec();
            return Ok(false);
        };
        if !bytes.starts_with(b"HTTP/1.1 200") {
            return Err("an answer other than 200");
        }
        if self.is_stream {
            self.left = Some(0);
            return Ok(false);
        }
        let length = content_length(&bytes[..end + 4]).ok_or("an answer without a length")?;
        self.left = Some(length);
        self.take(&bytes[end + 4..])
    }
}
