//! What `ctl` prints and reads, without a gateway.

use super::client::Client;
use super::{begin, deadline, edit, interval, show};
use llmgw_controlplane::admin::dto::{ConfigView, Explanation, Routes, Status, Workers};
use serde_json::json;
use std::time::Duration;

fn from<T: serde::de::DeserializeOwned>(json: serde_json::Value) -> T {
    serde_json::from_value(json).expect("the wire's shape")
}

#[test]
fn tables_of_workers() {
    let worker = |id: &str, total: u32, beat: Option<u64>, health: &str, draining: bool, routable: bool| {
        json!({ "worker_id": id, "role": "unified", "model": "org/model", "http_address": "10.0.0.1:8000",
                "grpc_address": "", "kv_address": "", "kv_format": 1, "queue_depth": 2, "running": 31,
                "kv_free_blocks": 250, "kv_total_blocks": total, "draining": draining, "last_heartbeat_unix_ms": beat,
                "source": "registered", "pool": "default", "in_flight": 7, "health": health, "routable": routable })
    };
    let found: Workers = from(json!({ "route_epoch": 12, "data": [
        worker("w-1", 1000, Some(98_766), "ready", false, true),
        worker("w-22", 0, None, "failed", false, false),
        worker("w-3", 300, Some(1), "ready", true, false),
        worker("w-4", 300, Some(100_001), "ready", false, false),
    ] }));
    assert_eq!(
        show::workers(&found, 100_000),
        "\
ID    MODEL      ROLE     ADDRESS        STATE     IN FLIGHT  QUEUED  RUNNING  KV FREE      BEAT
w-1   org/model  unified  10.0.0.1:8000  ready             7       2       31      25%  1.2s ago
w-22  org/model  unified  10.0.0.1:8000  failed            7       2       31        -         -
w-3   org/model  unified  10.0.0.1:8000  draining          7       2       31      83%    1m ago
w-4   org/model  unified  10.0.0.1:8000  drained           7       2       31      83%  0.0s ago
4 engines, 1 ready; route epoch 12
"
    );
}

#[test]
fn tables_of_routes() {
    let found: Routes = from(json!({ "route_epoch": 3, "source": "config", "routes": [
        { "model": "smol", "aliases": ["default", "s"], "backends": [{ "served_model": "smol-v3", "weight": 0.9 },
                                                                     { "served_model": "smol-v4", "weight": 0.1 }] },
        { "model": "clever", "targets": ["disaggregated"],
          "cascade": [{ "model": "small", "accept_if": "mean_logprob > -1.2" }, { "model": "large" }] },
    ] }));
    assert_eq!(
        show::routes(&found),
        "\
MODEL   ALIASES     TARGETS        SERVED BY
smol    default, s  unified        smol-v3 0.9, smol-v4 0.1
clever  -           disaggregated  small if mean_logprob > -1.2, else large
2 routes, epoch 3, of the configuration
"
    );
}

#[test]
fn tables_of_explanations() {
    let endpoint = |id: &str, in_flight: u32, cooldown: bool| {
        json!({ "worker_id": id, "in_flight": in_flight, "queue_depth": 1, "load": in_flight + 1, "weight": 2.5,
                "filters": [{ "filter": "health", "kept": cooldown }, { "filter": "excluded", "kept": true }],
                "candidate": cooldown, "scores": [], "score": 0.0 })
    };
    let mut told: Explanation = from(json!({
        "model": "smol", "request_id": "r1", "route": "smol", "served_model": "smol-v3", "draw": 0.25, "priority": 0,
        "profile": "affinity", "picker": "affinity", "certainty": "certain",
        "endpoints": [endpoint("e1", 0, true), endpoint("e2", 10, true), endpoint("e3", 2, false)],
        "affinity": { "hash": "00000000000000ff", "owner": "e2", "capacity": 8 },
        "pick": "e1", "reason": "load", "no_pick": null,
    }));
    assert_eq!(
        show::explain(&told),
        "\
smol -> smol-v3 (route smol, draw 0.2500), policy affinity, priority 0
ENDPOINT  IN FLIGHT  QUEUED  LOAD  WEIGHT  SCORE  VERDICT
e1                0       1     1     2.5      -  picked
e2               10       1    11     2.5      -  candidate
e3                2       1     3     2.5      -  out: health
prefix 00000000000000ff belongs to e2; loads below 8 are taken
pick: e1, reason load
"
    );
    (told.pick, told.reason, told.no_pick) = (None, None, Some("every endpoint is busy".into()));
    assert!(show::explain(&told).ends_with("pick: none: every endpoint is busy\n"));
}

#[test]
fn tables_of_configuration_and_state() {
    let view: ConfigView = from(json!({
        "config": { "log": { "level": "info" }, "tls": null, "cors": { "allow_origins": ["*"] },
                    "endpoints": [{ "id": "e1", "weight": 1.5 }] },
        "origins": { "endpoints[0].id": "line 4, column 9" },
    }));
    assert_eq!(
        show::config(&view),
        "\
KEY                  VALUE  FROM
cors.allow_origins   [\"*\"]  default
endpoints[0].id      e1     line 4, column 9
endpoints[0].weight  1.5    default
log.level            info   default
"
    );
    let status: Status = from(json!({
        "version": "0.1.0", "ready": false, "not_ready": "draining", "draining": true, "shards": 2,
        "snapshot_version": 9, "route_epoch": 4, "route_source": "api", "routes": 1, "models": 3, "endpoints": 5,
        "in_flight": 17, "drained": ["a", "b"], "last_reload_ok": false, "configured_at": 1,
    }));
    assert_eq!(
        show::status(&status),
        "\
version      0.1.0
ready        no: draining
shards       2
models       3
engines      5
in flight    17
routes       1, epoch 4, set through the admin API
drained      a, b
snapshot     9
last reload  refused; the log says why
"
    );
}

#[test]
fn tables_are_read_from_lists_sections_and_whole_configurations() {
    let expected = json!({ "routes": [{ "model": "m" }] });
    for text in [
        "- model: m",
        "routes:\n  - { model: m }",
        "{\"routes\":[{\"model\":\"m\"}],\"route_epoch\":4,\"source\":\"api\"}",
        "listen: 127.0.0.1:8080\nroutes: [{ model: m }]\nendpoints: []",
        "# a comment\n[{ model: m }]",
    ] {
        assert_eq!(edit::parse(text), Ok(expected.clone()), "{text}");
    }
    assert_eq!(edit::parse("routes:"), Ok(json!({ "routes": [] })));
    for wrong in ["", "m", "7", "{}", "routes: m", "routes: [", "a: 1\na: 2"] {
        assert!(edit::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn arguments_are_bounded() {
    assert_eq!(deadline("0s"), Ok(Duration::ZERO));
    assert_eq!(deadline("1h"), Ok(Duration::from_secs(3600)));
    assert!(deadline("61m").is_err() && deadline("1500ms").is_err() && deadline("5").is_err());
    assert!(interval("100ms").is_ok() && interval("99ms").is_err());
    assert_eq!(begin("short"), "short");
    let long = "\u{e9}".repeat(5000);
    assert_eq!(begin(&long).len(), 4096);
    for url in ["https://gw:1", "gw:1", "http://gw", "http://", "http://gw:99999"] {
        assert_eq!(Client::new(url, None).err().map(|failure| failure.code), Some(2), "{url}");
    }
    for url in ["http://127.0.0.1:9090", "http://127.0.0.1:9090/", "http://[::1]:9090", "http://gw:1/under"] {
        assert!(Client::new(url, Some("t".into())).is_ok(), "{url}");
    }
    assert_eq!(Client::new("http://gw:1", Some("a b".into())).err().map(|failure| failure.code), Some(2));
}
