//! Why a request would go where: the same decision, told step by step.
//!
//! **Invariant:** asking changes nothing: no count, cursor, random number or cooldown. The pick is [`decide`]'s own,
//! made on a copy of the shard's memory.

use super::pick::{affinity_terms, weight_of};
use super::{
    Candidate, Context, Filter, FilterKind, NoEndpoint, PickState, Picker, PickerKind, Request, Round,
    Scorer, decide,
};
use crate::Nanos;
use crate::load::LoadTable;
use crate::prefix::PREFIX_KEY_LEN;
use crate::snapshot::{Endpoint, Model, Snapshot};
use std::sync::Arc;

/// A prompt to explain a decision for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prompt<'a> {
    /// None: the empty prefix key.
    None,
    /// A chat of one user message.
    Chat(&'a str),
    /// A completion's prompt.
    Completion(&'a str),
}

impl Prompt<'_> {
    /// The prefix key of such a request.
    pub fn key(self) -> Vec<u8> {
        let mut key = match self {
            Prompt::None => Vec::new(),
            Prompt::Chat(text) => format!("user\n{text}\n").into_bytes(),
            Prompt::Completion(text) => text.as_bytes().to_vec(),
        };
        key.truncate(PREFIX_KEY_LEN);
        key
    }
}

/// How far a pick told from outside a shard is that of the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// It depends on the request and the loads alone.
    Certain,
    /// Each shard goes through its own sequence: told is the first of a fresh one.
    ShardMemory,
    /// Ties or candidates are drawn at random on each shard.
    Random,
}

impl Certainty {
    /// Of a picker.
    pub fn of(picker: PickerKind) -> Certainty {
        match picker {
            PickerKind::LeastOutstanding | PickerKind::Affinity { .. } => Certainty::Certain,
            PickerKind::Weighted | PickerKind::RoundRobin => Certainty::ShardMemory,
            PickerKind::P2c | PickerKind::MaxScore => Certainty::Random,
        }
    }

    /// Name in answers.
    pub fn name(self) -> &'static str {
        match self {
            Certainty::Certain => "certain",
            Certainty::ShardMemory => "shard_memory",
            Certainty::Random => "random",
        }
    }
}

/// What a scorer made of a candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// The scorer.
    pub scorer: &'static str,
    /// From 0 to 1.
    pub value: f64,
    /// What it is multiplied by.
    pub weight: f64,
}

/// An endpoint of the model and what was found.
#[derive(Debug, Clone)]
pub struct Considered {
    /// The endpoint.
    pub endpoint: Arc<Endpoint>,
    /// Requests that this gateway has in flight on it.
    pub inflight: u32,
    /// Reported queue depth.
    pub queue_depth: u32,
    /// Both.
    pub load: u32,
    /// What it counts for under `weighted`.
    pub weight: f64,
    /// Each filter and whether it keeps the endpoint.
    pub filters: Vec<(&'static str, bool)>,
    /// All of them keep it.
    pub candidate: bool,
    /// Its scores; empty unless it is a candidate and the picker looks at scores.
    pub scores: Vec<Score>,
    /// Their weighted sum.
    pub score: f64,
}

/// The terms of an affinity decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Affinity {
    /// The hash of the prefix key.
    pub hash: u64,
    /// The candidate that the key belongs to.
    pub owner: Option<Arc<str>>,
    /// The load that an endpoint must be below.
    pub capacity: u64,
}

/// A decision, told step by step.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The profile's name.
    pub profile: Arc<str>,
    /// The picker's name.
    pub picker: &'static str,
    /// How far the pick is that of the next request.
    pub certainty: Certainty,
    /// Every endpoint of the model, by id.
    pub endpoints: Vec<Considered>,
    /// For affinity, if there is a candidate.
    pub affinity: Option<Affinity>,
    /// The endpoint picked and the reason, as [`decide`] gives them.
    pub pick: Result<(Arc<str>, Arc<str>), NoEndpoint>,
}

/// The way of a public name to an endpoint.
#[derive(Debug, Clone)]
pub struct RouteExplanation {
    /// The route's public name, or the model's own.
    pub name: Arc<str>,
    /// A route table entry led there.
    pub routed: bool,
    /// The model drawn by the request's id.
    pub served_model: Arc<str>,
    /// The draw, from 0 to below 1.
    pub draw: f64,
    /// Priority toward engines.
    pub priority: i32,
    /// The choice among its endpoints.
    pub decision: Explanation,
}

/// What [`decide`] would do with the same arguments, and why.
pub fn explain(
    model: &Model,
    request: &Request<'_>,
    loads: &LoadTable,
    now: Nanos,
    state: &PickState,
) -> Explanation {
    let mut copy = state.clone();
    let mut view = Vec::new();
    let found = loads.gather(&model.slots, request.exclude, now, &mut view);
    let round = Round { model, request, table: loads, now, loads: &view, found };
    let picker = model.profile.picker;
    let affinity = match picker {
        PickerKind::Affinity { load_factor } if found.candidates > 0 => Some(told(&round, load_factor)),
        _ => None,
    };
    let decision = decide(model, request, loads, now, &mut copy);
    Explanation {
        profile: Arc::clone(&model.profile.name),
        picker: picker.name(),
        certainty: Certainty::of(picker),
        endpoints: considered(&round),
        affinity,
        pick: decision.map(|decision| (Arc::clone(&decision.endpoint.id), decision.reason)),
    }
}

/// The same for a public name, as a shard with a fresh memory would decide; `None` if the name leads nowhere.
pub fn explain_route(
    snapshot: &Snapshot,
    loads: &LoadTable,
    name: &str,
    prompt: Prompt<'_>,
    request_id: &str,
    now: Nanos,
) -> Option<RouteExplanation> {
    let found = snapshot.resolve(name, request_id)?;
    let key = prompt.key();
    let request = Request { request_id, prefix_key: &key, exclude: &[] };
    Some(RouteExplanation {
        name: Arc::clone(found.name),
        routed: snapshot.routes.get(name).is_some(),
        served_model: Arc::clone(&found.model.name),
        draw: crate::snapshot::draw(request_id),
        priority: found.priority,
        decision: explain(found.model, &request, loads, now, &PickState::new(0)),
    })
}

fn told(round: &Round<'_>, load_factor: f64) -> Affinity {
    let (hash, capacity) = affinity_terms(round, load_factor);
    let member = |node: u32| round.candidates().any(|(place, _)| place == node);
    let owner = round.model.ring.walk(hash, member, |_| true);
    Affinity { hash, owner: owner.map(|o| Arc::clone(&round.model.members[o.node as usize])), capacity }
}

fn considered(round: &Round<'_>) -> Vec<Considered> {
    let context = Context { request: round.request, loads: round.table, now: round.now };
    let scored = scores(round, &context);
    let one = |(place, endpoint): (u32, &Arc<Endpoint>)| {
        let slot = endpoint.slot.index();
        let filters: Vec<_> = FilterKind::ALL.iter().map(|f| (f.name(), f.keeps(&context, slot))).collect();
        let scores: Vec<Score> =
            scored.iter().filter(|(at, _)| *at == place).map(|(_, score)| *score).collect();
        Considered {
            endpoint: Arc::clone(endpoint),
            inflight: round.table.inflight(slot),
            queue_depth: round.table.queue_depth(slot),
            load: round.table.load(slot),
            weight: weight_of(round.table.kv_blocks(slot), endpoint.weight),
            candidate: filters.iter().all(|(_, keeps)| *keeps),
            filters,
            score: scores.iter().map(|score| score.value * score.weight).sum(),
            scores,
        }
    };
    (0u32..).zip(&round.model.endpoints).map(one).collect()
}

/// Each scorer's value of each candidate, by place.
fn scores(round: &Round<'_>, context: &Context<'_>) -> Vec<(u32, Score)> {
    let mut all = Vec::new();
    if !round.model.profile.picker.uses_scores() {
        return all;
    }
    let mut plain = Vec::new();
    round.score(&mut plain);
    for (scorer, weight) in &round.model.profile.scorers {
        let mut candidates: Vec<Candidate> = plain.iter().map(|c| Candidate { score: 0.0, ..*c }).collect();
        scorer.add_scores(1.0, context, &mut candidates);
        let score =
            |c: Candidate| (c.place, Score { scorer: scorer.name(), value: c.score, weight: *weight });
        all.extend(candidates.into_iter().map(score));
    }
    all
}
