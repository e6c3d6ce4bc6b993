//! The suite, over a ring of the usual sizes and over one in which everything runs out all the time.

use super::TINY;
use crate::driver::conformance::over_epoll::{EpollHarness, OverLoopback};
use crate::driver::conformance::suite;
use crate::driver::uring::{Socket, UringDriver};
use crate::driver::{Bell, Counters, Driver, Event, SendError, Token};
use llmgw_routing::Nanos;
use rustix::fd::OwnedFd;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;

impl OverLoopback for UringDriver {
    fn open(listener: OwnedFd) -> Self {
        UringDriver::new(vec![listener]).unwrap()
    }
}

/// The driver over a tiny ring. Whatever a case did, nothing may be left in flight for what it closed.
struct Tiny(UringDriver);

impl OverLoopback for Tiny {
    fn open(listener: OwnedFd) -> Self {
        Tiny(UringDriver::with_sizes(vec![listener], TINY).unwrap())
    }
}

impl Driver for Tiny {
    type Socket = Socket;
    type Lent = <UringDriver as Driver>::Lent;

    fn now(&self) -> Nanos {
        self.0.now()
    }
    fn wall(&self) -> u64 {
        self.0.wall()
    }
    fn counters(&self) -> Counters {
        self.0.counters()
    }
    fn bell(&self) -> Arc<dyn Bell> {
        self.0.bell()
    }
    fn poll(&mut self, deadline: Option<Nanos>) {
        self.0.poll(deadline);
    }
    fn next_event(&mut self) -> Option<Event<Socket, Self::Lent>> {
        self.0.next_event()
    }
    fn recycle(&mut self, lent: Self::Lent) {
        self.0.recycle(lent);
    }
    fn resume_accept(&mut self) {
        self.0.resume_accept();
    }
    fn pause_accept(&mut self) {
        self.0.pause_accept();
    }
    fn close_listeners(&mut self) {
        self.0.close_listeners();
    }
    fn adopt(&mut self, token: Token, socket: Socket) {
        self.0.adopt(token, socket);
    }
    fn connect(&mut self, token: Token, address: SocketAddr) {
        self.0.connect(token, address);
    }
    fn send(&mut self, token: Token, bufs: &[IoSlice<'_>]) -> Result<usize, SendError> {
        self.0.send(token, bufs)
    }
    fn pause(&mut self, token: Token) {
        self.0.pause(token);
    }
    fn resume(&mut self, token: Token) {
        self.0.resume(token);
    }
    fn shutdown_write(&mut self, token: Token) {
        self.0.shutdown_write(token);
    }
    fn close(&mut self, token: Token, abort: bool) {
        self.0.close(token, abort);
    }
}

mod usual {
    use super::*;
    suite!(EpollHarness<UringDriver>);
}

mod tiny {
    use super::*;
    suite!(EpollHarness<Tiny>);
}
