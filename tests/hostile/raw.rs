//! Sockets of attackers: bytes out, whatever the other side does.

use crate::PATIENCE;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A connection whose errors are part of the game.
pub struct Raw {
    stream: TcpStream,
    /// What the gateway said so far.
    pub said: Vec<u8>,
    /// The gateway has ended or reset the connection.
    pub ended: bool,
}

impl Raw {
    pub fn connect(to: SocketAddr) -> Raw {
        Raw::connect_from(1, to)
    }

    /// From another address of this machine: 127.0.0.`n`.
    pub fn connect_from(n: u8, to: SocketAddr) -> Raw {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
        let fd = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, n)), 0);
        // The kernel would take in megabytes on behalf of a client that does not read.
        sockopt::set_socket_recv_buffer_size(&fd, 16 * 1024).expect("a small buffer");
        bind(&fd, &from).expect("an address of the loopback network");
        connect(&fd, &to).expect("the listener's queue takes a connection");
        Raw::of(TcpStream::from(fd))
    }

    fn of(stream: TcpStream) -> Raw {
        stream.set_nodelay(true).expect("no delay");
        Raw { stream, said: Vec::new(), ended: false }
    }

    /// Sends as much as is taken within a moment. Whether all was.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.set_write_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        match self.stream.write_all(bytes) {
            Ok(()) => true,
            Err(error) => {
                self.ended |= !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                false
            }
        }
    }

    /// Sends the same piece until the gateway stops taking it or `most` bytes are sent; bytes sent.
    pub fn pour(&mut self, piece: &[u8], most: usize) -> usize {
        let mut sent = 0;
        while sent < most && self.send(piece) {
            sent += piece.len();
        }
        sent
    }

    /// Waits this long for the gateway to say something; `false` if it did not.
    pub fn hear(&mut self, patience: Duration) -> bool {
        if self.ended {
            return true;
        }
        self.stream.set_read_timeout(Some(patience)).expect("a timeout");
        let mut piece = [0; 16 * 1024];
        match self.stream.read(&mut piece) {
            Ok(0) => self.ended = true,
            Ok(n) => self.said.extend_from_slice(&piece[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return false;
            }
            Err(_) => self.ended = true,
        }
        true
    }

    /// Sends a byte at a time, so many milliseconds apart, until the gateway says something.
    #[allow(clippy::disallowed_methods)] // real time, against a real process
    pub fn trickle(&mut self, bytes: &[u8], apart_ms: u64) {
        let deadline = Instant::now() + PATIENCE;
        for byte in bytes.iter().cycle() {
            assert!(Instant::now() < deadline, "the gateway lets a byte trickle in for ever");
            self.send(&[*byte]);
            if self.hear(Duration::from_millis(apart_ms)) {
                return;
            }
        }
    }

    /// Reads to the end; all that the gateway said.
    pub fn rest(&mut self) -> String {
        while !self.ended {
            assert!(self.hear(PATIENCE), "the gateway keeps quiet: {}", String::from_utf8_lossy(&self.said));
        }
        String::from_utf8_lossy(&self.said).into_owned()
    }

    /// Status of the answer, after which the connection ends.
    pub fn refused(&mut self) -> u16 {
        let text = self.rest();
        text.get(9..12)
            .and_then(|digits| digits.parse().ok())
            .unwrap_or_else(|| panic!("no answer: {text:?}"))
    }
}
