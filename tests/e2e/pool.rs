//! Connections to engines: kept, reused, noticed when dead, replaced without a word.

use crate::client::{chat, streamed};
use crate::engine::{Scripted, Then, count, endpoints, sim};
use crate::gateway::Gateway;
use std::sync::Mutex;
use std::sync::mpsc::channel;

#[test]
fn connections_to_engines_are_reused() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let seen = count(&engine, "connections_seen");
    for _ in 0..10 {
        gateway.chat(&streamed(3)).expect(200);
        // A stream's connection is free once its last chunk has come, a moment after `[DONE]`.
        gateway.wait_metric("llmgw_upstream_idle_connections", |n| n == 1.0);
        gateway.chat(&chat("")).expect(200);
    }
    assert_eq!(gateway.metric("llmgw_upstream_connects_total"), 1.0);
    assert_eq!(gateway.metric("llmgw_upstream_reused_total"), 19.0);
    assert_eq!(count(&engine, "connections_seen") - seen, 1);
}

#[test]
fn idle_connections_go_in_time_and_when_the_engine_closes() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "timeouts: { upstream_idle: 100ms }");
    gateway.chat(&chat("")).expect(200);
    gateway.wait_metric("llmgw_connections{side=\"upstream\"}", |n| n == 0.0);

    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let engine = Scripted::start(move |wire, _| {
        wire.json("200 OK", "", "{}");
        wait.lock().expect("one request").recv().expect("the test goes on");
        Then::Close
    });
    let gateway = Gateway::start(&[engine.endpoint("e0")], "timeouts: { upstream_idle: 1h }");
    gateway.chat(&chat("")).expect(200);
    gateway.wait_metric("llmgw_upstream_idle_connections", |n| n == 1.0);
    go.send(()).expect("the engine waits");
    gateway.wait_metric("llmgw_upstream_idle_connections", |n| n == 0.0);
    assert_eq!(gateway.metric("llmgw_connections{side=\"upstream\"}"), 0.0);
    assert_eq!(gateway.metric("llmgw_upstream_stale_total"), 0.0);
}

#[test]
fn a_stale_connection_is_replaced_without_counting() {
    // Answers one request a connection and promises more; the second request on it meets a close.
    let engine = Scripted::start(|wire, request| match (wire.connection, wire.request) {
        (0, 1) => Then::Reset,
        _ if request.body != chat("").as_bytes() => wire.json("500 Internal Server Error", "", "{}"),
        _ => wire.json("200 OK", "", "{}"),
    });
    let gateway = Gateway::start(&[engine.endpoint("e0")], "router: { retries: 0, retry_budget: 0 }");
    for _ in 0..2 {
        let answer = gateway.chat(&chat("")).expect(200);
        assert_eq!(answer.header("x-llmgw-attempts").as_deref(), Some("1"));
    }
    assert_eq!(engine.requests(), 3);
    assert_eq!(gateway.metric("llmgw_upstream_stale_total"), 1.0);
    assert_eq!(gateway.metric("llmgw_retries_total"), 0.0);
    assert_eq!(gateway.metric("llmgw_endpoint_health{replica=\"e0\",state=\"ready\"}"), 1.0);
}

#[test]
fn an_engine_that_says_close_is_not_asked_again_on_that_connection() {
    let engine = Scripted::start(|wire, _| {
        wire.json("200 OK", "connection: close\r\n", "{}");
        // Open still, as a slow engine leaves it; a second request would be answered 500.
        match wire.connection {
            0 if wire.request == 0 => Then::Keep,
            _ => Then::Close,
        }
    });
    let gateway = Gateway::start(&[engine.endpoint("e0")], "");
    for _ in 0..3 {
        gateway.chat(&chat("")).expect(200);
    }
    assert_eq!(gateway.metric("llmgw_upstream_connects_total"), 3.0);
    assert_eq!(gateway.metric("llmgw_upstream_reused_total"), 0.0);
}

#[test]
fn bytes_after_an_answer_are_no_answer_to_the_next_request() {
    let engine = Scripted::start(|wire, _| {
        let forged =
            if wire.request == 0 { "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged" } else { "" };
        wire.send(format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{{}}{forged}"));
        Then::Keep
    });
    let gateway = Gateway::start(&[engine.endpoint("e0")], "");
    for _ in 0..3 {
        assert_eq!(gateway.chat(&chat("")).expect(200).text(), "{}");
    }
}
