//! What goes over the wire of the admin API, as types: the OpenAPI document is made of these.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A route: what serves a public model name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The public name.
    #[schema(min_length = 1, max_length = 256, pattern = "^[!-~]([ -~]*[!-~])?$")]
    pub model: String,
    /// Other public names of it.
    #[serde(default)]
    #[schema(max_items = 1000)]
    pub aliases: Vec<String>,
    /// Kinds of serving, in order of preference.
    #[serde(default = "unified")]
    #[schema(required = false)]
    pub targets: Vec<Target>,
    /// Served models and their shares, which sum to 1; empty: the model serves itself.
    #[serde(default)]
    pub backends: Vec<Backend>,
    /// Steps of a cascade, at least 2; empty: no cascade.
    #[serde(default)]
    pub cascade: Vec<Step>,
    /// Priority toward engines; none: the router's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
}

pub(super) fn unified() -> Vec<Target> {
    vec![Target::Unified]
}

/// How a model is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Target {
    Unified,
    Disaggregated,
}

/// A share of a route's requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Backend {
    /// The model that engines serve.
    #[schema(min_length = 1, max_length = 256, pattern = "^[!-~]([ -~]*[!-~])?$")]
    pub served_model: String,
    /// Its share.
    #[schema(minimum = 0, maximum = 1)]
    pub weight: f64,
}

/// A step of a cascade.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The model asked.
    #[schema(min_length = 1, max_length = 256, pattern = "^[!-~]([ -~]*[!-~])?$")]
    pub model: String,
    /// When its answer is kept; every step but the last has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "mean_logprob > -1.2")]
    pub accept_if: Option<String>,
}

/// Body of `PUT routes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutRoutes {
    /// The whole table.
    pub routes: Vec<Route>,
    /// Ignored, so that what GET answered can be sent back as it is; `If-Match` decides.
    #[serde(default, skip_serializing)]
    #[schema(required = false, minimum = 0)]
    pub route_epoch: Option<u64>,
    /// Ignored likewise.
    #[serde(default, skip_serializing)]
    #[schema(required = false)]
    pub source: Option<Source>,
}

/// The route table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Routes {
    /// The whole table.
    pub routes: Vec<Route>,
    /// Raised by every change of the table.
    pub route_epoch: u64,
    /// Where the table is from: `config`, or `api` once one was set here.
    pub source: Source,
}

/// Where a route table is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Source {
    Config,
    Api,
}

/// The engines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Workers {
    /// Endpoints of the configuration in its order, then live workers by id.
    pub data: Vec<Worker>,
    /// Epoch of the route table.
    pub route_epoch: u64,
}

/// An engine: a worker as its last heartbeat described it, or an endpoint of the configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// Its id; an endpoint's is that of the configuration.
    pub worker_id: String,
    /// `unified`, `prefill` or `decode`.
    pub role: String,
    /// The model it serves.
    pub model: String,
    /// `host:port` of its HTTP surface.
    pub http_address: String,
    /// `host:port` of its control service; empty if it has none.
    pub grpc_address: String,
    /// `host:port` of its KV service; empty if it has none.
    pub kv_address: String,
    /// Format of its KV blocks; 0 for endpoints.
    pub kv_format: u32,
    /// Requests admitted and not yet running, as it reported.
    pub queue_depth: u32,
    /// Sequences running, as it reported.
    pub running: u32,
    /// Free KV blocks, as it reported.
    pub kv_free_blocks: u32,
    /// All its KV blocks, as it reported.
    pub kv_total_blocks: u32,
    /// It said that it drains.
    pub draining: bool,
    /// Arrival of its last heartbeat; null for endpoints, which send none.
    #[schema(required)]
    pub last_heartbeat_unix_ms: Option<u64>,
    /// `registered`, or `static` for an endpoint of the configuration.
    pub source: String,
    /// Its pool.
    pub pool: String,
    /// Requests of this gateway in flight on it.
    pub in_flight: u32,
    /// `ready`, `busy` or `failed`.
    pub health: String,
    /// New work may go to it.
    pub routable: bool,
}

/// Body of `POST models/{model}:drain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Seconds that requests in flight may still take.
    #[schema(minimum = 0, maximum = 3600)]
    pub deadline_s: u64,
}

/// A drain that began, or was taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Drained {
    /// The model.
    pub model: String,
    /// How many engines serve it: workers, and endpoints of the configuration.
    pub workers: usize,
}

/// A configuration that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reloaded {
    /// Number of the snapshot that holds it.
    pub version: u64,
}

/// The effective configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConfigView {
    /// Every key with its value; secrets are `***`.
    #[schema(value_type = Object)]
    pub config: serde_json::Value,
    /// Where values that are not defaults came from, by key: a place in the file, or a variable of the environment.
    pub origins: std::collections::BTreeMap<String, String>,
}

/// How the process is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of llmgw.
    pub version: String,
    /// Whether `/readyz` would say so.
    pub ready: bool,
    /// Why not.
    pub not_ready: Option<String>,
    /// It takes no new work: the process is about to end.
    pub draining: bool,
    /// Threads that serve.
    pub shards: usize,
    /// Number of the published snapshot.
    pub snapshot_version: u64,
    /// Epoch of the route table.
    pub route_epoch: u64,
    /// Where the route table is from.
    pub route_source: Source,
    /// Routes in it.
    pub routes: usize,
    /// Models that clients may name.
    pub models: usize,
    /// Engines known: of the configuration, and self-registered.
    pub endpoints: usize,
    /// Requests at engines now.
    pub in_flight: u64,
    /// Models being drained.
    pub drained: Vec<String>,
    /// Whether the last reload was taken, or none was asked for.
    pub last_reload_ok: bool,
    /// Unix time of the configuration in use, in seconds.
    pub configured_at: u64,
}

/// Where a request would go, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The model that the request names.
    pub model: String,
    /// Its id.
    pub request_id: String,
    /// The route that the name belongs to; null if the model is its own.
    #[schema(required)]
    pub route: Option<String>,
    /// The model drawn by the request's id.
    pub served_model: String,
    /// The draw, from 0 to below 1.
    pub draw: f64,
    /// Priority toward engines.
    pub priority: i32,
    /// Name of the profile or policy.
    pub profile: String,
    /// How one is picked.
    pub picker: String,
    /// `certain`; `shard_memory` where each shard goes through a sequence of its own; `random` where shards draw.
    pub certainty: String,
    /// Every endpoint of the served model.
    pub endpoints: Vec<Considered>,
    /// The terms of an affinity decision.
    #[schema(required)]
    pub affinity: Option<Affinity>,
    /// The endpoint picked.
    #[schema(required)]
    pub pick: Option<String>,
    /// Why that one.
    #[schema(required)]
    pub reason: Option<String>,
    /// Why none.
    #[schema(required)]
    pub no_pick: Option<String>,
}

/// An endpoint, and what was found of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Considered {
    /// Its id.
    pub worker_id: String,
    /// Requests of this gateway in flight on it.
    pub in_flight: u32,
    /// Its reported queue.
    pub queue_depth: u32,
    /// Both.
    pub load: u32,
    /// What it counts for under `weighted`.
    pub weight: f64,
    /// What each filter says.
    pub filters: Vec<Filtered>,
    /// All of them keep it.
    pub candidate: bool,
    /// What each scorer says; empty where the picker looks at no scores.
    pub scores: Vec<Scored>,
    /// Their weighted sum.
    pub score: f64,
}

/// A filter's verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Filtered {
    /// The filter.
    pub filter: String,
    /// It keeps the endpoint.
    pub kept: bool,
}

/// A scorer's verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Scored {
    /// The scorer.
    pub scorer: String,
    /// From 0 to 1.
    pub value: f64,
    /// What it is multiplied by.
    pub weight: f64,
}

/// The terms of an affinity decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Affinity {
    /// Hash of the prefix key, in hexadecimal.
    pub hash: String,
    /// The candidate that the key belongs to.
    #[schema(required)]
    pub owner: Option<String>,
    /// The load that an endpoint must be below.
    pub capacity: u64,
}
