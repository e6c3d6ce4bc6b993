//! What shards share with each other and with the control plane.

use crate::driver::Bell;
use crate::metrics::{SeriesRegistry, ShardStats};
use crate::record::Record;
use arc_swap::ArcSwap;
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use llmgw_routing::budget::RetryBudget;
use llmgw_routing::load::LoadTable;
use llmgw_routing::snapshot::Snapshot;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Accepted sockets that may wait to be taken over by another shard.
const MAILBOX: usize = 256;
/// Settlement records a shard may be ahead of the control plane.
pub const RECORD_RING: usize = 8192;

/// How far a shutdown has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Serving.
    No = 0,
    /// No new connections; requests under way finish.
    Drain = 1,
    /// Everything ends now.
    Now = 2,
}

/// State of one shard that others may touch.
pub struct ShardSeat<S> {
    /// Sockets handed over by other shards.
    pub mailbox: ArrayQueue<(S, IpAddr)>,
    /// Wakes the shard; set when it starts.
    pub bell: OnceLock<Arc<dyn Bell>>,
    /// Client connections, for choosing the least loaded shard.
    pub connections: CachePadded<AtomicU32>,
    /// Counters.
    pub stats: ShardStats,
}

/// Shared by all shards and the control plane. `S` is the driver's accepted socket.
pub struct Shared<S> {
    /// The published world.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// In-flight counts and cooldowns.
    pub loads: Arc<LoadTable>,
    /// Retries after 503 and 429.
    pub budget: RetryBudget,
    /// Request body bytes reserved by shards, against `limits.buffered_total`.
    pub buffered: CachePadded<AtomicUsize>,
    /// Shards waiting for body memory; others then return their spare credit.
    pub starved: AtomicU32,
    /// (model, pool) metrics.
    pub series: SeriesRegistry,
    /// One a shard.
    pub seats: Vec<ShardSeat<S>>,
    /// Snapshots that a shard may still hold. They are kept until none does, so that no shard has to free one: that of
    /// ten thousand routes takes milliseconds.
    retired: Mutex<Vec<Arc<Snapshot>>>,
    stop: AtomicU8,
    addresses: AddressCounts,
}

impl<S> Shared<S> {
    /// For `shards` shards.
    pub fn new(snapshot: Arc<Snapshot>, loads: Arc<LoadTable>, budget: RetryBudget, shards: usize) -> Self {
        let seat = || ShardSeat {
            mailbox: ArrayQueue::new(MAILBOX),
            bell: OnceLock::new(),
            connections: CachePadded::new(AtomicU32::new(0)),
            stats: ShardStats::default(),
        };
        Shared {
            snapshot: Arc::new(ArcSwap::new(snapshot)),
            loads,
            budget,
            buffered: CachePadded::new(AtomicUsize::new(0)),
            starved: AtomicU32::new(0),
            series: SeriesRegistry::default(),
            seats: (0..shards).map(|_| seat()).collect(),
            retired: Mutex::default(),
            stop: AtomicU8::new(0),
            addresses: AddressCounts::default(),
        }
    }

    /// Publishes a snapshot and wakes every shard, so that closed endpoints' pooled connections go at once.
    pub fn publish(&self, snapshot: Arc<Snapshot>) {
        let old = self.snapshot.swap(snapshot);
        self.retired.lock().unwrap_or_else(PoisonError::into_inner).push(old);
        self.wake_all();
        self.reap();
    }

    /// Frees earlier snapshots that no shard holds any more; how many are left. Never called by a shard.
    pub fn reap(&self) -> usize {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let held = retired.iter().map(|old| Arc::strong_count(old) > 1).collect::<Vec<_>>();
        let (keep, gone) =
            std::mem::take(&mut *retired).into_iter().zip(held).partition::<Vec<_>, _>(|(_, held)| *held);
        retired.extend(keep.into_iter().map(|(old, _)| old));
        let left = retired.len();
        drop(retired);
        drop(gone);
        left
    }

    /// Asks all shards to stop; only ever moves forward.
    pub fn stop(&self, stop: Stop) {
        self.stop.fetch_max(stop as u8, Ordering::SeqCst);
        self.wake_all();
    }

    /// How far a shutdown has come.
    pub fn stopping(&self) -> Stop {
        match self.stop.load(Ordering::Relaxed) {
            0 => Stop::No,
            1 => Stop::Drain,
            _ => Stop::Now,
        }
    }

    fn wake_all(&self) {
        for bell in self.seats.iter().filter_map(|seat| seat.bell.get()) {
            bell.ring();
        }
    }

    /// Counts a connection of `address`; `false`, with nothing counted, at `limit`.
    pub fn admit_address(&self, address: IpAddr, limit: u32) -> bool {
        self.addresses.admit(address, limit)
    }

    /// Takes back what [`Shared::admit_address`] counted.
    pub fn release_address(&self, address: IpAddr) {
        self.addresses.release(address);
    }

    /// Connections counted over all addresses.
    pub fn addresses_counted(&self) -> usize {
        self.addresses.total()
    }
}

/// Connections by client address. Locked at accept and close only, never on the request path; split so that shards
/// rarely meet.
#[derive(Default)]
struct AddressCounts([Mutex<HashMap<IpAddr, u32>>; 16]);

impl AddressCounts {
    fn part(&self, address: IpAddr) -> std::sync::MutexGuard<'_, HashMap<IpAddr, u32>> {
        let last = match address {
            IpAddr::V4(v4) => v4.octets()[3],
            IpAddr::V6(v6) => v6.octets()[7] ^ v6.octets()[15],
        };
        self.0[usize::from(last & 15)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self, address: IpAddr, limit: u32) -> bool {
        let mut part = self.part(address);
        let count = part.entry(address).or_default();
        if *count >= limit {
            return false;
        }
        *count += 1;
        true
    }

    fn release(&self, address: IpAddr) {
        let mut part = self.part(address);
        if let Some(count) = part.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                part.remove(&address);
            }
        }
    }

    fn total(&self) -> usize {
        let part = |m: &Mutex<HashMap<IpAddr, u32>>| {
            m.lock().unwrap_or_else(PoisonError::into_inner).values().map(|n| *n as usize).sum::<usize>()
        };
        self.0.iter().map(part).sum()
    }
}

/// A shard's end of its record ring.
pub type RecordProducer = rtrb::Producer<Record>;
/// The control plane's end of a shard's record ring.
pub type RecordConsumer = rtrb::Consumer<Record>;

/// A record ring of the standard size.
pub fn record_ring() -> (RecordProducer, RecordConsumer) {
    rtrb::RingBuffer::new(RECORD_RING)
}
