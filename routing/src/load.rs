//! Live counters of endpoints, shared by every shard: in-flight requests, reported queue depth, cooldowns.
//!
//! Counters that a decision reads are packed sixteen to a cache line, so choosing among sixteen endpoints touches one
//! line of each kind.
//!
//! **Invariants:** counters belong to an index, and an index belongs to one [`Slot`] (and its clones) at a time. An
//! index whose slot was dropped is handed out again only once its in-flight count is back at zero, so a late release
//! never reaches the next owner. The lock on the free list is taken when endpoints come and go, never on the request
//! path.

use crate::Nanos;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(test)]
mod tests;

/// Counters in a cache line.
const PER_LINE: usize = 16;
/// Lowest bit of a health word: set for a failure, clear for a busy engine. The other bits are `until`.
const FAILED: u64 = 1;
/// Latest `until` a health word can hold.
const UNTIL_MAX: Nanos = u64::MAX >> 1;

/// A cache line of counters.
#[derive(Default)]
#[repr(align(64))]
struct Line([AtomicU32; PER_LINE]);

/// Counters of up to a fixed number of endpoints.
pub struct LoadTable {
    /// Requests that this gateway has in flight on the endpoint.
    inflight: Box<[Line]>,
    /// Requests that the engine reports as admitted and not yet running; 0 for engines that report nothing.
    queue: Box<[Line]>,
    /// Cooldowns: 0, or `until << 1` with [`FAILED`] in the lowest bit.
    health: Box<[AtomicU64]>,
    /// Indices without a slot, the longest free first.
    free: Mutex<VecDeque<u32>>,
}

/// Whether an endpoint may be chosen now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It may.
    Ready,
    /// It asked to be left alone for a while; it is not broken.
    Busy {
        /// End of the cooldown.
        until: Nanos,
    },
    /// It could not be reached, or broke a connection.
    Failed {
        /// End of the cooldown, unless a probe succeeds first.
        until: Nanos,
    },
}

/// The right to one index of a [`LoadTable`], given back when the last clone is dropped. Cloned only where an endpoint
/// changes in a way that leaves it the same engine, so that its counts go on.
#[derive(Clone)]
pub struct Slot {
    /// Here too, so that a decision follows no further pointer.
    index: u32,
    _claim: Arc<Claim>,
}

/// Owns an index.
struct Claim {
    table: Arc<LoadTable>,
    index: u32,
}

impl Slot {
    /// The index to pass to the table's methods.
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.table.queue_cell(self.index).store(0, Ordering::Relaxed);
        self.table.health_cell(self.index).store(0, Ordering::Relaxed);
        self.table.free_list().push_back(self.index);
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Slot").field(&self.index).finish()
    }
}

impl fmt::Debug for LoadTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadTable").field("capacity", &self.health.len()).finish_non_exhaustive()
    }
}

impl LoadTable {
    /// A table for up to `capacity` endpoints at a time (those that wait for their last release included).
    pub fn new(capacity: u32) -> Arc<LoadTable> {
        let slots = capacity as usize;
        let lines = || (0..slots.div_ceil(PER_LINE)).map(|_| Line::default()).collect();
        Arc::new(LoadTable {
            inflight: lines(),
            queue: lines(),
            health: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            free: Mutex::new((0..capacity).collect()),
        })
    }

    /// Endpoints the table has room for.
    pub fn capacity(&self) -> usize {
        self.health.len()
    }

    /// An index of its own for a new endpoint; `None` when all are taken or still wait for a release.
    pub fn allocate(self: &Arc<Self>) -> Option<Slot> {
        let mut free = self.free_list();
        let place = free.iter().position(|index| self.inflight(*index) == 0)?;
        let index = free.remove(place)?;
        drop(free);
        // A mark that a straggler of the last incarnation made after its slot was dropped.
        self.health_cell(index).store(0, Ordering::Relaxed);
        self.queue_cell(index).store(0, Ordering::Relaxed);
        Some(Slot { index, _claim: Arc::new(Claim { table: Arc::clone(self), index }) })
    }

    /// Counts a request onto the endpoint.
    pub fn acquire(&self, index: u32) {
        self.inflight_cell(index).fetch_add(1, Ordering::Relaxed);
    }

    /// Takes back what [`LoadTable::acquire`] counted. Must be called once for each.
    pub fn release(&self, index: u32) {
        let cell = self.inflight_cell(index);
        let taken = cell.fetch_update(Ordering::Release, Ordering::Relaxed, |count| count.checked_sub(1));
        debug_assert!(taken.is_ok(), "endpoint slot {index} was released more often than acquired");
    }

    /// Requests this gateway has in flight on the endpoint.
    pub fn inflight(&self, index: u32) -> u32 {
        self.inflight_cell(index).load(Ordering::Acquire)
    }

    /// Sets the queue depth that the engine reported.
    pub fn set_queue_depth(&self, index: u32, requests: u32) {
        self.queue_cell(index).store(requests, Ordering::Relaxed);
    }

    /// The queue depth that the engine reported last.
    pub fn queue_depth(&self, index: u32) -> u32 {
        self.queue_cell(index).load(Ordering::Relaxed)
    }

    /// In-flight requests plus reported queue depth.
    pub fn load(&self, index: u32) -> u32 {
        self.inflight(index).saturating_add(self.queue_depth(index))
    }

    /// The endpoint failed: leave it out until `until`. Never shortens a cooldown.
    pub fn mark_failed(&self, index: u32, until: Nanos) {
        self.update_health(index, |word| Some(word.max(until.min(UNTIL_MAX) << 1) | FAILED));
    }

    /// The endpoint is busy: leave it out until `until`. Never shortens a cooldown, and leaves a failure a failure.
    pub fn mark_busy(&self, index: u32, until: Nanos) {
        self.update_health(index, |word| {
            let busy = until.min(UNTIL_MAX) << 1;
            (word & FAILED == 0 && busy > word).then_some(busy)
        });
    }

    /// A probe succeeded: ends the cooldown of a failure. A busy mark stays, since a probe says nothing of capacity.
    pub fn clear(&self, index: u32) {
        self.update_health(index, |word| (word & FAILED != 0).then_some(0));
    }

    /// Whether the endpoint may be chosen at `now`. A cooldown that is over is forgotten here, so that a later busy
    /// mark is not taken for a lesser one than a failure long past.
    pub fn health(&self, index: u32, now: Nanos) -> Health {
        let cell = self.health_cell(index);
        let word = cell.load(Ordering::Relaxed);
        let until = word >> 1;
        if word == 0 {
            Health::Ready
        } else if until <= now {
            // Losing the race means that a fresh mark has just been made: the next look sees it.
            let _ = cell.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
            Health::Ready
        } else if word & FAILED != 0 {
            Health::Failed { until }
        } else {
            Health::Busy { until }
        }
    }

    fn update_health(&self, index: u32, change: impl FnMut(u64) -> Option<u64>) {
        // No change is not an error here.
        let _ = self.health_cell(index).fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    fn free_list(&self) -> std::sync::MutexGuard<'_, VecDeque<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inflight_cell(&self, index: u32) -> &AtomicU32 {
        &self.inflight[index as usize / PER_LINE].0[index as usize % PER_LINE]
    }

    fn queue_cell(&self, index: u32) -> &AtomicU32 {
        &self.queue[index as usize / PER_LINE].0[index as usize % PER_LINE]
    }

    fn health_cell(&self, index: u32) -> &AtomicU64 {
        &self.health[index as usize]
    }
}
