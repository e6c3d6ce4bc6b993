//! The configuration as it is shown: every key with its value in the file's own notation, secrets hidden.
//!
//! **Invariant:** a key that is added to a type must be named here for the crate to build: structs are taken apart
//! without `..`.

use super::types::*;
use super::units::{show_duration, show_size};
use super::{Config, tree};
use llmgw_routing::snapshot::{BackendSpec, Engine, Role, RouteSpec, StepSpec};
use serde_json::{Map, Value, json};

/// Every key with its value.
pub fn view(config: &Config) -> Value {
    let Config {
        listen,
        admin_listen,
        health_listen,
        registry_listen,
        agent_listen,
        shards,
        driver,
        busy_poll,
        log: Log { level, format, access },
        auth: Auth { required },
        admin: Admin { token_env },
        store,
        limits,
        timeouts,
        router,
        cors: Cors { allow_origins, max_age },
        tls,
        registry_tls,
        endpoints,
        routes,
        models,
        fabrics,
        origins: _,
    } = config;
    let store = match store {
        Store::Path(path) => json!({ "path": path }),
        Store::Postgres(secret) => json!({ "postgres": secret.to_string() }),
    };
    let models: Vec<Value> = models.iter().map(|CatalogModel { name }| json!({ "name": name })).collect();
    let fabric = |Fabric { name, gid_prefix }: &Fabric| json!({ "name": name, "gid_prefix": gid_prefix });
    json!({
        "listen": listen,
        "admin_listen": admin_listen,
        "health_listen": health_listen,
        "registry_listen": registry_listen,
        "agent_listen": agent_listen,
        "shards": shards,
        "driver": match driver {
            DriverChoice::Auto => "auto",
            DriverChoice::IoUring => "io_uring",
            DriverChoice::Epoll => "epoll",
        },
        "busy_poll": show_duration(*busy_poll),
        "log": { "level": word(level), "format": word(format), "access": access },
        "auth": { "required": required },
        "admin": { "token_env": token_env },
        "store": store,
        "limits": show_limits(limits),
        "timeouts": show_timeouts(timeouts),
        "router": show_router(router),
        "cors": { "allow_origins": allow_origins, "max_age": show_duration(*max_age) },
        "tls": tls.as_ref().map(|Tls { ca, cert, key }| json!({ "ca": ca, "cert": cert, "key": key })),
        "registry_tls": registry_tls
            .as_ref()
            .map(|RegistryTls { ca, cert, key }| json!({ "ca": ca, "cert": cert, "key": key })),
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        "routes": routes.iter().map(route).collect::<Vec<_>>(),
        "models": models,
        "fabrics": fabrics.iter().map(fabric).collect::<Vec<_>>(),
    })
}

/// A unit variant as the file writes it.
fn word(variant: &dyn std::fmt::Debug) -> String {
    format!("{variant:?}").to_ascii_lowercase()
}

fn show_limits(limits: &Limits) -> Value {
    let Limits {
        max_body,
        max_header,
        max_headers,
        max_connections,
        max_connections_per_client,
        max_json_depth,
        buffered_total,
        half_close,
        default_max_tokens,
    } = limits;
    json!({
        "max_body": show_size(*max_body),
        "max_header": show_size(*max_header),
        "max_headers": max_headers,
        "max_connections": max_connections,
        "max_connections_per_client": max_connections_per_client,
        "max_json_depth": max_json_depth,
        "buffered_total": show_size(*buffered_total),
        "half_close": word(half_close),
        "default_max_tokens": default_max_tokens,
    })
}

fn show_timeouts(timeouts: &Timeouts) -> Value {
    let Timeouts {
        header,
        idle,
        body_idle,
        connect,
        first_token,
        between_tokens,
        total,
        upstream_idle,
        shutdown,
    } = timeouts;
    json!({
        "header": show_duration(*header),
        "idle": show_duration(*idle),
        "body_idle": show_duration(*body_idle),
        "connect": show_duration(*connect),
        "first_token": show_duration(*first_token),
        "between_tokens": show_duration(*between_tokens),
        "total": show_duration(*total),
        "upstream_idle": show_duration(*upstream_idle),
        "shutdown": show_duration(*shutdown),
    })
}

fn show_router(router: &Router) -> Value {
    let Router {
        policy,
        affinity_load_factor,
        heartbeat_interval,
        heartbeat_miss_limit,
        retries,
        retry_budget,
        cooldown,
        inject_usage,
        keep_alive_comment,
        default_priority,
        scrape_interval,
        endpoint_cache_max_age,
        profiles,
    } = router;
    let profiles: Map<String, Value> = profiles.iter().map(profile).collect();
    json!({
        "policy": policy,
        "affinity_load_factor": affinity_load_factor,
        "heartbeat_interval": show_duration(*heartbeat_interval),
        "heartbeat_miss_limit": heartbeat_miss_limit,
        "retries": retries,
        "retry_budget": retry_budget,
        "cooldown": show_duration(*cooldown),
        "inject_usage": inject_usage,
        "keep_alive_comment": show_duration(*keep_alive_comment),
        "default_priority": default_priority,
        "scrape_interval": show_duration(*scrape_interval),
        "endpoint_cache_max_age": show_duration(*endpoint_cache_max_age),
        "profiles": profiles,
    })
}

fn profile(profile: &ProfileConfig) -> (String, Value) {
    let ProfileConfig { name, scorers, picker } = profile;
    let scorers: Map<String, Value> =
        scorers.iter().map(|(name, weight)| ((*name).to_owned(), json!(weight))).collect();
    let picker = match picker {
        Picker::MaxScore => json!({ "type": "max-score" }),
        Picker::P2c => json!({ "type": "p2c" }),
        Picker::RoundRobin => json!({ "type": "round-robin" }),
        Picker::Softmax { temperature } => json!({ "type": "softmax", "temperature": temperature }),
    };
    (name.clone(), json!({ "scorers": scorers, "picker": picker }))
}

fn endpoint(endpoint: &EndpointConfig) -> Value {
    let EndpointConfig {
        id,
        model,
        url,
        engine,
        pool,
        weight,
        role,
        grpc_address,
        kv_address,
        priority_scheduling,
    } = endpoint;
    let engine = match engine {
        Engine::Vllm => "vllm",
        Engine::Sglang => "sglang",
        Engine::Llamacpp => "llamacpp",
        Engine::Sim => "sim",
        Engine::Openai => "openai",
    };
    let role = match role {
        Role::Unified => "unified",
        Role::Prefill => "prefill",
        Role::Decode => "decode",
    };
    json!({
        "id": id,
        "model": model,
        "url": tree::masked(&format!("http://{}{}", url.authority(), url.base_path)),
        "engine": engine,
        "pool": pool,
        "weight": weight,
        "role": role,
        "grpc_address": grpc_address,
        "kv_address": kv_address,
        "priority_scheduling": priority_scheduling,
    })
}

fn route(route: &RouteSpec) -> Value {
    let RouteSpec { model, aliases, targets, backends, cascade, priority } = route;
    let backend = |b: &BackendSpec| json!({ "served_model": b.served_model, "weight": b.weight });
    let step = |s: &StepSpec| json!({ "model": s.model, "accept_if": s.accept_if });
    json!({
        "model": model,
        "aliases": aliases,
        "targets": targets,
        "backends": backends.iter().map(backend).collect::<Vec<_>>(),
        "cascade": cascade.iter().map(step).collect::<Vec<_>>(),
        "priority": priority,
    })
}

/// A small configuration that has one of everything that is a list.
const SAMPLE: &str = r#"
auth: { required: false }
router:
  profiles: { NAME: { scorers: { inflight: 1 } } }
  admission: { bands: [{ name: gold, priority: 1, saturation_ceiling: 1 }] }
endpoints: [{ id: e1, model: m, url: "http://127.0.0.1:9001" }]
routes:
  - { model: r, backends: [{ served_model: m, weight: 1 }] }
  - { model: c, cascade: [{ model: m, accept_if: "min_logprob > -1" }, { model: n }] }
models: [{ name: m, profiles: [{ name: p }] }]
fabrics: [{ name: f }]
"#;

/// Every scalar key there is (the first of each list), which of them must be given, and the defaults in a view.
pub fn sample() -> (Vec<String>, Vec<String>, Value) {
    let Ok(root) = tree::parse(SAMPLE) else { return Default::default() };
    let notes = super::decode::Notes::default();
    let mut config = super::sections::root(&notes, &root);
    config.routes.truncate(1);
    let first = |key: &&String| !key.contains("[1]");
    let (known, given) = (notes.known(), notes.origins());
    let keys = known.iter().filter(first).cloned().collect();
    let given = given.into_keys().filter(|key| key.contains('[') && first(&key)).collect();
    (keys, given, view(&config))
}
