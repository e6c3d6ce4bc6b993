//! The simulated driver: a network and a clock that exist only in memory and follow from a seed.
//!
//! A [`World`] holds listeners, connections and a queue of timed events. Shards live in it through [`SimDriver`]s;
//! clients and engines are actors that use [`World`]'s operations on a [`PeerId`]. Whatever the driver contract allows
//! happens, as the [`Weather`] says: segments of any size, any delay (the order between connections is free, within
//! one it is kept), short writes, late events of closed connections under their old token, resets that lose bytes.
//!
//! **Invariants**
//!
//! * Single-threaded. The same seed and the same calls give the same events.
//! * Bytes sent and not yet read never exceed the window, so that a reader who stops is felt by the writer.
//! * A driver never breaks the contract of [`super::Driver`]; the conformance suite runs over it too.

mod gather;
mod net;
mod peer;
#[cfg(test)]
mod tests;

use super::{Bell, ConnError, Counters, Driver, Event, SendError, Token};
use llmgw_routing::{MILLISECOND, Nanos};
use net::{Inner, Owner, State};
pub use peer::PeerState;
use std::cell::RefCell;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// One end of a connection, as actors name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub(super) u32);

/// One driver of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DriverId(usize);

/// How the network behaves. Chances are in 256ths.
#[derive(Debug, Clone)]
pub struct Weather {
    /// Bytes of one direction that may be sent and unread.
    pub window: usize,
    /// Longest delay of a segment.
    pub delay_max: Nanos,
    /// Largest segment in bytes.
    pub segment_max: usize,
    /// Largest read in bytes.
    pub read_max: usize,
    /// A write takes less than it could.
    pub short_write: u8,
    /// An event of a connection that was closed comes late, under the old token.
    pub late: u8,
    /// A reset overtakes bytes that are under way, or destroys those that were not read.
    pub reset_drops: u8,
    /// Readiness is told in a later poll than it could be.
    pub defer: u8,
    /// Accepting fails for a moment.
    pub accept_fails: u8,
}

impl Weather {
    /// Nothing unusual: large segments, no surprises.
    pub fn calm() -> Self {
        Weather {
            window: 256 * 1024,
            delay_max: MILLISECOND / 10,
            segment_max: 16 * 1024,
            read_max: super::MAX_LATE_BYTES,
            short_write: 0,
            late: 0,
            reset_drops: 0,
            defer: 0,
            accept_fails: 0,
        }
    }

    /// Weather drawn from a generator: from calm to single bytes through a tiny window.
    pub fn draw(rng: &mut fastrand::Rng) -> Self {
        let pick = |rng: &mut fastrand::Rng, of: &[usize]| of[rng.usize(..of.len())];
        let read_max = pick(rng, &[1, 7, 100, 4096, 32 * 1024, 32 * 1024]);
        let window = pick(rng, &[512, 4 * 1024, 16 * 1024, 64 * 1024, 256 * 1024]);
        Weather {
            // Single bytes through a wide window would only take long.
            window: window.min(read_max * 4096),
            delay_max: MILLISECOND * u64::from([0u8, 1, 2, 4][rng.usize(..4)]) + 1,
            segment_max: pick(rng, &[1, 3, 17, 200, 1500, 16 * 1024, 64 * 1024]),
            read_max,
            short_write: [0, 16, 64, 200][rng.usize(..4)],
            late: [0, 128, 255][rng.usize(..3)],
            reset_drops: [0, 128, 255][rng.usize(..3)],
            defer: [0, 32, 128][rng.usize(..3)],
            accept_fails: [0, 0, 32][rng.usize(..3)],
        }
    }
}

/// What happens to those who connect to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// They are accepted.
    Open,
    /// They are told so.
    Fails(ConnError),
    /// They never hear anything.
    Silent,
}

/// The network and the clock. Cheap to clone; all clones are the same world.
#[derive(Clone)]
pub struct World(pub(super) Rc<RefCell<Inner>>);

/// An accepted connection that is nobody's yet; dropping it closes it.
#[derive(Debug)]
pub struct Socket {
    end: u32,
    owned: bool,
    dropped: Arc<Mutex<Vec<u32>>>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.owned {
            self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(self.end);
        }
    }
}

/// Received bytes.
#[derive(Debug)]
pub struct Lent(Vec<u8>);

impl Deref for Lent {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Rings by a flag that the world looks at.
#[derive(Debug, Default)]
struct SimBell(AtomicBool);

impl Bell for SimBell {
    fn ring(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A shard's access to a [`World`].
pub struct SimDriver {
    world: World,
    id: usize,
    now: Nanos,
    bell: Arc<SimBell>,
}

/// Unix time at the world's time 0.
const WALL_AT_ZERO_NS: u64 = 1_700_000_000_000_000_000;

impl SimDriver {
    /// The world it lives in.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Names it for [`World::ready`] and [`World::deadline`].
    pub fn id(&self) -> DriverId {
        DriverId(self.id)
    }
}

impl World {
    /// An empty world.
    pub fn new(seed: u64, weather: Weather) -> Self {
        World(Rc::new(RefCell::new(Inner::new(seed, weather))))
    }

    /// A driver that accepts at `addresses`; several drivers may share an address, and take turns at random.
    pub fn driver(&self, addresses: &[SocketAddr]) -> SimDriver {
        let bell = Arc::new(SimBell::default());
        let (id, now) = self.0.borrow_mut().add_driver(addresses, Arc::clone(&bell));
        SimDriver { world: self.clone(), id, now, bell }
    }

    /// With `false`, [`Driver::poll`] never moves the clock: whoever runs several drivers does, by
    /// [`World::advance_to`].
    pub fn set_poll_advances(&self, advances: bool) {
        self.0.borrow_mut().poll_advances = advances;
    }

    /// The clock.
    pub fn now(&self) -> Nanos {
        self.0.borrow().now
    }

    /// When something happens next by itself; `None` if the network is quiet.
    pub fn next_time(&self) -> Option<Nanos> {
        self.0.borrow().next_time()
    }

    /// Moves the clock, and lets happen what is due by then.
    pub fn advance_to(&self, to: Nanos) {
        self.0.borrow_mut().advance_to(to);
    }

    /// A poll of this driver would find something.
    pub fn ready(&self, driver: DriverId) -> bool {
        self.0.borrow_mut().driver_ready(driver.0)
    }

    /// The deadline that the driver was last polled with.
    pub fn deadline(&self, driver: DriverId) -> Option<Nanos> {
        self.0.borrow().drivers[driver.0].deadline
    }

    /// Buffers lent by a driver and not given back.
    pub fn lent(&self, driver: DriverId) -> i64 {
        self.0.borrow().drivers[driver.0].lent
    }

    /// Connections that a driver holds.
    pub fn open_connections(&self, driver: DriverId) -> usize {
        self.0.borrow().drivers[driver.0].tokens.len()
    }

    /// Makes [`World::take_timers`] give `key` at a time.
    pub fn set_timer(&self, at: Nanos, key: u64) {
        self.0.borrow_mut().set_timer(at, key);
    }

    /// Timers that went off.
    pub fn take_timers(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.borrow_mut().timers)
    }

    /// Draws from the world's generator.
    pub fn random(&self, below: u64) -> u64 {
        self.0.borrow_mut().rng.u64(..below)
    }

    /// Prints every network event from now on.
    pub fn set_trace(&self, on: bool) {
        self.0.borrow_mut().trace = on;
    }
}

impl Driver for SimDriver {
    type Socket = Socket;
    type Lent = Lent;

    fn now(&self) -> Nanos {
        self.now
    }

    fn wall(&self) -> u64 {
        WALL_AT_ZERO_NS + self.now
    }

    fn counters(&self) -> Counters {
        self.world.0.borrow().drivers[self.id].counters
    }

    fn bell(&self) -> Arc<dyn Bell> {
        Arc::<SimBell>::clone(&self.bell)
    }

    fn poll(&mut self, deadline: Option<Nanos>) {
        let mut world = self.world.0.borrow_mut();
        world.poll(self.id, deadline);
        self.now = world.now;
    }

    fn next_event(&mut self) -> Option<Event<Socket, Lent>> {
        let mut world = self.world.0.borrow_mut();
        world.next_event(self.id)
    }

    fn recycle(&mut self, lent: Lent) {
        drop(lent);
        self.world.0.borrow_mut().drivers[self.id].lent -= 1;
    }

    fn resume_accept(&mut self) {
        self.world.0.borrow_mut().drivers[self.id].accepting = true;
    }

    fn pause_accept(&mut self) {
        self.world.0.borrow_mut().drivers[self.id].accepting = false;
    }

    fn close_listeners(&mut self) {
        self.world.0.borrow_mut().close_listeners(self.id);
    }

    fn adopt(&mut self, token: Token, mut socket: Socket) {
        socket.owned = false;
        self.world.0.borrow_mut().adopt(self.id, token, socket.end);
    }

    fn connect(&mut self, token: Token, address: SocketAddr) {
        let mut world = self.world.0.borrow_mut();
        let ip = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
        let end = world.connect(Owner::Driver { driver: self.id, token }, ip, address);
        world.drivers[self.id].counters.connects += 1;
        let earlier = world.drivers[self.id].tokens.insert(token, end);
        debug_assert!(earlier.is_none(), "token {token:?} is in use");
    }

    fn send(&mut self, token: Token, bufs: &[IoSlice<'_>]) -> Result<usize, SendError> {
        let mut world = self.world.0.borrow_mut();
        world.drivers[self.id].counters.sends += 1;
        let end = *world.drivers[self.id].tokens.get(&token).ok_or(SendError)?;
        if world.ends[end as usize].dead || world.ends[end as usize].state == State::Failed {
            return Err(SendError);
        }
        let sent = world.send(end, bufs).ok_or(SendError)?;
        world.drivers[self.id].counters.bytes_sent += sent as u64;
        Ok(sent)
    }

    fn pause(&mut self, token: Token) {
        self.world.0.borrow_mut().pause(self.id, token);
    }

    fn resume(&mut self, token: Token) {
        self.world.0.borrow_mut().resume(self.id, token);
    }

    fn shutdown_write(&mut self, token: Token) {
        let mut world = self.world.0.borrow_mut();
        if let Some(end) = world.drivers[self.id].tokens.get(&token).copied() {
            world.shutdown_write(end);
        }
    }

    fn close(&mut self, token: Token, abort: bool) {
        self.world.0.borrow_mut().close_token(self.id, token, abort);
    }
}
