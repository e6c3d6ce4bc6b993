//! The end of a process: draining, cutting, and what clients see of it.

use crate::client::{CHAT, Client, chat, streamed};
use crate::engine::{count, endpoints, paced, sim};
use crate::gateway::Gateway;
use rustix::process::Signal;
use std::net::TcpStream;

/// A stream whose first tokens were read.
fn running(gateway: &Gateway, tokens: u32) -> Client {
    let mut client = gateway.connect();
    client.post(CHAT, "", &streamed(tokens));
    client.head().expect(200);
    client.chunk().expect("a first event");
    client
}

/// The rest of a stream, and whether its framing was whole.
fn rest(client: &mut Client) -> (String, bool) {
    let mut text = String::new();
    loop {
        match client.chunk() {
            Ok(chunk) if chunk.is_empty() => return (text, true),
            Ok(chunk) => text.push_str(&String::from_utf8(chunk).expect("text")),
            Err(_) => return (text, false),
        }
    }
}

#[test]
fn sigterm_drains() {
    let engine = paced(10);
    let gateway = Gateway::start(&endpoints([&engine]), "shards: 2");
    let mut client = running(&gateway, 60);
    let mut idle = gateway.connect();
    idle.send("GET /v1/models HTTP/1.1\r\nhost: gw\r\n\r\n");
    idle.answer().expect(200);
    gateway.signal(Signal::TERM);
    gateway.wait_ready(503);
    assert_eq!(gateway.page("/readyz").json()["reason"], "draining");
    assert!(idle.ends(), "a connection without a request is closed");
    let refused = TcpStream::connect(gateway.address);
    assert!(refused.is_err(), "nobody listens: {refused:?}");
    let (text, whole) = rest(&mut client);
    assert!(whole && text.ends_with("data: [DONE]\n\n"), "the running stream ends by itself: {text}");
    assert!(text.contains(":59 "), "with its last token");
    assert!(client.ends());
    drop((client, idle));
    let (status, log) = gateway.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains(r#""completion_tokens":60"#), "its access record is written: {log}");
}

#[test]
fn a_second_signal_ends_at_once() {
    let engine = paced(10);
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let mut client = running(&gateway, 100_000);
    gateway.signal(Signal::TERM);
    gateway.wait_log("stopping");
    gateway.signal(Signal::INT);
    let (text, _) = rest(&mut client);
    let last = crate::client::events(&text).pop().unwrap_or_default();
    assert!(last.contains("\"error\"") && !text.contains("[DONE]"), "{text}");
    let (status, log) = gateway.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains(r#""outcome":"shutdown""#), "{log}");
}

#[test]
fn a_drain_ends_after_timeouts_shutdown() {
    let engine = paced(10);
    let gateway = Gateway::start(&endpoints([&engine]), "timeouts: { shutdown: 300ms }");
    let mut client = running(&gateway, 100_000);
    engine.set_fault("hang").expect("a fault");
    let mut waiting = gateway.connect();
    waiting.post(CHAT, "", &chat(""));
    gateway.wait_metric("llmgw_endpoint_inflight", |n| n == 2.0);
    gateway.signal(Signal::TERM);
    let (text, _) = rest(&mut client);
    assert!(text.contains("\"error\"") && !text.contains("[DONE]"), "{text}");
    let answer = waiting.answer().expect(503);
    assert_eq!(answer.error_code(), "no_capacity");
    let (status, log) = gateway.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(count(&engine, "completed"), 0);
}

#[test]
fn an_idle_process_ends_at_once() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    gateway.chat(&chat("")).expect(200);
    gateway.signal(Signal::INT);
    let (status, log) = gateway.ended();
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn access_records_in_json_and_text() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let fields = "x-request-id: req-1\r\n";
    gateway.post(CHAT, fields, &streamed(4)).expect(200);
    let record = gateway.access("req-1");
    for (key, value) in [
        ("surface", "chat"),
        ("model", "m"),
        ("endpoint", "e0"),
        ("pool", "default"),
        ("outcome", "completed"),
        ("finish_reason", "length"),
        ("peer", "127.0.0.1"),
        ("level", "INFO"),
    ] {
        assert_eq!(record[key], value, "{record}");
    }
    for (key, value) in [("status", 200), ("attempts", 1), ("completion_tokens", 4)] {
        assert_eq!(record[key], value, "{record}");
    }
    assert!(record["duration_ms"].as_f64() >= record["ttft_ms"].as_f64(), "{record}");
    gateway.post(CHAT, "x-request-id: req-2\r\n", "{").expect(400);
    assert_eq!(gateway.access("req-2")["outcome"], "rejected");

    let gateway = Gateway::start(&endpoints([&engine]), "log: { format: text }");
    gateway.post(CHAT, fields, &streamed(4)).expect(200);
    let line = gateway.wait_log("request_id=req-1");
    for part in [" INFO access: ", " model=m ", " endpoint=e0 ", " status=200 ", " outcome=completed "] {
        assert!(line.contains(part), "{part} in {line}");
    }

    let gateway = Gateway::start(&endpoints([&engine]), "log: { format: json, access: false }");
    gateway.post(CHAT, fields, &streamed(4)).expect(200);
    gateway.signal(Signal::TERM);
    let (_, log) = gateway.ended();
    assert!(!log.contains("req-1"), "{log}");
}
