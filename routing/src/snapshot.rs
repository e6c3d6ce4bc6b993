//! What the control plane publishes and the shards read: models, pools, endpoints and settings, immutable once built.
//!
//! Where a name leads is [`Snapshot::resolve`]: a route's name or alias, drawn to one of its backends by the request's
//! id; else the model of that name.
//!
//! **Invariant:** a snapshot never holds state that a request changes. In-flight counts, cooldowns and picker cursors
//! live in [`crate::load::LoadTable`] and outlive snapshots; an endpoint refers to them by its [`Slot`].

use crate::Nanos;
use crate::load::Slot;
use crate::pipeline::Profile;
use crate::ring::{Ring, VNODES};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

mod routes;

pub use routes::{
    AcceptIf, BackendSpec, Comparison, LIST_MAX, Metric, NAME_MAX, ROUTES_MAX, Route, RouteProblem,
    RouteSpec, RouteTable, StepSpec, draw, validate,
};

/// Everything a shard needs to serve, swapped as a whole.
#[derive(Debug)]
pub struct Snapshot {
    /// Grows by one with each publication; the first is 1.
    pub version: u64,
    /// Known models, served or not, by the id that engines answer to.
    pub models: HashMap<Box<str>, Arc<Model>>,
    /// Routes by public name and alias. A model without one is its own route.
    pub routes: Arc<RouteTable>,
    /// What `GET /v1/models` lists, sorted by name: routes, aliases and models that are served.
    pub listed: Arc<[Listed]>,
    /// Every endpoint, in configuration order.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// Limits, timeouts and switches that a reload may change.
    pub settings: Arc<Settings>,
}

/// A line of `GET /v1/models`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Public name.
    pub name: Box<str>,
    /// Unix seconds at which it was first seen.
    pub created: u64,
}

/// Where a request for a public name goes.
#[derive(Debug, Clone, Copy)]
pub struct Resolved<'a> {
    /// The route's public name, or the model's own.
    pub name: &'a Arc<str>,
    /// The model that serves this request.
    pub model: &'a Arc<Model>,
    /// Priority toward engines.
    pub priority: i32,
}

impl Snapshot {
    /// A snapshot without routes, listing every model.
    pub fn new(
        version: u64,
        models: HashMap<Box<str>, Arc<Model>>,
        endpoints: Vec<Arc<Endpoint>>,
        settings: Arc<Settings>,
    ) -> Snapshot {
        let mut listed: Vec<Listed> = models
            .iter()
            .map(|(name, model)| Listed { name: name.clone(), created: model.created })
            .collect();
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Snapshot { version, models, routes: Arc::default(), listed: listed.into(), endpoints, settings }
    }

    /// Where a request goes; `None` if nothing ever named this model.
    pub fn resolve(&self, name: &str, request_id: &str) -> Option<Resolved<'_>> {
        let priority = self.settings.default_priority;
        match self.routes.get(name) {
            Some(route) => {
                let model = self.models.get(&**route.backend(request_id))?;
                Some(Resolved { name: &route.name, model, priority: route.priority.unwrap_or(priority) })
            }
            None => self.models.get(name).map(|model| Resolved { name: &model.name, model, priority }),
        }
    }

    /// The line of `GET /v1/models` of this name.
    pub fn listed(&self, name: &str) -> Option<&Listed> {
        let place = self.listed.binary_search_by(|listed| (*listed.name).cmp(name)).ok()?;
        self.listed.get(place)
    }
}

/// A model that engines serve.
#[derive(Debug)]
pub struct Model {
    /// The id that engines answer to.
    pub name: Arc<str>,
    /// Candidate endpoints, sorted by id. Empty: the model is known, and nothing serves it.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// Slots of the endpoints, in the same order: decisions read these and their counters, nothing else.
    pub slots: Box<[u32]>,
    /// Weights of the endpoints, in the same order.
    pub weights: Box<[f64]>,
    /// Ids of the endpoints, in the same order; the same list as long as the membership is.
    pub members: Arc<[Arc<str>]>,
    /// How an endpoint is chosen.
    pub profile: Arc<Profile>,
    /// Unix seconds at which the model was first seen, for `GET /v1/models`.
    pub created: u64,
    /// The ring of the endpoints' ids; its nodes are places in `endpoints`.
    pub ring: Arc<Ring>,
    /// An endpoint schedules by priority.
    pub any_priority: bool,
}

impl Model {
    /// A model of these endpoints, in any order. The ring of `previous` is kept if it has the same members.
    pub fn new(
        name: &str,
        mut endpoints: Vec<Arc<Endpoint>>,
        profile: Arc<Profile>,
        created: u64,
        previous: Option<&Model>,
    ) -> Model {
        endpoints.sort_by(|a, b| a.id.cmp(&b.id));
        let same_members = |old: &&Model| old.members.iter().eq(endpoints.iter().map(|e| &e.id));
        let (members, ring) = match previous.filter(same_members) {
            Some(old) => (Arc::clone(&old.members), Arc::clone(&old.ring)),
            None => {
                let members: Arc<[Arc<str>]> = endpoints.iter().map(|e| Arc::clone(&e.id)).collect();
                // Refused only for no virtual nodes.
                let ring = Arc::new(Ring::new(&members, VNODES).unwrap_or_default());
                (members, ring)
            }
        };
        let slots = endpoints.iter().map(|e| e.slot.index()).collect();
        let weights = endpoints.iter().map(|e| e.weight).collect();
        let any_priority = endpoints.iter().any(|e| e.priority_scheduling);
        Model { name: name.into(), endpoints, slots, weights, members, profile, created, ring, any_priority }
    }
}

/// One serving address of one model.
#[derive(Debug)]
pub struct Endpoint {
    /// The operator's name for it; unique.
    pub id: Arc<str>,
    /// Where its counters live. The slot is recycled when the last `Arc<Endpoint>` of an incarnation is dropped.
    pub slot: Slot,
    /// Model id the engine itself answers to.
    pub served_model: Arc<str>,
    /// Pool name.
    pub pool: Arc<str>,
    /// The (model, pool) metric series that this endpoint's requests count into, see [`Snapshot`]'s publisher.
    pub series: u32,
    /// Address to connect to.
    pub address: SocketAddr,
    /// `Host` header toward the engine: `host:port`.
    pub authority: Box<str>,
    /// Path before `/v1/...` in the endpoint's URL, without a trailing slash; mostly empty.
    pub base_path: Box<str>,
    /// Engine family.
    pub engine: Engine,
    /// Relative weight for the `weighted` picker where the engine reports no capacity; 0 is legal.
    pub weight: f64,
    /// Serving role.
    pub role: Role,
    /// The engine schedules by the body's `priority`, as vLLM with `--scheduling-policy priority` does.
    pub priority_scheduling: bool,
    /// It announced itself and sends heartbeats.
    pub announced: bool,
}

/// Engine families; each has its own metric names, error shapes and surfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// llama.cpp's server.
    Llamacpp,
    /// `llmgw sim-engine`.
    Sim,
    /// Anything that speaks OpenAI's API.
    Openai,
}

/// Part that an engine plays in disaggregated serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Prefill and decode.
    Unified,
    /// Prefill only.
    Prefill,
    /// Decode only.
    Decode,
}

/// Limits, timeouts and switches of the request path. Durations in [`Nanos`], sizes in bytes; meanings as in
/// `docs/configuration.md`.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // each field is the configuration key of the same name
pub struct Settings {
    pub max_body: usize,
    pub max_header: usize,
    pub max_headers: usize,
    pub max_connections: usize,
    pub max_connections_per_client: u32,
    pub max_json_depth: u16,
    pub buffered_total: usize,
    /// `true`: a client's FIN after its request aborts it.
    pub half_close_abort: bool,
    pub busy_poll: Nanos,
    pub timeout_header: Nanos,
    pub timeout_idle: Nanos,
    pub timeout_body_idle: Nanos,
    pub timeout_connect: Nanos,
    pub timeout_first_token: Nanos,
    pub timeout_between_tokens: Nanos,
    pub timeout_total: Nanos,
    pub timeout_upstream_idle: Nanos,
    pub timeout_shutdown: Nanos,
    /// Endpoints tried beyond the first.
    pub retries: u8,
    /// Share of requests that may be retries after 503 or 429.
    pub retry_budget: f64,
    pub cooldown: Nanos,
    pub inject_usage: bool,
    pub keep_alive_comment: Nanos,
    /// Priority toward engines where a route names none.
    pub default_priority: i32,
    /// Headers that name internal topology go to every client (keys are off and every listener is loopback).
    pub debug_headers: bool,
    pub cors: Cors,
}

/// Cross-origin answers for browsers.
#[derive(Debug, Clone, Default)]
pub struct Cors {
    /// Allowed origins; `*` allows all; empty turns CORS off.
    pub allow_origins: Vec<Box<str>>,
    /// `Access-Control-Max-Age` in seconds.
    pub max_age_s: u32,
}

impl Default for Settings {
    /// The documented defaults.
    fn default() -> Self {
        use crate::SECOND;
        Settings {
            max_body: 32 << 20,
            max_header: 32 << 10,
            max_headers: 100,
            max_connections: 65536,
            max_connections_per_client: 4096,
            max_json_depth: 64,
            buffered_total: 1 << 30,
            half_close_abort: true,
            busy_poll: 0,
            timeout_header: 10 * SECOND,
            timeout_idle: 75 * SECOND,
            timeout_body_idle: 30 * SECOND,
            timeout_connect: 2 * SECOND,
            timeout_first_token: 300 * SECOND,
            timeout_between_tokens: 120 * SECOND,
            timeout_total: 3600 * SECOND,
            timeout_upstream_idle: 4 * SECOND,
            timeout_shutdown: 30 * SECOND,
            retries: 2,
            retry_budget: 0.2,
            cooldown: 15 * SECOND,
            inject_usage: true,
            keep_alive_comment: 15 * SECOND,
            default_priority: 0,
            debug_headers: false,
            cors: Cors { allow_origins: vec!["*".into()], max_age_s: 600 },
        }
    }
}
