//! Pausing, starving, cancelling and overflowing on purpose; every byte is checked, and everything is given back.

use super::*;
use crate::driver::conformance::world::pattern;
use std::io::{Read, Write};

/// A peer that sends a pattern as fast as it can, and what was told of it.
struct Stream {
    peer: TcpStream,
    token: Token,
    bytes: Vec<u8>,
    sent: usize,
    told: usize,
    paused: bool,
}

impl Stream {
    fn open(driver: &mut UringDriver, address: SocketAddr, index: u32, len: usize) -> Stream {
        let peer = TcpStream::connect(address).unwrap();
        peer.set_nonblocking(true).unwrap();
        let (socket, token) = (accept(driver), Token::new(index, 1));
        driver.adopt(token, socket);
        let bytes = pattern(u64::from(index), 0, len);
        Stream { peer, token, bytes, sent: 0, told: 0, paused: false }
    }

    fn push(&mut self) {
        if self.sent < self.bytes.len() {
            self.sent += self.peer.write(&self.bytes[self.sent..]).unwrap_or(0);
        }
    }

    fn told(&mut self, lent: &[u8]) {
        assert!(!self.paused, "told while paused");
        assert!(self.bytes[self.told..].starts_with(lent), "bytes differ after {}", self.told);
        self.told += lent.len();
    }
}

/// Streams through `driver` until all is told; `meddle` is called after each poll and after each event.
fn transfer(
    driver: &mut UringDriver,
    streams: &mut [Stream],
    mut meddle: impl FnMut(&mut UringDriver, &mut [Stream]),
) {
    let limit = monotonic_ns() + 30_000 * MILLISECOND;
    while streams.iter().any(|s| s.told < s.bytes.len()) {
        streams.iter_mut().for_each(Stream::push);
        driver.poll(Some(driver.now() + MILLISECOND));
        meddle(driver, streams);
        while let Some(event) = driver.next_event() {
            if let Event::Data(token, lent) = event {
                streams[usize::try_from(token.index()).unwrap()].told(&lent);
                driver.recycle(lent);
            }
            meddle(driver, streams);
        }
        assert!(monotonic_ns() < limit, "stuck: {driver:?}");
    }
}

fn close_all(driver: &mut UringDriver, streams: &[Stream]) {
    streams.iter().for_each(|s| driver.close(s.token, false));
    settle(driver, |driver| driver.stats().in_flight == IDLE_IN_FLIGHT);
}

/// Pauses and resumes between every two steps, in one poll or across several.
#[test]
fn pause_and_resume_storm() {
    for seed in 1..=6 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut driver, address) = driver(if seed % 2 == 0 { TINY } else { SIZES });
        let mut streams: Vec<Stream> =
            (0..6).map(|i| Stream::open(&mut driver, address, i, 300_000)).collect();
        transfer(&mut driver, &mut streams, |driver, streams| {
            for _ in 0..rng.usize(..6) {
                let stream = rng.choice(streams.iter_mut()).unwrap();
                stream.paused = rng.u8(..3) == 0;
                if stream.paused {
                    driver.pause(stream.token);
                } else {
                    driver.resume(stream.token);
                }
            }
        });
        assert!(driver.stats().cancels > 0, "{driver:?}");
        close_all(&mut driver, &streams);
        assert_eq!(driver.stats().buffers, driver.ring.pool().count(), "seed {seed}");
    }
}

/// Sixteen floods share two buffers; then all buffers are kept away for a while.
#[test]
fn buffers_run_out() {
    let (mut driver, address) = driver(Sizes { buffers: 2, buffer_bytes: 2048, ..SIZES });
    let mut streams: Vec<Stream> = (0..16).map(|i| Stream::open(&mut driver, address, i, 60_000)).collect();
    let mut kept: Vec<Lent> = Vec::new();
    streams.iter_mut().for_each(Stream::push);
    until(&mut driver, |_, event| {
        if let Event::Data(token, lent) = event {
            streams[usize::try_from(token.index()).unwrap()].told(&lent);
            kept.push(lent);
        }
        kept.len() == 2
    });
    // Nothing can come now, and nothing spins for it.
    for _ in 0..3 {
        driver.poll(Some(driver.now() + MILLISECOND));
        assert!(driver.next_event().is_none());
    }
    let before = driver.counters().wakeups;
    driver.poll(Some(driver.now() + 10 * MILLISECOND));
    assert!(driver.counters().wakeups - before <= 3);
    assert!(driver.stats().no_buffers > 0);
    kept.drain(..).for_each(|lent| driver.recycle(lent));
    transfer(&mut driver, &mut streams, |_, _| {});
    close_all(&mut driver, &streams);
    assert_eq!(driver.stats().buffers, 2);
}

/// Far more completions at a time than the queue takes.
#[test]
fn completions_overflow() {
    let (mut driver, address) = driver(Sizes { completions: 4, submissions: 4, ..SIZES });
    let mut streams: Vec<Stream> = (0..64).map(|i| Stream::open(&mut driver, address, i, 20_000)).collect();
    for round in 0..20 {
        for stream in &mut streams {
            let goal = (round + 1) * 1000;
            stream.sent += stream.peer.write(&stream.bytes[stream.sent..goal]).unwrap();
        }
        until(&mut driver, |driver, event| {
            if let Event::Data(token, lent) = event {
                streams[usize::try_from(token.index()).unwrap()].told(&lent);
                driver.recycle(lent);
            }
            streams.iter().all(|s| s.told == s.sent)
        });
    }
    assert!(driver.stats().overflows > 0, "{driver:?}");
    close_all(&mut driver, &streams);
}

/// A connection is closed with everything under way, and its index serves the next at once.
#[test]
fn late_completions_never_reach_the_next_connection() {
    let (mut driver, address) = driver(SIZES);
    let mut next = TcpStream::connect(address).unwrap();
    let mut socket = accept(&mut driver);
    for generation in 1..200 {
        let (mut peer, token) = (next, Token::new(0, generation));
        driver.adopt(token, socket);
        next = TcpStream::connect(address).unwrap();
        socket = accept(&mut driver);
        peer.write_all(&[b'o'; 5000]).unwrap();
        match generation % 4 {
            // Submitted only; in the queue; told in part; paused and resumed, so that a cancellation is under way.
            0 => {}
            1 => driver.poll(Some(driver.now() + MILLISECOND)),
            2 => {
                driver.poll(Some(driver.now() + MILLISECOND));
                drop(driver.next_event());
            }
            _ => {
                driver.pause(token);
                driver.poll(Some(0));
                driver.resume(token);
                driver.pause(token);
            }
        }
        driver.close(token, generation % 2 == 0);
        let new = Token::new(0, generation + 1);
        assert!(driver.conns.find(new).is_none());
        while let Some(event) = driver.next_event() {
            let stale = matches!(event, Event::Data(t, _) | Event::Hangup(t) | Event::Eof(t) if t == token);
            assert!(stale || matches!(event, Event::Accepted { .. }), "{event:?}");
        }
    }
    drop(socket);
    settle(&mut driver, |driver| driver.stats().in_flight == IDLE_IN_FLIGHT);
    assert_eq!(driver.stats().buffers, SIZES.buffers);
    assert!(driver.stats().late_after_close > 0, "{driver:?}");
    // Entries were reused, not heaped up.
    assert!(driver.conns.len() <= 4, "{} entries", driver.conns.len());
}

/// The peer closes while a receive is being cancelled: the end is neither lost nor told twice.
#[test]
fn the_end_arrives_during_a_pause() {
    let (mut driver, address) = driver(SIZES);
    for generation in 1..100 {
        let mut peer = TcpStream::connect(address).unwrap();
        let (socket, token) = (accept(&mut driver), Token::new(0, generation));
        driver.adopt(token, socket);
        driver.poll(Some(0));
        driver.pause(token);
        if generation % 2 == 0 {
            driver.poll(Some(0));
        }
        peer.write_all(b"last").unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        let mut hangups = 0;
        until(&mut driver, |_, event| {
            assert!(matches!(event, Event::Hangup(t) if t == token), "{event:?}");
            hangups += 1;
            true
        });
        driver.resume(token);
        let mut data = Vec::new();
        until(&mut driver, |_, event| match event {
            Event::Data(_, lent) => {
                data.extend_from_slice(&lent);
                false
            }
            Event::Eof(_) => true,
            other => panic!("{other:?}"),
        });
        assert_eq!((data.as_slice(), hangups), (&b"last"[..], 1));
        driver.close(token, false);
        peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        settle(&mut driver, |driver| driver.stats().in_flight == IDLE_IN_FLIGHT);
        assert_eq!(peer.read(&mut [0; 4]).unwrap(), 0);
    }
}

/// The kernel could not place a cancellation: the receive is still there and still unwanted, so it is cancelled again.
#[test]
fn a_cancellation_that_missed_is_made_again() {
    let (mut driver, address) = driver(SIZES);
    let mut peer = TcpStream::connect(address).unwrap();
    let (socket, token) = (accept(&mut driver), Token::new(0, 1));
    driver.adopt(token, socket);
    driver.poll(Some(0));
    let (key, own) = (driver.conns.find(token).unwrap(), Purpose::Cancel(conns::Target::Receive));
    driver.pause(token);
    driver.conns.get(key).unwrap().in_flight.begin(own);
    driver.poll(Some(0));
    assert_eq!(driver.stats().cancels, 0, "one at a time");
    // What comes meanwhile is kept, but in no buffer.
    peer.write_all(b"sooner, ").unwrap();
    settle(&mut driver, |driver| driver.stats().spilled_bytes == 8);
    assert_eq!(driver.stats().buffers, SIZES.buffers);
    let missed =
        Completion { user_data: key.user_data(own), result: Err(Errno::NOENT), buffer: None, more: false };
    driver.take(missed);
    settle(&mut driver, |driver| driver.stats().cancels == 1);
    peer.write_all(b"later").unwrap();
    driver.poll(Some(driver.now() + 5 * MILLISECOND));
    assert!(driver.next_event().is_none(), "told while paused");
    assert_eq!((driver.stats().cancels_missed, driver.stats().spilled_bytes), (1, 8));
    driver.resume(token);
    let mut told = Vec::new();
    until(&mut driver, |_, event| {
        if let Event::Data(_, lent) = event {
            told.extend_from_slice(&lent);
        }
        told == b"sooner, later"
    });
}

/// The ring's own accounting, below the driver: a cancelled multishot receive ends once, and only once.
#[test]
fn a_cancelled_receive_ends_once() {
    let mut ring = Ring::new(TINY).unwrap();
    let listener = TcpListener::bind(loopback()).unwrap();
    let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (served, _) = listener.accept().unwrap();
    for round in 0..50 {
        ring.push(rustix::fd::AsFd::as_fd(&served), Op::ReceiveMany, 1);
        if round % 2 == 0 {
            ring.enter(Some(0));
        }
        ring.push_cancel(1, 2);
        let mut seen = Vec::new();
        while ring.in_flight() > 0 {
            ring.enter(Some(MILLISECOND));
            seen.extend(std::iter::from_fn(|| ring.next()));
        }
        let ends = |data: u64| seen.iter().filter(|c: &&Completion| c.user_data == data && !c.more).count();
        assert_eq!((ends(1), ends(2)), (1, 1), "{seen:?}");
        assert!(seen.iter().all(|c| c.user_data == 2 || c.result == Err(Errno::CANCELED)), "{seen:?}");
    }
}
