//! How saturated a pool is, and how many requests that lets each band have on its engines.
//!
//! An engine's saturation is the larger of what waits in its queue against a target and its KV usage against a
//! ceiling. Both are reported now and then only, so both are carried on by what this gateway itself has sent and got
//! back since. What it has sent beyond the engine's batch waits there, reported or not: requests that run are no queue.
//!
//! The batch capacity is configured, or the engine tells it as its slots, or it is learned: once something waits, the
//! batch is full, and the most that ever ran is its size. Before that, twice what was seen running is taken for it, so
//! that a burst on an unknown engine grows instead of falling in at once. An engine that reports nothing, and whose
//! capacity nobody told, has no limit.

use super::OPEN;

/// Batch capacity of an engine that reports, until more is known.
const FIRST_CAPACITY: u32 = 16;

/// When a pool is saturated.
#[derive(Debug, Clone, PartialEq)]
pub struct Thresholds {
    /// Requests in an engine's queue at saturation 1: enough to refill its batch, no more.
    pub target_waiting: f64,
    /// KV usage at saturation 1, of 1.
    pub kv_ceiling: f64,
    /// How a pool's saturation follows from its engines'.
    pub aggregate: Aggregate,
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds { target_waiting: 4.0, kv_ceiling: 0.9, aggregate: Aggregate::Mean }
    }
}

/// How a pool's saturation follows from its engines'.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Aggregate {
    /// Their mean.
    #[default]
    Mean,
    /// What a tenth of them are above.
    P90,
}

/// What an engine said of itself.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Report {
    /// Requests in its batch.
    pub running: u32,
    /// Requests in its queue.
    pub waiting: u32,
    /// KV usage, 0 to 1; `None` of an engine that does not tell.
    pub kv: Option<f64>,
    /// Batch capacity, if it tells.
    pub slots: Option<u32>,
    /// Requests this gateway had in flight there at that time.
    pub inflight: u32,
}

/// What was learned of one incarnation of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Learned {
    /// The most that ever ran.
    running: u32,
    /// Something waited: then the batch was full.
    filled: bool,
    /// KV usage that a running request accounts for, smoothed; 0 before any is known.
    kv_each: f64,
}

impl Learned {
    /// Takes in a report.
    pub fn observe(&mut self, report: &Report) {
        self.running = self.running.max(report.running);
        self.filled |= report.waiting > 0 && report.running > 0;
        if let Some(kv) = report.kv.filter(|kv| *kv > 0.0 && report.running > 0) {
            let each = kv / f64::from(report.running);
            self.kv_each = if self.kv_each > 0.0 { self.kv_each.mul_add(0.75, each * 0.25) } else { each };
        }
    }

    fn capacity(&self) -> u32 {
        if self.filled { self.running } else { self.running.saturating_mul(2).max(FIRST_CAPACITY) }
    }
}

/// An engine, as far as saturation goes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Signal {
    /// It may be chosen.
    pub ready: bool,
    /// Requests this gateway has in flight there.
    pub inflight: u32,
    /// Batch capacity by configuration.
    pub configured: Option<u32>,
    /// What it said last.
    pub report: Option<Report>,
    /// What its reports taught.
    pub learned: Learned,
}

impl Signal {
    /// Requests it runs at once; `None` where nothing limits them.
    pub fn capacity(&self) -> Option<u32> {
        let told = self.configured.or(self.report.and_then(|report| report.slots));
        told.or(self.report.map(|_| self.learned.capacity()))
    }

    /// Requests in its queue; negative: room in its batch.
    fn queued(&self) -> f64 {
        let capacity = self
            .capacity()
            .map_or(f64::NEG_INFINITY, |capacity| f64::from(self.inflight) - f64::from(capacity));
        match self.report {
            // Its batch is full, however large that is now; what ended since made room.
            Some(report) if report.waiting > 0 => {
                capacity.max(f64::from(report.waiting) + self.since(&report))
            }
            _ => capacity,
        }
    }

    /// Requests that came less those that went since a report.
    fn since(&self, report: &Report) -> f64 {
        f64::from(self.inflight) - f64::from(report.inflight)
    }

    fn kv(&self) -> Option<f64> {
        let report = self.report?;
        Some((report.kv? + self.since(&report) * self.learned.kv_each).max(0.0))
    }

    /// 0 idle, 1 at the healthy limit.
    pub fn saturation(&self, thresholds: &Thresholds) -> f64 {
        let queue = self.queued().max(0.0) / thresholds.target_waiting;
        queue.max(self.kv().map_or(0.0, |kv| kv / thresholds.kv_ceiling))
    }

    /// How many more it may get until its saturation is at `ceiling`; negative past it.
    fn room(&self, thresholds: &Thresholds, ceiling: f64) -> f64 {
        let queue = thresholds.target_waiting.mul_add(ceiling, -self.queued());
        let kv = self.kv().map_or(f64::INFINITY, |kv| {
            let left = thresholds.kv_ceiling.mul_add(ceiling, -kv);
            match self.learned.kv_each {
                each if each > 0.0 => (left / each).floor(),
                _ if left > 0.0 => f64::INFINITY,
                _ => 0.0,
            }
        });
        queue.min(kv)
    }
}

/// What was found of a pool, beside the limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assessment {
    /// Its saturation; 1 is the healthy limit.
    pub saturation: f64,
    /// Batch capacity of the engines that may be chosen; [`OPEN`] if one of them has no limit.
    pub capacity: u32,
    /// How many may be chosen.
    pub ready: usize,
}

/// Finds a pool's saturation, and for each of `ceilings` up to how many requests may be admitted: those in flight and
/// those on their way. A ceiling above 1 has no limit, and neither has a pool none of whose engines may be chosen, for
/// that is not a matter of time.
pub fn assess(
    signals: &[Signal],
    thresholds: &Thresholds,
    ceilings: &[f64],
    limits: &mut [u32],
) -> Assessment {
    let ready: Vec<&Signal> = signals.iter().filter(|signal| signal.ready).collect();
    let inflight: f64 = signals.iter().map(|signal| f64::from(signal.inflight)).sum();
    for (limit, ceiling) in limits.iter_mut().zip(ceilings) {
        *limit = if *ceiling > 1.0 || ready.is_empty() {
            OPEN
        } else {
            let rooms = ready.iter().map(|signal| signal.room(thresholds, *ceiling)).collect();
            whole(inflight + pool_room(rooms, thresholds.aggregate))
        };
    }
    let capacity = ready.iter().try_fold(0u32, |sum, signal| Some(sum.saturating_add(signal.capacity()?)));
    let each = ready.iter().map(|signal| signal.saturation(thresholds)).collect();
    Assessment {
        saturation: pool_saturation(each, thresholds.aggregate),
        capacity: capacity.unwrap_or(OPEN),
        ready: ready.len(),
    }
}

/// The place, counted from the least, of the one that a tenth are above; `len` is not 0.
fn p90(len: usize) -> usize {
    (len * 9).div_ceil(10).max(1) - 1
}

fn pool_room(mut rooms: Vec<f64>, aggregate: Aggregate) -> f64 {
    match aggregate {
        Aggregate::Mean => rooms.iter().sum(),
        Aggregate::P90 => {
            // The least saturated has the most room.
            rooms.sort_by(|a, b| b.total_cmp(a));
            let decides = rooms.get(p90(rooms.len())).copied().unwrap_or(0.0);
            if decides < 0.0 { decides } else { rooms.iter().map(|room| room.max(0.0)).sum() }
        }
    }
}

fn pool_saturation(mut each: Vec<f64>, aggregate: Aggregate) -> f64 {
    if each.is_empty() {
        return 0.0;
    }
    match aggregate {
        #[allow(clippy::cast_precision_loss)] // engines of a pool are thousands at most
        Aggregate::Mean => each.iter().sum::<f64>() / each.len() as f64,
        Aggregate::P90 => {
            each.sort_by(f64::total_cmp);
            each[p90(each.len())]
        }
    }
}

fn whole(limit: f64) -> u32 {
    // A little more than it is, so that 0.3 of 10 is 3.
    let limit = (limit + 1e-9).floor();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // inside the range by then
    let whole = limit.clamp(0.0, f64::from(OPEN)) as u32;
    whole
}
