//! Endpoints, routes, the catalog and fabrics.

use super::decode::{Table, boolean, duration, integer, number, text, whole, word};
use super::tree::{Node, Origin, masked};
use super::types::*;
use llmgw_routing::snapshot::{BackendSpec, Engine, Role, RouteSpec, StepSpec, validate};
use std::collections::HashMap;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(86_400);

/// A name that may stand in a header and a label: printable ASCII.
fn name(node: &Node) -> Result<String, String> {
    let name = text(node)?;
    let fits = name.bytes().all(|b| (b' '..=b'~').contains(&b)) && name.trim() == name && name.len() <= 256;
    match fits {
        true => Ok(name),
        false => Err(format!("`{}` must be 1 to 256 printable ASCII characters", name.escape_debug())),
    }
}

/// Like [`name`], without spaces: it goes into headers, series and command lines.
fn id(node: &Node) -> Result<String, String> {
    let id = name(node)?;
    if id.contains(' ') { Err(format!("`{id}` must not hold spaces")) } else { Ok(id) }
}

fn host_port(node: &Node) -> Result<String, String> {
    let text = text(node)?;
    match split_authority(&text) {
        Some(_) => Ok(text),
        None => Err(format!("`{text}` is not host:port")),
    }
}

/// `host:port`, with the brackets around an IPv6 address taken off.
pub fn split_authority(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse::<u16>().ok().filter(|port| *port != 0)?;
    if let Some(inner) = host.strip_prefix('[') {
        let inner = inner.strip_suffix(']')?;
        inner.parse::<std::net::Ipv6Addr>().ok()?;
        return Some((inner.to_owned(), port));
    }
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    (!host.is_empty() && host.len() <= 253 && host.bytes().all(fits)).then(|| (host.to_owned(), port))
}

/// Parses `http://host:port[/base]`.
pub fn parse_url(url: &str) -> Result<EndpointUrl, String> {
    let text = masked(url);
    let Some(rest) = url.strip_prefix("http://") else {
        let reason =
            if url.starts_with("https://") { "engines are reached over plain http" } else { "no http://" };
        return Err(format!("`{text}` is not http://host:port[/base] ({reason})"));
    };
    let (authority, base) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
    let Some((host, port)) = split_authority(authority) else {
        let bare = !authority.is_empty() && !authority.contains([':', '@', '[']);
        let reason = if bare { "no port" } else { "no host and port" };
        return Err(format!("`{text}` is not http://host:port[/base] ({reason})"));
    };
    let base = base.trim_end_matches('/');
    if base == "/v1" || base.ends_with("/v1") {
        let without = url.trim_end_matches('/').trim_end_matches("/v1");
        return Err(format!("`{text}` ends in /v1, which is added to every path: write `{without}`"));
    }
    if !base.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'?' | b'#' | b'"' | b'<' | b'>' | b'\\')) {
        return Err(format!(
            "`{text}` is not http://host:port[/base] (the path holds a character that no path has)"
        ));
    }
    Ok(EndpointUrl { host, port, base_path: base.to_owned() })
}

/// `endpoints`.
pub fn endpoints(root: &mut Table<'_>) -> Vec<EndpointConfig> {
    let engines = &[
        ("vllm", Engine::Vllm),
        ("sglang", Engine::Sglang),
        ("llamacpp", Engine::Llamacpp),
        ("sim", Engine::Sim),
        ("openai", Engine::Openai),
    ];
    let mut endpoints = Vec::new();
    let mut ids: HashMap<String, Origin> = HashMap::new();
    for mut t in root.tables("endpoints") {
        let id = t.required("id", id);
        let model = t.required("model", name);
        let url = t.required("url", |node| parse_url(&text(node)?));
        let engine = t.value("engine", Engine::Vllm, word(engines));
        let pool = t.value("pool", "default".to_owned(), name);
        let weight = t.value("weight", 1.0, number("of at least 0", |x| x >= 0.0));
        let role = t.value("role", Role::Unified, word(ROLES));
        let grpc_address = t.optional("grpc_address", host_port);
        let kv_address = t.optional("kv_address", host_port);
        let priority_scheduling = t.value("priority_scheduling", false, boolean);
        if let Some(id) = &id
            && let Some(first) = ids.insert(id.clone(), t.at("id"))
        {
            let first = match first {
                Origin::File { line, .. } => format!(" (line {line})"),
                _ => String::new(),
            };
            t.problem("id", format!("`{id}` is the id of another endpoint too{first}"));
        }
        t.later("grpc_address");
        t.later("kv_address");
        if role != Role::Unified {
            t.later("role");
        }
        t.finish();
        if let (Some(id), Some(model), Some(url)) = (id, model, url) {
            endpoints.push(EndpointConfig {
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
            });
        }
    }
    endpoints
}

const ROLES: &[(&str, Role)] =
    &[("unified", Role::Unified), ("prefill", Role::Prefill), ("decode", Role::Decode)];

/// `routes`. What a table may be is [`llmgw_routing::snapshot::validate`]'s to judge, as for the admin API.
pub fn routes(root: &mut Table<'_>) -> Vec<RouteSpec> {
    let mut routes = Vec::new();
    for mut t in root.tables("routes") {
        let spec = RouteSpec {
            model: t.required("model", text).unwrap_or_default(),
            aliases: t.list("aliases", text).unwrap_or_default(),
            targets: t.list("targets", text).unwrap_or_default(),
            backends: backends(&mut t),
            cascade: cascade(&mut t),
            priority: t.optional("priority", whole),
        };
        t.later("cascade");
        if spec.targets.iter().any(|target| target == "disaggregated") {
            t.later("targets");
        }
        t.finish();
        routes.push(spec);
    }
    for problem in validate(&routes).err().unwrap_or_default() {
        root.problem_at(&problem.param, &problem.message);
    }
    routes
}

fn backends(t: &mut Table<'_>) -> Vec<BackendSpec> {
    let mut backends = Vec::new();
    for mut b in t.tables("backends") {
        let served_model = b.required("served_model", text).unwrap_or_default();
        let weight =
            b.required("weight", number("from 0 to 1", |x| (0.0..=1.0).contains(&x))).unwrap_or_default();
        b.finish();
        backends.push(BackendSpec { served_model, weight });
    }
    backends
}

fn cascade(t: &mut Table<'_>) -> Vec<StepSpec> {
    let mut cascade = Vec::new();
    for mut step in t.tables("cascade") {
        let model = step.required("model", text).unwrap_or_default();
        let accept_if = step.optional("accept_if", text);
        step.finish();
        cascade.push(StepSpec { model, accept_if });
    }
    cascade
}

/// `models`, the catalog.
pub fn models(root: &mut Table<'_>) -> Vec<CatalogModel> {
    let mut models: Vec<CatalogModel> = Vec::new();
    for mut t in root.tables("models") {
        let model = t.required("name", name);
        if let Some(model) = model.filter(|m| models.iter().any(|known| known.name == *m)) {
            t.problem("name", format!("`{model}` is in the catalog twice"));
        }
        let name = t.optional("name", name);
        t.optional("source", text);
        t.optional("startup_timeout", duration(MS, DAY));
        t.list("fallbacks", text);
        t.optional("routing_profile", text);
        let mut scaling = t.table("scaling");
        let min = scaling.value("min", 1, integer(0..=100_000));
        let max = scaling.value("max", min.max(1), integer(1..=100_000));
        if min > max {
            scaling.problem("min", format!("{min} is above max, {max}"));
        }
        scaling.finish();
        let mut slo = t.table("slo");
        slo.optional("ttft_p99", duration(MS, DAY));
        slo.optional("tpot_p99", duration(MS, DAY));
        slo.finish();
        model_profiles(&mut t);
        t.finish();
        models.extend(name.map(|name| CatalogModel { name }));
    }
    models
}

fn model_profiles(t: &mut Table<'_>) {
    for mut p in t.tables("profiles") {
        p.required("name", name);
        p.optional("gpu_class", name);
        p.optional("engine", word(&[("vllm", ()), ("sglang", ()), ("llamacpp", ()), ("sim", ())]));
        for key in ["tp", "nodes", "gpus_per_node"] {
            p.optional(key, integer(1..=100_000));
        }
        p.optional("priority", integer(0..=2_147_483_647));
        p.optional("weight", number("of at least 0", |x| x >= 0.0));
        p.list("args", text);
        p.finish();
    }
}

/// `fabrics`.
pub fn fabrics(root: &mut Table<'_>) -> Vec<Fabric> {
    let mut fabrics: Vec<Fabric> = Vec::new();
    for mut t in root.tables("fabrics") {
        let name = t.required("name", id);
        let gid_prefix = t.optional("gid_prefix", text);
        if let Some(name) = &name
            && fabrics.iter().any(|known| known.name == *name)
        {
            t.problem("name", format!("`{name}` names two fabrics"));
        }
        t.finish();
        fabrics.extend(name.map(|name| Fabric { name, gid_prefix }));
    }
    fabrics
}
