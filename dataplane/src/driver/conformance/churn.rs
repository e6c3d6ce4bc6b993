//! Two hundred connections a seed, in both directions, under random actions of both ends; every byte is verified.
//!
//! A connection's streams are made from its number, which the end that connected sends first. At the end everything
//! that was not cut off must have arrived whole, and every peer must have seen its connection closed.

use super::world::{Peer, World, pattern};
use super::{Harness, PeerRead};
use crate::driver::{Driver, Token};
use llmgw_routing::MILLISECOND;

const CONNECTIONS: usize = 200;
const OPEN_AT_ONCE: usize = 24;
const NUMBER_BYTES: usize = 8;
/// Far more than any seed needs.
const STEPS_MAX: usize = 100_000;

/// One end's knowledge.
#[derive(Debug, Default)]
struct End {
    number: Option<u64>,
    sent: usize,
    /// FIN sent.
    shut: bool,
}

struct DriverEnd {
    token: Token,
    end: End,
    initiator: bool,
    verified: usize,
}

struct PeerEnd<H: Harness> {
    peer: Peer<H>,
    end: End,
    initiator: bool,
    verified: usize,
}

/// The bytes of a direction: the initiator's begin with the number.
fn stream(number: u64, from_initiator: bool, offset: usize, len: usize) -> Vec<u8> {
    let salt = if from_initiator { 0x5555 } else { 0xAAAA };
    let mut bytes = pattern(number << 16 | salt, offset, len);
    if from_initiator {
        let head = number.to_le_bytes();
        for (i, b) in bytes.iter_mut().enumerate().take(NUMBER_BYTES.saturating_sub(offset)) {
            *b = head[offset + i];
        }
    }
    bytes
}

/// Checks what was received since the last time; learns the number from the first bytes.
fn verify(end: &mut End, verified: &mut usize, from_initiator: bool, data: &[u8]) {
    if end.number.is_none() && data.len() >= NUMBER_BYTES {
        end.number = Some(u64::from_le_bytes(data[..NUMBER_BYTES].try_into().unwrap()));
    }
    let Some(number) = end.number else { return };
    let expected = stream(number, from_initiator, *verified, data.len() - *verified);
    assert!(data[*verified..] == expected, "wrong bytes on connection {number} after {verified}");
    *verified = data.len();
}

struct Churn<H: Harness> {
    w: World<H>,
    rng: fastrand::Rng,
    drivers: Vec<DriverEnd>,
    peers: Vec<PeerEnd<H>>,
    /// Numbers of connections that one end cut off.
    cut: Vec<u64>,
    made: usize,
}

/// Runs one seed.
pub(crate) fn churn<H: Harness>(seed: u64) {
    // Shown by the test runner if it fails.
    #[allow(clippy::print_stdout)]
    {
        println!("churn seed {seed}");
    }
    let mut c = Churn::<H> {
        w: World::new(seed),
        rng: fastrand::Rng::with_seed(seed),
        drivers: Vec::new(),
        peers: Vec::new(),
        cut: Vec::new(),
        made: 0,
    };
    let descriptors = c.w.h.descriptors();
    let mut steps = 0;
    // A virtual clock moves only if it is waited for.
    let ahead_ns = if H::REAL_TIME { 0 } else { MILLISECOND / 5 };
    while c.made < CONNECTIONS {
        steps += 1;
        assert!(steps < STEPS_MAX, "stuck with {} and {} ends", c.drivers.len(), c.peers.len());
        c.open();
        for _ in 0..c.rng.usize(1..8) {
            c.driver_acts();
            c.peer_acts();
        }
        c.w.pass(ahead_ns);
        c.take_in();
    }
    c.finish();
    assert_eq!(c.w.h.descriptors(), descriptors, "descriptors before and after");
}

impl<H: Harness> Churn<H> {
    fn open(&mut self) {
        if self.made == CONNECTIONS || self.peers.len().max(self.drivers.len()) >= OPEN_AT_ONCE {
            return;
        }
        let number = u64::try_from(self.made).unwrap() + 1;
        self.made += 1;
        let end = End { number: Some(number), ..End::default() };
        if self.rng.bool() {
            let peer = self.w.peer_connect();
            self.peers.push(PeerEnd { peer, end, initiator: true, verified: 0 });
        } else {
            let address = self.w.h.peer_address();
            let token = self.w.connect(address);
            self.drivers.push(DriverEnd { token, end, initiator: true, verified: 0 });
        }
    }

    /// New connections, received bytes, ended connections.
    fn take_in(&mut self) {
        while !self.w.sockets.is_empty() {
            let token = self.w.adopt();
            self.drivers.push(DriverEnd { token, end: End::default(), initiator: false, verified: 0 });
        }
        while let Some(peer) = self.w.peer_accept() {
            self.peers.push(PeerEnd { peer, end: End::default(), initiator: false, verified: 0 });
        }
        for d in &mut self.drivers {
            verify(&mut d.end, &mut d.verified, !d.initiator, &self.w.conn(d.token).data);
        }
        for p in &mut self.peers {
            self.w.peer_read(&mut p.peer);
            verify(&mut p.end, &mut p.verified, !p.initiator, &p.peer.data);
        }
        for i in (0..self.drivers.len()).rev() {
            let conn = self.w.conn(self.drivers[i].token);
            let end = &self.drivers[i].end;
            let over = conn.eof && (end.shut || end.number.is_none());
            if conn.reset.is_some() || conn.failed.is_some() || over {
                let d = self.drivers.swap_remove(i);
                self.w.close(d.token, false);
            }
        }
        self.peers.retain(|p| match p.peer.end {
            None => true,
            Some(PeerRead::Eof) => !p.end.shut && p.end.number.is_some(),
            Some(_) => false,
        });
    }

    fn driver_acts(&mut self) {
        if self.drivers.is_empty() {
            return;
        }
        let i = self.rng.usize(..self.drivers.len());
        let token = self.drivers[i].token;
        let conn = self.w.conn(token);
        if !conn.connected || conn.reset.is_some() {
            return;
        }
        match self.rng.u8(..40) {
            0..=15 => self.driver_sends(i),
            16..=21 => self.w.pause(token),
            22..=34 => self.w.resume(token),
            35..=37 => {
                let end = &mut self.drivers[i].end;
                end.shut |= end.sent > NUMBER_BYTES;
                if end.shut {
                    self.w.h.driver().shutdown_write(token);
                }
            }
            _ => {
                // Only connections whose number both ends know are cut, so that the other end's loss is excused.
                let d = self.drivers.swap_remove(i);
                self.cut.extend(d.end.number);
                if d.end.number.is_none() {
                    self.cut.push(0);
                }
                let abort = self.rng.bool();
                self.w.close(token, abort);
            }
        }
    }

    fn driver_sends(&mut self, i: usize) {
        let len = self.rng.usize(1..100_000);
        let d = &mut self.drivers[i];
        let (Some(number), false, false) = (d.end.number, d.end.shut, self.w.conn(d.token).armed) else {
            return;
        };
        let bytes = stream(number, d.initiator, d.end.sent, len);
        match self.w.send(d.token, &bytes) {
            Ok(n) => d.end.sent += n,
            Err(_) => d.end.shut = true,
        }
    }

    fn peer_acts(&mut self) {
        if self.peers.is_empty() {
            return;
        }
        let i = self.rng.usize(..self.peers.len());
        let p = &mut self.peers[i];
        match self.rng.u8(..40) {
            0..=25 => {
                let (Some(number), false) = (p.end.number, p.end.shut) else { return };
                let bytes = stream(number, p.initiator, p.end.sent, self.rng.usize(1..100_000));
                p.end.sent += self.w.h.peer_send(&mut p.peer.inner, &bytes);
            }
            26..=36 => self.w.peer_read(&mut p.peer),
            37..=38 => {
                if p.end.number.is_some() && p.end.sent > NUMBER_BYTES {
                    p.end.shut = true;
                    self.w.h.peer_shutdown(&mut p.peer.inner);
                }
            }
            _ => {
                if p.end.number.is_some() {
                    let p = self.peers.swap_remove(i);
                    self.cut.extend(p.end.number);
                    self.w.h.peer_reset(p.peer.inner);
                }
            }
        }
    }

    /// Both ends of what is left say all and shut down; then everything must have arrived.
    fn finish(&mut self) {
        let mut quiet = 0;
        // Connections under way are accepted first.
        while quiet < 5 {
            let before = (self.drivers.len(), self.peers.len());
            self.w.pass(2 * MILLISECOND);
            self.take_in();
            quiet = if before == (self.drivers.len(), self.peers.len()) { quiet + 1 } else { 0 };
        }
        for token in self.w.open_tokens() {
            self.w.resume(token);
            self.w.h.driver().shutdown_write(token);
        }
        for p in &mut self.peers {
            self.w.h.peer_shutdown(&mut p.peer.inner);
        }
        let (drivers, peers) = (&mut self.drivers, &mut self.peers);
        self.w.until("every end seen", |w| {
            for p in peers.iter_mut() {
                w.peer_read(&mut p.peer);
            }
            let ended = drivers.iter().all(|d| w.conn(d.token).eof || w.conn(d.token).reset.is_some());
            ended && peers.iter().all(|p| p.peer.end.is_some())
        });
        for d in drivers.iter_mut() {
            verify(&mut d.end, &mut d.verified, !d.initiator, &self.w.conn(d.token).data);
        }
        for p in peers.iter_mut() {
            verify(&mut p.end, &mut p.verified, !p.initiator, &p.peer.data);
        }
        for d in drivers.iter() {
            let Some(number) = d.end.number else { continue };
            let Some(p) = peers.iter().find(|p| p.end.number == Some(number)) else { continue };
            if self.cut.contains(&number) || self.w.conn(d.token).reset.is_some() {
                continue;
            }
            assert_eq!((d.verified, p.verified), (p.end.sent, d.end.sent), "connection {number} lost bytes");
        }
        for token in self.w.open_tokens() {
            self.w.close(token, false);
        }
        self.drivers.clear();
        self.peers.clear();
        // Those of the backlog that were never adopted, and the driver's own view of the closed ones.
        self.w.pass(0);
        self.w.sockets.clear();
    }
}
