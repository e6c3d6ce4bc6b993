//! `llmgw server`: binds, starts the control plane and the shards, and follows signals.

use crate::{DriverArg, Failure, ServerArgs};
use llmgw_controlplane::admin::{self, Access, AccessError};
use llmgw_controlplane::config::{Config, DriverChoice, Loaded};
use llmgw_controlplane::runtime::{ControlPlane, Parts, variables};
use llmgw_dataplane::driver::epoll::{EpollDriver, Socket};
use llmgw_dataplane::driver::uring::{self, UringDriver};
use llmgw_dataplane::driver::{Driver, listen};
use llmgw_dataplane::shard::Shard;
use llmgw_dataplane::shared::{RecordProducer, Shared, Stop, record_ring};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{Builder, JoinHandle};

/// Connections that may wait in the kernel for a shard to accept them.
const BACKLOG: u32 = 4096;
/// File descriptors where no hard limit is set.
const NO_LIMIT: u64 = 1 << 20;

/// `llmgw server`.
#[allow(clippy::print_stdout)] // --check-config answers on stdout
pub fn main(args: &ServerArgs) -> Result<(), Failure> {
    let mut loaded = load(&args.config)?;
    if let Some(driver) = args.driver {
        loaded.config.driver = match driver {
            DriverArg::Auto => DriverChoice::Auto,
            DriverArg::IoUring => DriverChoice::IoUring,
            DriverArg::Epoll => DriverChoice::Epoll,
        };
    }
    if args.check_config {
        let limits = loaded.config.effective_limits(hard_limit(), shard_count(&loaded.config));
        // The token may well be elsewhere than where a configuration is checked.
        let open = admin_access(&loaded.config).err().map(|error| error.to_string());
        for warning in loaded.warnings.iter().chain(&limits.message).chain(&open) {
            println!("warning: {warning}");
        }
        println!("{}: ok", args.config.display());
        return Ok(());
    }
    let mut signals = stop_signals().map_err(Failure::run)?;
    let handle = signals.handle();
    let server = Server::start(loaded, Some(&args.config))?;
    let Server { shards, control, shared, .. } = server;
    let watcher = Builder::new()
        .name("llmgw-wait".into())
        .spawn(move || {
            // Ends the loop below once every shard is done.
            let clean = shards.into_iter().all(|shard| shard.join().is_ok());
            handle.close();
            clean
        })
        .map_err(Failure::run)?;
    let mut stop = Stop::No;
    for signal in signals.forever() {
        if signal == SIGHUP {
            control.reload();
            continue;
        }
        stop = if stop == Stop::No { Stop::Drain } else { Stop::Now };
        tracing::info!(now = stop == Stop::Now, "stopping");
        control.draining();
        shared.stop(stop);
    }
    let clean = watcher.join().unwrap_or(false);
    control.shutdown();
    if clean { Ok(()) } else { Err(Failure::run("a shard ended in an error")) }
}

/// Signals that a role of this process follows: SIGTERM, SIGINT, SIGHUP.
pub fn stop_signals() -> io::Result<Signals> {
    Signals::new([SIGTERM, SIGINT, SIGHUP])
}

fn load(path: &Path) -> Result<Loaded, Failure> {
    Config::load(path, variables()).map_err(Failure::usage)
}

/// How the admin API may be entered, with the token of the environment.
fn admin_access(config: &Config) -> Result<Access, AccessError> {
    let variable = &config.admin.token_env;
    admin::access(config.admin_listen, variable, std::env::var_os(variable))
}

/// A running gateway.
pub struct Server {
    address: SocketAddr,
    control: ControlPlane,
    shards: Vec<JoinHandle<()>>,
    shared: Arc<Shared<Socket>>,
}

impl Server {
    /// Binds everything, then serves. `path` is where a reload reads the configuration again.
    pub fn start(loaded: Loaded, path: Option<&Path>) -> Result<Server, Failure> {
        let Loaded { mut config, mut warnings } = loaded;
        let access = admin_access(&config).map_err(Failure::usage)?;
        let (ring, ring_unusable) = choose_ring(config.driver)?;
        let nofile = raise_nofile();
        let count = shard_count(&config);
        let limits = config.effective_limits(nofile, count);
        config.limits.max_connections = limits.max_connections;
        warnings.extend(limits.message);

        let mut address = config.listen;
        let mut listeners = Vec::with_capacity(count);
        for _ in 0..count {
            let listener = listen::bind(address, BACKLOG, true).map_err(Failure::run)?;
            // With port 0 the first shard's port is everyone's.
            address = listen::local_addr(&listener).map_err(Failure::run)?;
            listeners.push(listener);
        }
        let (producers, consumers) = (0..count).map(|_| record_ring()).unzip::<_, _, Vec<_>, Vec<_>>();
        let (path, max_connections) = (path.map(Into::into), limits.max_connections);
        let parts = Parts { config, warnings, path, consumers, max_connections, access };
        let (control, shared) = ControlPlane::start(parts).map_err(Failure::run)?;
        let cpus = pinning(count);
        let mut shards = Vec::with_capacity(count);
        let (ready, started) = std::sync::mpsc::channel();
        for (id, (listener, records)) in listeners.into_iter().zip(producers).enumerate() {
            let ready = ready.clone();
            let shared = Arc::clone(&shared);
            let (cpu, seed) = (cpus.get(id).copied(), seed(id));
            let thread = Builder::new().name(format!("llmgw-shard-{id}")).spawn(move || {
                if let Some(cpu) = cpu {
                    let mut set = CpuSet::new();
                    set.set(cpu);
                    // Unpinned is slower, not wrong.
                    let _ = sched_setaffinity(None, &set);
                }
                // A driver belongs to the thread that made it.
                let seat = Seat { id, shared, records, seed, ready };
                if ring {
                    seat.run(UringDriver::new(vec![listener]));
                } else {
                    seat.run(EpollDriver::new(vec![listener]));
                }
            });
            shards.push(thread.map_err(Failure::run)?);
        }
        drop(ready);
        for result in started {
            result.map_err(|error| Failure::run(format!("a shard could not start: {error}")))?;
        }
        if let Some(cause) = ring_unusable {
            tracing::warn!(%cause, "io_uring cannot be used, epoll is");
        }
        let (health, registry) = (control.health_address(), control.registry_address());
        let driver = if ring { "io_uring" } else { "epoll" };
        let admin = control.admin_address();
        tracing::info!(listen = %address, %health, %admin, %registry, shards = count, driver, "serving");
        Ok(Server { address, control, shards, shared })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where `/readyz` and `/metrics` are.
    pub fn health_address(&self) -> SocketAddr {
        self.control.health_address()
    }

    /// Where the admin API is.
    pub fn admin_address(&self) -> SocketAddr {
        self.control.admin_address()
    }

    /// Ends everything at once.
    pub fn stop_now(self) {
        self.shared.stop(Stop::Now);
        for shard in self.shards {
            let _ = shard.join();
        }
        self.control.shutdown();
    }
}

/// What a shard's thread is given, but for its driver.
struct Seat {
    id: usize,
    shared: Arc<Shared<Socket>>,
    records: RecordProducer,
    seed: u64,
    ready: Sender<io::Result<()>>,
}

impl Seat {
    /// Says whether there is a driver, then serves.
    fn run<D: Driver<Socket = Socket>>(self, driver: io::Result<D>) {
        let driver = match driver {
            Ok(driver) => driver,
            Err(error) => return drop(self.ready.send(Err(error))),
        };
        let shard = Shard::new(self.id, driver, self.shared, self.records, self.seed);
        let _ = self.ready.send(Ok(()));
        // The starter waits until every sender is gone.
        drop(self.ready);
        shard.run();
    }
}

/// Whether to serve over the ring, and why not if that was left open.
fn choose_ring(choice: DriverChoice) -> Result<(bool, Option<uring::Unusable>), Failure> {
    if choice == DriverChoice::Epoll {
        return Ok((false, None));
    }
    match uring::self_test() {
        Ok(()) => Ok((true, None)),
        Err(cause) if choice == DriverChoice::Auto => Ok((false, Some(cause))),
        Err(cause) => Err(Failure::run(format!("driver io_uring: {cause}; or choose auto or epoll"))),
    }
}

/// `shards`, or one for each core this process may use.
fn shard_count(config: &Config) -> usize {
    if config.shards > 0 { config.shards } else { allowed_cpus().len().max(1) }
}

fn allowed_cpus() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// One core a shard, when there are as many shards as cores; otherwise the scheduler knows better.
fn pinning(shards: usize) -> Vec<usize> {
    let cpus = allowed_cpus();
    if cpus.len() == shards && shards > 1 { cpus } else { Vec::new() }
}

fn seed(shard: usize) -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_usize(shard);
    hasher.finish()
}

fn hard_limit() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(NO_LIMIT)
}

/// Raises the soft limit of open files to the hard one and returns it.
fn raise_nofile() -> u64 {
    let hard = hard_limit();
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(hard), maximum: Some(hard) });
    getrlimit(Resource::Nofile).current.unwrap_or(NO_LIMIT)
}
