//! The conformance suite, in calm weather and in every kind.

use super::{Door, PeerId, PeerState, SimDriver, Weather, World};
use crate::driver::Driver;
use crate::driver::conformance::{Harness, PeerRead, suite};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 80);
const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9001);
const NOBODY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9);

struct SimHarness<const CALM: bool> {
    world: World,
    driver: SimDriver,
}

struct Peer {
    world: World,
    id: PeerId,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.world.close(self.id);
    }
}

impl<const CALM: bool> Harness for SimHarness<CALM> {
    type Driver = SimDriver;
    type Peer = Peer;
    const REAL_TIME: bool = false;

    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let weather = if CALM { Weather::calm() } else { stormy(&mut rng) };
        // The suite counts polls where it waits for a connect to arrive, and a poll takes 10 us here.
        let weather = Weather { delay_max: 20_000, ..weather };
        let world = World::new(seed, weather);
        world.listen(PEER, Door::Open);
        let driver = world.driver(&[LISTEN]);
        SimHarness { world, driver }
    }

    fn driver(&mut self) -> &mut SimDriver {
        &mut self.driver
    }

    fn peer_connect(&mut self) -> Peer {
        let id = self.world.connect(LISTEN.ip(), LISTEN);
        Peer { world: self.world.clone(), id }
    }

    fn peer_address(&mut self) -> SocketAddr {
        PEER
    }

    fn refusing_address(&mut self) -> SocketAddr {
        NOBODY
    }

    fn peer_accept(&mut self) -> Option<Peer> {
        self.world.accept(PEER).map(|id| Peer { world: self.world.clone(), id })
    }

    fn peer_send(&mut self, peer: &mut Peer, bytes: &[u8]) -> usize {
        self.world.write(peer.id, bytes)
    }

    fn peer_read(&mut self, peer: &mut Peer, into: &mut Vec<u8>) -> PeerRead {
        let bytes = self.world.read(peer.id, 64 * 1024);
        into.extend_from_slice(&bytes);
        match self.world.state(peer.id) {
            _ if !bytes.is_empty() => PeerRead::Bytes(bytes.len()),
            PeerState::Reset | PeerState::Failed(_) => PeerRead::Reset,
            _ if self.world.at_end(peer.id) => PeerRead::Eof,
            _ => PeerRead::Nothing,
        }
    }

    fn peer_shutdown(&mut self, peer: &mut Peer) {
        self.world.shutdown(peer.id);
    }

    fn peer_reset(&mut self, peer: Peer) {
        self.world.reset(peer.id);
    }
}

/// Everything that the suite, made for kernels, allows: small writes are taken whole there.
fn stormy(rng: &mut fastrand::Rng) -> Weather {
    Weather {
        segment_max: [200, 1500, 60_000][rng.usize(..3)],
        read_max: [4096, 32 * 1024][rng.usize(..2)],
        late: 200,
        reset_drops: 128,
        defer: 32,
        ..Weather::calm()
    }
}

mod calm {
    super::suite!(super::SimHarness<true>);
}

mod storm {
    super::suite!(super::SimHarness<false>);
}

/// The same seed and the same calls give the same events, at the same times.
#[test]
fn a_seed_repeats_itself() {
    let run = |seed: u64| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let world = World::new(seed, Weather::draw(&mut rng));
        let mut driver = world.driver(&[LISTEN]);
        let peers: Vec<PeerId> = (0..5).map(|_| world.connect(LISTEN.ip(), LISTEN)).collect();
        let mut log = Vec::new();
        for step in 0..200 {
            world.write(peers[step % 5], b"some bytes of a client");
            let deadline = driver.now() + 1_000_000;
            driver.poll(Some(deadline));
            while let Some(event) = driver.next_event() {
                log.push(format!("{} {event:?}", driver.now()));
            }
        }
        log
    };
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
