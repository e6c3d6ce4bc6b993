//! Routes: public names and aliases, canaries, the name that an engine gets, priorities, and what is listed.

use crate::client::CHAT;
use crate::engine::{Request, Scripted, Then};
use crate::gateway::Gateway;
use std::collections::BTreeMap;

/// An engine that answers with the body and the priority that it received.
fn echo() -> Scripted {
    Scripted::start(|wire, request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let fields = format!("x-seen: {}\r\ncontent-type: application/json\r\n", priority(request));
        wire.json("200 OK", &fields, &body)
    })
}

fn priority(request: &Request) -> String {
    let lines = request.head.lines().filter(|line| line.to_ascii_lowercase().starts_with("x-tl-"));
    lines.collect::<Vec<_>>().join(";")
}

fn serving(id: &str, model: &str, engine: &Scripted, more: &str) -> String {
    format!("{{ id: {id}, model: {model}, url: \"http://{}\", engine: vllm{more} }}", engine.address)
}

fn ask(gateway: &Gateway, body: &str) -> (String, String, String) {
    let answer = gateway.chat(body).expect(200);
    let served = answer.header("x-llmgw-served-model").unwrap_or_default();
    (served, answer.header("x-seen").unwrap_or_default(), answer.text())
}

#[test]
fn model_rewritten_for_backend() {
    let engine = echo();
    let routes =
        "routes: [{ model: smol, aliases: [org/default], backends: [{ served_model: v3, weight: 1 }] }]";
    let gateway = Gateway::start(&[serving("e", "v3", &engine, "")], routes);
    // Every other byte stays as the client sent it.
    let (served, _, body) =
        ask(&gateway, r#"{"model" : "org/default","messages":[], "seed":1.50,"model":"smol"}"#);
    assert_eq!(served, "v3");
    assert_eq!(body, r#"{"model" : "v3","messages":[], "seed":1.50,"model":"v3"}"#);
    // No rewriting where the last one names the served model already.
    let same = r#"{"model":"x","messages":[],"model":"v3"}"#;
    assert_eq!(ask(&gateway, same).2, same);
}

#[test]
fn canary_split_goes_by_the_request_id() {
    let (old, new) = (echo(), echo());
    let fleet = [serving("old", "v3", &old, ""), serving("new", "v4", &new, "")];
    let split = "[{ served_model: v3, weight: 0.5 }, { served_model: v4, weight: 0.5 }]";
    let gateway = Gateway::start(&fleet, &format!("routes: [{{ model: smol, backends: {split} }}]"));
    let mut served: BTreeMap<String, String> = BTreeMap::new();
    for i in 0..60 {
        let id = format!("id-{}", i % 30);
        let fields = format!("x-request-id: {id}\r\n");
        let answer = gateway.post(CHAT, &fields, r#"{"model":"smol","messages":[]}"#).expect(200);
        let model = answer.header("x-llmgw-served-model").expect("the served model");
        let first = served.entry(id).or_insert_with(|| model.clone());
        assert_eq!(*first, model, "one id, one backend");
    }
    let canary = served.values().filter(|model| *model == "v4").count();
    assert!((5..=25).contains(&canary), "{canary} of 30");
}

#[test]
fn priority_is_the_operators() {
    let (plain, ordered) = (echo(), echo());
    let fleet =
        [serving("plain", "a", &plain, ""), serving("ordered", "b", &ordered, ", priority_scheduling: true")];
    let extra = "router: { default_priority: 7 }\nroutes: [{ model: b, priority: -2 }]";
    let gateway = Gateway::start(&fleet, extra);
    let forged = "X-TL-Priority: 99\r\nConnection: x-tl-priority\r\nx_tl_priority: 98\r\n";
    let answer = gateway.post(CHAT, forged, r#"{"model":"a","priority":5}"#).expect(200);
    assert_eq!(answer.header("x-seen").as_deref(), Some("x-tl-priority: 7"));
    assert_eq!(answer.text(), r#"{"model":"a","priority":5}"#, "an engine that does not ask gets no field");
    let (_, seen, body) = ask(&gateway, r#"{"model":"b","messages":[]}"#);
    assert_eq!(
        (seen.as_str(), body.as_str()),
        ("x-tl-priority: -2", r#"{"priority":-2,"model":"b","messages":[]}"#)
    );
    let (_, _, body) = ask(&gateway, r#"{"model":"b","priority":5,"messages":[],"priority":null}"#);
    assert_eq!(body, r#"{"model":"b","priority":-2,"messages":[],"priority":-2}"#);
}

#[test]
fn models_list() {
    let engine = echo();
    let routes =
        "routes: [{ model: smol, aliases: [org/default], backends: [{ served_model: gone, weight: 1 }] }]";
    let gateway = Gateway::start(&[serving("e", "org/live", &engine, "")], routes);
    let list = gateway.get("/v1/models").expect(200).json();
    let ids: Vec<_> =
        list["data"].as_array().expect("a list").iter().filter_map(|m| m["id"].as_str()).collect();
    assert_eq!(ids, ["org/default", "org/live", "smol"], "routes, aliases and what is served");
    for id in ["smol", "org/default", "org%2Fdefault", "org%2flive"] {
        assert_eq!(gateway.get(&format!("/v1/models/{id}")).expect(200).json()["object"], "model", "{id}");
    }
    let answer = gateway.get("/v1/models/stranger").expect(404);
    assert_eq!(answer.error_code(), "model_not_found");
}

#[test]
fn model_not_found_and_no_capacity() {
    let engine = Scripted::start(|_, _| Then::Close);
    let routes = "routes: [{ model: smol, backends: [{ served_model: gone, weight: 1 }] }, { model: own }]";
    let gateway = Gateway::start(&[serving("e", "m", &engine, "")], routes);
    let ask = |model: &str| gateway.chat(&format!(r#"{{"model":"{model}","messages":[]}}"#));
    assert_eq!(ask("stranger").expect(404).error_code(), "model_not_found");
    for known in ["smol", "own", "gone"] {
        let answer = ask(known).expect(503);
        assert_eq!(answer.error_code(), "no_capacity", "{known}");
        assert!(answer.header("retry-after").is_some());
    }
}

#[test]
fn a_reload_changes_routes() {
    let engine = echo();
    let fleet = [serving("e", "v3", &engine, "")];
    let gateway =
        Gateway::start(&fleet, "routes: [{ model: a, backends: [{ served_model: v3, weight: 1 }] }]");
    gateway.chat(r#"{"model":"a"}"#).expect(200);
    gateway.reload(&fleet, "routes: [{ model: b, backends: [{ served_model: v3, weight: 1 }] }]");
    gateway.chat(r#"{"model":"a"}"#).expect(404);
    gateway.chat(r#"{"model":"b"}"#).expect(200);
}
