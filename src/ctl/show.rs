//! Answers as tables.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use llmgw_controlplane::admin::dto::{ConfigView, Explanation, Route, Routes, Source, Status, Workers};
use serde_json::Value;

/// `1 engine`, `2 engines`.
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn table<const N: usize>(head: [&str; N], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(head);
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.contains(&i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Its lines without blanks at their ends.
fn text(table: &Table) -> String {
    table.lines().fold(String::new(), |text, line| text + line.trim_end() + "\n")
}

/// `llmgw ctl workers`.
pub fn workers(found: &Workers, now_unix_ms: u64) -> String {
    let head =
        ["ID", "MODEL", "ROLE", "ADDRESS", "STATE", "IN FLIGHT", "QUEUED", "RUNNING", "KV FREE", "BEAT"];
    let mut rows = table(head, &[5, 6, 7, 8, 9]);
    for worker in &found.data {
        let state = match (worker.routable, worker.draining) {
            (true, _) => "ready",
            (false, true) => "draining",
            (false, false) if worker.health == "ready" => "drained",
            (false, false) => &worker.health,
        };
        let blocks = match worker.kv_total_blocks {
            0 => "-".to_owned(),
            total => format!("{}%", u64::from(worker.kv_free_blocks) * 100 / u64::from(total)),
        };
        let beat =
            worker.last_heartbeat_unix_ms.map_or("-".to_owned(), |at| age(now_unix_ms.saturating_sub(at)));
        rows.add_row([
            &worker.worker_id,
            &worker.model,
            &worker.role,
            &worker.http_address,
            state,
            &worker.in_flight.to_string(),
            &worker.queue_depth.to_string(),
            &worker.running.to_string(),
            &blocks,
            &beat,
        ]);
    }
    let routable = found.data.iter().filter(|worker| worker.routable).count();
    let all = count(found.data.len(), "engine");
    format!("{}{all}, {routable} ready; route epoch {}\n", text(&rows), found.route_epoch)
}

/// `1.2s ago`.
fn age(ms: u64) -> String {
    if ms < 60_000 {
        format!("{}.{}s ago", ms / 1000, ms % 1000 / 100)
    } else {
        format!("{}m ago", ms / 60_000)
    }
}

/// `llmgw ctl routes get`.
pub fn routes(found: &Routes) -> String {
    let mut rows = table(["MODEL", "ALIASES", "TARGETS", "SERVED BY"], &[]);
    for route in &found.routes {
        let targets = route.targets.iter().map(|target| format!("{target:?}").to_ascii_lowercase());
        let targets: Vec<String> = targets.collect();
        rows.add_row([&route.model, &dash(&route.aliases.join(", ")), &targets.join(", "), &served(route)]);
    }
    let source = source(found.source);
    format!("{}{}, epoch {}, {source}\n", text(&rows), count(found.routes.len(), "route"), found.route_epoch)
}

fn source(source: Source) -> &'static str {
    match source {
        Source::Config => "of the configuration",
        Source::Api => "set through the admin API",
    }
}

fn dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

fn served(route: &Route) -> String {
    if !route.cascade.is_empty() {
        let steps = route.cascade.iter().map(|step| match &step.accept_if {
            Some(rule) => format!("{} if {rule}", step.model),
            None => step.model.clone(),
        });
        return steps.collect::<Vec<_>>().join(", else ");
    }
    let backends: Vec<String> =
        route.backends.iter().map(|backend| format!("{} {}", backend.served_model, backend.weight)).collect();
    if backends.is_empty() { route.model.clone() } else { backends.join(", ") }
}

/// `llmgw ctl route-explain`.
pub fn explain(told: &Explanation) -> String {
    let way = match &told.route {
        Some(route) => format!("route {route}, draw {:.4}", told.draw),
        None => "no route".to_owned(),
    };
    let mut rows =
        table(["ENDPOINT", "IN FLIGHT", "QUEUED", "LOAD", "WEIGHT", "SCORE", "VERDICT"], &[1, 2, 3, 4, 5]);
    for endpoint in &told.endpoints {
        let against: Vec<&str> =
            endpoint.filters.iter().filter(|f| !f.kept).map(|filter| filter.filter.as_str()).collect();
        let verdict = match against.is_empty() {
            _ if told.pick.as_ref() == Some(&endpoint.worker_id) => "picked".to_owned(),
            true => "candidate".to_owned(),
            false => format!("out: {}", against.join(", ")),
        };
        let score =
            if endpoint.scores.is_empty() { "-".to_owned() } else { format!("{:.3}", endpoint.score) };
        rows.add_row([
            &endpoint.worker_id,
            &endpoint.in_flight.to_string(),
            &endpoint.queue_depth.to_string(),
            &endpoint.load.to_string(),
            &endpoint.weight.to_string(),
            &score,
            &verdict,
        ]);
    }
    let affinity = told.affinity.as_ref().map_or(String::new(), |terms| {
        let owner = terms.owner.as_deref().unwrap_or("nobody");
        format!("prefix {} belongs to {owner}; loads below {} are taken\n", terms.hash, terms.capacity)
    });
    let pick = match (&told.pick, &told.no_pick) {
        (Some(pick), _) => format!("{pick}, reason {}", told.reason.as_deref().unwrap_or("-")),
        (None, why) => format!("none: {}", why.as_deref().unwrap_or("-")),
    };
    let certainty = match told.certainty.as_str() {
        "certain" => "",
        "random" => " (shards draw: the next request may go elsewhere)",
        _ => " (each shard goes through a sequence of its own)",
    };
    format!(
        "{} -> {} ({way}), policy {}, priority {}\n{}{affinity}pick: {pick}{certainty}\n",
        told.model,
        told.served_model,
        told.profile,
        told.priority,
        text(&rows)
    )
}

/// `llmgw ctl config`.
pub fn config(view: &ConfigView) -> String {
    let mut leaves = Vec::new();
    flatten("", &view.config, &mut leaves);
    let mut rows = table(["KEY", "VALUE", "FROM"], &[]);
    for (key, value) in &leaves {
        let from = view.origins.get(key).map_or("default", String::as_str);
        rows.add_row([key.as_str(), value, from]);
    }
    text(&rows)
}

/// Every scalar with its dotted path.
pub fn flatten(path: &str, value: &Value, leaves: &mut Vec<(String, String)>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, value, leaves);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            for (i, item) in items.iter().enumerate() {
                flatten(&format!("{path}[{i}]"), item, leaves);
            }
        }
        Value::Null => {}
        Value::String(text) => leaves.push((path.to_owned(), text.clone())),
        other => leaves.push((path.to_owned(), other.to_string())),
    }
}

/// `llmgw ctl status`.
pub fn status(status: &Status) -> String {
    let mut rows = table(["", ""], &[]);
    let ready = match (&status.not_ready, status.ready) {
        (_, true) => "yes".to_owned(),
        (why, false) => format!("no: {}", why.as_deref().unwrap_or("unknown")),
    };
    let routes = format!("{}, epoch {}, {}", status.routes, status.route_epoch, source(status.route_source));
    let reload = if status.last_reload_ok { "taken" } else { "refused; the log says why" };
    for (name, value) in [
        ("version", status.version.clone()),
        ("ready", ready),
        ("shards", status.shards.to_string()),
        ("models", status.models.to_string()),
        ("engines", status.endpoints.to_string()),
        ("in flight", status.in_flight.to_string()),
        ("routes", routes),
        ("drained", dash(&status.drained.join(", "))),
        ("snapshot", status.snapshot_version.to_string()),
        ("last reload", reload.to_owned()),
    ] {
        rows.add_row([name, &value]);
    }
    // No heads over what needs none.
    text(&rows).trim_start().to_owned()
}
