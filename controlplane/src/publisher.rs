//! Builds snapshots from configurations.
//!
//! **Invariants**
//!
//! * An endpoint whose id, URL and model stay keeps its slot, and with it its in-flight count and cooldown; if nothing
//!   else changed either, it is the same `Arc<Endpoint>`. Any other endpoint is a new incarnation with a new slot.
//! * A configuration is taken whole or not at all: whatever can fail happens before anything is remembered.
//! * A series id stands for one (model, pool) for as long as an endpoint has that pair, and never for another, so that
//!   a shard that still holds the counters of a removed series cannot count into a new one.

use crate::config::{Config, EndpointConfig, Picker, Router, split_authority};
use crate::registry::{Drain, WORKERS_MAX, WorkerSpec};
use llmgw_routing::Nanos;
use llmgw_routing::load::LoadTable;
use llmgw_routing::pipeline::{Profile, ProfileError};
use llmgw_routing::snapshot::{
    Endpoint, Engine, Listed, Model, Role, RouteProblem, RouteSpec, RouteTable, Settings, Snapshot,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// Most endpoints a configuration may have.
pub const ENDPOINTS_MAX: u32 = 4096;
/// A name must resolve within this.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The pool of workers that announced themselves.
pub const WORKER_POOL: &str = "default";

/// Addresses of engines by host name and port.
pub type Addresses = HashMap<(String, u16), Vec<SocketAddr>>;

/// Why a configuration cannot be published.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum PublishError {
    /// Keys that cannot change while the process runs.
    Fixed(Vec<&'static str>),
    /// An engine's name does not resolve.
    Lookup { endpoint: String, host: String, reason: String },
    /// More endpoints than there are slots.
    TooManyEndpoints { asked: usize },
    /// A profile that the router does not take.
    Profile { name: String, error: ProfileError },
    /// Routes that cannot be, each problem with the path of its field.
    Routes(Vec<RouteProblem>),
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishError::Fixed(names) => {
                write!(
                    f,
                    "{} cannot change while the process runs; restart it, or take the change back",
                    names.join(", ")
                )
            }
            PublishError::Lookup { endpoint, host, reason } => {
                write!(f, "endpoint {endpoint}: the host name {host} does not resolve: {reason}")
            }
            PublishError::TooManyEndpoints { asked } => {
                write!(
                    f,
                    "{asked} endpoints are more than there is room for ({ENDPOINTS_MAX}, those still busy with \
                     requests of an earlier configuration included)"
                )
            }
            PublishError::Profile { name, error } => write!(f, "router.profiles.{name}: {error}"),
            PublishError::Routes(problems) => {
                for (i, problem) in problems.iter().enumerate() {
                    write!(f, "{}{problem}", if i == 0 { "" } else { "\n" })?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for PublishError {}

/// Looks up the host names of all endpoints.
pub async fn resolve(config: &Config) -> Result<Addresses, PublishError> {
    let mut addresses = Addresses::new();
    for endpoint in &config.endpoints {
        let key = (endpoint.url.host.clone(), endpoint.url.port);
        if addresses.contains_key(&key) {
            continue;
        }
        let found = lookup(&key.0, key.1).await.map_err(|reason| PublishError::Lookup {
            endpoint: endpoint.id.clone(),
            host: key.0.clone(),
            reason,
        })?;
        addresses.insert(key, found);
    }
    Ok(addresses)
}

/// Looks up the host of `host:port`.
pub async fn lookup_authority(authority: &str) -> Result<Vec<SocketAddr>, String> {
    match split_authority(authority) {
        Some((host, port)) => lookup(&host, port).await,
        None => Err("it is not host:port".into()),
    }
}

async fn lookup(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    match tokio::time::timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host((host, port))).await {
        Ok(Ok(found)) => {
            let found: Vec<_> = found.collect();
            if found.is_empty() { Err("it has no address".into()) } else { Ok(found) }
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs())),
    }
}

/// All that a snapshot is made of.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Settings and static endpoints.
    pub config: &'a Config,
    /// Covers the hosts of the static endpoints, see [`resolve`].
    pub addresses: &'a Addresses,
    /// The route table.
    pub routes: &'a Arc<[RouteSpec]>,
    /// Registered workers, sorted by id; no id is one of a static endpoint.
    pub workers: &'a [Arc<WorkerSpec>],
    /// Models that workers have named since the process started.
    pub worker_models: &'a [Arc<str>],
    /// Models being drained: they get no new work.
    pub drained: &'a BTreeMap<String, Drain>,
}

/// Turns configurations into snapshots and remembers what lives on from one to the next.
pub struct Publisher {
    loads: Arc<LoadTable>,
    /// Most connections a shard may have, by RLIMIT_NOFILE.
    max_connections: usize,
    version: u64,
    endpoints: HashMap<String, (EndpointConfig, Arc<Endpoint>)>,
    workers: HashMap<Arc<str>, (Arc<WorkerSpec>, Arc<Endpoint>)>,
    models: HashMap<Box<str>, Arc<Model>>,
    routes: Arc<RouteTable>,
    first_seen: HashMap<String, u64>,
    series: HashMap<(String, String), u32>,
    next_series: u32,
}

impl Publisher {
    /// A publisher that has published nothing.
    pub fn new(max_connections: usize) -> Self {
        Publisher {
            // Twice the bound: endpoints of the last configuration keep their slots until their requests end.
            loads: LoadTable::new(2 * (ENDPOINTS_MAX + WORKERS_MAX)),
            max_connections,
            version: 0,
            endpoints: HashMap::new(),
            workers: HashMap::new(),
            models: HashMap::new(),
            routes: Arc::default(),
            first_seen: HashMap::new(),
            series: HashMap::new(),
            next_series: 1,
        }
    }

    /// The counters that its endpoints' slots belong to.
    pub fn loads(&self) -> &Arc<LoadTable> {
        &self.loads
    }

    /// Number of the last snapshot; 0 before the first.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether an endpoint's address is not among those that its host name has now.
    pub fn moved(&self, addresses: &Addresses) -> bool {
        self.endpoints.values().any(|(config, endpoint)| {
            let found = addresses.get(&(config.url.host.clone(), config.url.port));
            found.is_some_and(|found| !found.contains(&endpoint.address))
        })
    }

    /// The snapshot of a configuration alone: its endpoints and its routes. `addresses` must cover its endpoints, see
    /// [`resolve`]; `now_unix` is in seconds. On an error nothing has changed.
    pub fn build(
        &mut self,
        config: &Config,
        addresses: &Addresses,
        now_unix: u64,
    ) -> Result<Arc<Snapshot>, PublishError> {
        let drained = BTreeMap::new();
        let routes = &Arc::from(config.routes.as_slice());
        let wanted =
            Wanted { config, addresses, routes, workers: &[], worker_models: &[], drained: &drained };
        self.build_all(&wanted, now_unix)
    }

    /// The snapshot of everything. `now_unix` is in seconds. On an error nothing has changed.
    pub fn build_all(&mut self, wanted: &Wanted<'_>, now_unix: u64) -> Result<Arc<Snapshot>, PublishError> {
        let config = wanted.config;
        let asked = config.endpoints.len();
        if u32::try_from(asked).is_err() || asked > ENDPOINTS_MAX as usize {
            return Err(PublishError::TooManyEndpoints { asked });
        }
        let profile = Arc::new(profile(&config.router)?);
        let routes = self.routes_of(wanted)?;
        let (series, next_series) = self.series_of(wanted);
        let mut endpoints = Vec::with_capacity(asked + wanted.workers.len());
        for endpoint in &config.endpoints {
            let id = series[&(endpoint.model.clone(), endpoint.pool.clone())];
            endpoints.push(self.endpoint(endpoint, wanted.addresses, id, asked)?);
        }
        for worker in wanted.workers {
            endpoints.push(self.worker(worker, &series)?);
        }

        // Nothing fails from here on.
        self.version += 1;
        self.series = series;
        self.next_series = next_series;
        self.routes = routes;
        self.models = self.models_of(wanted, &endpoints, &profile, now_unix);
        let listed = self.list(config, now_unix);
        self.close_drained(wanted, &endpoints);
        let pairs = config.endpoints.iter().zip(&endpoints);
        self.endpoints = pairs.map(|(c, e)| (c.id.clone(), (c.clone(), Arc::clone(e)))).collect();
        let pairs = wanted.workers.iter().zip(&endpoints[asked..]);
        self.workers = pairs.map(|(w, e)| (Arc::clone(&w.id), (Arc::clone(w), Arc::clone(e)))).collect();
        let mut settings = config.settings();
        settings.max_connections = settings.max_connections.min(self.max_connections);
        Ok(self.assemble(endpoints, listed, settings))
    }

    fn assemble(
        &self,
        endpoints: Vec<Arc<Endpoint>>,
        listed: Arc<[Listed]>,
        settings: Settings,
    ) -> Arc<Snapshot> {
        Arc::new(Snapshot {
            version: self.version,
            models: self.models.clone(),
            routes: Arc::clone(&self.routes),
            listed,
            endpoints,
            settings: Arc::new(settings),
        })
    }

    /// The table in force: the same one as before if nothing of it changed.
    fn routes_of(&self, wanted: &Wanted<'_>) -> Result<Arc<RouteTable>, PublishError> {
        let old = &self.routes.specs;
        if Arc::ptr_eq(old, wanted.routes) || old == wanted.routes {
            return Ok(Arc::clone(&self.routes));
        }
        let table = RouteTable::new(Arc::clone(wanted.routes));
        table.map(Arc::new).map_err(PublishError::Routes)
    }

    /// Tells the load table what gets no new work, before a shard can see its endpoint.
    fn close_drained(&self, wanted: &Wanted<'_>, endpoints: &[Arc<Endpoint>]) {
        for endpoint in endpoints {
            match wanted.drained.get(&*endpoint.served_model) {
                Some(drain) => {
                    self.loads.drain(endpoint.slot.index(), drain.deadline.unwrap_or(Nanos::MAX));
                }
                None => self.loads.undrain(endpoint.slot.index()),
            }
        }
    }

    /// What `GET /v1/models` says, and since when: routes, aliases, and models that are served or in the catalog.
    fn list(&mut self, config: &Config, now_unix: u64) -> Arc<[Listed]> {
        let served = self.models.iter().filter(|(_, model)| !model.endpoints.is_empty());
        let catalog = config.models.iter().map(|model| model.name.as_str());
        let names: HashSet<&str> =
            served.map(|(name, _)| &**name).chain(self.routes.names()).chain(catalog).collect();
        let mut listed = Vec::with_capacity(names.len());
        for name in names {
            listed.push(Listed { name: name.into(), created: seen(&mut self.first_seen, name, now_unix) });
        }
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        listed.into()
    }

    fn series_of(&self, wanted: &Wanted<'_>) -> (HashMap<(String, String), u32>, u32) {
        let mut next = self.next_series;
        let mut series = HashMap::new();
        let of_config = wanted.config.endpoints.iter().map(|e| (e.model.as_str(), e.pool.as_str()));
        let mut models: Vec<&str> = wanted.workers.iter().map(|worker| &*worker.model).collect();
        models.sort_unstable();
        models.dedup();
        for (model, pool) in of_config.chain(models.into_iter().map(|model| (model, WORKER_POOL))) {
            let pair = (model.to_owned(), pool.to_owned());
            let known = self.series.get(&pair).copied();
            series.entry(pair).or_insert_with(|| {
                known.unwrap_or_else(|| {
                    next += 1;
                    next - 1
                })
            });
        }
        (series, next)
    }

    fn endpoint(
        &self,
        config: &EndpointConfig,
        addresses: &Addresses,
        series: u32,
        asked: usize,
    ) -> Result<Arc<Endpoint>, PublishError> {
        let found = addresses.get(&(config.url.host.clone(), config.url.port)).map_or(&[][..], Vec::as_slice);
        let known = self.endpoints.get(&config.id);
        let same_place = |(old, endpoint): &&(EndpointConfig, Arc<Endpoint>)| {
            // The name server's order changes; only the loss of the address is a change.
            old.url == config.url && old.model == config.model && found.contains(&endpoint.address)
        };
        let known = known.filter(same_place);
        if let Some((old, endpoint)) = known
            && old == config
            && endpoint.series == series
        {
            return Ok(Arc::clone(endpoint));
        }
        let address = known.map(|(_, endpoint)| endpoint.address).or(found.first().copied());
        let address = address.ok_or_else(|| PublishError::Lookup {
            endpoint: config.id.clone(),
            host: config.url.host.clone(),
            reason: "it has no address".into(),
        })?;
        let slot = match known {
            // Only its weight, pool or kind is new: it is the same engine, with the same requests in flight.
            Some((_, endpoint)) => endpoint.slot.clone(),
            None => self.loads.allocate().ok_or(PublishError::TooManyEndpoints { asked })?,
        };
        Ok(Arc::new(Endpoint {
            id: config.id.as_str().into(),
            slot,
            served_model: config.model.as_str().into(),
            pool: config.pool.as_str().into(),
            series,
            address,
            authority: config.url.authority().into(),
            base_path: config.url.base_path.as_str().into(),
            engine: config.engine,
            weight: config.weight,
            role: config.role,
            priority_scheduling: config.priority_scheduling,
            announced: false,
        }))
    }

    /// The endpoint of a registered worker. Another incarnation is another engine: it gets a slot of its own.
    fn worker(
        &self,
        spec: &Arc<WorkerSpec>,
        series: &HashMap<(String, String), u32>,
    ) -> Result<Arc<Endpoint>, PublishError> {
        let known = self.workers.get(&spec.id);
        if let Some((old, endpoint)) = known
            && Arc::ptr_eq(old, spec)
        {
            return Ok(Arc::clone(endpoint));
        }
        let slot = match known {
            Some((old, endpoint)) if old.incarnation == spec.incarnation => endpoint.slot.clone(),
            _ => {
                self.loads.allocate().ok_or(PublishError::TooManyEndpoints { asked: WORKERS_MAX as usize })?
            }
        };
        Ok(Arc::new(Endpoint {
            id: Arc::clone(&spec.id),
            slot,
            served_model: Arc::clone(&spec.model),
            pool: WORKER_POOL.into(),
            series: series[&(spec.model.to_string(), WORKER_POOL.to_owned())],
            address: spec.address,
            authority: spec.http_address.clone(),
            base_path: "".into(),
            engine: Engine::Openai,
            weight: 1.0,
            role: spec.role,
            priority_scheduling: false,
            announced: true,
        }))
    }

    /// Every known model, with those of its endpoints that take whole requests.
    fn models_of(
        &mut self,
        wanted: &Wanted<'_>,
        endpoints: &[Arc<Endpoint>],
        profile: &Arc<Profile>,
        now_unix: u64,
    ) -> HashMap<Box<str>, Arc<Model>> {
        let mut by_model: HashMap<&str, Vec<Arc<Endpoint>>> =
            known_models(wanted).map(|name| (name, Vec::new())).collect();
        for endpoint in endpoints.iter().filter(|endpoint| endpoint.role == Role::Unified) {
            by_model.entry(&endpoint.served_model).or_default().push(Arc::clone(endpoint));
        }
        let mut models = HashMap::with_capacity(by_model.len());
        for (name, endpoints) in by_model {
            let created = seen(&mut self.first_seen, name, now_unix);
            let previous = self.models.get(name).map(Arc::as_ref);
            let model = Model::new(name, endpoints, Arc::clone(profile), created, previous);
            models.insert(Box::from(name), Arc::new(model));
        }
        models
    }
}

/// When a name was first seen.
fn seen(first_seen: &mut HashMap<String, u64>, name: &str, now_unix: u64) -> u64 {
    match first_seen.get(name) {
        Some(at) => *at,
        None => *first_seen.entry(name.to_owned()).or_insert(now_unix),
    }
}

/// Every served model that is known: by an endpoint, a worker, a route or the catalog.
fn known_models<'a>(wanted: &Wanted<'a>) -> impl Iterator<Item = &'a str> + use<'a> {
    let Wanted { config, routes, worker_models, .. } = *wanted;
    let endpoints = config.endpoints.iter().map(|endpoint| endpoint.model.as_str());
    let catalog = config.models.iter().map(|model| model.name.as_str());
    let workers = worker_models.iter().map(|model| &**model);
    endpoints.chain(routes.iter().flat_map(RouteSpec::served_models)).chain(catalog).chain(workers)
}

/// The profile that `router.policy` names.
fn profile(router: &Router) -> Result<Profile, PublishError> {
    if let Some(profile) = Profile::from_policy(&router.policy, router.affinity_load_factor) {
        return Ok(profile);
    }
    let failed = |error| PublishError::Profile { name: router.policy.clone(), error };
    let mut builder = Profile::builder(&router.policy);
    let configured = router.profiles.iter().find(|profile| profile.name == router.policy);
    if let Some(configured) = configured {
        // Other scorers are accepted and, as the start-up warning says, not acted on yet. Weight 0 is "left out".
        for (name, weight) in configured.scorers.iter().filter(|(name, w)| *name == "inflight" && *w > 0.0) {
            builder = builder.scorer(name, *weight).map_err(failed)?;
        }
        let picker = match configured.picker {
            Picker::MaxScore => "max-score",
            Picker::RoundRobin => "round-robin",
            Picker::P2c | Picker::Softmax { .. } => "p2c",
        };
        builder = builder.picker(picker).map_err(failed)?;
    }
    Ok(builder.build())
}
