//! Whether the ring can be used here: asked for, and tried out, once at start-up.
//!
//! The try-out is the driver itself with a tiny ring on a private loopback connection, because what matters is that
//! the calls it makes work together: kernels and sandboxes that know the ring may lack, forbid or break a part of it.

use super::ring::Sizes;
use super::{Lent, Socket, UringDriver};
use crate::driver::{Driver, Event, Token, clock, listen};
use llmgw_routing::{MILLISECOND, Nanos};
use rustix::io::Errno;
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// How long the whole try-out may take.
const LIMIT_NS: Nanos = 100 * MILLISECOND;
const SIZES: Sizes = Sizes { submissions: 8, completions: 32, buffers: 2, buffer_bytes: 4096 };
/// Several times what the buffers hold.
const SENT_BYTES: usize = 40_000;
const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

/// Why the ring cannot be used. Its `Display` names the likely cause and what to do about it.
#[derive(Debug)]
pub enum Unusable {
    /// The kernel's setting forbids it: the value of `kernel.io_uring_disabled`.
    Disabled(u8),
    /// Forbidden although that setting allows it.
    Forbidden,
    /// No such system call.
    Missing,
    /// The kernel knows the ring, but not the flags this driver is built on.
    TooOld,
    /// Locked memory ran out.
    MemoryLimit,
    /// Another error of the kernel.
    Kernel(io::Error),
    /// It could be made, but did not do what it should: the step of the try-out.
    Misbehaves(&'static str),
}

impl Unusable {
    /// Reads the cause from the error that making a ring ended in.
    pub fn from_error(error: io::Error) -> Self {
        let setting = std::fs::read_to_string(DISABLED).ok().and_then(|text| text.trim().parse().ok());
        Self::from_parts(error, setting)
    }

    pub(super) fn from_parts(error: io::Error, setting: Option<u8>) -> Self {
        match (Errno::from_io_error(&error), setting) {
            (Some(Errno::PERM | Errno::ACCESS), Some(setting @ 1..)) => Unusable::Disabled(setting),
            (Some(Errno::PERM | Errno::ACCESS), _) => Unusable::Forbidden,
            (Some(Errno::NOSYS), _) => Unusable::Missing,
            (Some(Errno::INVAL), _) => Unusable::TooOld,
            (Some(Errno::NOMEM), _) => Unusable::MemoryLimit,
            _ => Unusable::Kernel(error),
        }
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::Disabled(value) => {
                write!(f, "kernel.io_uring_disabled is {value}: set it to 0 with sysctl to allow io_uring")
            }
            Unusable::Forbidden => f.write_str(
                "io_uring_setup is not permitted, most likely by a seccomp profile: containers need one that allows \
                 io_uring_setup, io_uring_enter and io_uring_register",
            ),
            Unusable::Missing => {
                f.write_str("this kernel has no io_uring, or a sandbox hides it (io_uring_setup: ENOSYS)")
            }
            Unusable::TooOld => f.write_str(
                "this kernel is older than 6.1 and lacks IORING_SETUP_SINGLE_ISSUER and DEFER_TASKRUN",
            ),
            Unusable::MemoryLimit => {
                f.write_str("not enough lockable memory for a ring: raise RLIMIT_MEMLOCK (LimitMEMLOCK)")
            }
            Unusable::Kernel(error) => write!(f, "the kernel gives no ring: {error}"),
            Unusable::Misbehaves(step) => write!(f, "the self-test failed at: {step}"),
        }
    }
}

impl std::error::Error for Unusable {}

/// Tries the ring out, in at most about 100 ms: accept, multishot receive with the buffers running out, pause and
/// resume, send, a wait with a deadline, the doorbell, and an orderly end with nothing left in flight.
///
/// # Errors
///
/// What does not work, with the likely cause.
pub fn self_test() -> Result<(), Unusable> {
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let no_loopback = |_| Unusable::Misbehaves("binding a loopback address");
    let listener = listen::bind(loopback, 8, false).map_err(no_loopback)?;
    let address = listen::local_addr(&listener).map_err(no_loopback)?;
    let mut driver = UringDriver::with_sizes(vec![listener], SIZES).map_err(Unusable::from_error)?;
    driver.begin_all();
    driver.ring.try_enter(Some(0)).map_err(|errno| Unusable::from_error(errno.into()))?;
    let mut trial =
        Trial { driver, until: clock::monotonic_ns() + LIMIT_NS, token: Token::new(0, 1), rung: false };
    let peer = TcpStream::connect_timeout(&address, Duration::from_nanos(LIMIT_NS));
    let mut peer = peer.map_err(|_| Unusable::Misbehaves("connecting over loopback"))?;
    trial.run(&mut peer)
}

struct Trial {
    driver: UringDriver,
    until: Nanos,
    token: Token,
    rung: bool,
}

impl Trial {
    fn run(&mut self, peer: &mut TcpStream) -> Result<(), Unusable> {
        let failed = |_: io::Error| Unusable::Misbehaves("using the loopback connection");
        peer.set_nonblocking(true).map_err(failed)?;
        let socket = self.until("accept", |trial| trial.accepted())?;
        self.driver.adopt(self.token, socket);
        self.receive(peer)?;

        let sent = self.driver.send(self.token, &[IoSlice::new(b"answer")]);
        let mut answer = [0; 6];
        let arrived = self.until("send", |trial| {
            trial.step(&mut Vec::new());
            peer.read(&mut answer).ok()
        })?;
        if sent != Ok(6) || arrived != 6 || answer != *b"answer" {
            return Err(Unusable::Misbehaves("send"));
        }

        let deadline = clock::monotonic_ns() + MILLISECOND;
        self.until("wait with a deadline", |trial| {
            trial.driver.poll(Some(deadline));
            (trial.driver.now() >= deadline).then_some(())
        })?;
        let bell = self.driver.bell();
        let ringer = std::thread::spawn(move || bell.ring());
        self.until("doorbell", |trial| {
            trial.step(&mut Vec::new());
            trial.rung.then_some(())
        })?;
        let _ = ringer.join();

        self.driver.close(self.token, false);
        self.driver.close_listeners();
        self.until("cancel and close", |trial| {
            trial.step(&mut Vec::new());
            // The doorbell's poll is all that stays.
            (trial.driver.stats().in_flight <= 1).then_some(())
        })?;
        if self.driver.stats().buffers == SIZES.buffers {
            Ok(())
        } else {
            Err(Unusable::Misbehaves("giving buffers back"))
        }
    }

    /// Receives while buffers are kept away, then while paused, then the rest.
    fn receive(&mut self, peer: &mut TcpStream) -> Result<(), Unusable> {
        let wrong = Err(Unusable::Misbehaves("receive: the bytes differ"));
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(SENT_BYTES).collect();
        let (mut sent, mut received, mut kept) = (0, Vec::new(), Vec::new());
        self.until("multishot receive with buffers running out", |trial| {
            sent += peer.write(&bytes[sent..]).unwrap_or(0);
            trial.step(&mut kept);
            (trial.driver.stats().no_buffers > 0).then_some(())
        })?;
        self.driver.pause(self.token);
        self.step(&mut kept);
        for lent in kept.drain(..) {
            received.extend_from_slice(&lent);
            self.driver.recycle(lent);
        }
        self.driver.resume(self.token);
        self.until("receive after a pause", |trial| {
            sent += peer.write(&bytes[sent..]).unwrap_or(0);
            trial.step(&mut kept);
            for lent in kept.drain(..) {
                received.extend_from_slice(&lent);
                trial.driver.recycle(lent);
            }
            (received.len() == bytes.len()).then_some(())
        })?;
        if received == bytes { Ok(()) } else { wrong }
    }

    /// Repeats until there is an answer or the time is over.
    fn until<T>(
        &mut self,
        what: &'static str,
        mut step: impl FnMut(&mut Trial) -> Option<T>,
    ) -> Result<T, Unusable> {
        loop {
            if let Some(done) = step(self) {
                return Ok(done);
            }
            if clock::monotonic_ns() >= self.until {
                return Err(Unusable::Misbehaves(what));
            }
        }
    }

    fn accepted(&mut self) -> Option<Socket> {
        self.driver.poll(Some(self.driver.now() + MILLISECOND));
        std::iter::from_fn(|| self.driver.next_event()).find_map(|event| match event {
            Event::Accepted { socket, .. } => Some(socket),
            _ => None,
        })
    }

    fn step(&mut self, kept: &mut Vec<Lent>) {
        self.driver.poll(Some(self.driver.now() + MILLISECOND));
        while let Some(event) = self.driver.next_event() {
            match event {
                Event::Data(_, lent) => kept.push(lent),
                Event::Doorbell => self.rung = true,
                _ => {}
            }
        }
    }
}
