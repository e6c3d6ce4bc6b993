//! The single owner of what is published: configuration, static endpoints, registered workers, route table, drains.
//!
//! Signals, the registry and the admin API all change the world here, and every change ends in one snapshot.
//!
//! **Invariants**
//!
//! * Whoever changes what is published holds the lock of [`State`] from its look at the old to the publication of the
//!   new, so that of two writers one comes first. The lock of [`Members`] is taken inside it, never around it.
//! * A heartbeat that changes no membership takes the lock of [`Members`] only, and publishes nothing.
//! * No lock is held across an await.

mod pace;
mod reload;
mod view;

pub use reload::{ReloadError, Source};
pub use view::{Health, Origin, WorkerView};

use crate::config::{Config, Route};
use crate::metrics::OwnStats;
use crate::plane::DataPlane;
use crate::publisher::{self, Addresses, PublishError, Publisher, Wanted};
use crate::registry::{Ack, Drain, HeartbeatError, Members, Status, WorkerSpec};
use llmgw_dataplane::driver::clock::wall_ns;
use llmgw_routing::{Nanos, SECOND};
use pace::Pace;
use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};

#[cfg(test)]
mod tests;

/// Up to so many workers, a change of membership is published by the heartbeat that brings it; with more, building
/// takes long enough to be done on a thread where nobody waits.
const AT_ONCE: usize = 256;
/// Longest sleep of the task; a change of the clock's pace or of the lifetime is seen within it.
const NAP: Duration = Duration::from_secs(1);

/// The fleet as this process knows it.
pub struct Fleet {
    state: Mutex<State>,
    members: Mutex<Members>,
    /// Of the route table; a copy that heartbeats read without the lock.
    epoch: AtomicU64,
    plane: Arc<dyn DataPlane>,
    clock: fn() -> Nanos,
    own: Arc<OwnStats>,
    /// Told of every new snapshot.
    changed: Arc<Notify>,
    /// Wakes [`Fleet::run`].
    due: Notify,
    source: Option<Source>,
    reloading: tokio::sync::Mutex<()>,
}

/// What a fleet is made of.
pub struct Parts {
    /// Builds snapshots; it has built the first.
    pub publisher: Publisher,
    /// The configuration of that.
    pub config: Config,
    /// Addresses of its endpoints.
    pub addresses: Addresses,
    /// Where snapshots are published.
    pub plane: Arc<dyn DataPlane>,
    /// The shards' clock.
    pub clock: fn() -> Nanos,
    /// Counts.
    pub own: Arc<OwnStats>,
    /// Told of every later snapshot.
    pub changed: Arc<Notify>,
    /// What a reload needs.
    pub source: Option<Source>,
}

/// What is published, and by whom.
struct State {
    publisher: Publisher,
    config: Arc<Config>,
    /// Addresses of the static endpoints.
    addresses: Addresses,
    routes: Arc<[Route]>,
    /// Somebody set the table: the file's no longer counts.
    routes_set: bool,
    pace: Pace,
}

/// Why a route table was not taken.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum SetRoutesError {
    /// The table is not the one that was to be replaced.
    Stale { epoch: u64 },
    /// It cannot be published.
    Publish(PublishError),
}

impl fmt::Display for SetRoutesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetRoutesError::Stale { epoch } => {
                write!(f, "the route table has changed in between: its epoch is {epoch}; read it again")
            }
            SetRoutesError::Publish(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SetRoutesError {}

/// A model being drained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainedModel {
    /// Its name, as engines know it.
    pub model: String,
    /// When, on the shards' clock, what still runs is cut.
    pub deadline: Option<Nanos>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fleet {
    /// The fleet of a configuration whose snapshot is already published.
    pub fn new(parts: Parts) -> Fleet {
        let Parts { publisher, config, addresses, plane, clock, own, changed, source } = parts;
        let mut members = Members::default();
        members.reserve(ids(&config));
        members.lifetime = lifetime(&config);
        let routes = config.routes.clone().into();
        let pace = Pace::new(clock());
        let config = Arc::new(config);
        let state = State { publisher, config, addresses, routes, routes_set: false, pace };
        Fleet {
            state: Mutex::new(state),
            members: Mutex::new(members),
            epoch: AtomicU64::new(1),
            plane,
            clock,
            own,
            changed,
            due: Notify::new(),
            source,
            reloading: tokio::sync::Mutex::new(()),
        }
    }

    /// The configuration in use.
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&lock(&self.state).config)
    }

    /// The data plane that is published to.
    pub fn plane(&self) -> &Arc<dyn DataPlane> {
        &self.plane
    }

    /// Grows with every change of the route table; the first table's is 1.
    pub fn route_epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The route table and its epoch.
    pub fn routes(&self) -> (Arc<[Route]>, u64) {
        let state = lock(&self.state);
        (Arc::clone(&state.routes), self.route_epoch())
    }

    /// The route table, its epoch, and whether somebody set it: then the configuration's does not count.
    pub fn route_table(&self) -> (Arc<[Route]>, u64, bool) {
        let state = lock(&self.state);
        (Arc::clone(&state.routes), self.route_epoch(), state.routes_set)
    }

    /// Goes back to the configuration's routes, if the table has the epoch `expected`; returns the new epoch.
    pub fn reset_routes(&self, expected: u64) -> Result<u64, SetRoutesError> {
        let mut state = lock(&self.state);
        let epoch = self.route_epoch();
        if expected != epoch {
            return Err(SetRoutesError::Stale { epoch });
        }
        let routes = state.config.routes.clone().into();
        self.replace_routes(&mut state, routes, epoch + 1).map_err(SetRoutesError::Publish)?;
        state.routes_set = false;
        Ok(epoch + 1)
    }

    /// Replaces the whole table, which must be valid, and returns its epoch. With `expected`, only if the table has
    /// that epoch: of two concurrent writers that read the same table one wins.
    pub fn set_routes(&self, routes: Vec<Route>, expected: Option<u64>) -> Result<u64, SetRoutesError> {
        let mut state = lock(&self.state);
        let epoch = self.route_epoch();
        if expected.is_some_and(|expected| expected != epoch) {
            return Err(SetRoutesError::Stale { epoch });
        }
        self.replace_routes(&mut state, routes.into(), epoch + 1).map_err(SetRoutesError::Publish)?;
        Ok(epoch + 1)
    }

    /// The table that was set in an earlier life of this gateway, and its epoch then.
    pub fn restore_routes(&self, routes: Vec<Route>, epoch: u64) -> Result<(), PublishError> {
        let mut state = lock(&self.state);
        let epoch = epoch.max(self.route_epoch());
        self.replace_routes(&mut state, routes.into(), epoch)
    }

    fn replace_routes(
        &self,
        state: &mut State,
        routes: Arc<[Route]>,
        epoch: u64,
    ) -> Result<(), PublishError> {
        let old = std::mem::replace(&mut state.routes, routes);
        if let Err(error) = self.publish(state) {
            state.routes = old;
            return Err(error);
        }
        state.routes_set = true;
        self.epoch.store(epoch, Ordering::Release);
        Ok(())
    }

    /// Gives `model` no new work; after `deadline` what still runs is cut. Returns how many workers it has; `None` if
    /// no endpoint or worker ever served such a model.
    pub fn drain(&self, model: &str, deadline: Option<Duration>) -> Option<usize> {
        let nanos = |d: Duration| Nanos::try_from(d.as_nanos()).unwrap_or(Nanos::MAX);
        let deadline = deadline.map(|d| (self.clock)().saturating_add(nanos(d)));
        self.change_drain(model, Some(Drain { deadline }))
    }

    /// Takes a drain back; returns as [`Fleet::drain`].
    pub fn undrain(&self, model: &str) -> Option<usize> {
        self.change_drain(model, None)
    }

    fn change_drain(&self, model: &str, drain: Option<Drain>) -> Option<usize> {
        let mut state = lock(&self.state);
        let fixed = state.config.endpoints.iter().filter(|e| e.model == model).count();
        let before = {
            let mut members = lock(&self.members);
            if fixed == 0 && !members.models().contains(model) && !members.drained.contains_key(model) {
                return None;
            }
            let before = members.drained.clone();
            match drain {
                Some(drain) => members.drained.insert(model.to_owned(), drain),
                None => members.drained.remove(model),
            };
            before
        };
        if let Err(error) = self.publish(&mut state) {
            // Nothing new is allocated for a drain, so this is for a change that could not be published before.
            tracing::error!("the fleet cannot be published: {error}");
            lock(&self.members).drained = before;
        }
        let registered = lock(&self.members).sorted().iter().filter(|m| &*m.spec.model == model).count();
        Some(fixed + registered)
    }

    /// Models being drained, by name.
    pub fn drained(&self) -> Vec<DrainedModel> {
        let members = lock(&self.members);
        let all = members.drained.iter();
        all.map(|(model, drain)| DrainedModel { model: model.clone(), deadline: drain.deadline }).collect()
    }

    /// Takes a worker's status. One that joins by a host name must be looked up first, see [`Fleet::heartbeat_from`].
    pub fn heartbeat(&self, status: &Status, now: Nanos) -> Result<Ack, HeartbeatError> {
        self.beat(status, None, now)
    }

    /// As [`Fleet::heartbeat`], with the address that the worker's host name stands for.
    pub fn heartbeat_from(
        &self,
        status: &Status,
        address: SocketAddr,
        now: Nanos,
    ) -> Result<Ack, HeartbeatError> {
        self.beat(status, Some(address), now)
    }

    fn beat(&self, status: &Status, address: Option<SocketAddr>, now: Nanos) -> Result<Ack, HeartbeatError> {
        let (ack, was_dirty, dirty, workers) = {
            let mut members = lock(&self.members);
            let (at, was_dirty) = ((now, wall_ns() / 1_000_000), members.dirty);
            let ack = members.beat(status, address, at, self.route_epoch(), self.plane.loads())?;
            (ack, was_dirty, members.dirty, members.len())
        };
        if dirty && workers <= AT_ONCE {
            self.publish_if_due(now);
        }
        if dirty && !was_dirty {
            // What may be left, and the lifetime of a first worker.
            self.due.notify_one();
        }
        Ok(ack)
    }

    /// Removes workers whose time is over, and publishes what has changed, unless that has just happened too often.
    /// Returns when to come again, at the latest.
    pub fn tick(&self, now: Nanos) -> Nanos {
        let (gone, next) = lock(&self.members).expire(now);
        self.own.workers_evicted.fetch_add(gone.len() as u64, Ordering::Relaxed);
        for id in &gone {
            tracing::warn!(worker = %id, "worker sent no heartbeat in time and is gone");
        }
        let again = self.publish_if_due(now);
        let nap = now.saturating_add(Nanos::try_from(NAP.as_nanos()).unwrap_or(Nanos::MAX));
        nap.min(again.unwrap_or(Nanos::MAX)).min(next.unwrap_or(Nanos::MAX))
    }

    /// Publishes a change of membership, if there is one and the pace allows it; otherwise when to come again.
    fn publish_if_due(&self, now: Nanos) -> Option<Nanos> {
        let mut state = lock(&self.state);
        let (dirty, workers) = {
            let members = lock(&self.members);
            (members.dirty, members.len())
        };
        if !dirty {
            return None;
        }
        if let Err(at) = state.pace.take(now, workers) {
            return Some(at);
        }
        match self.publish(&mut state) {
            Ok(_) => None,
            Err(error) => {
                tracing::error!("the fleet cannot be published: {error}");
                Some(now.saturating_add(SECOND))
            }
        }
    }

    /// Builds the snapshot of all there is and publishes it.
    fn publish(&self, state: &mut State) -> Result<u64, PublishError> {
        let config = Arc::clone(&state.config);
        let addresses = std::mem::take(&mut state.addresses);
        let published = self.publish_as(state, &config, &addresses);
        state.addresses = addresses;
        published
    }

    fn publish_as(
        &self,
        state: &mut State,
        config: &Config,
        addresses: &Addresses,
    ) -> Result<u64, PublishError> {
        let fixed = ids(config);
        let (workers, models, drained) = {
            let mut members = lock(&self.members);
            members.dirty = false;
            self.own.workers.store(members.len() as u64, Ordering::Relaxed);
            let workers: Vec<Arc<WorkerSpec>> = members
                .sorted()
                .into_iter()
                .filter(|member| !fixed.contains(&*member.spec.id))
                .map(|member| Arc::clone(&member.spec))
                .collect();
            let models: Vec<Arc<str>> = members.models().iter().cloned().collect();
            (workers, models, members.drained.clone())
        };
        let wanted = Wanted {
            config,
            addresses,
            routes: &state.routes,
            workers: &workers,
            worker_models: &models,
            drained: &drained,
        };
        let snapshot = match state.publisher.build_all(&wanted, wall_ns() / SECOND) {
            Ok(snapshot) => snapshot,
            Err(error) => {
                lock(&self.members).dirty = true;
                return Err(error);
            }
        };
        // Before a shard can choose one of them.
        self.settle(&workers, &snapshot.endpoints[config.endpoints.len()..]);
        self.plane.publish(Arc::clone(&snapshot));
        self.changed.notify_one();
        Ok(snapshot.version)
    }

    /// Workers that have been published for the first time report their numbers to where decisions read them.
    fn settle(&self, workers: &[Arc<WorkerSpec>], endpoints: &[Arc<llmgw_routing::snapshot::Endpoint>]) {
        let mut members = lock(&self.members);
        for (worker, endpoint) in workers.iter().zip(endpoints) {
            let Some(member) = members.get_mut(&worker.id) else { continue };
            if member.slot.is_none() && Arc::ptr_eq(&member.spec, worker) {
                member.slot = Some(endpoint.slot.clone());
                member.report(self.plane.loads());
            }
        }
    }

    /// Evicts workers in time and publishes what waits, until `stop`.
    pub async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        loop {
            let fleet = Arc::clone(&self);
            // A large fleet takes a while to build: no async worker waits for it.
            let ticked = tokio::task::spawn_blocking(move || fleet.tick((fleet.clock)())).await;
            let Ok(next) = ticked else { return };
            let wait = Duration::from_nanos(next.saturating_sub((self.clock)()));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.due.notified() => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// Looks up the names of engines again; `true` if an address is no longer what its name stands for, and the change
    /// was published.
    pub async fn look_up(&self) -> Result<bool, PublishError> {
        let workers = self.look_up_workers().await;
        let config = self.config();
        let named = config.endpoints.iter().any(|endpoint| endpoint.url.host.parse::<IpAddr>().is_err());
        let addresses = if named { publisher::resolve(&config).await? } else { Addresses::new() };
        let mut state = lock(&self.state);
        let fixed = named
            // A reload in between has looked up for itself.
            && Arc::ptr_eq(&state.config, &config)
            && state.publisher.moved(&addresses);
        if fixed {
            let old = std::mem::replace(&mut state.addresses, addresses);
            if let Err(error) = self.publish(&mut state) {
                state.addresses = old;
                return Err(error);
            }
        }
        drop(state);
        if workers {
            self.due.notify_one();
        }
        Ok(fixed || workers)
    }

    /// The same for registered workers, whose change is left to be published.
    async fn look_up_workers(&self) -> bool {
        let named = lock(&self.members).named();
        let mut moved = false;
        for spec in named {
            // An unanswered look-up leaves the last known address.
            let Ok(found) = publisher::lookup_authority(&spec.http_address).await else { continue };
            if let Some(first) = found.first()
                && !found.contains(&spec.address)
            {
                lock(&self.members).moved(&spec, *first);
                moved = true;
            }
        }
        moved
    }
}

fn ids(config: &Config) -> HashSet<String> {
    config.endpoints.iter().map(|endpoint| endpoint.id.clone()).collect()
}

/// `heartbeat_interval * heartbeat_miss_limit`.
fn lifetime(config: &Config) -> Nanos {
    let interval = Nanos::try_from(config.router.heartbeat_interval.as_nanos()).unwrap_or(Nanos::MAX);
    interval.saturating_mul(config.router.heartbeat_miss_limit)
}
