//! What a configuration holds, decoded and checked. `docs/configuration.md` says what each key means.

use super::tree::Origin;
pub use llmgw_routing::snapshot::RouteSpec as Route;
use llmgw_routing::snapshot::{Engine, Role};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// `server.yaml`.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // each field is the key of the same name
pub struct Config {
    pub listen: SocketAddr,
    pub admin_listen: SocketAddr,
    pub health_listen: SocketAddr,
    pub registry_listen: SocketAddr,
    pub agent_listen: SocketAddr,
    /// 0: one a core the process may use.
    pub shards: usize,
    pub driver: DriverChoice,
    pub busy_poll: Duration,
    pub log: Log,
    pub auth: Auth,
    pub admin: Admin,
    pub store: Store,
    pub limits: Limits,
    pub timeouts: Timeouts,
    pub router: Router,
    pub cors: Cors,
    pub tls: Option<Tls>,
    pub registry_tls: Option<RegistryTls>,
    pub endpoints: Vec<EndpointConfig>,
    pub routes: Vec<Route>,
    pub models: Vec<CatalogModel>,
    pub fabrics: Vec<Fabric>,
    /// Where the scalars that were given stand, by path.
    pub origins: BTreeMap<String, Origin>,
}

/// `driver`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum DriverChoice {
    Auto,
    IoUring,
    Epoll,
}

/// `log`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Log {
    pub level: Level,
    pub format: LogFormat,
    /// One line a request.
    pub access: bool,
}

/// `log.level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// `log.format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum LogFormat {
    Text,
    Json,
}

/// `auth`.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Auth {
    pub required: bool,
}

/// `admin`.
#[derive(Debug, Clone)]
pub struct Admin {
    /// Name of the variable that holds the admin token; the token itself is never in the configuration.
    pub token_env: String,
}

/// `store`.
#[derive(Debug, Clone)]
pub enum Store {
    /// Directory of the embedded store.
    Path(PathBuf),
    /// Connection string; it holds a password.
    Postgres(Secret),
}

/// Text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps.
    pub fn new(text: String) -> Self {
        Secret(text)
    }
    /// The text. Not for logs.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// `limits`; sizes in bytes.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Limits {
    pub max_body: u64,
    pub max_header: u64,
    pub max_headers: u64,
    pub max_connections: u64,
    pub max_connections_per_client: u64,
    pub max_json_depth: u64,
    pub buffered_total: u64,
    pub half_close: HalfClose,
    pub default_max_tokens: u64,
}

/// `limits.half_close`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum HalfClose {
    Abort,
    Allow,
}

/// `timeouts`.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Timeouts {
    pub header: Duration,
    pub idle: Duration,
    pub body_idle: Duration,
    pub connect: Duration,
    pub first_token: Duration,
    pub between_tokens: Duration,
    pub total: Duration,
    pub upstream_idle: Duration,
    pub shutdown: Duration,
}

/// `router`.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Router {
    /// A policy's or a profile's name; known to exist.
    pub policy: String,
    pub affinity_load_factor: f64,
    pub heartbeat_interval: Duration,
    pub heartbeat_miss_limit: u64,
    pub retries: u8,
    pub retry_budget: f64,
    pub cooldown: Duration,
    pub inject_usage: bool,
    pub keep_alive_comment: Duration,
    pub default_priority: i32,
    pub scrape_interval: Duration,
    pub endpoint_cache_max_age: Duration,
    pub profiles: Vec<ProfileConfig>,
}

/// One of `router.profiles`.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileConfig {
    /// Its name.
    pub name: String,
    /// Scorers and their weights, in the order of [`SCORERS`].
    pub scorers: Vec<(&'static str, f64)>,
    /// How one is picked.
    pub picker: Picker,
}

/// Every scorer that a profile may name.
pub const SCORERS: [&str; 8] =
    ["queue", "kv", "prefix", "load", "inflight", "pool-priority", "session", "lora"];

/// `picker`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum Picker {
    MaxScore,
    P2c,
    RoundRobin,
    Softmax { temperature: f64 },
}

/// `cors`.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Cors {
    pub allow_origins: Vec<String>,
    pub max_age: Duration,
}

/// `tls`.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Tls {
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// `registry_tls`: all three files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryTls {
    /// Signs the certificates of workers.
    pub ca: PathBuf,
    /// The gateway's certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// One of `endpoints`.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct EndpointConfig {
    pub id: String,
    pub model: String,
    pub url: EndpointUrl,
    pub engine: Engine,
    pub pool: String,
    pub weight: f64,
    pub role: Role,
    pub grpc_address: Option<String>,
    pub kv_address: Option<String>,
    pub priority_scheduling: bool,
}

/// `http://host:port[/base]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EndpointUrl {
    /// Name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path before `/v1`, without a trailing slash; mostly empty.
    pub base_path: String,
}

impl EndpointUrl {
    /// `host:port`, with brackets around an IPv6 address.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// One of `models`: as much as this version reads.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct CatalogModel {
    pub name: String,
}

/// One of `fabrics`.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Fabric {
    pub name: String,
    pub gid_prefix: Option<String>,
}
