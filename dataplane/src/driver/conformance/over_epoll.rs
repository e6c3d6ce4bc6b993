//! A driver of the kernel's on 127.0.0.1, with ordinary non-blocking sockets at the other end: epoll, or another.

use super::{Harness, PeerRead};
use crate::driver::epoll::EpollDriver;
use crate::driver::{Driver, listen};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// How to make a driver that is to be tested over loopback.
pub(crate) trait OverLoopback: Driver {
    /// A new driver with this listener.
    fn open(listener: OwnedFd) -> Self;
}

impl OverLoopback for EpollDriver {
    fn open(listener: OwnedFd) -> Self {
        EpollDriver::new(vec![listener]).unwrap()
    }
}

/// See the module.
pub(crate) struct EpollHarness<D = EpollDriver> {
    driver: D,
    address: SocketAddr,
    remote: TcpListener,
    /// Bound but not listening: the port stays ours, and refuses.
    refusing: OwnedFd,
}

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl<D: OverLoopback> Harness for EpollHarness<D> {
    type Driver = D;
    type Peer = TcpStream;
    const REAL_TIME: bool = true;

    fn new(_seed: u64) -> Self {
        let listener = listen::bind(LOOPBACK, 1024, true).unwrap();
        let address = listen::local_addr(&listener).unwrap();
        let remote = TcpListener::bind(LOOPBACK).unwrap();
        remote.set_nonblocking(true).unwrap();
        let refusing = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&refusing, &LOOPBACK).unwrap();
        EpollHarness { driver: D::open(listener), address, remote, refusing }
    }

    fn driver(&mut self) -> &mut D {
        &mut self.driver
    }

    fn peer_connect(&mut self) -> TcpStream {
        let peer = TcpStream::connect_timeout(&self.address, Duration::from_secs(5)).unwrap();
        ready_peer(peer)
    }

    fn peer_address(&mut self) -> SocketAddr {
        self.remote.local_addr().unwrap()
    }

    fn refusing_address(&mut self) -> SocketAddr {
        listen::local_addr(&self.refusing).unwrap()
    }

    fn peer_accept(&mut self) -> Option<TcpStream> {
        self.remote.accept().ok().map(|(peer, _)| ready_peer(peer))
    }

    fn peer_send(&mut self, peer: &mut TcpStream, bytes: &[u8]) -> usize {
        peer.write(bytes).unwrap_or(0)
    }

    fn peer_read(&mut self, peer: &mut TcpStream, into: &mut Vec<u8>) -> PeerRead {
        let mut buffer = vec![0; 64 * 1024];
        match peer.read(&mut buffer) {
            Ok(0) => PeerRead::Eof,
            Ok(n) => {
                into.extend_from_slice(&buffer[..n]);
                PeerRead::Bytes(n)
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => PeerRead::Nothing,
            Err(_) => PeerRead::Reset,
        }
    }

    fn peer_shutdown(&mut self, peer: &mut TcpStream) {
        // The driver may have reset the connection already.
        let _ = peer.shutdown(Shutdown::Write);
    }

    fn peer_reset(&mut self, peer: TcpStream) {
        sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        drop(peer);
    }

    fn descriptors(&self) -> Option<usize> {
        // Only where each test has a process of its own does nobody else open any meanwhile.
        std::env::var_os("NEXTEST")?;
        Some(std::fs::read_dir("/proc/self/fd").ok()?.count())
    }
}

fn ready_peer(peer: TcpStream) -> TcpStream {
    peer.set_nonblocking(true).unwrap();
    peer.set_nodelay(true).unwrap();
    peer
}
