//! What shards share of admission: credits of a pool, and what waits for a model.
//!
//! Taking and releasing touch one atomic number. Who releases looks afterwards whether somebody waits, and who begins
//! to wait looks afterwards whether there is credit; both in one total order, so that one of the two sees the other.

use super::{BANDS_MAX, OPEN};
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Requests admitted to a pool, against a limit for each band. Outlives snapshots.
#[derive(Debug)]
pub struct Credits {
    /// Granted and not ended, whether on an engine yet or not.
    admitted: CachePadded<AtomicU32>,
    limits: [AtomicU32; BANDS_MAX],
    /// Bits of the pool's saturation when the limits were set.
    saturation: AtomicU64,
    /// The engines' batch capacity then; [`OPEN`] if one of them is not known.
    capacity: AtomicU32,
}

impl Default for Credits {
    /// Nothing admitted and no limit.
    fn default() -> Self {
        Credits {
            admitted: CachePadded::new(AtomicU32::new(0)),
            limits: [const { AtomicU32::new(OPEN) }; BANDS_MAX],
            saturation: AtomicU64::new(0),
            capacity: AtomicU32::new(OPEN),
        }
    }
}

impl Credits {
    /// Takes a credit for a request of `band`; `false`, with nothing taken, at the limit.
    pub fn try_take(&self, band: usize) -> bool {
        let limit = self.limit(band);
        if limit == OPEN {
            self.admitted.fetch_add(1, Ordering::SeqCst);
            return true;
        }
        let more = |admitted: u32| (admitted < limit).then_some(admitted + 1);
        self.admitted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// Gives a credit back. Must be called once for each that was taken; see [`Gate::anyone_waits`] for what follows.
    pub fn release(&self) {
        let less = |admitted: u32| admitted.checked_sub(1);
        let taken = self.admitted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        debug_assert!(taken.is_ok(), "a credit was released more often than taken");
    }

    /// Credits that are out.
    pub fn admitted(&self) -> u32 {
        self.admitted.load(Ordering::SeqCst)
    }

    /// Up to how many credits `band` may take one.
    pub fn limit(&self, band: usize) -> u32 {
        self.limits.get(band).map_or(0, |limit| limit.load(Ordering::SeqCst))
    }

    /// Sets what was found of the pool. Only the owner of its queue may.
    pub fn set(&self, limits: &[u32], saturation: f64, capacity: u32) {
        for (to, limit) in self.limits.iter().zip(limits) {
            to.store(*limit, Ordering::SeqCst);
        }
        self.saturation.store(saturation.to_bits(), Ordering::Relaxed);
        self.capacity.store(capacity, Ordering::Relaxed);
    }

    /// The pool's saturation when its limits were set; 1 is the healthy limit.
    pub fn saturation(&self) -> f64 {
        f64::from_bits(self.saturation.load(Ordering::Relaxed))
    }

    /// The engines' batch capacity then; [`OPEN`] if one of them is not known.
    pub fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }
}

/// Whether and how much waits for a model. Outlives snapshots.
#[derive(Debug, Default)]
pub struct Gate {
    /// By band.
    waiting: [AtomicU32; BANDS_MAX],
    /// The owner has been told to look and has not looked yet.
    told: AtomicBool,
}

impl Gate {
    /// Whether a request of `band` must line up behind others, credit or not.
    pub fn must_wait(&self, band: usize) -> bool {
        self.waiting.iter().take(band + 1).any(|count| count.load(Ordering::SeqCst) > 0)
    }

    /// Whether the owner must be told of a released credit.
    pub fn anyone_waits(&self) -> bool {
        self.must_wait(BANDS_MAX)
    }

    /// Requests waiting in `band`.
    pub fn waiting(&self, band: usize) -> u32 {
        self.waiting.get(band).map_or(0, |count| count.load(Ordering::SeqCst))
    }

    /// `true` if the owner is to be told now; `false` if it is about to look anyway.
    pub fn tell(&self) -> bool {
        !self.told.swap(true, Ordering::SeqCst)
    }

    /// The owner looks: what is released from now on tells it again.
    pub fn look(&self) {
        self.told.store(false, Ordering::SeqCst);
    }

    /// Publishes how many wait. Only the owner may.
    pub(super) fn set_waiting(&self, band: usize, count: usize) {
        if let Some(to) = self.waiting.get(band) {
            to.store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::SeqCst);
        }
    }
}
