//! The event loop of a side-by-side run: engines, clients and their sockets, all on one thread.
//!
//! **Invariants**
//!
//! * One thread and one epoll: between engines and clients nothing is switched, so that they cost little more than
//!   the system calls and the direct ceiling lies well above the gateways.
//! * While a slice runs the loop does not sleep: times are exact, and waking it costs the gateway nothing.
//! * No allocation while a slice runs, latencies apart.

use super::client::Client;
use super::engine::Engines;
use super::stage::{Mode, Stage};
use super::wire::{Kind, request};
use rustix::event::{Timespec, epoll};
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

const LISTENER: u64 = 1 << 40;
const ENGINE: u64 = 2 << 40;
const CLIENT: u64 = 3 << 40;
const INDEX: u64 = LISTENER - 1;

/// Connections that the kernel may hold for an engine.
const BACKLOG: i32 = 4096;
/// Largest read.
const SCRATCH: usize = 256 * 1024;
/// How long answers under way may take after a slice.
const DRAIN: Duration = Duration::from_secs(3);

/// All sockets of this side.
pub struct World {
    epoll: OwnedFd,
    reports: Vec<epoll::Event>,
    scratch: Vec<u8>,
    /// The engines.
    pub engines: Engines,
    clients: Vec<Client>,
    free: Vec<usize>,
    /// What is measured now.
    pub stage: Stage,
    began: Instant,
}

/// Reads until the socket is empty. Answers whether the connection is still open.
pub fn drain(
    mut stream: &TcpStream,
    scratch: &mut [u8],
    to_the_end: bool,
    mut take: impl FnMut(&[u8]) -> bool,
) -> bool {
    loop {
        match stream.read(scratch) {
            Ok(0) => return false,
            Ok(n) => {
                if !take(&scratch[..n]) {
                    return false;
                }
                // Edge-triggered: a short read found the socket empty, and news will be told.
                if n < scratch.len() && !to_the_end {
                    return true;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
}

impl World {
    /// Listens on `ports` of the loopback address.
    pub fn new(ports: &[u16]) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut listeners = Vec::new();
        for (n, port) in ports.iter().enumerate() {
            let listener = TcpListener::bind(("127.0.0.1", *port))?;
            // The standard library's backlog is too short for a burst.
            rustix::net::listen(&listener, BACKLOG)?;
            listener.set_nonblocking(true)?;
            let data = epoll::EventData::new_u64(LISTENER | n as u64);
            epoll::add(&epoll, &listener, data, epoll::EventFlags::IN)?;
            listeners.push(listener);
        }
        Ok(World {
            epoll,
            reports: Vec::with_capacity(512),
            scratch: vec![0; SCRATCH],
            engines: Engines::new(listeners),
            clients: Vec::new(),
            free: Vec::new(),
            stage: Stage::default(),
            began: Instant::now(),
        })
    }

    /// Nanoseconds since the start.
    pub fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Opens a connection that will ask for `kind`; nothing is sent yet.
    pub fn open(&mut self, target: usize, address: SocketAddr, kind: Kind) -> io::Result<usize> {
        let stream = TcpStream::connect(address)?;
        let index = self.free.pop().unwrap_or(self.clients.len());
        register(&self.epoll, &stream, CLIENT | index as u64)?;
        let client = Client::new(target, stream, request(kind), matches!(kind, Kind::Stream(_)))?;
        if index == self.clients.len() {
            self.clients.push(client);
        } else {
            self.clients[index] = client;
        }
        Ok(index)
    }

    /// Whether a connection can still be used.
    pub fn is_open(&self, client: usize) -> bool {
        self.clients[client].stream.is_some()
    }

    /// Whether a stream's first event has come.
    pub fn streams(&self, client: usize) -> bool {
        self.clients[client].events > 0
    }

    /// Closes a connection for good; its number may be given to another.
    pub fn close(&mut self, client: usize) {
        self.clients[client].stream = None;
        self.free.push(client);
    }

    /// Sends a client's request.
    pub fn ask(&mut self, client: usize, since: u64) {
        if !self.clients[client].ask(since) {
            self.stage.fail("a connection was closed before a request");
        }
    }

    /// Handles what is there; waits up to a millisecond for it if `sleep`.
    pub fn turn(&mut self, sleep: bool) {
        let wait = Timespec { tv_sec: 0, tv_nsec: if sleep { 1_000_000 } else { 0 } };
        let mut reports = std::mem::take(&mut self.reports);
        reports.clear();
        let spare = rustix::buffer::spare_capacity(&mut reports);
        if let Err(error) = epoll::wait(&self.epoll, spare, Some(&wait))
            && error != rustix::io::Errno::INTR
        {
            self.stage.fail(&format!("epoll_wait: {error}"));
        }
        let now = self.now();
        for report in &reports {
            let (data, flags) = (report.data.u64(), report.flags);
            let index = usize::try_from(data & INDEX).unwrap_or(0);
            match data & !INDEX {
                LISTENER => self.accept(index),
                ENGINE => self.engines.ready(index, flags, &mut self.scratch),
                _ => self.client_ready(index, flags, now),
            }
        }
        self.reports = reports;
        self.engines.emit(now);
        self.arrivals(now);
    }

    fn accept(&mut self, listener: usize) {
        while let Some((index, stream)) = self.engines.accept(listener) {
            if let Err(error) = register(&self.epoll, stream, ENGINE | index as u64) {
                self.stage.fail(&format!("epoll_ctl: {error}"));
            }
        }
    }

    fn client_ready(&mut self, index: usize, flags: epoll::EventFlags, now: u64) {
        let client = &mut self.clients[index];
        let ended =
            flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
        let done = client.receive(&mut self.scratch, ended, &mut self.stage);
        if !done {
            return;
        }
        let (target, since) = (client.target, client.since);
        if target != self.stage.target {
            return;
        }
        self.stage.done(now, since);
        match self.stage.mode {
            Mode::Closed => self.ask(index, now),
            Mode::Paced { .. } => match self.stage.late.pop_front() {
                Some(due) => self.ask(index, due),
                None => self.stage.idle.push(index),
            },
            Mode::Off => self.stage.idle.push(index),
        }
    }

    /// Sends the requests that are due.
    fn arrivals(&mut self, now: u64) {
        while let Some(due) = self.stage.due(now) {
            match self.stage.idle.pop() {
                Some(client) => self.ask(client, due),
                None => self.stage.late.push_back(due),
            }
        }
    }

    /// Works for a time, without sleeping.
    pub fn spin(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.turn(false);
        }
    }

    /// Lets the gateways come to rest.
    pub fn rest(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.turn(true);
        }
    }

    /// Works until `done`; false when that takes too long.
    pub fn until(&mut self, mut done: impl FnMut(&World) -> bool) -> bool {
        let end = Instant::now() + DRAIN;
        while !done(self) {
            if Instant::now() > end {
                return false;
            }
            self.turn(false);
        }
        true
    }

    /// None of `clients` waits for an answer.
    pub fn all_idle(&self, clients: &[usize]) -> bool {
        clients.iter().all(|client| !self.clients[*client].busy)
    }
}

fn register(epoll: &OwnedFd, stream: &TcpStream, data: u64) -> io::Result<()> {
    use epoll::EventFlags as F;
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let data = epoll::EventData::new_u64(data);
    Ok(epoll::add(epoll, stream, data, F::IN | F::OUT | F::RDHUP | F::ET)?)
}
