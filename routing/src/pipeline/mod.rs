//! Choosing an endpoint: filter, score, pick.
//!
//! Filters drop candidates by hard rules, scorers rate those that are left between 0 and 1, and a picker takes one.
//! Everything is dispatched by enum and works in scratch vectors of the shard, so that a decision allocates nothing
//! once it has seen its models.
//!
//! **Invariants:** an endpoint that a filter dropped is never picked. Loads are read once at the start of a decision,
//! so that a picker compares numbers that do not change under it.

mod filter;
mod pick;
mod profile;
mod score;

#[cfg(test)]
mod tests;

pub use filter::{Filter, FilterKind};
pub use pick::{PickState, Picker, PickerKind};
pub use profile::{Profile, ProfileBuilder, ProfileError};
pub use score::{Scorer, ScorerKind};

use crate::Nanos;
use crate::load::{Health, LoadTable};
use crate::snapshot::{Endpoint, Model};
use std::fmt;
use std::sync::Arc;

/// What is known of a request when an endpoint is chosen for it.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Its id.
    pub request_id: &'a str,
    /// First bytes of the rendered prompt, see [`crate::prefix::prefix_key`].
    pub prefix_key: &'a [u8],
    /// Slots already tried.
    pub exclude: &'a [u32],
}

/// The chosen endpoint.
#[derive(Debug, Clone)]
pub struct Decision {
    /// Where the request goes.
    pub endpoint: Arc<Endpoint>,
    /// Why: `affinity`, `load`, `least_outstanding`, `weighted`, or the profile's name.
    pub reason: Arc<str>,
}

/// Why there is no endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoEndpoint {
    /// The model has no endpoint at all.
    Unserved,
    /// All of its endpoints have been tried.
    AllExcluded,
    /// Those not yet tried are draining.
    Draining,
    /// Those not yet tried are in cooldown, or some of them, and the others draining.
    Unavailable {
        /// The earliest end of a cooldown.
        retry_at: Nanos,
        /// None of them failed: they are all busy.
        busy: bool,
    },
}

impl fmt::Display for NoEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoEndpoint::Unserved => "no endpoint serves this model",
            NoEndpoint::AllExcluded => "every endpoint of this model has been tried",
            NoEndpoint::Draining => "every endpoint of this model is draining",
            NoEndpoint::Unavailable { busy: true, .. } => "every endpoint of this model is busy",
            NoEndpoint::Unavailable { busy: false, .. } => "no endpoint of this model is reachable",
        })
    }
}

impl std::error::Error for NoEndpoint {}

/// What filters and scorers may look at.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The request.
    pub request: &'a Request<'a>,
    /// Live counters.
    pub loads: &'a LoadTable,
    /// The time.
    pub now: Nanos,
}

/// An endpoint under consideration, with its counters as they were when the decision began.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// Its place among the model's endpoints, which are sorted by id.
    pub place: u32,
    /// Its slot in the load table.
    pub slot: u32,
    /// Requests this gateway has in flight on it.
    pub inflight: u32,
    /// In-flight requests plus reported queue depth.
    pub load: u32,
    /// Weighted sum of its scores, once scored.
    pub score: f64,
}

/// Chooses an endpoint of `model`.
pub fn decide(
    model: &Model,
    request: &Request<'_>,
    loads: &LoadTable,
    now: Nanos,
    state: &mut PickState,
) -> Result<Decision, NoEndpoint> {
    let profile = &model.profile;
    let context = Context { request, loads, now };
    let mut candidates = std::mem::take(&mut state.candidates);
    candidates.clear();
    candidates.extend((0u32..).zip(&model.endpoints).filter_map(|(place, endpoint)| {
        let slot = endpoint.slot.index();
        profile.filters.iter().all(|filter| filter.keeps(&context, slot)).then(|| {
            let inflight = loads.inflight(slot);
            let load = inflight.saturating_add(loads.queue_depth(slot));
            Candidate { place, slot, inflight, load, score: 0.0 }
        })
    }));
    if profile.picker.uses_scores() {
        for (scorer, weight) in &profile.scorers {
            scorer.add_scores(*weight, &context, &mut candidates);
        }
    }
    let picked = profile.picker.pick(model, &context, &candidates, state);
    state.candidates = candidates;
    match picked {
        Some(picked) => {
            let reason = if picked.overflow { &profile.overflow_reason } else { &profile.name };
            let endpoint = Arc::clone(&model.endpoints[picked.place as usize]);
            Ok(Decision { endpoint, reason: Arc::clone(reason) })
        }
        None => Err(why_none(model, &context)),
    }
}

/// Tells the reasons apart for which no candidate is left.
fn why_none(model: &Model, context: &Context<'_>) -> NoEndpoint {
    if model.endpoints.is_empty() {
        return NoEndpoint::Unserved;
    }
    let (mut draining, mut resting) = (false, false);
    let (mut retry_at, mut all_busy) = (Nanos::MAX, true);
    for slot in model.slots.iter().filter(|slot| !context.request.exclude.contains(slot)) {
        let until = match context.loads.health(*slot, context.now) {
            Health::Draining => {
                draining = true;
                continue;
            }
            // Its cooldown was ended by another shard since the filters looked.
            Health::Ready => context.now,
            Health::Busy { until } => until,
            Health::Failed { until } => {
                all_busy = false;
                until
            }
        };
        resting = true;
        retry_at = retry_at.min(until);
    }
    match (resting, draining) {
        (true, _) => NoEndpoint::Unavailable { retry_at, busy: all_busy },
        (false, true) => NoEndpoint::Draining,
        (false, false) => NoEndpoint::AllExcluded,
    }
}
