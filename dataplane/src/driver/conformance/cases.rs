//! The cases. What each checks is its name; [`World`] checks the rest.

use super::world::{Conn, Peer, Seen, World, pattern};
use super::{Harness, PeerRead};
use crate::driver::{Bell, ConnError, Driver, MAX_LATE_BYTES, Token};
use llmgw_routing::MILLISECOND;
use std::io::IoSlice;
use std::sync::Arc;

const MIB: usize = 1024 * 1024;

pub(crate) fn accept_data_eof<H: Harness>() {
    let mut w = World::<H>::new(1);
    let (mut peer, t) = w.client();
    w.peer_send_all(&mut peer, b"hello, ");
    w.until("first bytes", |w| w.conn(t).data == b"hello, ");
    w.peer_send_all(&mut peer, b"world");
    w.h.peer_shutdown(&mut peer.inner);
    w.until("end of input", |w| w.conn(t).eof);
    assert_eq!(w.conn(t).data, b"hello, world");
    assert_eq!(w.send(t, b"good bye"), Ok(8));
    w.until_peer_has(&mut peer, 8);
    w.close(t, false);
    assert_eq!(w.until_peer_end(&mut peer), PeerRead::Eof);
    assert_eq!(peer.data, b"good bye");
}

pub(crate) fn adopt_by_token<H: Harness>() {
    let mut w = World::<H>::new(2);
    let mut peers: Vec<Peer<H>> = (0..5).map(|_| w.peer_connect()).collect();
    w.until("five accepted", |w| w.sockets.len() == 5);
    w.sockets.make_contiguous().reverse();
    let tokens: Vec<Token> = (0..5).map(|_| w.adopt()).collect();
    for (i, peer) in (0u8..).zip(&mut peers) {
        w.peer_send_all(peer, &[i; 100]);
    }
    w.until("all bytes", |w| tokens.iter().all(|&t| w.conn(t).data.len() == 100));
    let mut seen: Vec<u8> = Vec::new();
    for &t in &tokens {
        let id = w.conn(t).data[0];
        assert!(w.conn(t).data.iter().all(|&b| b == id), "bytes of two connections under {t:?}");
        seen.push(id);
        assert_eq!(w.send(t, &[id; 10]), Ok(10));
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4]);
    for (i, peer) in (0u8..).zip(&mut peers) {
        w.until_peer_has(peer, 10);
        assert_eq!(peer.data, [i; 10]);
    }
}

pub(crate) fn dropped_socket_closes<H: Harness>() {
    let mut w = World::<H>::new(3);
    let mut peer = w.peer_connect();
    w.until("accept", |w| w.sockets.pop_front().is_some());
    w.until_peer_end(&mut peer);
    assert!(peer.data.is_empty());
}

pub(crate) fn large_transfer_both_ways<H: Harness>() {
    let mut w = World::<H>::new(4);
    for (mut peer, t) in [w.client(), w.upstream()] {
        let (up, down) = (pattern(1, 0, 8 * MIB), pattern(2, 0, 12 * MIB));
        let (mut sent_up, mut sent_down) = (0, 0);
        // The peer reads nothing until the driver's side is full.
        w.until("a short send", |w| {
            if !w.conn(t).armed {
                sent_down += w.send(t, &down[sent_down..]).unwrap();
            }
            w.conn(t).armed
        });
        assert!(sent_down < down.len(), "a peer that does not read took everything");
        w.idle(10 * MILLISECOND);
        w.until("both transfers", |w| {
            if !w.conn(t).armed && sent_down < down.len() {
                sent_down += w.send(t, &down[sent_down..]).unwrap();
            }
            if sent_up < up.len() {
                sent_up += w.h.peer_send(&mut peer.inner, &up[sent_up..]);
            }
            w.peer_read(&mut peer);
            w.conn(t).data.len() == up.len() && peer.data.len() == down.len()
        });
        assert!(w.conn(t).data == up && peer.data == down, "the bytes differ");
        w.idle(10 * MILLISECOND);
        assert_eq!(w.conn(t).shorts, w.conn(t).writables, "one Writable for each short send");
    }
}

pub(crate) fn pause_stops_and_resume_loses_nothing<H: Harness>() {
    let mut w = World::<H>::new(5);
    let (mut peer, t) = w.client();
    let bytes = pattern(3, 0, 2 * MIB);
    let mut sent = 0;
    for round in 1..=4 {
        w.pause(t);
        let before = w.conn(t).data.len();
        let until = w.now() + 20 * MILLISECOND;
        while w.now() < until {
            sent += w.h.peer_send(&mut peer.inner, &bytes[sent..]);
            w.pass(MILLISECOND);
        }
        assert!(w.conn(t).data.len() - before <= MAX_LATE_BYTES);
        w.resume(t);
        let goal = bytes.len() * round / 4;
        w.until("bytes after the resume", |w| {
            sent += w.h.peer_send(&mut peer.inner, &bytes[sent..]);
            w.conn(t).data.len() >= goal
        });
    }
    assert!(w.conn(t).data == bytes);
    // Pausing and resuming before the next poll loses no news either.
    w.pause(t);
    w.peer_send_all(&mut peer, b"x");
    w.resume(t);
    w.pause(t);
    w.resume(t);
    w.until("one more", |w| w.conn(t).data.len() == bytes.len() + 1);
}

pub(crate) fn hangup_while_paused<H: Harness>() {
    let mut w = World::<H>::new(6);
    let (mut peer, t) = w.client();
    w.pause(t);
    let bytes = pattern(4, 0, 100 * 1024);
    w.peer_send_all(&mut peer, &bytes);
    w.h.peer_shutdown(&mut peer.inner);
    w.until("hangup", |w| w.conn(t).hangup);
    w.idle(10 * MILLISECOND);
    assert!(!w.conn(t).eof && w.conn(t).data.len() <= MAX_LATE_BYTES);
    assert_eq!(w.send(t, b"still here"), Ok(10));
    w.resume(t);
    w.until("end of input", |w| w.conn(t).eof);
    assert!(w.conn(t).data == bytes);
    w.until_peer_has(&mut peer, 10);
}

pub(crate) fn pause_after_the_peer_closed<H: Harness>() {
    let mut w = World::<H>::new(7);
    let (mut peer, t) = w.client();
    let bytes = pattern(5, 0, 3 * MAX_LATE_BYTES);
    w.pause(t);
    w.peer_send_all(&mut peer, &bytes);
    w.idle(10 * MILLISECOND);
    w.resume(t);
    w.h.peer_shutdown(&mut peer.inner);
    // The first buffer is told, then the shard pauses: that the peer closed must still come.
    w.until("first bytes", |w| !w.conn(t).data.is_empty());
    w.pause(t);
    w.until("hangup or end", |w| w.conn(t).hangup || w.conn(t).eof);
    w.resume(t);
    w.until("end of input", |w| w.conn(t).eof);
    assert!(w.conn(t).data == bytes);
}

pub(crate) fn reset<H: Harness>() {
    let mut w = World::<H>::new(8);
    for (peer, t) in [w.client(), w.upstream()] {
        w.h.peer_reset(peer.inner);
        w.until("reset", |w| w.conn(t).reset.is_some());
        assert_eq!(w.conn(t).reset, Some(ConnError::Reset));
        assert!(w.send(t, b"x").is_err());
        w.resume(t);
        w.h.driver().shutdown_write(t);
        w.idle(5 * MILLISECOND);
        w.close(t, true);
    }
}

pub(crate) fn reset_while_paused<H: Harness>() {
    let mut w = World::<H>::new(9);
    let (peer, t) = w.client();
    w.pause(t);
    w.idle(2 * MILLISECOND);
    w.h.peer_reset(peer.inner);
    w.until("reset or hangup", |w| w.conn(t).reset.is_some() || w.conn(t).hangup);
    if w.conn(t).reset.is_none() {
        w.resume(t);
        w.until("reset", |w| w.conn(t).reset.is_some());
    }
}

pub(crate) fn reset_after_unread_bytes<H: Harness>() {
    let mut w = World::<H>::new(10);
    let (mut peer, t) = w.client();
    w.pause(t);
    w.peer_send_all(&mut peer, &pattern(6, 0, 1000));
    w.idle(5 * MILLISECOND);
    w.h.peer_reset(peer.inner);
    w.until("reset or hangup", |w| w.conn(t).reset.is_some() || w.conn(t).hangup);
    if w.conn(t).reset.is_none() {
        w.resume(t);
    }
    w.until("reset", |w| w.conn(t).reset.is_some());
    // What came through is a prefix: a reset may cost bytes, never order.
    let data = &w.conn(t).data;
    assert_eq!(*data, pattern(6, 0, data.len()));
}

pub(crate) fn connect_ok<H: Harness>() {
    let mut w = World::<H>::new(11);
    let (mut peer, t) = w.upstream();
    assert_eq!(w.send(t, b"question"), Ok(8));
    w.until_peer_has(&mut peer, 8);
    w.peer_send_all(&mut peer, b"answer");
    w.h.peer_shutdown(&mut peer.inner);
    w.until("end of input", |w| w.conn(t).eof);
    assert_eq!((w.conn(t).data.as_slice(), peer.data.as_slice()), (&b"answer"[..], &b"question"[..]));
}

pub(crate) fn connect_refused<H: Harness>() {
    let mut w = World::<H>::new(12);
    let address = w.h.refusing_address();
    let t = w.connect(address);
    w.until("failure", |w| w.conn(t).failed.is_some());
    assert_eq!(w.conn(t).failed, Some(ConnError::Refused));
    assert!(w.send(t, b"x").is_err());
    w.close(t, false);
    // Its index serves the next at once.
    let (mut peer, next) = w.upstream();
    assert_eq!(next, Token::new(t.index(), t.generation() + 1));
    w.peer_send_all(&mut peer, b"ok");
    w.until("bytes", |w| w.conn(next).data == b"ok");
}

pub(crate) fn send_before_connected<H: Harness>() {
    let mut w = World::<H>::new(13);
    let address = w.h.peer_address();
    let t = w.connect(address);
    // Either it takes some already, or says when.
    let mut sent = w.send(t, b"early").unwrap();
    let mut peer = None;
    w.until("the bytes at the peer", |w| {
        if w.conn(t).connected && !w.conn(t).armed && sent < 5 {
            sent += w.send(t, &b"early"[sent..]).unwrap();
        }
        peer = peer.take().or_else(|| w.peer_accept());
        peer.as_mut().is_some_and(|p| {
            w.peer_read(p);
            p.data == b"early"
        })
    });
}

pub(crate) fn send_after_peer_reset<H: Harness>() {
    let mut w = World::<H>::new(14);
    let (peer, t) = w.client();
    w.h.peer_reset(peer.inner);
    let bytes = vec![7; 64 * 1024];
    let mut failed = false;
    w.until("the failure", |w| {
        let dead = w.conn(t).reset.is_some();
        failed |= w.send(t, &bytes).is_err();
        assert!(!dead || failed, "sent after the reset was told");
        failed
    });
    w.until("the reset or nothing", |w| w.conn(t).reset.is_some() || w.conn(t).eof || failed);
    w.idle(5 * MILLISECOND);
    assert!(!w.conn(t).eof, "a reset told as an orderly end");
    w.close(t, false);
}

pub(crate) fn shutdown_write_keeps_receiving<H: Harness>() {
    let mut w = World::<H>::new(15);
    let (mut peer, t) = w.client();
    assert_eq!(w.send(t, b"last words"), Ok(10));
    w.h.driver().shutdown_write(t);
    assert_eq!(w.until_peer_end(&mut peer), PeerRead::Eof);
    assert_eq!(peer.data, b"last words");
    let bytes = pattern(7, 0, 200 * 1024);
    w.peer_send_all(&mut peer, &bytes);
    w.h.peer_shutdown(&mut peer.inner);
    w.until("end of input", |w| w.conn(t).eof);
    assert!(w.conn(t).data == bytes);
    w.idle(5 * MILLISECOND);
    assert_eq!(w.conn(t).reset, None, "both ended in order");
}

pub(crate) fn close_is_orderly<H: Harness>() {
    let mut w = World::<H>::new(16);
    let (mut peer, t) = w.client();
    assert_eq!(w.send(t, b"bye"), Ok(3));
    w.close(t, false);
    assert_eq!(w.until_peer_end(&mut peer), PeerRead::Eof);
    assert_eq!(peer.data, b"bye");
}

pub(crate) fn close_with_abort_is_a_reset<H: Harness>() {
    let mut w = World::<H>::new(17);
    for (mut peer, t) in [w.client(), w.upstream()] {
        w.close(t, true);
        assert_eq!(w.until_peer_end(&mut peer), PeerRead::Reset);
    }
}

pub(crate) fn empty_send<H: Harness>() {
    let mut w = World::<H>::new(18);
    let (_peer, t) = w.client();
    assert_eq!(w.send_slices(t, &[]), Ok(0));
    assert_eq!(w.send(t, b""), Ok(0));
    w.idle(5 * MILLISECOND);
    assert_eq!(w.conn(t).writables, 0);
}

pub(crate) fn many_slices<H: Harness>() {
    let mut w = World::<H>::new(19);
    let (mut peer, t) = w.client();
    let bytes = pattern(8, 0, 5000);
    let mut sent = 0;
    w.until("all taken", |w| {
        if !w.conn(t).armed {
            let slices: Vec<IoSlice<'_>> = bytes[sent..].chunks(2).map(IoSlice::new).collect();
            sent += w.send_slices(t, &slices).unwrap();
        }
        sent == bytes.len()
    });
    w.until_peer_has(&mut peer, bytes.len());
    assert_eq!(peer.data, bytes);
}

/// The index of a connection with news under way is given to another: before the poll, between poll and events, and
/// between two events of it.
pub(crate) fn stale_events_never_reach_the_next_generation<H: Harness>() {
    let mut w = World::<H>::new(20);
    for round in 0..30 {
        let (mut old_peer, old) = w.client();
        let mut new_peer = w.peer_connect();
        w.until("accept", |w| !w.sockets.is_empty());
        w.pause(old);
        w.peer_send_all(&mut old_peer, &[b'o'; 2 * MAX_LATE_BYTES]);
        w.idle(MILLISECOND);
        w.resume(old);
        if round % 3 == 1 {
            w.h.peer_shutdown(&mut old_peer.inner);
        }
        if round % 3 != 0 {
            w.poll(5 * MILLISECOND);
        }
        if round % 3 == 2 {
            w.next();
        }
        w.close(old, round % 2 == 0);
        let new = w.adopt();
        assert_eq!(new, Token::new(old.index(), old.generation() + 1));
        w.peer_send_all(&mut new_peer, b"n");
        while w.next().is_some() {}
        w.until("the new connection's byte", |w| !w.conn(new).data.is_empty());
        w.idle(MILLISECOND);
        let Conn { data, eof, hangup, reset, .. } = w.conn(new).clone();
        assert_eq!((data.as_slice(), eof, hangup, reset), (&b"n"[..], false, false, None), "round {round}");
        w.close(new, false);
    }
}

pub(crate) fn doorbell_is_coalesced<H: Harness>() {
    let mut w = World::<H>::new(21);
    let bell = w.h.driver().bell();
    w.idle(2 * MILLISECOND);
    assert_eq!(w.doorbells, 0);
    for ring_count in [1, 1000] {
        let before = w.doorbells;
        let bell = Arc::clone(&bell);
        let ringer = std::thread::spawn(move || (0..ring_count).for_each(|_| bell.ring()));
        ringer.join().unwrap();
        w.until("doorbell", |w| w.doorbells > before);
        w.idle(2 * MILLISECOND);
        assert_eq!(w.doorbells, before + 1, "after {ring_count} rings");
    }
    // Rung between the poll and the events: this time or the next, not never.
    w.poll(0);
    bell.ring();
    while w.next().is_some() {}
    w.until("doorbell", |w| w.doorbells == 3);
}

/// A ringer and a driver that waits without a deadline hand a number to and fro.
pub(crate) fn doorbell_wakes_a_sleeper<H: Harness>() {
    use std::sync::atomic::{AtomicU32, Ordering};
    if !H::REAL_TIME {
        return; // nobody else runs while a virtual clock stands
    }
    let mut w = World::<H>::new(22);
    let bell: Arc<dyn Bell> = w.h.driver().bell();
    let turn = Arc::new(AtomicU32::new(0));
    let theirs = Arc::clone(&turn);
    let rounds = 2000;
    let ringer = std::thread::spawn(move || {
        for round in 1..=rounds {
            while theirs.load(Ordering::Relaxed) != round - 1 {
                std::thread::yield_now();
            }
            theirs.store(round | 1 << 31, Ordering::Relaxed);
            bell.ring();
        }
    });
    for round in 1..=rounds {
        while turn.load(Ordering::Relaxed) != round | 1 << 31 {
            // Were a ring lost, this would wait for ever; a minute instead, and the assertion below fails.
            let minute = w.now() + 60_000 * MILLISECOND;
            w.h.driver().poll(Some(minute));
            assert!(w.now() < minute, "a ring was lost in round {round}");
            while w.next().is_some() {}
        }
        turn.store(round, Ordering::Relaxed);
    }
    ringer.join().unwrap();
}

pub(crate) fn deadline_is_not_early<H: Harness>() {
    let mut w = World::<H>::new(23);
    let (_peer, _t) = w.client();
    w.idle(2 * MILLISECOND);
    for ahead_ns in [1, 999, 1_000, 250_000, 1_000_001, 3_700_000, 20_000_000] {
        let deadline = w.now() + ahead_ns;
        let before = w.h.driver().counters().wakeups;
        w.h.driver().poll(Some(deadline));
        assert!(w.now() >= deadline, "woke {} ns early of {ahead_ns}", deadline - w.now());
        assert!(w.next().is_none());
        let wakeups = w.h.driver().counters().wakeups - before;
        assert!(wakeups <= 3, "{wakeups} wake-ups in {ahead_ns} ns");
    }
    // In the past: no wait, and time does not go back.
    let now = w.now();
    w.h.driver().poll(Some(0));
    assert!(w.now() >= now);
    assert!(w.h.driver().wall() > 0);
}

pub(crate) fn fairness<H: Harness>() {
    let mut w = World::<H>::new(24);
    let (mut flood_peer, flood) = w.client();
    let (mut quiet_peer, quiet) = w.client();
    let chunk = vec![1; 8 * MAX_LATE_BYTES];
    for round in 1..=10 {
        w.pause(flood);
        w.pause(quiet);
        let until = w.now() + 10 * MILLISECOND;
        while w.now() < until {
            w.h.peer_send(&mut flood_peer.inner, &chunk);
            w.pass(MILLISECOND);
        }
        w.peer_send_all(&mut quiet_peer, b"q");
        w.idle(5 * MILLISECOND);
        // Both have bytes waiting; the quiet one is told after at most a buffer of the other's in flight and one more.
        w.resume(flood);
        w.resume(quiet);
        let before = w.conn(flood).data.len();
        w.until("the quiet byte", |w| w.conn(quiet).data.len() == round);
        let ahead = w.conn(flood).data.len() - before;
        assert!(ahead <= 2 * MAX_LATE_BYTES, "{ahead} bytes of the flood went first");
    }
    // In one pass, one buffer of one connection at most.
    for _ in 0..50 {
        w.h.peer_send(&mut flood_peer.inner, &chunk);
        let taken: usize =
            w.pass(MILLISECOND).iter().map(|s| if let Seen::Data(_, n) = s { *n } else { 0 }).sum();
        assert!(taken <= MAX_LATE_BYTES, "{taken} bytes in one pass");
    }
}

/// Bytes beyond the first buffer bring no news from the network: a driver must remember them by itself.
pub(crate) fn no_wait_while_bytes_are_queued<H: Harness>() {
    let mut w = World::<H>::new(26);
    let (mut peer, t) = w.client();
    w.pause(t);
    w.peer_send_all(&mut peer, &[1; 3 * MAX_LATE_BYTES]);
    w.idle(5 * MILLISECOND);
    let start = w.now();
    w.resume(t);
    while w.conn(t).data.len() < 3 * MAX_LATE_BYTES {
        w.pass(20_000 * MILLISECOND);
        assert!(w.now() < start + 10_000 * MILLISECOND, "waited although bytes were queued");
    }
}

pub(crate) fn accept_pauses_and_listeners_close<H: Harness>() {
    let mut w = World::<H>::new(25);
    w.h.driver().pause_accept();
    w.pass(0);
    w.sockets.clear();
    let _waiting: Vec<Peer<H>> = (0..3).map(|_| w.peer_connect()).collect();
    w.idle(20 * MILLISECOND);
    assert_eq!(w.sockets.len(), 0, "accepted while paused");
    w.h.driver().resume_accept();
    w.until("those that waited", |w| w.sockets.len() == 3);
    // More than any driver accepts in one pass.
    let _many: Vec<Peer<H>> = (0..200).map(|_| w.peer_connect()).collect();
    w.until("many", |w| w.sockets.len() == 203);
    let t = w.adopt();
    w.h.driver().close_listeners();
    w.h.driver().resume_accept();
    w.idle(5 * MILLISECOND);
    assert_eq!(w.send(t, b"open connections go on"), Ok(22));
    assert_eq!(w.sockets.len(), 202);
}
