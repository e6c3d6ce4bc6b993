//! The writing half of a connection, shared by its task and the driver.
//!
//! The driver writes each event straight to the socket; only what the kernel does not take is kept and flushed by the
//! connection's task when the socket becomes writable. Invariant: bytes leave in the order they were sent.

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Notify;

/// A client socket and what still waits for it.
pub struct Out {
    /// The socket; the connection's task alone reads it.
    pub sock: TcpStream,
    /// Wakes the connection's task: there is something to flush, an error, or the exchange is over.
    pub notify: Notify,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    pending: Vec<u8>,
    split: bool,
    failed: bool,
}

impl Out {
    /// Wraps a fresh socket.
    pub fn new(sock: TcpStream) -> Self {
        // Events must not wait for acknowledgements; a socket that refuses is as good as broken and shows it later.
        let _ = sock.set_nodelay(true);
        Self { sock, notify: Notify::new(), state: RefCell::default() }
    }

    /// From now on each byte is its own write.
    pub fn set_split(&self, split: bool) {
        self.state.borrow_mut().split = split;
    }

    /// Sends bytes, now or when the socket takes them.
    pub fn send(&self, bytes: &[u8]) {
        let mut state = self.state.borrow_mut();
        if state.failed {
            return;
        }
        if !state.pending.is_empty() {
            state.pending.extend_from_slice(bytes);
            return;
        }
        match write(&self.sock, bytes, state.split) {
            Ok(taken) if taken == bytes.len() => {}
            Ok(taken) => {
                state.pending.extend_from_slice(&bytes[taken..]);
                self.notify.notify_one();
            }
            Err(_) => {
                state.failed = true;
                self.notify.notify_one();
            }
        }
    }

    /// Something waits for the socket.
    pub fn has_pending(&self) -> bool {
        !self.state.borrow().pending.is_empty()
    }

    /// A write failed: the client is gone.
    pub fn failed(&self) -> bool {
        self.state.borrow().failed
    }

    /// Writes what waits, as far as the socket takes it.
    pub fn flush(&self) {
        let mut state = self.state.borrow_mut();
        let pending = std::mem::take(&mut state.pending);
        match write(&self.sock, &pending, state.split) {
            Ok(taken) => state.pending = pending[taken..].to_vec(),
            Err(_) => state.failed = true,
        }
    }

    /// Waits until everything is written.
    pub async fn drain(&self) -> io::Result<()> {
        while self.has_pending() && !self.failed() {
            self.sock.writable().await?;
            self.flush();
        }
        if self.failed() { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }

    /// Makes the coming close an RST.
    pub fn reset_on_close(&self) {
        self.state.borrow_mut().pending.clear();
        let _ = rustix::net::sockopt::set_socket_linger(&self.sock, Some(Duration::ZERO));
    }
}

/// Writes until the socket takes no more; the number of bytes taken.
fn write(sock: &TcpStream, bytes: &[u8], split: bool) -> io::Result<usize> {
    let mut taken = 0;
    while taken < bytes.len() {
        let end = if split { taken + 1 } else { bytes.len() };
        match sock.try_write(&bytes[taken..end]) {
            Ok(n) => taken += n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}
