//! Live counters of endpoints, shared by every shard: in-flight requests, what engines report, cooldowns, drains.
//!
//! Counters that a decision reads are packed sixteen to a cache line, each kind by itself: in-flight counts change with
//! every request and must not take what changes seldom with them.
//!
//! **Invariants:** counters belong to an index, and an index belongs to one [`Slot`] (and its clones) at a time. An
//! index whose slot was dropped is handed out again only once its in-flight count is back at zero, so a late release
//! never reaches the next owner. The lock on the free list is taken when endpoints come and go, never on the request
//! path. Reading changes nothing.

use crate::Nanos;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(test)]
mod tests;

/// Lowest bit of a health word: set for a failure, clear for a busy engine. Above it comes `until`.
const FAILED: u64 = 1;
/// Highest bits of a health word: its model is drained; the engine says that it is leaving.
const DRAINED: u64 = 1 << 63;
const LEAVING: u64 = 1 << 62;
/// Either.
const CLOSED: u64 = DRAINED | LEAVING;
/// Latest `until` a health word can hold.
const UNTIL_MAX: Nanos = (LEAVING >> 1) - 1;

/// Load of an endpoint that must not be chosen, in [`LoadTable::gather`].
pub const OUT: u32 = u32::MAX;

/// Counters of up to a fixed number of endpoints.
pub struct LoadTable {
    /// Requests that this gateway has in flight on the endpoint.
    inflight: Box<[AtomicU32]>,
    /// Requests that the engine reports as admitted and not yet running; 0 for engines that report nothing.
    queue: Box<[AtomicU32]>,
    /// KV blocks that the engine reports to have; 0 for engines that report nothing.
    kv_blocks: Box<[AtomicU32]>,
    /// `until << 1` with [`FAILED`] in the lowest bit, and [`CLOSED`] in the highest: so that an endpoint may be chosen
    /// exactly if its word is at most `now << 1 | 1`.
    health: Box<[AtomicU64]>,
    /// When what still runs on a drained endpoint is cut.
    cut_at: Box<[AtomicU64]>,
    /// Grows with each change of a `cut_at`.
    cuts: AtomicU64,
    /// Indices without a slot, the longest free first.
    free: Mutex<VecDeque<u32>>,
}

/// Sums over what [`LoadTable::gather`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gathered {
    /// Endpoints that may be chosen.
    pub candidates: u32,
    /// Their loads, summed.
    pub total: u64,
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
    /// Its model is drained, or it is leaving: it gets no new requests.
    Draining,
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
        self.table.forget(self.index);
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
        let small = || (0..capacity).map(|_| AtomicU32::new(0)).collect();
        Arc::new(LoadTable {
            inflight: small(),
            queue: small(),
            kv_blocks: small(),
            health: (0..capacity).map(|_| AtomicU64::new(0)).collect(),
            cut_at: (0..capacity).map(|_| AtomicU64::new(Nanos::MAX)).collect(),
            cuts: AtomicU64::new(0),
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
        self.forget(index);
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

    /// Sets the KV capacity that the engine reported, in blocks.
    pub fn set_kv_blocks(&self, index: u32, blocks: u32) {
        self.kv_blocks[index as usize].store(blocks, Ordering::Relaxed);
    }

    /// The KV capacity that the engine reported last, in blocks; 0 if it reports none.
    pub fn kv_blocks(&self, index: u32) -> u32 {
        self.kv_blocks[index as usize].load(Ordering::Relaxed)
    }

    /// In-flight requests plus reported queue depth.
    pub fn load(&self, index: u32) -> u32 {
        self.inflight(index).saturating_add(self.queue_depth(index))
    }

    /// Reads the load of each of `slots` that may be chosen at `now` and is not in `exclude`, and [`OUT`] for the
    /// others, into `loads`: once for each decision.
    #[inline]
    pub fn gather(&self, slots: &[u32], exclude: &[u32], now: Nanos, loads: &mut Vec<u32>) -> Gathered {
        let latest = latest_ready(now);
        // One length for all, so that one check of a slot's bounds is enough.
        let health = &self.health[..];
        let (inflight, queue) = (&self.inflight[..health.len()], &self.queue[..health.len()]);
        loads.resize(slots.len(), OUT);
        let (mut candidates, mut total) = (0, 0);
        for (slot, load) in slots.iter().zip(loads.iter_mut()) {
            let index = *slot as usize;
            *load = OUT;
            if health[index].load(Ordering::Relaxed) <= latest {
                let inflight = inflight[index].load(Ordering::Acquire);
                let sum = inflight.saturating_add(queue[index].load(Ordering::Relaxed)).min(OUT - 1);
                *load = sum;
                candidates += 1;
                total += u64::from(sum);
            }
        }
        let mut gathered = Gathered { candidates, total };
        if !exclude.is_empty() {
            leave_out(slots, exclude, loads, &mut gathered);
        }
        gathered
    }

    /// The endpoint failed: leave it out until `until`. Never shortens a cooldown.
    pub fn mark_failed(&self, index: u32, until: Nanos) {
        self.update_health(index, |word| {
            let (closed, cooldown) = (word & CLOSED, word & !CLOSED);
            Some(closed | cooldown.max(until.min(UNTIL_MAX) << 1) | FAILED)
        });
    }

    /// The endpoint is busy: leave it out until `until`. Never shortens a cooldown, and leaves a failure a failure
    /// while that lasts.
    pub fn mark_busy(&self, index: u32, until: Nanos, now: Nanos) {
        self.update_health(index, |word| {
            let (closed, cooldown) = (word & CLOSED, word & !CLOSED);
            let over = cooldown <= latest_ready(now);
            let busy = until.min(UNTIL_MAX) << 1;
            (over || (cooldown & FAILED == 0 && busy > cooldown)).then_some(closed | busy)
        });
    }

    /// A probe succeeded: ends the cooldown of a failure. A busy mark stays, since a probe says nothing of capacity.
    pub fn clear(&self, index: u32) {
        self.update_health(index, |word| (word & FAILED != 0).then_some(word & CLOSED));
    }

    /// The endpoint's model is drained: no new requests from now on, and what still runs at `cut_at` is cut.
    pub fn drain(&self, index: u32, cut_at: Nanos) {
        self.update_health(index, |word| Some(word | DRAINED));
        self.set_cut(index, cut_at);
    }

    /// Takes [`LoadTable::drain`] back.
    pub fn undrain(&self, index: u32) {
        self.update_health(index, |word| (word & DRAINED != 0).then_some(word & !DRAINED));
        self.set_cut(index, Nanos::MAX);
    }

    fn set_cut(&self, index: u32, at: Nanos) {
        if self.cut_at[index as usize].swap(at, Ordering::Relaxed) != at {
            self.cuts.fetch_add(1, Ordering::Release);
        }
    }

    /// The engine says that it is leaving: no new requests, and what runs there finishes.
    pub fn set_leaving(&self, index: u32, leaving: bool) {
        self.update_health(index, |word| {
            let new = if leaving { word | LEAVING } else { word & !LEAVING };
            (new != word).then_some(new)
        });
    }

    /// When what runs on the endpoint is cut; [`Nanos::MAX`] if it is not drained.
    pub fn cut_at(&self, index: u32) -> Nanos {
        self.cut_at[index as usize].load(Ordering::Relaxed)
    }

    /// Changes whenever a [`LoadTable::cut_at`] does. Whoever sees a new number sees the change as well.
    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Acquire)
    }

    /// Whether the endpoint may be chosen at `now`.
    pub fn health(&self, index: u32, now: Nanos) -> Health {
        let word = self.health_cell(index).load(Ordering::Relaxed);
        let until = word >> 1;
        if word & CLOSED != 0 {
            Health::Draining
        } else if word <= latest_ready(now) {
            Health::Ready
        } else if word & FAILED != 0 {
            Health::Failed { until }
        } else {
            Health::Busy { until }
        }
    }

    /// Leaves nothing of an incarnation but its in-flight count.
    fn forget(&self, index: u32) {
        self.queue_cell(index).store(0, Ordering::Relaxed);
        self.kv_blocks[index as usize].store(0, Ordering::Relaxed);
        self.cut_at[index as usize].store(Nanos::MAX, Ordering::Relaxed);
        self.health_cell(index).store(0, Ordering::Relaxed);
    }

    fn update_health(&self, index: u32, change: impl FnMut(u64) -> Option<u64>) {
        // No change is not an error here.
        let _ = self.health_cell(index).fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    fn free_list(&self) -> std::sync::MutexGuard<'_, VecDeque<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inflight_cell(&self, index: u32) -> &AtomicU32 {
        &self.inflight[index as usize]
    }

    fn queue_cell(&self, index: u32) -> &AtomicU32 {
        &self.queue[index as usize]
    }

    fn health_cell(&self, index: u32) -> &AtomicU64 {
        &self.health[index as usize]
    }
}

/// The largest health word of an endpoint that may be chosen at `now`.
fn latest_ready(now: Nanos) -> u64 {
    now.min(UNTIL_MAX) << 1 | FAILED
}

/// Takes the excluded out of what was gathered: on failover only.
#[cold]
fn leave_out(slots: &[u32], exclude: &[u32], loads: &mut [u32], gathered: &mut Gathered) {
    for (slot, load) in slots.iter().zip(loads) {
        if *load != OUT && exclude.contains(slot) {
            gathered.candidates -= 1;
            gathered.total -= u64::from(*load);
            *load = OUT;
        }
    }
}
