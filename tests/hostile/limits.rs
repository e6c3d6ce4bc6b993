//! Each attack alone: how it is answered, and that nothing is left of it.

use crate::client::{CHAT, chat};
use crate::engine::{Request, Scripted, Then, Wire, endpoints, sim};
use crate::gateway::Gateway;
use crate::raw::Raw;

/// Limits low enough to reach, and times short enough to wait for.
const TIGHT: &str = "
limits: { max_header: 8KiB, max_body: 256KiB, max_connections: 40, max_connections_per_client: 20 }
timeouts: { header: 400ms, idle: 400ms, body_idle: 400ms, total: 2s, between_tokens: 1s }";

/// Counts that must be back at nothing once the attackers are gone.
pub fn clean(gateway: &Gateway) {
    for series in [
        "llmgw_connections{side=\"client\"",
        "llmgw_endpoint_inflight",
        "llmgw_buffered_bytes",
        "llmgw_shard_connections",
    ] {
        gateway.wait_metric(series, |n| n == 0.0);
    }
}

/// An engine that writes as fast as it is read.
pub fn flood(wire: &mut Wire, _: &Request) {
    wire.stream_head();
    let text = "x".repeat(8 * 1024);
    while wire.event(&text) {}
}

fn post_head(fields: &str) -> String {
    format!("POST {CHAT} HTTP/1.1\r\nhost: gw\r\ncontent-type: application/json\r\n{fields}")
}

#[test]
fn each_attack_has_its_answer() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), TIGHT);
    let many_fields: String = (0..101).map(|n| format!("x-{n}: y\r\n")).collect();
    let long_field = format!("x: {}\r\n", "y".repeat(9 * 1024));
    let long_target = format!("GET /{} HTTP/1.1\r\nhost: gw\r\n\r\n", "a".repeat(9 * 1024));
    let chunked = post_head("transfer-encoding: chunked\r\n\r\n");
    let sized = |n: u64| post_head(&format!("content-length: {n}\r\n\r\n"));
    let cases: [(&str, String, String, u16); 15] = [
        ("many fields", post_head(&many_fields), "\r\n".into(), 431),
        ("a long field", post_head(&long_field), "\r\n".into(), 431),
        ("an endless field", post_head("x: "), "y".repeat(1 << 20), 431),
        ("endless fields", post_head(""), "x: y\r\n".repeat(1 << 16), 431),
        ("a long target", long_target, String::new(), 414),
        ("an endless target", "GET /".into(), "a".repeat(1 << 20), 414),
        ("an endless method", "A".into(), "A".repeat(1 << 20), 414),
        ("endless blank lines", "\r\n".into(), "\r\n".repeat(1 << 16), 400),
        ("a large body", sized(262_145), String::new(), 413),
        ("a body beyond all numbers", sized(u64::MAX), String::new(), 413),
        ("an endless body", chunked.clone(), format!("1000\r\n{}\r\n", " ".repeat(4096)).repeat(256), 413),
        ("tiny chunks for ever", chunked.clone(), "1\r\n \r\n".repeat(300_000), 413),
        ("a chunk beyond all numbers", chunked.clone(), "ffffffffffffffff0\r\n".into(), 400),
        ("an endless extension", format!("{chunked}1;x="), "y".repeat(1 << 20), 400),
        ("endless trailers", format!("{chunked}0\r\n"), "x: y\r\n".repeat(1 << 16), 400),
    ];
    for (name, first, then, status) in &cases {
        let mut raw = Raw::connect(gateway.address);
        raw.send(first.as_bytes());
        raw.send(then.as_bytes());
        assert_eq!(raw.refused(), *status, "{name}");
    }
    // What is refused was never sent on.
    assert_eq!(crate::engine::count(&engine, "completed"), 0);
    clean(&gateway);
}

#[test]
fn slow_clients_are_told_and_closed() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), TIGHT);
    let body = chat("");
    let sized = post_head(&format!("content-length: {}\r\n\r\n", body.len()));
    // (name, at once, then a byte at a time, milliseconds apart, status)
    let cases: [(&str, &str, &str, u64, u16); 6] = [
        ("a head that stops", "GET /v1/models HT", "", 0, 408),
        ("a head that trickles", "GET /v1/models HTTP/1.1\r\nx: ", "y", 20, 408),
        ("fields that trickle", "GET /v1/models HTTP/1.1\r\nhost: gw\r\n", "x-y: z\r\n", 20, 408),
        ("a body that stops", &sized, "", 0, 408),
        ("chunks that stop", &post_head("transfer-encoding: chunked\r\n\r\n5\r\n{\"mod"), "", 0, 408),
        // Never idle for long, so that only the bound of the whole request ends it.
        ("a body that trickles", &post_head("content-length: 262144\r\n\r\n"), " ", 20, 408),
    ];
    for (name, first, then, apart_ms, status) in cases {
        let mut raw = Raw::connect(gateway.address);
        raw.send(first.as_bytes());
        if !then.is_empty() {
            raw.trickle(then.as_bytes(), apart_ms);
        }
        assert_eq!(raw.refused(), status, "{name}");
    }
    // One that says nothing at all is closed without a word.
    assert_eq!(Raw::connect(gateway.address).rest(), "");
    assert!(gateway.metric("llmgw_timeouts_total") >= 6.0);
    clean(&gateway);
}

#[test]
fn a_client_that_reads_nothing_is_closed_with_its_engine() {
    let (told, ended) = std::sync::mpsc::channel();
    let told = std::sync::Mutex::new(told);
    let engine = Scripted::start(move |wire, request| {
        flood(wire, request);
        // The gateway hung up.
        told.lock().expect("no panic under the lock").send(()).expect("the test listens");
        Then::Close
    });
    let gateway = Gateway::start(&[engine.endpoint("e0")], TIGHT);
    let mut raw = Raw::connect(gateway.address);
    raw.send(crate::client::post(CHAT, "", &chat(r#","stream":true"#)).as_bytes());
    gateway.wait_metric("llmgw_backpressure_pauses_total", |n| n > 0.0);
    ended.recv_timeout(crate::PATIENCE).expect("the engine is told");
    clean(&gateway);
}

#[test]
fn connections_are_bounded_for_an_address_and_for_all() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), &TIGHT.replace("idle: 400ms", "idle: 20s"));
    let mut one: Vec<Raw> = (0..20).map(|_| Raw::connect(gateway.address)).collect();
    gateway.wait_metric("llmgw_connections{side=\"client\"", |n| n == 20.0);
    assert_eq!(Raw::connect(gateway.address).refused(), 429);
    let said = {
        let mut raw = Raw::connect(gateway.address);
        raw.rest()
    }
    .to_lowercase();
    assert!(said.contains("retry-after: 1") && said.contains("rate_limit_exceeded"), "{said}");
    // Others are not touched by it, until all is full.
    let mut many: Vec<Raw> = (2..22).map(|n| Raw::connect_from(n, gateway.address)).collect();
    gateway.wait_metric("llmgw_connections{side=\"client\"", |n| n == 40.0);
    assert_eq!(Raw::connect_from(30, gateway.address).refused(), 503);
    // Those that were let in are served.
    let last = many.last_mut().expect("one");
    last.send(crate::client::post(CHAT, "connection: close\r\n", &chat("")).as_bytes());
    assert_eq!(last.refused(), 200);
    one.clear();
    many.clear();
    clean(&gateway);
    assert_eq!(gateway.chat(&chat("")).status, 200, "room again");
}
