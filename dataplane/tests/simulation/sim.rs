//! Runs a seed: shards, engines and clients in one world.

use crate::check::Facts;
use crate::client::{Client, Conn, End, GATEWAY};
use crate::engine::{EngineConn, Engines};
use crate::plan::Plan;
use llmgw_dataplane::driver::MAX_LATE_BYTES;
use llmgw_dataplane::driver::sim::{DriverId, PeerId, SimDriver, Socket, World};
use llmgw_dataplane::record::{Outcome, Record};
use llmgw_dataplane::shard::Shard;
use llmgw_dataplane::shared::{RecordConsumer, Shared, Stop, record_ring};
use llmgw_routing::budget::RetryBudget;
use llmgw_routing::load::LoadTable;
use llmgw_routing::pipeline::Profile;
use llmgw_routing::snapshot::{Endpoint, Engine, Model, Role, Snapshot};
use llmgw_routing::{MILLISECOND, Nanos, SECOND};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// An engine must see its connection closed this soon after its client left.
const CANCEL_MAX: Nanos = 50 * MILLISECOND;
/// Most bytes a shard may keep for a client: the high-water mark, the bytes in hand when it was passed, those that may
/// come late, kept input, and framing.
const KEPT_MAX: usize = 64 * 1024 + 2 * MAX_LATE_BYTES + 2048 + MAX_LATE_BYTES + 8 * 1024;
/// Turns of shards without the clock moving.
const TURNS_MAX: u32 = 200_000;
/// No seed needs longer.
const VIRTUAL_MAX: Nanos = 3000 * SECOND;

#[derive(Clone, Copy)]
enum Who {
    Client(usize),
    Engine(usize),
}

const TIMER_STOP: u64 = 1 << 40;
const TIMER_DRAIN: u64 = 6 << 40;
const TIMER_CUT: u64 = 7 << 40;
/// How long after a drain's end nothing may run any more.
const CUT_WITHIN: Nanos = 50_000_000;
const TIMER_RELOAD: u64 = 2 << 40;
const TIMER_CANCEL: u64 = 3 << 40;
const TIMER_ENGINE: u64 = 4 << 40;
const TIMER_CLIENT: u64 = 5 << 40;

struct Seat {
    shard: Shard<SimDriver>,
    driver: DriverId,
    records: RecordConsumer,
    alive: bool,
    /// It did something in its last turn, so the deadline it named then is old.
    worked: bool,
}

struct Sim {
    plan: Plan,
    world: World,
    seats: Vec<Seat>,
    shared: Arc<Shared<Socket>>,
    loads: Arc<LoadTable>,
    endpoints: Vec<Arc<Endpoint>>,
    engines: Engines,
    clients: Vec<Client>,
    owner: HashMap<PeerId, Who>,
    rng: fastrand::Rng,
    records: Vec<Record>,
    start: Nanos,
    stopped: bool,
    turns: u32,
    /// Wakes that were asked for, so that the same is not asked twice.
    client_wake: Vec<Nanos>,
    engine_wake: Vec<Nanos>,
}

fn engine_address(i: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9001 + u16::try_from(i).unwrap())
}

fn snapshot(version: u64, endpoints: &[Arc<Endpoint>], plan: &Plan) -> Arc<Snapshot> {
    let policy = ["least_outstanding", "affinity", "weighted"][usize::try_from(plan.seed % 3).unwrap()];
    let profile = Arc::new(Profile::from_policy(policy, 1.25).unwrap());
    let model = |name: &str, endpoints: &[Arc<Endpoint>]| {
        let model = Model::new(name, endpoints.to_vec(), Arc::clone(&profile), 1, None);
        (Box::<str>::from(name), Arc::new(model))
    };
    let models = [model("m", endpoints), model("empty", &[])].into_iter().collect();
    Arc::new(Snapshot::new(version, models, endpoints.to_vec(), Arc::new(plan.settings.clone())))
}

/// Runs one seed to its end. `Err` names what was violated.
pub fn run(seed: u64, trace: bool) -> Result<(), String> {
    run_plan(Plan::draw(seed), trace)
}

/// Runs one plan to its end.
pub fn run_plan(plan: Plan, trace: bool) -> Result<(), String> {
    let mut sim = Sim::new(plan, trace);
    sim.live()?;
    sim.settle()
}

impl Sim {
    fn new(mut plan: Plan, trace: bool) -> Self {
        let world = World::new(plan.seed, plan.weather.clone());
        world.set_poll_advances(false);
        world.set_trace(trace);
        let start = world.now();
        let loads = LoadTable::new(16);
        let endpoints: Vec<Arc<Endpoint>> = (0..plan.engines.len())
            .map(|i| {
                world.listen(engine_address(i), plan.engines[i].door);
                Arc::new(Endpoint {
                    id: format!("e{i}").into(),
                    slot: loads.allocate().unwrap(),
                    served_model: "m".into(),
                    pool: "default".into(),
                    series: 1,
                    address: engine_address(i),
                    authority: engine_address(i).to_string().into(),
                    base_path: "".into(),
                    engine: Engine::Sim,
                    weight: 1.0,
                    role: Role::Unified,
                    priority_scheduling: false,
                    announced: false,
                })
            })
            .collect();
        let first = snapshot(1, &endpoints, &plan);
        let budget = RetryBudget::new(plan.settings.retry_budget);
        let shared = Arc::new(Shared::new(first, Arc::clone(&loads), budget, plan.shards));
        let seats = (0..plan.shards)
            .map(|id| {
                let driver = world.driver(&[GATEWAY]);
                let driver_id = driver.id();
                let (producer, records) = record_ring();
                let shard = Shard::new(id, driver, Arc::clone(&shared), producer, plan.seed + id as u64);
                Seat { shard, driver: driver_id, records, alive: true, worked: false }
            })
            .collect();
        let mut rng = fastrand::Rng::with_seed(plan.seed ^ 0xabcd);
        let engines = Engines {
            plans: std::mem::take(&mut plan.engines),
            conns: Vec::new(),
            attempts: Vec::new(),
            rng: rng.fork(),
            big: plan.big,
        };
        let plans = std::mem::take(&mut plan.clients);
        let clients: Vec<Client> =
            plans.into_iter().enumerate().map(|(i, p)| Client::new(i, p, start)).collect();
        if let Some((at, _)) = plan.stop {
            world.set_timer(start + at, TIMER_STOP);
        }
        if let Some(at) = plan.reload {
            world.set_timer(start + at, TIMER_RELOAD);
        }
        if let Some((at, cut)) = plan.drain {
            world.set_timer(start + at, TIMER_DRAIN);
            world.set_timer(start + cut + CUT_WITHIN, TIMER_CUT);
        }
        Sim {
            client_wake: vec![0; clients.len()],
            engine_wake: Vec::new(),
            plan,
            world,
            seats,
            shared,
            loads,
            endpoints,
            engines,
            clients,
            owner: HashMap::new(),
            rng,
            records: Vec::new(),
            start,
            stopped: false,
            turns: 0,
        }
    }

    /// Until nothing happens any more by itself.
    fn live(&mut self) -> Result<(), String> {
        for seat in &mut self.seats {
            seat.alive = seat.shard.turn();
        }
        for i in 0..self.clients.len() {
            self.step_client(i)?;
        }
        loop {
            self.actors()?;
            let worked = self.shards()?;
            if worked || self.work_left() {
                continue;
            }
            let deadlines =
                self.seats.iter().filter(|s| s.alive).filter_map(|s| self.world.deadline(s.driver));
            let Some(next) = deadlines.chain(self.world.next_time()).min() else { return Ok(()) };
            if next > self.start + VIRTUAL_MAX {
                return Err("time runs away".to_owned());
            }
            if next > self.world.now() {
                self.turns = 0;
            }
            self.world.advance_to(next);
        }
    }

    fn work_left(&self) -> bool {
        self.seats.iter().any(|seat| seat.alive && self.world.ready(seat.driver))
    }

    /// Gives shards a turn that have something to do, and sometimes one that has not.
    fn shards(&mut self) -> Result<bool, String> {
        let mut worked = false;
        let first = self.rng.usize(..self.seats.len());
        for k in 0..self.seats.len() {
            let i = (first + k) % self.seats.len();
            let seat = &mut self.seats[i];
            if !seat.alive {
                continue;
            }
            let now = self.world.now();
            let due = self.world.deadline(seat.driver).is_some_and(|at| at <= now);
            let ready = self.world.ready(seat.driver);
            if !due && !ready && !seat.worked && self.rng.u8(..32) > 0 {
                continue;
            }
            worked |= due || ready || seat.worked;
            seat.worked = due || ready;
            self.turns += 1;
            if self.turns > TURNS_MAX {
                return Err("a shard turns and turns without the clock moving".to_owned());
            }
            seat.alive = seat.shard.turn();
            while let Ok(record) = seat.records.pop() {
                self.records.push(record);
            }
            let lent = self.world.lent(seat.driver);
            if lent > self.late_lent() {
                return Err(format!("{lent} buffers were not given back"));
            }
            let seat = &self.seats[i];
            let kept = seat.shard.census().unsent;
            if kept > KEPT_MAX {
                return Err(format!("{kept} bytes are kept for one client"));
            }
        }
        Ok(worked)
    }

    /// Buffers in late events that were not told yet: any number is possible, but not for ever.
    fn late_lent(&self) -> i64 {
        if self.plan.weather.late > 0 { 10_000 } else { 0 }
    }

    fn actors(&mut self) -> Result<(), String> {
        loop {
            let changed = self.world.take_changed();
            let timers = self.world.take_timers();
            if changed.is_empty() && timers.is_empty() {
                return Ok(());
            }
            for timer in timers {
                self.timer(timer)?;
            }
            for peer in changed {
                if !self.owner.contains_key(&peer) {
                    self.accept();
                }
                match self.owner.get(&peer) {
                    Some(Who::Client(i)) => self.step_client(*i)?,
                    Some(Who::Engine(i)) => self.step_engine(*i),
                    None => {}
                }
            }
        }
    }

    fn accept(&mut self) {
        for engine in 0..self.engines.plans.len() {
            while let Some(peer) = self.world.accept(engine_address(engine)) {
                self.owner.insert(peer, Who::Engine(self.engines.conns.len()));
                self.engines.conns.push(EngineConn::new(peer, engine, self.world.now()));
                self.engine_wake.push(0);
            }
        }
    }

    fn timer(&mut self, key: u64) -> Result<(), String> {
        let index = usize::try_from(key & 0xff_ffff_ffff).unwrap();
        match key >> 40 << 40 {
            TIMER_CLIENT => {
                self.client_wake[index] = 0;
                self.step_client(index)
            }
            TIMER_ENGINE => {
                self.engine_wake[index] = 0;
                self.step_engine(index);
                Ok(())
            }
            TIMER_CANCEL => self.check_cancelled(index),
            TIMER_DRAIN => {
                let cut_at = self.start + self.plan.drain.map_or(0, |(_, cut)| cut);
                self.endpoints.iter().for_each(|e| self.loads.drain(e.slot.index(), cut_at));
                // Wakes the shards.
                self.shared.publish(self.shared.snapshot.load_full());
                Ok(())
            }
            TIMER_CUT => {
                let running: u32 = self.endpoints.iter().map(|e| self.loads.inflight(e.slot.index())).sum();
                match running {
                    0 => Ok(()),
                    _ => Err(format!("{running} requests still run after the end of the drain")),
                }
            }
            TIMER_RELOAD => {
                let kept = &self.endpoints[1.min(self.endpoints.len() - 1)..];
                self.shared.publish(snapshot(2, kept, &self.plan));
                Ok(())
            }
            _ => {
                let hard = self.stopped;
                self.stopped = true;
                self.shared.stop(if hard { Stop::Now } else { Stop::Drain });
                if let (false, Some((_, at))) = (hard, self.plan.stop) {
                    self.world.set_timer(self.start + at, TIMER_STOP);
                }
                Ok(())
            }
        }
    }

    fn step_client(&mut self, i: usize) -> Result<(), String> {
        loop {
            let over = self.clients[i].over.len();
            let wake = self.clients[i].step(&self.world)?;
            let client = &self.clients[i];
            if let Some(conn) = &client.conn {
                self.owner.insert(conn.peer, Who::Client(i));
            }
            let now = self.world.now();
            if let (true, Some(conn)) = (client.over.len() > over, client.over.last())
                && leaves_visibly(conn, self.plan.settings.half_close_abort)
            {
                self.world.set_timer(now + CANCEL_MAX, TIMER_CANCEL | i as u64);
            }
            match wake {
                Some(at) if at <= now => {}
                Some(at) => {
                    if self.client_wake[i] == 0 || at < self.client_wake[i] {
                        self.client_wake[i] = at;
                        self.world.set_timer(at, TIMER_CLIENT | i as u64);
                    }
                    return Ok(());
                }
                None => return Ok(()),
            }
        }
    }

    fn step_engine(&mut self, i: usize) {
        if let Some(at) = self.engines.step(&self.world, i)
            && (self.engine_wake[i] == 0 || at < self.engine_wake[i])
        {
            self.engine_wake[i] = at;
            self.world.set_timer(at, TIMER_ENGINE | i as u64);
        }
    }

    /// No engine is still at work for a client that left long enough ago.
    fn check_cancelled(&mut self, client: usize) -> Result<(), String> {
        let now = self.world.now();
        for conn in &self.clients[client].over {
            let Some(End::Cancelled(at)) = conn.end else { continue };
            if at + CANCEL_MAX > now || !leaves_visibly(conn, self.plan.settings.half_close_abort) {
                continue;
            }
            for attempt in self.engines.attempts.iter().filter(|a| !a.over) {
                let open = !self.world.hung_up(self.engines.conns[attempt.conn].peer);
                // The end of the framing of an answer that is complete may still be awaited.
                let unanswered = &conn.plan.requests[conn.reader.done.len().min(conn.plan.requests.len())..];
                let settled = |id: &str| {
                    let done = |r: &Record| r.request_id.as_str() == id && r.outcome == Outcome::Completed;
                    self.records.iter().any(done)
                };
                if open && unanswered.iter().any(|r| r.id == attempt.request) && !settled(&attempt.request) {
                    return Err(format!(
                        "{}: the engine still works for a client that left",
                        attempt.request
                    ));
                }
            }
        }
        Ok(())
    }

    /// Everything is quiet: what is left must be nothing, and everybody must have got what is theirs.
    fn settle(mut self) -> Result<(), String> {
        if let Some(i) = self.clients.iter().position(|client| !client.finished()) {
            return Err(format!("client {i} waits for ever"));
        }
        for seat in &self.seats {
            let census = seat.shard.census();
            if (census.clients, census.upstreams, census.idle, census.held) != (0, 0, 0, 0) {
                return Err(format!("left over: {census:?}"));
            }
            let open = self.world.open_connections(seat.driver);
            // A shard that has stopped takes no late events any more.
            if open != 0 || seat.alive && self.world.lent(seat.driver) != 0 {
                return Err(format!(
                    "{open} connections and {} buffers left over",
                    self.world.lent(seat.driver)
                ));
            }
        }
        for endpoint in &self.endpoints {
            let inflight = self.loads.inflight(endpoint.slot.index());
            if inflight != 0 {
                return Err(format!("{inflight} requests in flight on {} for ever", endpoint.id));
            }
        }
        self.shared.stop(Stop::Drain);
        self.plan.stop = None;
        for _ in 0..10 {
            for seat in self.seats.iter_mut().filter(|seat| seat.alive) {
                seat.alive = seat.shard.turn();
            }
        }
        if self.seats.iter().any(|seat| seat.alive) {
            return Err("a shard with nothing left does not stop".to_owned());
        }
        let counters = (
            self.shared.buffered.load(std::sync::atomic::Ordering::Relaxed),
            self.shared.addresses_counted(),
            self.shared.starved.load(std::sync::atomic::Ordering::Relaxed),
            self.shared
                .seats
                .iter()
                .map(|s| s.connections.load(std::sync::atomic::Ordering::Relaxed))
                .sum::<u32>(),
        );
        if counters != (0, 0, 0, 0) {
            return Err(format!(
                "counters left over (buffered, addresses, starved, connections): {counters:?}"
            ));
        }
        self.check_records()?;
        self.plan.engines = std::mem::take(&mut self.engines.plans);
        let facts = Facts {
            plan: &self.plan,
            attempts: &self.engines.attempts,
            stopped: self.stopped || self.plan.drain.is_some(),
        };
        for conn in self.clients.iter().flat_map(|client| &client.over) {
            facts.conn(conn)?;
        }
        Ok(())
    }

    /// A request that was answered or reached an engine has one record, and none has two.
    fn check_records(&self) -> Result<(), String> {
        let mut records: HashMap<&str, &Record> = HashMap::new();
        for record in &self.records {
            if records.insert(record.request_id.as_str(), record).is_some() {
                return Err(format!("{}: two records", record.request_id.as_str()));
            }
        }
        if let Some(attempt) = self.engines.attempts.iter().find(|a| !records.contains_key(&*a.request)) {
            return Err(format!("{}: reached an engine and left no record", attempt.request));
        }
        for conn in self.clients.iter().flat_map(|client| &client.over) {
            for response in &conn.reader.done {
                let Some(id) = response.header("x-request-id") else { continue };
                match records.get(id) {
                    None => return Err(format!("{id}: answered and left no record")),
                    Some(record) if record.status != response.status => {
                        return Err(format!(
                            "{id}: answered {} and recorded {}",
                            response.status, record.status
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }
}

/// The client left in a way that is to be seen at once. Where half-closes are allowed, a FIN says nothing, and a reset
/// behind unread requests is seen only at the next write.
fn leaves_visibly(conn: &Conn, half_close_abort: bool) -> bool {
    let cancel = conn.plan.cancel.filter(|_| matches!(conn.end, Some(End::Cancelled(_))));
    cancel.is_some_and(|cancel| half_close_abort || cancel.by_reset && !conn.plan.pipelined)
}
