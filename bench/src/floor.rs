//! `llmgw-bench floor LISTEN ENGINE...`: forwards bytes between each client and an engine of its own, and does nothing
//! else: no parsing, no choice, no time limits. What it costs is the kernel's, so it tells how much of a gateway's cost
//! is there to be saved. No gateway.

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::net::{TcpListener, TcpStream};

const BUFFER_BYTES: usize = 32 * 1024;
const LISTENER: u64 = u64::MAX;

/// Serves until it is ended.
pub fn run(listen: &str, engines: &[&str]) -> Result<(), String> {
    let fault = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    let listener = TcpListener::bind(listen).map_err(|e| fault(listen, &e))?;
    listener.set_nonblocking(true).map_err(|e| fault(listen, &e))?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| fault("epoll", &e))?;
    let data = epoll::EventData::new_u64;
    epoll::add(&poll, &listener, data(LISTENER), epoll::EventFlags::IN).map_err(|e| fault("epoll", &e))?;
    // Both ends of a pair, next to each other: the other end of `i` is `i ^ 1`.
    let mut ends: Vec<Option<TcpStream>> = Vec::new();
    let (mut events, mut buffer) = (Vec::with_capacity(512), Vec::with_capacity(BUFFER_BYTES));
    loop {
        events.clear();
        match epoll::wait(&poll, spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(fault("epoll", &error)),
        }
        for event in &events {
            if event.data.u64() != LISTENER {
                let end = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                forward(&mut ends, end, &mut buffer);
                continue;
            }
            while let Ok((client, _)) = listener.accept() {
                let engine = engines[(ends.len() / 2) % engines.len()];
                let Ok(engine) = TcpStream::connect(engine) else { continue };
                for socket in [client, engine] {
                    let _ = (socket.set_nodelay(true), socket.set_nonblocking(true));
                    let interest = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
                    epoll::add(&poll, &socket, data(ends.len() as u64), interest)
                        .map_err(|e| fault("epoll", &e))?;
                    ends.push(Some(socket));
                }
            }
        }
    }
}

/// Moves what has arrived at one end to the other; the end of either is the end of both.
fn forward(ends: &mut [Option<TcpStream>], at: usize, buffer: &mut Vec<u8>) {
    loop {
        let (Some(Some(from)), Some(Some(to))) = (ends.get(at), ends.get(at ^ 1)) else { return };
        buffer.clear();
        let received = match recv(from, spare_capacity(buffer), RecvFlags::DONTWAIT) {
            Ok((received, _)) if received > 0 => received,
            Err(Errno::AGAIN) => return,
            _ => break,
        };
        let mut sent = 0;
        while sent < received {
            match send(to, &buffer[sent..], SendFlags::NOSIGNAL) {
                Ok(took) => sent += took,
                // It spins: whoever measures reads.
                Err(Errno::AGAIN) => {}
                Err(_) => break,
            }
        }
        if received < BUFFER_BYTES {
            return;
        }
    }
    ends[at] = None;
    ends[at ^ 1] = None;
}
