//! One shard over the simulated network, with one scripted engine: a run takes microseconds.

use crate::case::{Case, End, Side, probe};
use crate::wire::{Seen, ordinary_answer, read_answers, read_request};
use llmgw_dataplane::driver::sim::{Door, DriverId, PeerId, PeerState, SimDriver, Socket, Weather, World};
use llmgw_dataplane::shard::Shard;
use llmgw_dataplane::shared::{RecordConsumer, Shared, record_ring};
use llmgw_routing::budget::RetryBudget;
use llmgw_routing::load::LoadTable;
use llmgw_routing::pipeline::Profile;
use llmgw_routing::snapshot::{Endpoint, Engine, Model, Role, Settings, Snapshot};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

const GATEWAY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const ENGINE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9001);
/// Turns without an end would hang the tests instead of failing them.
const TURNS_MAX: u32 = 100_000;

/// A connection at the engine.
struct EngineConn {
    peer: PeerId,
    input: Vec<u8>,
    /// Bytes of `input` that were read as messages.
    read: usize,
    /// Still to be sent.
    output: Vec<Vec<u8>>,
    closes: bool,
    over: bool,
}

/// What the engine does instead of its ordinary answer, once.
struct Script {
    pieces: Vec<Vec<u8>>,
    end: End,
}

/// The gateway and its surroundings; runs one case after the other.
pub struct Stack {
    world: World,
    shard: Shard<SimDriver>,
    driver: DriverId,
    records: RecordConsumer,
    conns: Vec<EngineConn>,
    script: Option<Script>,
    seen: Seen,
    _shared: Arc<Shared<Socket>>,
}

impl Default for Stack {
    fn default() -> Self {
        Self::new()
    }
}

impl Stack {
    /// One endpoint of model `m`, no retries, no cooldown.
    pub fn new() -> Self {
        let weather = Weather { delay_max: 1, segment_max: 64 * 1024, ..Weather::calm() };
        let world = World::new(1, weather);
        world.set_poll_advances(false);
        world.listen(ENGINE, Door::Open);
        let loads = LoadTable::new(4);
        let settings = Settings { retries: 0, cooldown: 0, ..Settings::default() };
        let budget = RetryBudget::new(settings.retry_budget);
        let shared = Arc::new(Shared::new(snapshot(&loads, settings), loads, budget, 1));
        let driver = world.driver(&[GATEWAY]);
        let id = driver.id();
        let (producer, records) = record_ring();
        let mut shard = Shard::new(0, driver, Arc::clone(&shared), producer, 1);
        shard.turn();
        let (conns, script, seen) = (Vec::new(), None, Seen::default());
        Stack { world, shard, driver: id, records, conns, script, seen, _shared: shared }
    }

    /// Runs a case with its bytes cut at `cuts`; each piece is sent once everything is quiet.
    pub fn run(&mut self, case: &Case, cuts: &[usize]) -> Seen {
        let pieces = cut(&case.writes, cuts);
        match case.side {
            Side::Request => {
                let mut pieces = pieces;
                if case.probe {
                    // In the same write: what ends the case must be known from its bytes alone.
                    pieces.last_mut().expect("a case writes something").extend(probe());
                }
                self.exchange(&pieces, case.end, case.bytes().starts_with(b"HEAD "))
            }
            Side::Response => {
                self.script = Some(Script { pieces, end: case.end });
                // The probe waits: an answer to nothing that comes while another request is under way on the
                // connection cannot be told from that one's.
                self.exchange(&[case.request.clone(), probe()], End::Keep, false)
            }
        }
    }

    /// Sends pieces of bytes on a connection of their own and tells what came of it.
    pub fn exchange(&mut self, pieces: &[Vec<u8>], end: End, head: bool) -> Seen {
        self.seen = Seen::default();
        let client = self.world.connect(IpAddr::V4(Ipv4Addr::LOCALHOST), GATEWAY);
        let mut output = Vec::new();
        self.quiet(client, &mut output);
        for piece in pieces {
            let mut rest = &piece[..];
            while !rest.is_empty() && self.world.state(client) == PeerState::Open {
                let sent = self.world.write(client, rest);
                rest = &rest[sent..];
                self.quiet(client, &mut output);
                if sent == 0 {
                    break;
                }
            }
        }
        if end == End::Close && !self.world.hung_up(client) {
            self.world.shutdown(client);
        }
        self.quiet(client, &mut output);
        self.seen.closed = self.world.hung_up(client);
        self.world.close(client);
        self.quiet(client, &mut output);
        self.seen.answers = read_answers(&output, head, self.seen.closed);
        for conn in self.conns.iter_mut() {
            if conn.read < conn.input.len() {
                self.seen.engine_error.get_or_insert_with(|| "bytes that are no whole message".to_owned());
            }
            if !conn.input.is_empty() {
                self.seen.captures.push(std::mem::take(&mut conn.input));
                conn.read = 0;
            }
        }
        self.conns.retain(|conn| !conn.over);
        self.script = None;
        while self.records.pop().is_ok() {}
        std::mem::take(&mut self.seen)
    }

    /// Sends the same bytes on several connections at once. Tells of each turn of the shard, until there is nothing
    /// left to do, how many answers each connection got in it.
    pub fn crowd(&mut self, connections: usize, bytes: &[u8]) -> Vec<Vec<usize>> {
        let clients: Vec<PeerId> =
            (0..connections).map(|_| self.world.connect(IpAddr::V4(Ipv4Addr::LOCALHOST), GATEWAY)).collect();
        self.quiet(clients[0], &mut Vec::new());
        for client in &clients {
            assert_eq!(self.world.write(*client, bytes), bytes.len(), "more than the network takes at once");
        }
        let whole =
            |bytes: &[u8]| read_answers(bytes, false, false).iter().filter(|one| one.complete).count();
        let (mut turns, mut heard) = (Vec::new(), vec![Vec::new(); connections]);
        let mut idle = 0;
        while idle < 3 {
            // What is still under way arrives before the turn. A connection that gave way is nobody's event: a turn
            // more finds it.
            if let Some(at) = self.world.next_time().filter(|_| !self.world.ready(self.driver)) {
                self.world.advance_to(at);
            }
            self.shard.turn();
            while let Some(at) = self.world.next_time().filter(|at| *at <= self.world.now() + 1) {
                self.world.advance_to(at);
            }
            let answered: Vec<usize> = clients
                .iter()
                .zip(&mut heard)
                .map(|(client, heard)| {
                    let before = whole(heard);
                    heard.extend(self.world.read(*client, usize::MAX));
                    whole(heard) - before
                })
                .collect();
            idle = if answered.iter().any(|n| *n > 0) { 0 } else { idle + 1 };
            turns.push(answered);
        }
        clients.iter().for_each(|client| self.world.close(*client));
        self.quiet(clients[0], &mut Vec::new());
        turns
    }

    /// Until nothing happens any more by itself.
    fn quiet(&mut self, client: PeerId, output: &mut Vec<u8>) {
        for _ in 0..TURNS_MAX {
            self.engine();
            output.extend(self.world.read(client, usize::MAX));
            if self.world.ready(self.driver) {
                self.shard.turn();
                continue;
            }
            match self.world.next_time() {
                Some(at) => self.world.advance_to(at),
                None => return,
            }
        }
        panic!("the gateway finds no rest");
    }

    fn engine(&mut self) {
        while let Some(peer) = self.world.accept(ENGINE) {
            let (input, output) = (Vec::new(), Vec::new());
            self.conns.push(EngineConn { peer, input, read: 0, output, closes: false, over: false });
        }
        for conn in self.conns.iter_mut().filter(|conn| !conn.over) {
            conn.input.extend(self.world.read(conn.peer, usize::MAX));
            while let Some((message, used)) = match read_request(&conn.input[conn.read..]) {
                Ok(next) => next,
                Err(error) => {
                    self.seen.engine_error = Some(error);
                    None
                }
            } {
                conn.read += used;
                match self.script.take() {
                    Some(script) => {
                        conn.output.extend(script.pieces);
                        conn.closes = script.end == End::Close;
                    }
                    None => conn.output.push(ordinary_answer(&message)),
                }
                self.seen.engine.push(message);
            }
            if self.world.hung_up(conn.peer) {
                conn.over = true;
                self.world.close(conn.peer);
            } else if !conn.output.is_empty() && !self.world.ready(self.driver) {
                // One piece at a time, so that the gateway reads them apart.
                let piece = conn.output.remove(0);
                self.world.write(conn.peer, &piece);
            } else if conn.output.is_empty() && conn.closes && self.world.next_time().is_none() {
                conn.over = true;
                self.world.close(conn.peer);
            }
        }
    }
}

/// The writes, cut at these places of their concatenation.
fn cut(writes: &[Vec<u8>], cuts: &[usize]) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let mut begin = 0;
    for write in writes {
        let end = begin + write.len();
        let mut from = begin;
        for &cut in cuts.iter().filter(|&&cut| cut > begin && cut < end) {
            pieces.push(write[from - begin..cut - begin].to_vec());
            from = cut;
        }
        pieces.push(write[from - begin..].to_vec());
        begin = end;
    }
    pieces
}

fn snapshot(loads: &Arc<LoadTable>, settings: Settings) -> Arc<Snapshot> {
    let endpoint = Arc::new(Endpoint {
        id: "e0".into(),
        slot: loads.allocate().expect("a new table has room"),
        served_model: "m".into(),
        pool: "default".into(),
        series: 1,
        address: ENGINE,
        authority: ENGINE.to_string().into(),
        base_path: "".into(),
        engine: Engine::Sim,
        weight: 1.0,
        role: Role::Unified,
        priority_scheduling: false,
        announced: false,
    });
    let profile = Profile::from_policy("least_outstanding", 1.25).expect("a policy of the configuration");
    let model = Model::new("m", vec![Arc::clone(&endpoint)], Arc::new(profile), 1, None);
    let models = [("m".into(), Arc::new(model))].into_iter().collect();
    Arc::new(Snapshot::new(1, models, vec![endpoint], Arc::new(settings)))
}
