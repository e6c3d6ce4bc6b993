//! Bounds on connections and memory, and clients that do not read.

use crate::client::{CHAT, Client, chat, streamed};
use crate::engine::{Scripted, Then, endpoints, event, sim};
use crate::gateway::Gateway;
use std::sync::Mutex;
use std::sync::mpsc::channel;

#[test]
fn connections_of_an_address_beyond_their_bound_are_429() {
    let engine = sim();
    let extra = "shards: 2\nlimits: { max_connections: 100, max_connections_per_client: 3 }";
    let gateway = Gateway::start(&endpoints([&engine]), extra);
    let mut clients: Vec<Client> = (0..3).map(|_| gateway.connect()).collect();
    gateway.wait_metric("llmgw_connections{side=\"client\"}", |n| n == 3.0);
    let mut refused = gateway.connect();
    let answer = refused.answer().expect(429);
    assert_eq!(
        (answer.error_code().as_str(), answer.header("retry-after").as_deref()),
        ("rate_limit_exceeded", Some("1"))
    );
    assert!(refused.ends());
    assert_eq!(gateway.metric("llmgw_connections_refused_total{reason=\"address_full\"}"), 1.0);
    // Those that are in are not disturbed, and one that leaves makes room.
    clients[0].post(CHAT, "", &chat(""));
    clients[0].answer().expect(200);
    clients.pop();
    gateway.wait_metric("llmgw_connections{side=\"client\"}", |n| n == 2.0);
    gateway.chat(&chat("")).expect(200);
}

#[test]
fn connections_of_a_shard_beyond_their_bound_are_503() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "limits: { max_connections: 2 }");
    let _clients = [gateway.connect(), gateway.connect()];
    gateway.wait_metric("llmgw_connections{side=\"client\"}", |n| n == 2.0);
    let mut refused = gateway.connect();
    let answer = refused.answer().expect(503);
    assert_eq!(answer.error_code(), "no_capacity");
    assert!(answer.header("retry-after").is_some() && refused.ends());
    gateway.wait_metric("llmgw_connections_refused_total{reason=\"shard_full\"}", |n| n == 1.0);
}

#[test]
fn bodies_beyond_buffered_total_wait_then_503() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let engine = Scripted::start(move |wire, _| {
        // The first request is held until the test says otherwise, and its body with it, for a retry.
        if wire.request == 0 {
            wait.lock().expect("one request").recv().expect("the test goes on");
        }
        wire.json("200 OK", "", "{}")
    });
    let extra = "limits: { max_body: 64KiB, buffered_total: 64KiB, max_connections: 100 }\ntimeouts: { body_idle: 400ms }";
    let gateway = Gateway::start(&[engine.endpoint("e0")], extra);
    let body = chat(&format!(r#","pad":"{}""#, "x".repeat(50_000)));
    let mut holder = gateway.connect();
    holder.post(CHAT, "", &body);
    gateway.wait_metric("llmgw_endpoint_inflight", |n| n == 1.0);
    // No memory within body_idle: 503.
    let mut refused = gateway.connect();
    refused.post(CHAT, "", &body);
    gateway.wait_metric("llmgw_body_waits_total", |n| n == 1.0);
    let answer = refused.answer().expect(503);
    assert_eq!(answer.error_code(), "no_capacity");
    assert!(answer.header("retry-after").is_some());
    // Small ones fit beside it.
    gateway.chat(&chat("")).expect(200);
    // Memory in time: it goes on.
    let mut waiter = gateway.connect();
    waiter.post(CHAT, "", &body);
    gateway.wait_metric("llmgw_body_waits_total", |n| n == 2.0);
    go.send(()).expect("the engine waits");
    holder.answer().expect(200);
    waiter.answer().expect(200);
    gateway.wait_metric("llmgw_buffered_bytes", |n| n == 0.0);
}

/// Events of a stream that no buffer between engine and client holds.
const EVENTS: usize = 24_000;

fn numbered(i: usize) -> String {
    format!("{i}:{}", "x".repeat(1024))
}

#[test]
fn a_slow_reader_pauses_its_engine_and_misses_nothing() {
    let engine = Scripted::start(|wire, _| {
        wire.stream_head();
        (0..EVENTS).all(|i| wire.event(&numbered(i)));
        wire.done();
        Then::Keep
    });
    let gateway = Gateway::start(&[engine.endpoint("e0")], "");
    gateway.chat(&streamed(1).replace("\"m\"", "\"none\"")).expect(404);
    let before = gateway.metric("process_resident_memory_bytes");
    let mut client = gateway.connect();
    client.post(CHAT, "", &streamed(1));
    gateway.wait_metric("llmgw_backpressure_pauses_total", |n| n >= 1.0);
    // What the sockets hold is the kernel's; of the 25 MB the gateway holds little beyond its read buffers.
    let grown = gateway.metric("process_resident_memory_bytes") - before;
    assert!(grown < 16e6, "{grown} bytes more for one slow reader");
    assert_eq!(gateway.metric("llmgw_endpoint_inflight"), 1.0, "it goes on being served");
    let answer = client.answer().expect(200);
    let events = answer.events();
    assert_eq!(events.len(), EVENTS + 1);
    for (i, got) in events[..EVENTS].iter().enumerate() {
        assert!(*got == format!("data: {}", event(&numbered(i))), "event {i}");
    }
    assert_eq!(events[EVENTS], "data: [DONE]");
    let grown = gateway.metric("process_resident_memory_bytes") - before;
    assert!(grown < 16e6, "{grown} bytes more afterwards");
}

#[test]
fn a_client_that_reads_nothing_is_closed() {
    let (told, engine_told) = channel();
    let engine = Scripted::start(move |wire, _| {
        wire.stream_head();
        while wire.event(&numbered(0)) {}
        told.send(()).expect("the test listens");
        Then::Close
    });
    let gateway = Gateway::start(&[engine.endpoint("e0")], "timeouts: { body_idle: 300ms }");
    let mut client = gateway.connect();
    client.post(CHAT, "", &streamed(1));
    engine_told.recv_timeout(crate::PATIENCE).expect("the engine is told");
    gateway.wait_metric("llmgw_connections{side=\"client\"}", |n| n == 0.0);
    assert_eq!(gateway.metric("llmgw_timeouts_total{phase=\"client\"}"), 1.0);
    gateway.wait_metric("llmgw_endpoint_inflight", |n| n == 0.0);
}
