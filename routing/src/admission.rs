//! *When* a request may proceed, as against *where* it goes ([`crate::pipeline`]).
//!
//! A pool has [`Credits`]: how many requests were admitted to its engines and have not ended, against a limit for each
//! [`Band`]. Limits follow from the pool's saturation ([`saturation`]): how much its engines hold in their queues and
//! how full their KV caches are, against the band's ceiling. A request takes a credit without asking anybody; if it
//! cannot, it waits in the [`Desk`] of its model, which one shard owns, and which grants from the highest band down,
//! each band's tenants in turn.
//!
//! **Invariants**
//!
//! * A credit counts from the grant to the end of the request, so that what was granted and is not yet on an engine is
//!   counted too: a burst passes up to the limit and no further.
//! * What waits is granted, refused or cancelled, exactly once; nothing is left behind in any count.
//! * A request never overtakes one that waits in its own band or above it and could go.
//! * Every queue has a bound, and so has the sum of them.
//!
//! Nothing here reads a clock or does I/O; times are told.

mod desk;
mod gate;
mod queue;
pub mod saturation;

#[cfg(test)]
mod tests;

pub use desk::{Desk, Verdict};
pub use gate::{Credits, Gate};
pub use queue::{Bound, Bounds, Placed, Queue, Ticket, Waiting};
pub use saturation::{Aggregate, Assessment, Learned, Report, Signal, Thresholds, assess};

use crate::{Nanos, SECOND};
use std::collections::HashMap;
use std::sync::Arc;

/// Most bands there can be.
pub const BANDS_MAX: usize = 8;

/// A limit that holds nobody back.
pub const OPEN: u32 = u32::MAX;

/// Requests of one priority.
#[derive(Debug, Clone, PartialEq)]
pub struct Band {
    /// Its name in configuration, headers and metrics.
    pub name: Arc<str>,
    /// Higher goes first; also the priority toward engines.
    pub priority: i32,
    /// Saturation past which its requests wait; above 1 they never do.
    pub ceiling: f64,
}

/// What the configuration says of admission.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Highest priority first; at least one, at most [`BANDS_MAX`].
    pub bands: Vec<Band>,
    /// Place among `bands` of a request that names none.
    pub default_band: usize,
    /// Longest wait.
    pub queue_ttl: Nanos,
    /// What may wait for one model.
    pub bounds: Bounds,
    /// When a pool is saturated.
    pub thresholds: Thresholds,
    /// The same for models that have their own.
    pub models: HashMap<String, Thresholds>,
}

impl Policy {
    /// Place of the band of this name.
    pub fn band(&self, name: &str) -> Option<usize> {
        self.bands.iter().position(|band| *band.name == *name)
    }

    /// Thresholds of a model.
    pub fn thresholds_of(&self, model: &str) -> &Thresholds {
        self.models.get(model).unwrap_or(&self.thresholds)
    }
}

impl Default for Policy {
    /// The documented defaults: platinum, gold, silver and bronze, and who names no band is in the first.
    fn default() -> Self {
        let band = |name: &str, priority, ceiling| Band { name: name.into(), priority, ceiling };
        Policy {
            bands: vec![
                band("platinum", 400, 1.0),
                band("gold", 300, 0.85),
                band("silver", 200, 0.6),
                band("bronze", 100, 0.3),
            ],
            default_band: 0,
            queue_ttl: 30 * SECOND,
            bounds: Bounds { per_band: 2000, total: 4000 },
            thresholds: Thresholds::default(),
            models: HashMap::new(),
        }
    }
}
