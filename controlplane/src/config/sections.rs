//! The keys of each section, with their defaults and bounds.

use super::decode::{self, Notes, Table, boolean, duration, integer, number, size, text, whole, word};
use super::fleet;
use super::tree::Node;
use super::types::*;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Longest `busy_poll`: beyond it a shard would hardly ever sleep.
const BUSY_POLL_MAX: Duration = Duration::from_millis(10);
/// Longest duration that any key takes.
const DAY: Duration = Duration::from_secs(86_400);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Listeners in the order of the documentation: name, default, whether this version opens it.
pub const LISTENERS: [(&str, &str, bool); 5] = [
    ("listen", "127.0.0.1:8080", true),
    ("admin_listen", "127.0.0.1:9090", true),
    ("health_listen", "127.0.0.1:9464", true),
    ("registry_listen", "127.0.0.1:50060", true),
    ("agent_listen", "127.0.0.1:7443", false),
];

/// Decodes the whole configuration.
pub fn root(notes: &Notes, node: &Node) -> Config {
    let mut t = Table::new(notes, Some(node), String::new());
    let mut listeners = LISTENERS.iter().map(|(name, default, opened)| {
        let fallback = default.parse().unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
        let address = t.value(name, fallback, address);
        if !opened {
            t.later(name);
        }
        address
    });
    let mut next = || listeners.next().unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
    let (listen, admin_listen, health_listen) = (next(), next(), next());
    let (registry_listen, agent_listen) = (next(), next());
    drop(listeners);
    let addresses = [listen, admin_listen, health_listen, registry_listen, agent_listen];
    collisions(&t, &addresses);
    let shards = t.value("shards", 0, integer(0..=1024));
    let drivers =
        &[("auto", DriverChoice::Auto), ("io_uring", DriverChoice::IoUring), ("epoll", DriverChoice::Epoll)];
    let driver = t.value("driver", DriverChoice::Auto, word(drivers));
    let busy_poll = t.value("busy_poll", Duration::ZERO, duration(Duration::ZERO, BUSY_POLL_MAX));
    let config = Config {
        listen,
        admin_listen,
        health_listen,
        registry_listen,
        agent_listen,
        shards: usize::try_from(shards).unwrap_or_default(),
        driver,
        busy_poll,
        log: log(t.table("log")),
        auth: auth(&mut t, &addresses),
        admin: admin(t.table("admin")),
        store: store(t.table("store")),
        limits: limits(t.table("limits")),
        timeouts: timeouts(t.table("timeouts")),
        router: router(t.table("router")),
        cors: cors(t.table("cors")),
        tls: tls(&mut t),
        registry_tls: registry_tls(&mut t),
        endpoints: fleet::endpoints(&mut t),
        routes: fleet::routes(&mut t),
        models: fleet::models(&mut t),
        fabrics: fleet::fabrics(&mut t),
        origins: BTreeMap::new(),
    };
    for name in ["tls", "models", "fabrics"] {
        t.later(name);
    }
    t.finish();
    config
}

fn address(node: &Node) -> Result<SocketAddr, String> {
    let text = text(node)?;
    text.parse().map_err(|_| {
        let port = text.strip_prefix(':').filter(|port| port.parse::<u16>().is_ok());
        match port {
            Some(port) => {
                format!("`{text}` names no address: write `0.0.0.0:{port}` or `[::]:{port}` for all")
            }
            None => format!("`{text}` is not an address and port, such as `127.0.0.1:8080` or `[::]:8080`"),
        }
    })
}

/// Two listeners on one port; those that are not opened yet count only where the file names them.
fn collisions(t: &Table<'_>, addresses: &[SocketAddr; 5]) {
    let counted = |i: &usize| LISTENERS[*i].2 || t.has(LISTENERS[*i].0);
    let clash = |a: SocketAddr, b: SocketAddr| {
        let all = |x: SocketAddr, y: SocketAddr| x.ip().is_unspecified() && (x.is_ipv6() || y.is_ipv4());
        a.port() != 0 && a.port() == b.port() && (a.ip() == b.ip() || all(a, b) || all(b, a))
    };
    let indices: Vec<usize> = (0..addresses.len()).filter(counted).collect();
    for (n, &i) in indices.iter().enumerate() {
        for &j in &indices[n + 1..] {
            if clash(addresses[i], addresses[j]) {
                let (first, second) = (LISTENERS[i].0, LISTENERS[j].0);
                let (blame, other) = if t.has(second) { (second, first) } else { (first, second) };
                t.problem(
                    blame,
                    format!("{} is also {other}; each listener needs its own port", addresses[i]),
                );
            }
        }
    }
}

fn log(mut t: Table<'_>) -> Log {
    let levels = &[
        ("error", Level::Error),
        ("warn", Level::Warn),
        ("info", Level::Info),
        ("debug", Level::Debug),
        ("trace", Level::Trace),
    ];
    let formats = &[("text", LogFormat::Text), ("json", LogFormat::Json)];
    let log = Log {
        level: t.value("level", Level::Info, word(levels)),
        format: t.value("format", LogFormat::Text, word(formats)),
        access: t.value("access", true, boolean),
    };
    t.finish();
    log
}

fn auth(root: &mut Table<'_>, addresses: &[SocketAddr; 5]) -> Auth {
    let mut t = root.table("auth");
    let readable = !t.has("required") || t.optional("required", boolean).is_some();
    let required = t.value("required", true, |node| Ok(boolean(node).unwrap_or(true)));
    if required && readable {
        let default = if t.has("required") { "" } else { " (the default)" };
        t.problem(
            "required",
            format!(
                "`true`{default} cannot be honoured: this version has no API keys yet. To serve without keys on this \
                 machine alone, write `auth: {{ required: false }}` and keep every listener on a loopback address"
            ),
        );
    } else if readable {
        let open = LISTENERS.iter().zip(addresses).filter(|(_, address)| !address.ip().is_loopback());
        let open: Vec<String> = open.map(|((name, ..), address)| format!("{name} is {address}")).collect();
        if !open.is_empty() {
            t.problem(
                "required",
                format!(
                    "`false` is refused because {}: without keys, whoever reaches a listener may use the engines. \
                     Put every listener on a loopback address",
                    open.join(" and ")
                ),
            );
        }
    }
    t.finish();
    Auth { required }
}

fn admin(mut t: Table<'_>) -> Admin {
    let name = |node: &Node| {
        let name = text(node)?;
        let fits = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if fits { Ok(name) } else { Err(format!("`{name}` is not the name of an environment variable")) }
    };
    let admin = Admin { token_env: t.value("token_env", "LLMGW_ADMIN_TOKEN".to_owned(), name) };
    t.finish();
    admin
}

fn store(mut t: Table<'_>) -> Store {
    let postgres = t.optional("postgres", |node| {
        let url = text(node)?;
        let fits = url.starts_with("postgres://") || url.starts_with("postgresql://");
        // The text may hold a password, so it is not quoted back.
        if fits { Ok(Secret::new(url)) } else { Err("must begin with `postgres://`".to_owned()) }
    });
    let path = t.optional("path", text);
    if path.is_some() && postgres.is_some() {
        t.problem("postgres", "give either `path` or `postgres`, not both");
    }
    t.finish();
    match (postgres, path) {
        (Some(postgres), _) => Store::Postgres(postgres),
        (None, path) => Store::Path(path.unwrap_or_else(|| "./llmgw-data".to_owned()).into()),
    }
}

fn limits(mut t: Table<'_>) -> Limits {
    let half_close = &[("abort", HalfClose::Abort), ("allow", HalfClose::Allow)];
    let limits = Limits {
        max_body: t.value("max_body", 32 * MIB, size(KIB..=4 * GIB)),
        max_header: t.value("max_header", 32 * KIB, size(KIB..=MIB)),
        max_headers: t.value("max_headers", 100, integer(1..=1000)),
        max_connections: t.value("max_connections", 65_536, integer(1..=4_194_304)),
        max_connections_per_client: t.value("max_connections_per_client", 4096, integer(1..=4_294_967_295)),
        max_json_depth: t.value("max_json_depth", 64, integer(1..=10_000)),
        buffered_total: t.value("buffered_total", GIB, size(KIB..=1024 * GIB)),
        half_close: t.value("half_close", HalfClose::Abort, word(half_close)),
        default_max_tokens: t.value("default_max_tokens", 4096, integer(1..=2_147_483_647)),
    };
    if limits.buffered_total < limits.max_body {
        let blame = if t.has("buffered_total") { "buffered_total" } else { "max_body" };
        let (total, body) = (limits.buffered_total, limits.max_body);
        let (total, body) = (super::units::show_size(total), super::units::show_size(body));
        t.problem(
            blame,
            format!("a body of max_body ({body}) would never fit into buffered_total ({total})"),
        );
    }
    t.later("default_max_tokens");
    t.finish();
    limits
}

fn timeouts(mut t: Table<'_>) -> Timeouts {
    let mut get = |name, default| t.value(name, default, duration(MS, DAY));
    let timeouts = Timeouts {
        header: get("header", 10 * SECOND),
        idle: get("idle", 75 * SECOND),
        body_idle: get("body_idle", 30 * SECOND),
        connect: get("connect", 2 * SECOND),
        first_token: get("first_token", 300 * SECOND),
        between_tokens: get("between_tokens", 120 * SECOND),
        total: get("total", 3600 * SECOND),
        upstream_idle: get("upstream_idle", 4 * SECOND),
        // Zero is meaningful here: end at once.
        shutdown: t.value("shutdown", 30 * SECOND, duration(Duration::ZERO, DAY)),
    };
    t.finish();
    timeouts
}

/// Policies that are profiles of their own, and need no section in `router.profiles`.
pub const POLICIES: [&str; 3] = ["affinity", "weighted", "least_outstanding"];

fn router(mut t: Table<'_>) -> Router {
    let cooldown = t.optional("cooldown", duration(MS, DAY));
    let cooldown_seconds = t.optional("cooldown_seconds", integer(1..=86_400));
    if cooldown.is_some() && cooldown_seconds.is_some() {
        t.problem("cooldown_seconds", "is an older name of `cooldown`; give one of them");
    }
    let cooldown = cooldown.or(cooldown_seconds.map(Duration::from_secs)).unwrap_or(15 * SECOND);
    let profiles = profiles(&mut t);
    let policy = policy(&mut t, &profiles);
    let second_up = duration(100 * MS, DAY);
    let router = Router {
        policy,
        affinity_load_factor: t.value("affinity_load_factor", 1.25, number("of at least 1", |x| x >= 1.0)),
        heartbeat_interval: t.value("heartbeat_interval", 2 * SECOND, &second_up),
        heartbeat_miss_limit: t.value("heartbeat_miss_limit", 3, integer(1..=1000)),
        retries: u8::try_from(t.value("retries", 2, integer(0..=16))).unwrap_or(2),
        retry_budget: t.value("retry_budget", 0.2, number("from 0 to 1", |x| (0.0..=1.0).contains(&x))),
        cooldown,
        inject_usage: t.value("inject_usage", true, boolean),
        keep_alive_comment: t.value("keep_alive_comment", 15 * SECOND, duration(100 * MS, DAY)),
        default_priority: t.value("default_priority", 0, whole),
        scrape_interval: t.value("scrape_interval", 2 * SECOND, &second_up),
        endpoint_cache_max_age: t.value("endpoint_cache_max_age", 300 * SECOND, &second_up),
        profiles,
    };
    admission(t.table("admission"));
    prefix(t.table("prefix"));
    for name in ["scrape_interval", "endpoint_cache_max_age", "admission", "prefix"] {
        t.later(name);
    }
    t.finish();
    router
}

fn policy(t: &mut Table<'_>, profiles: &[ProfileConfig]) -> String {
    let known = || POLICIES.into_iter().chain(profiles.iter().map(|p| p.name.as_str()));
    let check = |node: &Node| {
        let name = text(node)?;
        if known().any(|known| known == name) {
            return Ok(name);
        }
        let hint =
            decode::nearest(&name, known()).map_or(String::new(), |n| format!("; did you mean `{n}`?"));
        let names: Vec<&str> = known().collect();
        Err(format!("`{name}` is neither a policy nor one of router.profiles ({}){hint}", names.join(", ")))
    };
    let policy = t.optional("policy", check);
    let default_profile = t.optional("default_profile", check);
    if policy.is_some() && default_profile.is_some() {
        t.problem("default_profile", "is an older name of `policy`; give one of them");
    }
    policy.or(default_profile).unwrap_or_else(|| "affinity".to_owned())
}

fn profiles(t: &mut Table<'_>) -> Vec<ProfileConfig> {
    let mut profiles = Vec::new();
    for (name, mut p) in t.named_tables("profiles") {
        if POLICIES.contains(&name.as_str()) {
            p.problem_here(format!("`{name}` is a built-in policy; a profile needs another name"));
        }
        let weight = number("of at least 0", |x| x >= 0.0);
        let scorers = p.numbers_by_name("scorers", &SCORERS, |scorer| scorer != "inflight", weight);
        let picker = picker(p.table("picker"));
        p.finish();
        profiles.push(ProfileConfig { name, scorers, picker });
    }
    profiles
}

fn picker(mut t: Table<'_>) -> Picker {
    let types = &[
        ("max-score", Picker::MaxScore),
        ("p2c", Picker::P2c),
        ("round-robin", Picker::RoundRobin),
        ("softmax", Picker::Softmax { temperature: 1.0 }),
    ];
    let kind = t.value("type", Picker::P2c, word(types));
    let temperature = t.optional("temperature", number("of at least 0", |x| x >= 0.0));
    let picker = match (kind, temperature) {
        (Picker::Softmax { .. }, Some(temperature)) => Picker::Softmax { temperature },
        (kind, None) => kind,
        (kind, Some(_)) => {
            t.problem("temperature", "only the picker `softmax` has a temperature");
            kind
        }
    };
    if matches!(picker, Picker::Softmax { .. }) {
        t.later("type");
    }
    t.finish();
    picker
}

fn admission(mut t: Table<'_>) {
    t.value("target_waiting_per_replica", 4.0, number("above 0", |x| x > 0.0));
    t.value("kv_ceiling", 0.9, number("above 0 and at most 1", |x| x > 0.0 && x <= 1.0));
    t.value("queue_ttl", 30 * SECOND, duration(MS, DAY));
    t.value("queue_capacity_per_band", 2000, integer(1..=10_000_000));
    let mut names: Vec<String> = Vec::new();
    for mut band in t.tables("bands") {
        let name = band.required("name", text).unwrap_or_default();
        if names.contains(&name) {
            band.problem("name", format!("`{name}` names two bands"));
        }
        names.push(name);
        band.required("priority", integer(0..=2_147_483_647));
        band.required("saturation_ceiling", number("above 0", |x| x > 0.0));
        band.finish();
    }
    t.finish();
}

fn prefix(mut t: Table<'_>) {
    let mut session = t.table("session_affinity");
    session.value("enabled", true, boolean);
    session.optional("header", text);
    session.value("load_factor", 1.25, number("of at least 1", |x| x >= 1.0));
    session.finish();
    let mut tree = t.table("approx_tree");
    tree.value("enabled", false, boolean);
    tree.value("cache_threshold", 0.3, number("from 0 to 1", |x| (0.0..=1.0).contains(&x)));
    tree.value("balance_abs_threshold", 16.0, number("of at least 0", |x| x >= 0.0));
    tree.value("balance_rel_threshold", 1.5, number("of at least 1", |x| x >= 1.0));
    tree.value("max_tree_size", 2_000_000, integer(1..=4_000_000_000));
    tree.value("eviction_interval", 60 * SECOND, duration(SECOND, DAY));
    tree.finish();
    let mut events = t.table("kv_events");
    events.value("enabled", false, boolean);
    events.finish();
    t.finish();
}

fn cors(mut t: Table<'_>) -> Cors {
    let origin = |node: &Node| {
        let origin = text(node)?;
        let scheme = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        let fits = |host: &str| !host.is_empty() && !host.contains(['/', ' ', '?', '#']) && host.is_ascii();
        match origin == "*" || scheme.is_some_and(fits) {
            true => Ok(origin),
            false => Err(format!("`{origin}` is not an origin: write `*` or `https://host[:port]`")),
        }
    };
    let cors = Cors {
        allow_origins: t.list("allow_origins", origin).unwrap_or_else(|| vec!["*".to_owned()]),
        max_age: t.value("max_age", 600 * SECOND, duration(Duration::ZERO, DAY)),
    };
    t.finish();
    cors
}

fn tls(root: &mut Table<'_>) -> Option<Tls> {
    let given = root.has("tls");
    let mut t = root.table("tls");
    let mut path = |name| t.optional(name, text).map(PathBuf::from);
    let tls = Tls { ca: path("ca"), cert: path("cert"), key: path("key") };
    if tls.cert.is_some() != tls.key.is_some() {
        t.problem(if tls.cert.is_some() { "cert" } else { "key" }, "`cert` and `key` come together");
    }
    t.finish();
    given.then_some(tls)
}

fn registry_tls(root: &mut Table<'_>) -> Option<RegistryTls> {
    if !root.has("registry_tls") {
        return None;
    }
    let mut t = root.table("registry_tls");
    let mut path = |name| t.required(name, text).map(PathBuf::from);
    let (ca, cert, key) = (path("ca"), path("cert"), path("key"));
    t.finish();
    Some(RegistryTls { ca: ca?, cert: cert?, key: key? })
}
