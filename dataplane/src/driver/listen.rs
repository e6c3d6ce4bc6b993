//! Listening sockets: one a shard on the same address, so that the kernel spreads connections over the shards.

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind as bind_socket, getsockname, ipproto, listen, socket_with,
    sockopt,
};
use std::io;
use std::net::SocketAddr;

/// What the kernel may hold for a client that does not read. By itself it would let this grow to megabytes a
/// connection, and what waits there can neither be held back nor taken back.
const SEND_BUFFER_BYTES: usize = 256 * 1024;
/// What it may hold for us of a client whose requests wait, or of an engine whose client is slow. By itself it would
/// let this grow to megabytes too, and a ring takes all of it in at once. It is also the most that is under way: 5 MB/s
/// at a round trip of 50 ms.
pub(super) const RECEIVE_BUFFER_BYTES: usize = 256 * 1024;

/// Binds a non-blocking TCP listener.
///
/// `backlog` is how many connections may wait to be accepted (the kernel caps it at `net.core.somaxconn`). With
/// `reuse_port`, several listeners may bind the same address, and the kernel gives each connection to one of them by
/// its hash. `[::]` also takes IPv4 connections where the system allows it.
///
/// # Errors
///
/// The kernel's error, with the address and what to do about it in the message.
pub fn bind(addr: SocketAddr, backlog: u32, reuse_port: bool) -> io::Result<OwnedFd> {
    bind_errno(addr, backlog, reuse_port).map_err(|errno| explain(addr, errno))
}

/// The address a listener is bound to: with port 0 asked for, the one the kernel chose.
///
/// # Errors
///
/// The descriptor is not an IP socket.
pub fn local_addr(fd: impl AsFd) -> io::Result<SocketAddr> {
    Ok(SocketAddr::try_from(getsockname(fd)?)?)
}

fn bind_errno(addr: SocketAddr, backlog: u32, reuse_port: bool) -> Result<OwnedFd, Errno> {
    let family = if addr.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if reuse_port {
        sockopt::set_socket_reuseport(&fd, true)?;
    }
    if addr.is_ipv6() && addr.ip().is_unspecified() {
        // Refused where IPv4 is compiled out or forbidden: then `[::]` is IPv6 alone, which is all there is.
        let _ = sockopt::set_ipv6_v6only(&fd, false);
    }
    // Accepted sockets inherit these: no call for each of them.
    sockopt::set_tcp_nodelay(&fd, true)?;
    sockopt::set_socket_send_buffer_size(&fd, SEND_BUFFER_BYTES)?;
    sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER_BYTES)?;
    bind_socket(&fd, &addr)?;
    listen(&fd, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(fd)
}

fn explain(addr: SocketAddr, errno: Errno) -> io::Error {
    let hint = match errno {
        Errno::ADDRINUSE => ": another process listens there; stop it or choose another port",
        Errno::ACCESS | Errno::PERM => {
            ": ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher port or grant it"
        }
        Errno::ADDRNOTAVAIL => ": no interface of this machine has that address",
        Errno::AFNOSUPPORT => ": this machine has no IPv6; listen on an IPv4 address",
        Errno::MFILE | Errno::NFILE => ": out of file descriptors; raise LimitNOFILE",
        _ => "",
    };
    let cause = io::Error::from(errno);
    io::Error::new(cause.kind(), format!("cannot listen on {addr}: {cause}{hint}"))
}
