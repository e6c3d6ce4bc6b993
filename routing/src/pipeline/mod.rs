//! Choosing an endpoint: filter, score, pick.
//!
//! Filters drop candidates by hard rules, scorers rate those that are left between 0 and 1, and a picker takes one. One
//! pass over packed counters applies the filters and reads the loads; pickers work on what it found, in scratch vectors
//! of the shard, so that a decision allocates nothing once it has seen its models.
//!
//! **Invariants:** an endpoint that a filter dropped is never picked. Loads are read once at the start of a decision,
//! so that a picker compares numbers that do not change under it. [`explain`] changes nothing.

mod explain;
mod filter;
mod pick;
mod profile;
mod score;

#[cfg(test)]
mod tests;

pub use explain::{
    Affinity, Certainty, Considered, Explanation, Prompt, RouteExplanation, Score, explain, explain_route,
};
pub use filter::{Filter, FilterKind};
pub use pick::{PickState, Picker, PickerKind};
pub use profile::{Profile, ProfileBuilder, ProfileError};
pub use score::{Scorer, ScorerKind};

use crate::Nanos;
use crate::load::{Gathered, Health, LoadTable, OUT};
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
    let mut view = std::mem::take(&mut state.view);
    let found = loads.gather(&model.slots, request.exclude, now, &mut view);
    let round = Round { model, request, table: loads, now, loads: &view, found };
    let picked = if found.candidates == 0 { None } else { model.profile.picker.pick(&round, state) };
    state.view = view;
    match picked {
        Some(picked) => {
            let profile = &model.profile;
            let reason = if picked.overflow { &profile.overflow_reason } else { &profile.name };
            let endpoint = Arc::clone(&model.endpoints[picked.place as usize]);
            Ok(Decision { endpoint, reason: Arc::clone(reason) })
        }
        None => Err(why_none(model, &Context { request, loads, now })),
    }
}

/// What a picker chooses from.
#[derive(Debug, Clone, Copy)]
pub struct Round<'a> {
    /// Whose endpoints.
    pub model: &'a Model,
    /// The request.
    pub request: &'a Request<'a>,
    /// Live counters, for what was not gathered.
    pub table: &'a LoadTable,
    /// The time.
    pub now: Nanos,
    /// Load by place among the model's endpoints; [`OUT`] for those that a filter dropped.
    pub loads: &'a [u32],
    /// Sums over the candidates.
    pub found: Gathered,
}

impl Round<'_> {
    /// Places of the candidates with their loads, in order.
    fn candidates(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0u32..).zip(self.loads.iter().copied()).filter(|(_, load)| *load != OUT)
    }

    /// The candidates as scorers take them, scored by the model's profile, in `out`.
    fn score(&self, out: &mut Vec<Candidate>) {
        out.clear();
        out.extend(self.candidates().map(|(place, load)| {
            let slot = self.model.slots[place as usize];
            Candidate { place, slot, inflight: self.table.inflight(slot), load, score: 0.0 }
        }));
        let context = Context { request: self.request, loads: self.table, now: self.now };
        for (scorer, weight) in &self.model.profile.scorers {
            scorer.add_scores(*weight, &context, out);
        }
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
