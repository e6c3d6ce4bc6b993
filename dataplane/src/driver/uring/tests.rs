//! The conformance suite over the ring, and what is peculiar to it.

mod conformance;
mod forbidden;
mod storms;

use super::ring::{Completion, Op, Ring, Sizes};
use super::*;
use crate::driver::listen;
use std::net::{TcpListener, TcpStream};

/// Everything runs out all the time.
const TINY: Sizes = Sizes { submissions: 2, completions: 4, buffers: 2, buffer_bytes: 1024 };

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn driver(sizes: Sizes) -> (UringDriver, SocketAddr) {
    let listener = listen::bind(loopback(), 1024, false).unwrap();
    let address = listen::local_addr(&listener).unwrap();
    (UringDriver::with_sizes(vec![listener], sizes).unwrap(), address)
}

/// Polls until `done`, handing every event to it.
fn until(driver: &mut UringDriver, mut done: impl FnMut(&mut UringDriver, Event<Socket, Lent>) -> bool) {
    let limit = monotonic_ns() + 20_000 * MILLISECOND;
    loop {
        driver.poll(Some(driver.now() + 5 * MILLISECOND));
        while let Some(event) = driver.next_event() {
            if done(driver, event) {
                return;
            }
        }
        assert!(monotonic_ns() < limit, "waited in vain: {driver:?}");
    }
}

/// Polls until the driver is as it should be.
fn settle(driver: &mut UringDriver, done: impl Fn(&UringDriver) -> bool) {
    let limit = monotonic_ns() + 20_000 * MILLISECOND;
    while !done(driver) {
        driver.poll(Some(driver.now() + MILLISECOND));
        while driver.next_event().is_some() {}
        assert!(monotonic_ns() < limit, "waited in vain: {driver:?}");
    }
}

fn accept(driver: &mut UringDriver) -> Socket {
    let mut accepted = None;
    until(driver, |_, event| {
        if let Event::Accepted { socket, .. } = event {
            accepted = Some(socket);
        }
        accepted.is_some()
    });
    accepted.unwrap()
}

/// What stays in flight when no connection is open: the doorbell and the accept.
const IDLE_IN_FLIGHT: usize = 2;

#[test]
fn an_entry_is_small() {
    assert!(size_of::<conns::Conn>() <= 48, "{} bytes", size_of::<conns::Conn>());
}

#[test]
fn user_data_is_a_purpose_and_a_key() {
    use conns::Target;
    let purposes = [
        Purpose::Receive,
        Purpose::Hangup,
        Purpose::Output,
        Purpose::Cancel(Target::Receive),
        Purpose::Cancel(Target::Hangup),
        Purpose::Cancel(Target::Output),
        Purpose::Accept,
        Purpose::CancelAccept,
        Purpose::Bell,
        Purpose::CancelAll,
    ];
    for purpose in purposes {
        for (index, generation) in [(0, 0), (1, 1), (u32::MAX - 1, 0xFF_FFFF), (77, 0x80_0001)] {
            let key = Key { index, generation };
            assert_eq!(Key::parse(key.user_data(purpose)), (purpose, key));
        }
    }
}

#[test]
fn the_self_test_passes_here() {
    self_test().unwrap();
}

#[test]
fn causes_are_named() {
    let cases = [
        (Errno::PERM, Some(2), "kernel.io_uring_disabled is 2"),
        (Errno::PERM, Some(1), "kernel.io_uring_disabled is 1"),
        (Errno::PERM, Some(0), "seccomp"),
        (Errno::ACCESS, None, "seccomp"),
        (Errno::NOSYS, None, "no io_uring"),
        (Errno::INVAL, Some(0), "older than 6.1"),
        (Errno::NOMEM, Some(0), "RLIMIT_MEMLOCK"),
        (Errno::MFILE, Some(0), "gives no ring"),
    ];
    for (errno, setting, expected) in cases {
        let message = Unusable::from_parts(errno.into(), setting).to_string();
        assert!(message.contains(expected), "{errno:?}, {setting:?}: {message}");
    }
}

#[test]
fn accepted_sockets_do_not_delay() {
    let (mut driver, address) = driver(SIZES);
    let _peer = TcpStream::connect(address).unwrap();
    let socket = accept(&mut driver);
    assert!(sockopt::tcp_nodelay(socket.into_fd()).unwrap(), "inherited from the listener");
}

/// Idle connections hold no buffer, nor do paused ones that were sent something.
#[test]
fn idle_and_paused_connections_hold_no_buffer() {
    let (mut driver, address) = driver(Sizes { buffers: 4, ..SIZES });
    let mut peers = Vec::new();
    for index in 0..20 {
        peers.push(TcpStream::connect(address).unwrap());
        let socket = accept(&mut driver);
        driver.adopt(Token::new(index, 1), socket);
    }
    driver.poll(Some(0));
    assert_eq!(driver.stats().buffers, 4);
    for peer in &mut peers {
        std::io::Write::write_all(peer, b"something").unwrap();
    }
    // What has arrived when the pause is called may be in the driver already.
    driver.poll(Some(driver.now() + MILLISECOND));
    (0..20).for_each(|index| driver.pause(Token::new(index, 1)));
    settle(&mut driver, |driver| driver.stats().buffers == 4);
    (0..20).for_each(|index| driver.resume(Token::new(index, 1)));
    let mut told = 0;
    until(&mut driver, |_, event| {
        told += usize::from(matches!(event, Event::Data(_, lent) if *lent == *b"something"));
        told == 20
    });
}

/// What is in flight when a driver is dropped ends before the drop does: its descriptors and addresses are free.
#[test]
fn a_dropped_driver_leaves_nothing() {
    let (mut first, address) = driver(SIZES);
    let mut peers = Vec::new();
    for index in 0..10 {
        peers.push(TcpStream::connect(address).unwrap());
        let socket = accept(&mut first);
        first.adopt(Token::new(index, 1), socket);
    }
    first.pause(Token::new(3, 1));
    first.poll(Some(0));
    let remote = TcpListener::bind(loopback()).unwrap();
    first.connect(Token::new(10, 1), remote.local_addr().unwrap());
    first.poll(Some(0));
    first.close_listeners();
    // At once, though accepted connections are open: SO_REUSEADDR allows those, but no listener.
    let again = listen::bind(address, 8, false).unwrap();
    drop(again);
    assert!(first.stats().in_flight > 10);
    drop(first);
    for peer in &mut peers {
        peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(std::io::Read::read(peer, &mut [0; 8]).unwrap(), 0, "closed in order");
    }
}

/// The kernel gets as many buffers as the load takes at once, no more for long.
#[test]
fn the_kernel_gets_as_many_buffers_as_it_needs() {
    let pool = super::pool::Pool::new(64, 1024).expect("a mapping");
    pool.fill();
    assert_eq!((pool.available(), pool.free()), (16, 64));
    let take = |pool: &super::pool::Pool, n: u16| (0..n).for_each(|buffer| pool.taken(buffer, 1));
    take(&pool, 16);
    assert_eq!((pool.available(), pool.free()), (0, 48));
    pool.ran_out();
    assert_eq!((pool.available(), pool.free()), (32, 48));
    (0..16).for_each(|buffer| pool.give_back(buffer));
    assert_eq!((pool.available(), pool.free()), (32, 64));
    // A long time in which one buffer at a time is enough.
    for _ in 0..10_000 {
        pool.taken(0, 1);
        pool.give_back(0);
    }
    assert_eq!((pool.available(), pool.free()), (16, 64));
}
