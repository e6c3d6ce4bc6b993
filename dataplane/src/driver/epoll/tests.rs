//! What is peculiar to epoll and to listeners; the contract is tested by the conformance suite.

use super::slots::{Flags, Slot, Slots};
use super::*;
use crate::driver::listen;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::{TcpListener, TcpStream};

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn driver(reuse_port: bool) -> (EpollDriver, SocketAddr) {
    let listener = listen::bind(loopback(), 128, reuse_port).unwrap();
    let address = listen::local_addr(&listener).unwrap();
    (EpollDriver::new(vec![listener]).unwrap(), address)
}

fn accept(driver: &mut EpollDriver) -> Socket {
    for _ in 0..1000 {
        driver.poll(Some(driver.now() + 5 * MILLISECOND));
        while let Some(event) = driver.next_event() {
            if let Event::Accepted { socket, .. } = event {
                return socket;
            }
        }
    }
    panic!("nothing accepted");
}

#[test]
fn a_slot_is_small() {
    assert!(size_of::<Slot>() <= 16);
}

#[test]
fn accepted_sockets_do_not_delay() {
    let (mut driver, address) = driver(false);
    let _peer = TcpStream::connect(address).unwrap();
    let socket = accept(&mut driver);
    assert!(sockopt::tcp_nodelay(&socket.fd).unwrap(), "inherited from the listener");
}

#[test]
fn shards_share_an_address() {
    let (_first, address) = driver(true);
    let second = listen::bind(address, 128, true).unwrap();
    assert_eq!(listen::local_addr(&second).unwrap(), address);
}

#[test]
fn a_taken_address_is_named() {
    let (_driver, address) = driver(false);
    let error = listen::bind(address, 128, false).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    let message = error.to_string();
    assert!(message.contains(&address.to_string()) && message.contains("another process"), "{message}");
}

#[test]
fn any_address_of_ipv6_takes_ipv4_too() {
    // Where the machine has no IPv6 there is nothing to check.
    let Ok(listener) = listen::bind("[::]:0".parse().unwrap(), 128, true) else { return };
    let port = listen::local_addr(&listener).unwrap().port();
    let mut driver = EpollDriver::new(vec![listener]).unwrap();
    let peer = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let socket = accept(&mut driver);
    assert_eq!(socket.peer().ip().to_canonical(), peer.local_addr().unwrap().ip());
}

/// A connection is queued once, and a queue entry of a former connection is passed over.
#[test]
fn the_queue_is_checked_by_generation() {
    let mut slots = Slots::default();
    let (old, new) = (Token::new(3, 1), Token::new(3, 2));
    let failure = Flags::LOCAL_FAILURE;
    slots.insert(old, None, failure, Some(ConnError::Local));
    slots.queue(old);
    assert_eq!(slots.ready, [old]);
    slots.remove(old);
    slots.insert(new, None, failure, Some(ConnError::Local));
    assert!(slots.get(old).is_none() && slots.get(new).is_some());
    slots.remove(old);
    assert!(slots.get(new).is_some(), "a late close of the former connection");
    assert_eq!(slots.ready, [old, new]);
}

#[test]
fn flags_that_have_something_to_tell() {
    use Flags as F;
    let cases = [
        (F::default(), false),
        (F::READABLE, true),
        (F::READABLE.or(F::PAUSED), false),
        (F::READABLE.or(F::PAUSED).or(F::PEER_CLOSED), true),
        (F::READABLE.or(F::PAUSED).or(F::PEER_CLOSED).or(F::HANGUP_TOLD), false),
        (F::READABLE.or(F::PEER_CLOSED).or(F::HANGUP_TOLD), true),
        (F::READABLE.or(F::PEER_CLOSED).or(F::EOF_TOLD), false),
        (F::ERROR.or(F::EOF_TOLD), true),
        (F::ERROR.or(F::PAUSED), true),
        (F::CONNECTING.or(F::READABLE), false),
        (F::CONNECTING.or(F::CONNECT_DONE), true),
        (F::WRITABLE.or(F::PAUSED), true),
        (F::WRITABLE.or(F::DEAD), false),
    ];
    for (flags, tells) in cases {
        assert_eq!(flags.actionable(), tells, "{flags:?}");
    }
}

/// Lowers this process's limit, so it runs in one of its own: see `out_of_descriptors`.
#[test]
#[ignore = "run by out_of_descriptors"]
fn out_of_descriptors_child() {
    let (mut driver, address) = driver(false);
    let engine = TcpListener::bind(loopback()).unwrap();
    let clients: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: hard }).unwrap();
    let fill: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();

    // Told once in each pause, and the pauses are slept through.
    let (start, before) = (driver.now(), driver.counters().wakeups);
    let mut failures = 0;
    while driver.now() < start + 350 * MILLISECOND {
        driver.poll(Some(start + 350 * MILLISECOND));
        while let Some(event) = driver.next_event() {
            assert!(matches!(event, Event::AcceptFailed), "{event:?}");
            failures += 1;
        }
    }
    let wakeups = driver.counters().wakeups - before;
    assert!((1..=4).contains(&failures) && wakeups <= 12, "{failures} failures, {wakeups} wake-ups");

    let token = Token::new(0, 1);
    driver.connect(token, engine.local_addr().unwrap());
    driver.poll(None);
    let event = driver.next_event();
    assert!(matches!(event, Some(Event::ConnectFailed(t, ConnError::Local)) if t == token), "{event:?}");
    driver.close(token, false);

    // With descriptors again, those that waited are accepted without anybody's doing.
    drop(fill);
    let sockets: Vec<Socket> = clients.iter().map(|_| accept(&mut driver)).collect();
    assert_eq!(sockets.len(), 3);
}

#[test]
fn out_of_descriptors() {
    let name = concat!(module_path!(), "::out_of_descriptors_child");
    let name = name.split_once("::").unwrap().1;
    let this = std::env::current_exe().unwrap();
    let output = std::process::Command::new(this)
        .args(["--exact", name, "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
