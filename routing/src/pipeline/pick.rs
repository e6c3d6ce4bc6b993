//! Taking one of the candidates, and the shard's memory between decisions.

use super::{Candidate, Context};
use crate::ring::{capacity, hash64, mix64};
use crate::snapshot::Model;
use std::collections::HashMap;
use std::sync::Arc;

/// Models whose cursors a shard remembers. At the bound all are forgotten and sequences start anew.
const MODELS_MAX: usize = 4096;

/// What a picker chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Picked {
    /// Place among the model's endpoints.
    pub place: u32,
    /// Bounded loads moved the request off its owner.
    pub overflow: bool,
}

/// Takes one of the candidates.
pub trait Picker {
    /// Name in configuration and explanations.
    fn name(&self) -> &'static str;
    /// Whether it looks at scores.
    fn uses_scores(&self) -> bool;
    /// `None` only if there is no candidate.
    fn pick(
        &self,
        model: &Model,
        context: &Context<'_>,
        candidates: &[Candidate],
        state: &mut PickState,
    ) -> Option<Picked>;
}

/// The pickers there are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PickerKind {
    /// The better of two random candidates.
    P2c,
    /// The best score; a random one of those that share it, so that shards do not herd.
    MaxScore,
    /// In order of ids, an exact sequence on each shard.
    RoundRobin,
    /// The smallest load, ties to the smallest id.
    LeastOutstanding,
    /// Smooth weighted round robin by the endpoints' weights, an exact sequence on each shard.
    Weighted,
    /// The owner of the prefix key, unless it has its share: then the next one on the ring that has not.
    Affinity {
        /// How far above the mean an endpoint's load may go; below 1 counts as 1.
        load_factor: f64,
    },
}

impl PickerKind {
    /// Names that a profile in the configuration may use.
    pub const CONFIGURABLE: [&'static str; 3] = ["p2c", "max-score", "round-robin"];

    /// By its name in configuration.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "p2c" => Some(PickerKind::P2c),
            "max-score" => Some(PickerKind::MaxScore),
            "round-robin" => Some(PickerKind::RoundRobin),
            _ => None,
        }
    }
}

impl Picker for PickerKind {
    fn name(&self) -> &'static str {
        match self {
            PickerKind::P2c => "p2c",
            PickerKind::MaxScore => "max-score",
            PickerKind::RoundRobin => "round-robin",
            PickerKind::LeastOutstanding => "least_outstanding",
            PickerKind::Weighted => "weighted",
            PickerKind::Affinity { .. } => "affinity",
        }
    }

    fn uses_scores(&self) -> bool {
        matches!(self, PickerKind::P2c | PickerKind::MaxScore)
    }

    fn pick(
        &self,
        model: &Model,
        context: &Context<'_>,
        candidates: &[Candidate],
        state: &mut PickState,
    ) -> Option<Picked> {
        let place = match self {
            PickerKind::P2c => p2c(candidates, &mut state.rng),
            PickerKind::MaxScore => max_score(candidates, &mut state.rng),
            PickerKind::RoundRobin => round_robin(model, candidates, state),
            PickerKind::LeastOutstanding => candidates.iter().min_by_key(|c| c.load).map(|c| c.place),
            PickerKind::Weighted => weighted(model, candidates, state),
            PickerKind::Affinity { load_factor } => {
                return affinity(
                    model,
                    context.request.prefix_key,
                    *load_factor,
                    candidates,
                    &mut state.spread,
                );
            }
        };
        place.map(|place| Picked { place, overflow: false })
    }
}

fn p2c(candidates: &[Candidate], rng: &mut Rng) -> Option<u32> {
    let (first, second) = match candidates {
        [] => return None,
        [only] => (only, only),
        _ => {
            let a = rng.below(candidates.len());
            let b = rng.below(candidates.len() - 1);
            (&candidates[a], &candidates[if b >= a { b + 1 } else { b }])
        }
    };
    Some(if second.score > first.score { second.place } else { first.place })
}

fn max_score(candidates: &[Candidate], rng: &mut Rng) -> Option<u32> {
    let (mut best, mut ties) = (candidates.first()?, 1);
    for candidate in &candidates[1..] {
        if candidate.score > best.score {
            (best, ties) = (candidate, 1);
        } else if candidate.score == best.score {
            ties += 1;
            // Each of k equals ends up chosen with probability 1/k.
            if rng.below(ties) == 0 {
                best = candidate;
            }
        }
    }
    Some(best.place)
}

fn round_robin(model: &Model, candidates: &[Candidate], state: &mut PickState) -> Option<u32> {
    let memory = state.memory(model);
    let id = |place: u32| &model.endpoints[place as usize].id;
    let next = match &memory.last {
        Some(last) => candidates.iter().find(|c| id(c.place) > last).or(candidates.first()),
        None => candidates.first(),
    };
    let place = next?.place;
    memory.last = Some(Arc::clone(id(place)));
    Some(place)
}

/// Adds each candidate's weight to its counter, takes the largest (ties to the smallest id), and subtracts the total
/// from it. An endpoint of weight 0 is taken only while no other can be.
fn weighted(model: &Model, candidates: &[Candidate], state: &mut PickState) -> Option<u32> {
    let weight = |place: u32| {
        let weight = model.endpoints[place as usize].weight;
        if weight.is_finite() { weight.max(0.0) } else { 0.0 }
    };
    let memory = state.memory(model);
    memory.align(model);
    let total: f64 = candidates.iter().map(|c| weight(c.place)).sum();
    let (total, idle) = if total > 0.0 { (total, false) } else { (candidates.len() as f64, true) };
    let mut best: Option<(u32, f64)> = None;
    for candidate in candidates {
        let weight = if idle { 1.0 } else { weight(candidate.place) };
        if weight > 0.0 {
            let counter = &mut memory.counters[candidate.place as usize].1;
            *counter += weight;
            if best.is_none_or(|(_, most)| *counter > most) {
                best = Some((candidate.place, *counter));
            }
        }
    }
    let (place, _) = best?;
    memory.counters[place as usize].1 -= total;
    Some(place)
}

fn affinity(
    model: &Model,
    key: &[u8],
    load_factor: f64,
    candidates: &[Candidate],
    spread: &mut Vec<u32>,
) -> Option<Picked> {
    /// Load of an endpoint that is no candidate.
    const OUT: u32 = u32::MAX;
    let first = candidates.first()?;
    spread.clear();
    spread.resize(model.endpoints.len(), OUT);
    let mut total = 0u64;
    for candidate in candidates {
        spread[candidate.place as usize] = candidate.load.min(OUT - 1);
        total += u64::from(candidate.load);
    }
    let bound = capacity(load_factor, total, candidates.len());
    let load = |node: u32| spread.get(node as usize).copied().unwrap_or(OUT);
    let placed = model.ring.walk(hash64(key), |node| load(node) != OUT, |node| u64::from(load(node)) < bound);
    // A ring built from other endpoints than these would find none: then any candidate will do.
    Some(placed.map_or(Picked { place: first.place, overflow: true }, |placed| Picked {
        place: placed.node,
        overflow: !placed.owner,
    }))
}

/// A small, fast generator (SplitMix64). Decisions need spread, not secrecy.
#[derive(Debug, Clone)]
pub(super) struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0)
    }

    /// Uniform below `n`, which must not be 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        let wide = u128::from(self.next()) * n as u128;
        #[allow(clippy::cast_possible_truncation)] // below n
        let value = (wide >> 64) as usize;
        value
    }
}

/// What a shard remembers of a model between decisions.
#[derive(Debug, Default)]
struct Memory {
    /// Round robin: the id taken last.
    last: Option<Arc<str>>,
    /// Weighted: a counter for each endpoint, in the model's order.
    counters: Vec<(Arc<str>, f64)>,
}

impl Memory {
    /// Brings the counters into the model's order, keeping those of endpoints that are still there.
    fn align(&mut self, model: &Model) {
        let aligned = self.counters.len() == model.endpoints.len()
            && self.counters.iter().zip(&model.endpoints).all(|((id, _), e)| Arc::ptr_eq(id, &e.id));
        if aligned {
            return;
        }
        let old: HashMap<Arc<str>, f64> = self.counters.drain(..).collect();
        let counter = |id: &Arc<str>| old.get(id).copied().unwrap_or(0.0);
        self.counters = model.endpoints.iter().map(|e| (Arc::clone(&e.id), counter(&e.id))).collect();
    }
}

/// A shard's own state of choosing: random numbers, cursors, counters and scratch space. Never shared.
#[derive(Debug)]
pub struct PickState {
    rng: Rng,
    /// By model name.
    models: HashMap<Arc<str>, Memory>,
    /// Scratch: candidates of the decision under way.
    pub(super) candidates: Vec<Candidate>,
    /// Scratch: loads by place among the model's endpoints.
    spread: Vec<u32>,
}

impl PickState {
    /// A state whose random choices follow from `seed`; give each shard its own.
    pub fn new(seed: u64) -> Self {
        PickState {
            rng: Rng(mix64(seed ^ 0x9e37_79b9_7f4a_7c15)),
            models: HashMap::new(),
            candidates: Vec::new(),
            spread: Vec::new(),
        }
    }

    fn memory(&mut self, model: &Model) -> &mut Memory {
        if self.models.len() >= MODELS_MAX && !self.models.contains_key(&*model.name) {
            self.models.clear();
        }
        self.models.entry(Arc::clone(&model.name)).or_default()
    }
}
