//! Taking one of the candidates, and the shard's memory between decisions.

use super::{Candidate, Round};
use crate::load::OUT;
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
    fn pick(&self, round: &Round<'_>, state: &mut PickState) -> Option<Picked>;
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

    fn pick(&self, round: &Round<'_>, state: &mut PickState) -> Option<Picked> {
        let place = match self {
            PickerKind::P2c | PickerKind::MaxScore => {
                let mut candidates = std::mem::take(&mut state.candidates);
                round.score(&mut candidates);
                let place = match self {
                    PickerKind::P2c => p2c(&candidates, &mut state.rng),
                    _ => max_score(&candidates, &mut state.rng),
                };
                state.candidates = candidates;
                place
            }
            PickerKind::RoundRobin => round_robin(round, state.memory(round.model)),
            PickerKind::LeastOutstanding => least_outstanding(round.loads),
            PickerKind::Weighted => weighted(round, state.memory(round.model)),
            PickerKind::Affinity { load_factor } => return affinity(round, *load_factor),
        };
        place.map(|place| Picked { place, overflow: false })
    }
}

/// The first of the smallest; the loop has no branch that depends on the loads.
fn least_outstanding(loads: &[u32]) -> Option<u32> {
    let (mut least, mut at) = (OUT, 0);
    for (place, load) in (0u32..).zip(loads) {
        let better = *load < least;
        least = if better { *load } else { least };
        at = if better { place } else { at };
    }
    (least != OUT).then_some(at)
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

fn round_robin(round: &Round<'_>, memory: &mut Memory) -> Option<u32> {
    let next =
        round.candidates().find(|(place, _)| *place >= memory.next).or_else(|| round.candidates().next());
    let (place, _) = next?;
    memory.next = place + 1;
    Some(place)
}

/// What an endpoint counts for in smooth weighted round robin: its reported KV blocks, else its configured weight.
pub(super) fn weight_of(kv_blocks: u32, configured: f64) -> f64 {
    match kv_blocks {
        0 if configured.is_finite() => configured.max(0.0),
        0 => 0.0,
        blocks => f64::from(blocks),
    }
}

/// Adds each candidate's weight to its counter, takes the largest (ties to the smallest id), and subtracts the total
/// from it. An endpoint of weight 0 is taken only while no other can be.
fn weighted(round: &Round<'_>, memory: &mut Memory) -> Option<u32> {
    let model = round.model;
    let weight = |place: u32| {
        let place = place as usize;
        weight_of(round.table.kv_blocks(model.slots[place]), model.weights[place])
    };
    memory.advance(round, weight).or_else(|| memory.advance(round, |_| 1.0))
}

fn affinity(round: &Round<'_>, load_factor: f64) -> Option<Picked> {
    let (first, _) = round.candidates().next()?;
    let (owner, bound) = affinity_terms(round, load_factor);
    let load = |node: u32| round.loads.get(node as usize).copied().unwrap_or(OUT);
    let placed = round.model.ring.walk(owner, |node| load(node) != OUT, |node| u64::from(load(node)) < bound);
    // A ring built from other endpoints than these would find none: then any candidate will do.
    Some(placed.map_or(Picked { place: first, overflow: true }, |placed| Picked {
        place: placed.node,
        overflow: !placed.owner,
    }))
}

/// Where on the ring the request's key stands, and the load that an endpoint must be below.
pub(super) fn affinity_terms(round: &Round<'_>, load_factor: f64) -> (u64, u64) {
    let bound = capacity(load_factor, round.found.total, round.found.candidates as usize);
    (hash64(round.request.prefix_key), bound)
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

/// What a shard remembers of a model between decisions, by place among its members.
#[derive(Debug, Clone)]
struct Memory {
    /// The members that places refer to.
    members: Arc<[Arc<str>]>,
    /// Round robin: the place after the one taken last.
    next: u32,
    /// Weighted: a counter for each member.
    counters: Vec<f64>,
}

impl Memory {
    fn new() -> Memory {
        Memory { members: Arc::new([]), next: 0, counters: Vec::new() }
    }

    /// Follows a change of the membership: by id, so that those who stay keep what they have.
    fn align(&mut self, members: &Arc<[Arc<str>]>) {
        if Arc::ptr_eq(&self.members, members) {
            return;
        }
        let last = (self.next as usize).checked_sub(1).and_then(|place| self.members.get(place));
        let next = last.map_or(0, |last| members.partition_point(|id| id <= last));
        self.next = u32::try_from(next).unwrap_or(0);
        let old =
            |id: &Arc<str>| self.members.binary_search(id).ok().and_then(|place| self.counters.get(place));
        self.counters = members.iter().map(|id| old(id).copied().unwrap_or(0.0)).collect();
        self.members = Arc::clone(members);
    }

    /// One step of smooth weighted round robin; `None`, with nothing changed, if no candidate has weight.
    fn advance(&mut self, round: &Round<'_>, weight: impl Fn(u32) -> f64) -> Option<u32> {
        let mut total = 0.0;
        let mut best: Option<(u32, f64)> = None;
        for (place, _) in round.candidates() {
            let weight = weight(place);
            if weight > 0.0 {
                let counter = &mut self.counters[place as usize];
                *counter += weight;
                total += weight;
                if best.is_none_or(|(_, most)| *counter > most) {
                    best = Some((place, *counter));
                }
            }
        }
        let (place, _) = best?;
        self.counters[place as usize] -= total;
        Some(place)
    }
}

/// A shard's own state of choosing: random numbers, cursors, counters and scratch space. Never shared.
#[derive(Debug, Clone)]
pub struct PickState {
    rng: Rng,
    /// By model name.
    models: HashMap<Arc<str>, Memory>,
    /// Scratch: scored candidates of the decision under way.
    candidates: Vec<Candidate>,
    /// Scratch: loads by place among the model's endpoints.
    pub(super) view: Vec<u32>,
}

impl PickState {
    /// A state whose random choices follow from `seed`; give each shard its own.
    pub fn new(seed: u64) -> Self {
        PickState {
            rng: Rng(mix64(seed ^ 0x9e37_79b9_7f4a_7c15)),
            models: HashMap::new(),
            candidates: Vec::new(),
            view: Vec::new(),
        }
    }

    fn memory(&mut self, model: &Model) -> &mut Memory {
        if self.models.len() >= MODELS_MAX && !self.models.contains_key(&*model.name) {
            self.models.clear();
        }
        let memory = self.models.entry(Arc::clone(&model.name)).or_insert_with(Memory::new);
        memory.align(&model.members);
        memory
    }
}
