//! The fleet as operators see it.

use super::{Fleet, lock};
use llmgw_routing::load::{Health as Cooldown, LoadTable};
use llmgw_routing::snapshot::Role;
use serde::Serialize;

/// A worker or static endpoint. The first thirteen fields are the admin API's worker.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkerView {
    /// Its id; a static endpoint's is its configured id.
    pub worker_id: String,
    /// `unified`, `prefill` or `decode`.
    pub role: &'static str,
    /// Model it serves.
    pub model: String,
    /// `host:port` of its HTTP surface.
    pub http_address: String,
    /// `host:port` of its control service; empty if it has none.
    pub grpc_address: String,
    /// `host:port` of its KV service; empty if it has none.
    pub kv_address: String,
    /// Format of its KV blocks; 0 for static endpoints.
    pub kv_format: u32,
    /// Admitted and not yet running, as reported.
    pub queue_depth: u32,
    /// Running, as reported; 0 for static endpoints.
    pub running: u32,
    /// Free KV blocks, as reported.
    pub kv_free_blocks: u32,
    /// All KV blocks, as reported.
    pub kv_total_blocks: u32,
    /// It said that it drains.
    pub draining: bool,
    /// Arrival of its last heartbeat; none for static endpoints.
    pub last_heartbeat_unix_ms: Option<u64>,
    /// How it came to be known.
    pub source: Origin,
    /// Its pool.
    pub pool: String,
    /// Requests that this gateway has in flight on it.
    pub in_flight: u32,
    /// Whether traffic goes to it.
    pub health: Health,
    /// New work may go to it: it is neither draining, nor is its model, nor is it in cooldown.
    pub routable: bool,
}

/// How a worker came to be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// From the configuration.
    Static,
    /// It announced itself.
    Registered,
}

/// A worker's cooldown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// None.
    Ready,
    /// It asked to be left alone for a while.
    Busy,
    /// It could not be reached or broke a connection.
    Failed,
}

/// The protocol's name of a role.
fn role_name(role: Role) -> &'static str {
    match role {
        Role::Unified => "unified",
        Role::Prefill => "prefill",
        Role::Decode => "decode",
    }
}

impl Fleet {
    /// Static endpoints in the order of the configuration, then registered workers by id.
    pub fn workers(&self) -> Vec<WorkerView> {
        // Both are looked at under one lock, so that they fit each other.
        let state = lock(&self.state);
        let members = lock(&self.members);
        let snapshot = self.plane.snapshot();
        let (loads, now) = (self.plane.loads(), (self.clock)());
        let health = |slot: u32| cooldown(loads, slot, now);
        let mut views = Vec::with_capacity(snapshot.endpoints.len());
        for (config, endpoint) in state.config.endpoints.iter().zip(&snapshot.endpoints) {
            let slot = endpoint.slot.index();
            let drained = members.drained.contains_key(&config.model);
            views.push(WorkerView {
                worker_id: endpoint.id.to_string(),
                role: role_name(endpoint.role),
                model: endpoint.served_model.to_string(),
                http_address: config.url.authority(),
                grpc_address: config.grpc_address.clone().unwrap_or_default(),
                kv_address: config.kv_address.clone().unwrap_or_default(),
                kv_format: 0,
                queue_depth: loads.queue_depth(slot),
                running: 0,
                kv_free_blocks: 0,
                kv_total_blocks: 0,
                draining: false,
                last_heartbeat_unix_ms: None,
                source: Origin::Static,
                pool: endpoint.pool.to_string(),
                in_flight: loads.inflight(slot),
                health: health(slot),
                routable: !drained && health(slot) == Health::Ready,
            });
        }
        for member in members.sorted() {
            let (status, slot) = (&member.status, member.slot.as_ref().map(|slot| slot.index()));
            let health = slot.map_or(Health::Ready, health);
            let drained = members.drained.contains_key(&*member.spec.model);
            let unsigned = |number: i32| u32::try_from(number).unwrap_or(0);
            views.push(WorkerView {
                worker_id: member.spec.id.to_string(),
                role: role_name(member.spec.role),
                model: member.spec.model.to_string(),
                http_address: status.http_address.clone(),
                grpc_address: status.grpc_address.clone(),
                kv_address: status.kv_address.clone(),
                kv_format: status.kv_format,
                queue_depth: unsigned(status.queue_depth),
                running: unsigned(status.running),
                kv_free_blocks: unsigned(status.kv_free_blocks),
                kv_total_blocks: unsigned(status.kv_total_blocks),
                draining: status.draining,
                last_heartbeat_unix_ms: Some(member.last_unix_ms),
                source: Origin::Registered,
                pool: crate::publisher::WORKER_POOL.to_owned(),
                in_flight: slot.map_or(0, |slot| loads.inflight(slot)),
                health,
                routable: slot.is_some() && !status.draining && !drained && health == Health::Ready,
            });
        }
        views
    }
}

fn cooldown(loads: &LoadTable, slot: u32, now: llmgw_routing::Nanos) -> Health {
    match loads.health(slot, now) {
        // That it drains is said elsewhere.
        Cooldown::Ready | Cooldown::Draining => Health::Ready,
        Cooldown::Busy { .. } => Health::Busy,
        Cooldown::Failed { .. } => Health::Failed,
    }
}
