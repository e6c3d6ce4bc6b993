//! The control plane as a whole: its threads, its tasks, and the seam to `llmgw server`.
//!
//! The caller makes [`Parts`], calls [`ControlPlane::start`], gives the [`Shared`] it gets to the shards, and from then
//! on passes signals: [`ControlPlane::reload`] for SIGHUP, [`ControlPlane::draining`] when a shutdown begins,
//! [`ControlPlane::shutdown`] once the shards have ended.

use crate::admin::stored::{RouteFile, StoredError};
use crate::admin::{self, Access, Admin};
use crate::config::{Config, Store};
use crate::fleet::{self, Fleet, Source};
use crate::health::{self, Surface};
use crate::listener;
use crate::logs::{self, AccessLog};
use crate::metrics::OwnStats;
use crate::plane::DataPlane;
use crate::probe::Prober;
use crate::publisher::{self, PublishError, Publisher};
use crate::refresh;
use crate::registry::{self, TlsError};
use llmgw_dataplane::driver::clock::{monotonic_ns, wall_ns};
use llmgw_dataplane::shared::{RecordConsumer, Shared};
use llmgw_routing::SECOND;
use llmgw_routing::budget::RetryBudget;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

#[cfg(test)]
mod tests;

/// Threads of the control plane.
const WORKERS: usize = 2;
/// Threads for what blocks: name look-ups, log writes, building snapshots of a large fleet.
const BLOCKING: usize = 16;
/// How long the last access lines may take at the end.
const LAST_LINES: Duration = Duration::from_secs(2);

/// What a control plane is made of.
pub struct Parts {
    /// The configuration, with command line flags over it.
    pub config: Config,
    /// Lines to log at start.
    pub warnings: Vec<String>,
    /// Where a reload reads the configuration again; `None`: it cannot be reloaded.
    pub path: Option<PathBuf>,
    /// The control plane's ends of the record rings, one a shard.
    pub consumers: Vec<RecordConsumer>,
    /// Most connections a shard may have, by the limit of open files.
    pub max_connections: u64,
    /// How the admin API is entered.
    pub access: Access,
}

/// Why the control plane did not start.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum StartError {
    /// Threads could not be had.
    Runtime(std::io::Error),
    /// A listener's address could not be bound.
    Listen { name: &'static str, address: SocketAddr, error: std::io::Error },
    /// The route table that was set through the admin API cannot be had.
    Routes(StoredError),
    /// The registry's certificates cannot be used.
    Tls(TlsError),
    /// The configuration cannot be published.
    Publish(PublishError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Runtime(error) => {
                write!(f, "the control plane's threads could not be started: {error}")
            }
            StartError::Listen { name, address, error } => {
                write!(f, "{name} {address} cannot be bound: {error}")
            }
            StartError::Routes(error) => error.fmt(f),
            StartError::Tls(error) => error.fmt(f),
            StartError::Publish(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {}

pub use crate::fleet::ReloadError;

/// A running control plane.
pub struct ControlPlane {
    runtime: Runtime,
    own: Arc<OwnStats>,
    fleet: Arc<Fleet>,
    access_log: JoinHandle<()>,
    stop: watch::Sender<bool>,
    health_address: SocketAddr,
    admin_address: SocketAddr,
    registry_address: SocketAddr,
}

impl ControlPlane {
    /// Sets up the log, publishes the first snapshot, binds the health listener and starts probing. `S` is the
    /// driver's socket.
    pub fn start<S: Send + 'static>(parts: Parts) -> Result<(ControlPlane, Arc<Shared<S>>), StartError> {
        let Parts { config, warnings, path, consumers, max_connections, access } = parts;
        let log = logs::init(&config.log);
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .max_blocking_threads(BLOCKING)
            .thread_name("llmgw-control")
            .enable_all()
            .build()
            .map_err(StartError::Runtime)?;
        let mut publisher = Publisher::new(usize::try_from(max_connections).unwrap_or(usize::MAX));
        let addresses = runtime.block_on(publisher::resolve(&config)).map_err(StartError::Publish)?;
        let unix = wall_ns() / SECOND;
        let snapshot = publisher.build(&config, &addresses, unix).map_err(StartError::Publish)?;
        let budget = RetryBudget::new(config.router.retry_budget);
        let loads = Arc::clone(publisher.loads());
        let shared = Arc::new(Shared::<S>::new(snapshot, loads, budget, consumers.len()));
        let plane: Arc<dyn DataPlane> = Arc::clone(&shared) as Arc<dyn DataPlane>;
        let own = Arc::new(OwnStats::default());
        own.configured_at.store(unix, Ordering::Relaxed);
        let (stop, stopped) = watch::channel(false);

        let (health_address, listener) = bind(&runtime, "health_listen", config.health_listen)?;
        let (admin_address, admin_listener) = bind(&runtime, "admin_listen", config.admin_listen)?;
        let (registry_address, registry_listener) =
            bind(&runtime, "registry_listen", config.registry_listen)?;
        let tls = config.registry_tls.as_ref().map(registry::tls).transpose().map_err(StartError::Tls)?;
        let surface = Surface { plane: Arc::clone(&plane), own: Arc::clone(&own), clock: monotonic_ns };
        let health = health::router(surface);
        runtime.spawn(listener::serve(listener, health, listener::LIMITS, stopped.clone()));

        let probe_now = Arc::new(Notify::new());
        let prober = Prober::new(Arc::clone(&plane), Arc::clone(&own), monotonic_ns);
        runtime.spawn(prober.run(Arc::clone(&probe_now), stopped.clone()));

        let access_on = Arc::new(AtomicBool::new(logs::access_on(&config.log)));
        let access_lines =
            AccessLog::new(consumers, config.log.format, Arc::clone(&access_on), Arc::clone(&own));
        let access_log = runtime.spawn(access_lines.run(stopped.clone()));
        // Without a file there is no place of the operator's choice to keep anything.
        let file = path.is_some().then(|| route_file(&config));
        let token_env = config.admin.token_env.clone();
        let source = path.map(|path| {
            let in_file = Config::load(&path, variables()).ok();
            let driver = in_file.map_or(config.driver, |loaded| loaded.config.driver);
            Source { path, driver, log, access_on }
        });
        let (clock, changed) = (monotonic_ns as fn() -> _, Arc::clone(&probe_now));
        let fleet = fleet::Parts {
            publisher,
            config,
            addresses,
            plane,
            clock,
            own: Arc::clone(&own),
            changed,
            source,
        };
        let fleet = Arc::new(Fleet::new(fleet));
        restore(&fleet, file.as_ref())?;
        if access == Access::Loopback {
            tracing::warn!(
                "the admin API at {admin_address} is open to everyone on this machine: put a token into {token_env}"
            );
        }
        let admin = Admin::new(Arc::clone(&fleet), Arc::clone(&own), monotonic_ns, access, file);
        runtime.spawn(listener::serve(
            admin_listener,
            admin::router(admin),
            listener::LIMITS,
            stopped.clone(),
        ));
        let listener = registry::Listener {
            listener: registry_listener,
            tls,
            fleet: Arc::clone(&fleet),
            own: Arc::clone(&own),
            clock,
        };
        runtime.spawn(listener.serve(stopped.clone()));
        runtime.spawn(refresh::run(Arc::clone(&fleet), stopped.clone()));
        runtime.spawn(Arc::clone(&fleet).run(stopped));
        let control = ControlPlane {
            runtime,
            own,
            fleet,
            access_log,
            stop,
            health_address,
            admin_address,
            registry_address,
        };
        Ok((control, shared))
    }

    /// Where `/healthz`, `/readyz` and `/metrics` are.
    pub fn health_address(&self) -> SocketAddr {
        self.health_address
    }

    /// Where the admin API is.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// Where workers announce themselves.
    pub fn registry_address(&self) -> SocketAddr {
        self.registry_address
    }

    /// Owns what is published.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// Reads the configuration again, see [`Fleet::reload`]. Returns whether it was taken.
    pub fn reload(&self) -> bool {
        self.runtime.block_on(self.fleet.reload()).is_ok()
    }

    /// From now on `/readyz` says that the process is about to end.
    pub fn draining(&self) {
        self.own.draining.store(true, Ordering::Relaxed);
    }

    /// Writes the last access lines and ends. Call it once the shards have ended.
    pub fn shutdown(self) {
        self.draining();
        // Nobody listens any more only if every task has ended already.
        let _ = self.stop.send(true);
        let last_lines = async { tokio::time::timeout(LAST_LINES, self.access_log).await };
        if !matches!(self.runtime.block_on(last_lines), Ok(Ok(()))) {
            tracing::warn!("the last access lines could not be written");
        }
        self.runtime.shutdown_timeout(LAST_LINES);
    }
}

fn bind(
    runtime: &Runtime,
    name: &'static str,
    address: SocketAddr,
) -> Result<(SocketAddr, TcpListener), StartError> {
    let bound = runtime
        .block_on(TcpListener::bind(address))
        .and_then(|listener| Ok((listener.local_addr()?, listener)));
    bound.map_err(|error| StartError::Listen { name, address, error })
}

/// Where a route table that is set through the admin API is kept.
fn route_file(config: &Config) -> RouteFile {
    match &config.store {
        Store::Path(path) => RouteFile::within(path),
        Store::Postgres(_) => RouteFile::within("./llmgw-data".as_ref()),
    }
}

/// A table that was set in an earlier life stands over the configuration's.
fn restore(fleet: &Fleet, file: Option<&RouteFile>) -> Result<(), StartError> {
    let Some(file) = file else { return Ok(()) };
    let Some(stored) = file.load().map_err(StartError::Routes)? else { return Ok(()) };
    let (count, epoch) = (stored.routes.len(), stored.route_epoch);
    let routes = stored.routes.into_iter().map(Into::into).collect();
    fleet.restore_routes(routes, epoch).map_err(StartError::Publish)?;
    tracing::info!(
        routes = count,
        epoch,
        "the route table in {} was set through the admin API and stands over the configuration's routes; `llmgw ctl \
         routes reset` goes back to those",
        file.path().display()
    );
    Ok(())
}

/// The process's environment, without what is not UTF-8 (at which `std::env::vars` panics).
pub fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}
