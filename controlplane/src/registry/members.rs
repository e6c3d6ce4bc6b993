//! The table of registered workers.

use super::status::{Identity, Status};
use super::{Ack, HeartbeatError, InvalidStatus, MODELS_MAX, WORKERS_MAX};
use crate::config::split_authority;
use llmgw_routing::Nanos;
use llmgw_routing::load::{LoadTable, Slot};
use llmgw_routing::snapshot::Role;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// What the snapshot needs to know of a worker. It is replaced when something in it changes.
#[derive(Debug)]
pub struct WorkerSpec {
    /// Its id.
    pub id: Arc<str>,
    /// Another number is another engine, though the id is the same: nothing known of the last one holds.
    pub incarnation: u64,
    /// Model it serves.
    pub model: Arc<str>,
    /// Its role.
    pub role: Role,
    /// `host:port`, as reported.
    pub http_address: Box<str>,
    /// Where that is.
    pub address: SocketAddr,
}

/// A registered worker.
#[derive(Debug)]
pub struct Member {
    /// The published part.
    pub spec: Arc<WorkerSpec>,
    /// Latest status.
    pub status: Status,
    /// Arrival of the latest status.
    pub last: Nanos,
    /// The same as Unix milliseconds, for people.
    pub last_unix_ms: u64,
    /// Its counters, once it has been published.
    pub slot: Option<Slot>,
}

/// A drain asked for by an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drain {
    /// When requests still running are cut; `None`: never.
    pub deadline: Option<Nanos>,
}

/// Every registered worker, and what decides about them.
#[derive(Debug, Default)]
pub struct Members {
    workers: HashMap<Arc<str>, Member>,
    /// Models that workers have named since the process started.
    models: HashSet<Arc<str>>,
    /// Models being drained.
    pub drained: BTreeMap<String, Drain>,
    /// Ids of static endpoints: no worker may take one.
    pub reserved: HashSet<String>,
    /// Time without a heartbeat after which a worker is gone.
    pub lifetime: Nanos,
    /// Something changed that is not published yet.
    pub dirty: bool,
    incarnations: u64,
}

impl Members {
    /// Takes a heartbeat. `address` is that of a host name, where it was looked up.
    pub fn beat(
        &mut self,
        status: &Status,
        address: Option<SocketAddr>,
        (now, unix_ms): (Nanos, u64),
        epoch: u64,
        loads: &LoadTable,
    ) -> Result<Ack, HeartbeatError> {
        status.check_numbers().map_err(HeartbeatError::Invalid)?;
        let ack = Ack { drain: self.drained.contains_key(&status.model), route_epoch: epoch };
        let lifetime = self.lifetime;
        if let Some(member) = self.workers.get_mut(status.worker_id.as_str())
            && now.saturating_sub(member.last) < lifetime
            && member.same_place(status)
        {
            let draining = member.status.draining;
            member.take(status, now, unix_ms);
            if draining != status.draining {
                let what = if status.draining { "worker drains" } else { "worker takes work again" };
                tracing::info!(worker = %status.worker_id, "{what}");
            }
            member.report(loads);
            return Ok(ack);
        }
        let identity = status.check_identity().map_err(HeartbeatError::Invalid)?;
        if self.reserved.contains(&status.worker_id) {
            let reason = format!("`{}` is the id of an endpoint in the configuration", status.worker_id);
            return Err(HeartbeatError::Invalid(InvalidStatus { field: "worker_id", reason }));
        }
        let address = match (identity.host.parse::<IpAddr>(), address) {
            (Ok(ip), _) => SocketAddr::new(ip, identity.port),
            (Err(_), Some(address)) => address,
            (Err(_), None) => {
                return Err(HeartbeatError::Unresolved { host: identity.host, port: identity.port });
            }
        };
        self.join(status, &identity, address, now, unix_ms)?;
        Ok(ack)
    }

    fn join(
        &mut self,
        status: &Status,
        identity: &Identity,
        address: SocketAddr,
        now: Nanos,
        unix_ms: u64,
    ) -> Result<(), HeartbeatError> {
        let known = self.workers.get_key_value(status.worker_id.as_str()).map(|(id, _)| Arc::clone(id));
        if known.is_none() && self.workers.len() >= WORKERS_MAX as usize {
            return Err(HeartbeatError::TooManyWorkers);
        }
        let model = match self.models.get(status.model.as_str()) {
            Some(model) => Arc::clone(model),
            None if self.models.len() >= MODELS_MAX => return Err(HeartbeatError::TooManyModels),
            None => {
                let model: Arc<str> = status.model.as_str().into();
                self.models.insert(Arc::clone(&model));
                model
            }
        };
        let id = known.unwrap_or_else(|| status.worker_id.as_str().into());
        self.incarnations += 1;
        let spec = WorkerSpec {
            id: Arc::clone(&id),
            incarnation: self.incarnations,
            model,
            role: identity.role,
            http_address: status.http_address.as_str().into(),
            address,
        };
        tracing::info!(
            worker = %id, model = %spec.model, role = %status.role, address = %spec.http_address,
            again = self.workers.contains_key(&id), "worker joined"
        );
        let member = Member {
            spec: Arc::new(spec),
            status: status.clone(),
            last: now,
            last_unix_ms: unix_ms,
            slot: None,
        };
        self.workers.insert(id, member);
        self.dirty = true;
        Ok(())
    }

    /// Removes whoever is gone at `now`; when the next one may be gone, if there is anyone.
    pub fn expire(&mut self, now: Nanos) -> (Vec<Arc<str>>, Option<Nanos>) {
        let mut gone = Vec::new();
        let mut earliest: Option<Nanos> = None;
        let lifetime = self.lifetime;
        self.workers.retain(|id, member| {
            if now.saturating_sub(member.last) >= lifetime {
                gone.push(Arc::clone(id));
                return false;
            }
            earliest = Some(earliest.map_or(member.last, |e| e.min(member.last)));
            true
        });
        self.dirty |= !gone.is_empty();
        (gone, earliest.map(|last| last.saturating_add(lifetime)))
    }

    /// A reload gave these ids to static endpoints; workers that have one lose it.
    pub fn reserve(&mut self, ids: HashSet<String>) {
        let before = self.workers.len();
        self.workers.retain(|id, _| !ids.contains(&**id));
        self.dirty |= self.workers.len() != before;
        self.reserved = ids;
    }

    /// Everyone, sorted by id.
    pub fn sorted(&self) -> Vec<&Member> {
        let mut all: Vec<&Member> = self.workers.values().collect();
        all.sort_unstable_by(|a, b| a.spec.id.cmp(&b.spec.id));
        all
    }

    /// A worker by id.
    pub fn get_mut(&mut self, id: &str) -> Option<&mut Member> {
        self.workers.get_mut(id)
    }

    /// Workers registered now.
    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// Whether nobody is.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Every model that a worker has named since the process started.
    pub fn models(&self) -> &HashSet<Arc<str>> {
        &self.models
    }

    /// Host names in use, each with the worker that has it.
    pub fn named(&self) -> Vec<Arc<WorkerSpec>> {
        let named = |member: &&Member| {
            split_authority(&member.spec.http_address)
                .is_some_and(|(host, _)| host.parse::<IpAddr>().is_err())
        };
        self.workers.values().filter(named).map(|member| Arc::clone(&member.spec)).collect()
    }

    /// The worker's name stands for another address now: it is another engine.
    pub fn moved(&mut self, old: &Arc<WorkerSpec>, address: SocketAddr) {
        let Some(member) = self.workers.get_mut(&old.id) else { return };
        if !Arc::ptr_eq(&member.spec, old) {
            return;
        }
        self.incarnations += 1;
        member.spec =
            Arc::new(WorkerSpec { address, incarnation: self.incarnations, ..WorkerSpec::copy(old) });
        member.slot = None;
        self.dirty = true;
    }
}

impl Member {
    fn same_place(&self, status: &Status) -> bool {
        self.status.http_address == status.http_address
            && self.status.model == status.model
            && self.status.role == status.role
            && self.status.grpc_address == status.grpc_address
            && self.status.kv_address == status.kv_address
    }

    /// Takes the changing part of a status. The snapshot does not change for it.
    fn take(&mut self, status: &Status, now: Nanos, unix_ms: u64) {
        let ours = &mut self.status;
        ours.kv_format = status.kv_format;
        ours.queue_depth = status.queue_depth;
        ours.running = status.running;
        ours.kv_free_blocks = status.kv_free_blocks;
        ours.kv_total_blocks = status.kv_total_blocks;
        ours.draining = status.draining;
        (self.last, self.last_unix_ms) = (now, unix_ms);
    }

    /// Writes the reported numbers to where decisions read them.
    pub fn report(&self, loads: &LoadTable) {
        if let Some(slot) = &self.slot {
            loads.set_queue_depth(slot.index(), unsigned(self.status.queue_depth));
            loads.set_kv_blocks(slot.index(), unsigned(self.status.kv_total_blocks));
            loads.set_leaving(slot.index(), self.status.draining);
        }
    }
}

impl WorkerSpec {
    fn copy(&self) -> WorkerSpec {
        WorkerSpec {
            id: Arc::clone(&self.id),
            incarnation: self.incarnation,
            model: Arc::clone(&self.model),
            role: self.role,
            http_address: self.http_address.clone(),
            address: self.address,
        }
    }
}

/// A number that was checked not to be negative.
fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}
