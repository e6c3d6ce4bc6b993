//! Event streams: what a client sees when all goes well, and when the engine fails in the middle.

use crate::client::{Answer, CHAT, End, chat, events, streamed};
use crate::engine::{Scripted, Then, count, endpoints, event, sim};
use crate::gateway::Gateway;
use serde_json::Value;
use std::sync::Mutex;
use std::sync::mpsc::channel;

/// Asserts one error event, the last, and no `[DONE]`; its error.
#[track_caller]
fn check_error_event(answer: &Answer) -> Value {
    let events = answer.events();
    assert!(!answer.text().contains("[DONE]"), "{}", answer.text());
    let errors: Vec<Value> = events
        .iter()
        .filter_map(|event| serde_json::from_str(event.strip_prefix("data: ")?).ok())
        .filter(|json: &Value| json.get("error").is_some())
        .collect();
    assert_eq!(errors.len(), 1, "{events:?}");
    assert!(events.last().is_some_and(|last| last.contains("\"error\"")), "{events:?}");
    errors[0]["error"].clone()
}

#[test]
fn engine_that_dies_ends_in_one_error_event() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    for fault in ["reset-after=3", "no-terminator=all", "no-terminator=done", "bad-chunk=3"] {
        engine.clear_faults();
        engine.set_fault(fault).expect("a fault");
        let mut client = gateway.connect();
        client.post(CHAT, "", &streamed(8));
        let answer = client.answer().expect(200);
        assert_eq!(answer.end, End::Whole, "{fault}: the framing is intact");
        let error = check_error_event(&answer);
        assert_eq!(error["code"], "upstream_failed", "{fault}");
        assert_eq!(error["type"], "server_error", "{fault}");
        assert!(answer.text().contains(":2 "), "{fault}: what came before is passed on: {}", answer.text());
        assert!(client.ends(), "{fault}: the connection ends");
        gateway.wait_metric("llmgw_endpoint_inflight", |n| n == 0.0);
    }
    assert_eq!(gateway.metric("llmgw_broken_streams_total"), 4.0);
    assert_eq!(count(&engine, "requests"), 4, "nothing is tried again");
    assert_eq!(
        gateway.metric("llmgw_request_outcomes_total{model=\"m\",pool=\"default\",outcome=\"broken\"}"),
        4.0
    );
}

/// A worker that dies after one token: the client gets that token and one error event, and nobody else is asked.
#[test]
fn no_splice_after_first_byte() {
    let dying = Scripted::start(|wire, _| {
        wire.stream_head();
        wire.event("The cat");
        Then::Close
    });
    let other = sim();
    let spare = format!("{{ id: spare, model: m, url: \"{}\", engine: sim, weight: 0 }}", other.url());
    let gateway = Gateway::start(&[dying.endpoint("dying"), spare], "router: { policy: weighted }");
    let answer = gateway.chat(&streamed(8)).expect(200);
    let events = answer.events();
    assert_eq!(events[0], format!("data: {}", event("The cat")));
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!(check_error_event(&answer)["code"], "upstream_failed");
    assert_eq!((dying.requests(), count(&other, "requests")), (1, 0));
    assert_eq!(gateway.metric("llmgw_retries_total"), 0.0);
}

#[test]
fn a_stream_complete_but_for_its_framing_is_complete() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    engine.set_fault("no-terminator=chunk").expect("a fault");
    let mut client = gateway.connect();
    client.post(CHAT, "", &streamed(4));
    let answer = client.answer().expect(200);
    assert!(answer.text().ends_with("data: [DONE]\n\n") && answer.end == End::Whole, "{}", answer.text());
    engine.clear_faults();
    client.post(CHAT, "", &streamed(4));
    assert!(client.answer().expect(200).text().ends_with("data: [DONE]\n\n"), "the connection goes on");
}

#[test]
fn engine_that_falls_silent_is_cut_with_its_phase() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "timeouts: { between_tokens: 200ms }");
    engine.set_fault("stall=3").expect("a fault");
    let answer = gateway.chat(&streamed(8)).expect(200);
    let error = check_error_event(&answer);
    assert_eq!(
        (error["code"].as_str(), error["param"].as_str()),
        (Some("upstream_timeout"), Some("between_tokens"))
    );
    gateway.wait_metric("llmgw_timeouts_total{phase=\"between_tokens\"}", |n| n == 1.0);
    assert_eq!(count(&engine, "completed"), 0);
}

#[test]
fn a_request_has_a_total_time() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "timeouts: { total: 300ms }");
    let error = check_error_event(&gateway.chat(&streamed(100_000)).expect(200));
    assert_eq!(error["param"], "total");
    engine.set_fault("hang").expect("a fault");
    let answer = gateway.chat(&streamed(5)).expect(504);
    assert_eq!(answer.json()["error"]["param"], "total");
}

#[test]
fn usage_is_withheld_exactly_where_nobody_asked() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let usage_chunks = |options: &str, id: &str| {
        let body = chat(&format!(r#","stream":true,"max_tokens":5,"ignore_eos":true{options}"#));
        let answer = gateway.post(CHAT, &format!("x-request-id: {id}\r\n"), &body).expect(200);
        assert!(answer.text().ends_with("data: [DONE]\n\n"));
        let chunks = answer.events().iter().filter(|event| event.contains("\"choices\":[]")).count();
        let sent = engine.request(id).expect("its record")["body"].as_str().map(str::to_owned);
        (chunks, sent.expect("its body"), body)
    };
    let (chunks, sent, body) = usage_chunks("", "no-options");
    assert_eq!(chunks, 0);
    let added = r#""stream_options":{"include_usage":true}"#;
    assert_eq!(sent.replacen(&format!("{added},"), "", 1).replacen(&format!(",{added}"), "", 1), body);
    assert_ne!(sent, body);
    let (chunks, sent, body) = usage_chunks(r#","stream_options":{"include_usage":true}"#, "asked");
    assert_eq!((chunks, &sent), (1, &body), "who asked gets it, and the body passes as it is");
    let (chunks, ..) = usage_chunks(r#","stream_options":{"include_usage":false}"#, "declined");
    assert_eq!(chunks, 0);
    let (chunks, ..) = usage_chunks(r#","stream_options":null"#, "null");
    assert_eq!(chunks, 0);
    // Known to the gateway every time.
    let tokens = "llmgw_tokens_total{model=\"m\",direction=\"completion\"}";
    gateway.wait_metric(tokens, |n| n == 20.0);
    let withheld = gateway.metric("llmgw_usage_withheld_total");
    assert!((2.0..=3.0).contains(&withheld), "{withheld}");
    assert_eq!(gateway.access("no-options")["completion_tokens"], 5);
}

#[test]
fn usage_of_an_answer_in_one_piece_is_counted() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let answer = gateway.chat(&chat(r#","max_tokens":7,"ignore_eos":true"#)).expect(200);
    assert_eq!(answer.json()["usage"]["completion_tokens"], 7, "it passes");
    gateway.wait_metric("llmgw_tokens_total{model=\"m\",direction=\"completion\"}", |n| n == 7.0);
}

#[test]
fn client_bytes_do_not_depend_on_how_the_engine_cuts_them() {
    // The same events and bytes however they are framed: only ids and times differ between requests of an engine.
    let text = |answer: Answer| {
        let kept = |event: &String| match serde_json::from_str::<Value>(event.trim_start_matches("data: ")) {
            Ok(mut json) => {
                json.as_object_mut().expect("an object").retain(|key, _| key != "id" && key != "created");
                json.to_string()
            }
            Err(_) => event.clone(),
        };
        answer.events().iter().map(kept).collect::<Vec<_>>()
    };
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let body = chat(r#","stream":true,"max_tokens":30,"seed":7,"ignore_eos":true"#);
    let plain = text(gateway.chat(&body).expect(200));
    assert_eq!(plain.len(), 33, "role, thirty tokens, finish, the terminator: {plain:?}");
    for fault in ["split-bytes", "two-events"] {
        engine.clear_faults();
        engine.set_fault(fault).expect("a fault");
        assert_eq!(text(gateway.chat(&body).expect(200)), plain, "{fault}");
    }
}

#[test]
fn bytes_of_a_stream_pass_untouched() {
    // Line ends of all kinds, comments, fields that are not data, several data lines.
    let stream = ": hi\n\ndata: {\"choices\":[{}]}\n\nevent: x\r\nid: 4\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\ndata:{\"b\":2}\n\n";
    for cut in [1, 7, stream.len()] {
        let engine = Scripted::start(move |wire, _| {
            wire.stream_head();
            for piece in stream.as_bytes().chunks(cut) {
                wire.chunk(std::str::from_utf8(piece).expect("ASCII"));
            }
            wire.done();
            Then::Keep
        });
        let gateway = Gateway::start(&[engine.endpoint("e0")], "");
        let answer = gateway.chat(&streamed(1)).expect(200);
        assert_eq!(answer.text(), format!("{stream}data: [DONE]\n\n"), "cut at {cut}");
    }
}

#[test]
fn head_waits_for_the_first_event() {
    // An engine that dies between its head and its first event is no answer: another one takes over.
    let good = sim();
    let dying = Scripted::start(|wire, _| {
        wire.stream_head();
        Then::Reset
    });
    let fleet =
        [dying.endpoint("dying"), format!("{{ id: good, model: m, url: \"{}\", weight: 0 }}", good.url())];
    let gateway = Gateway::start(&fleet, "router: { policy: weighted }");
    let answer = gateway.chat(&streamed(3)).expect(200);
    assert_eq!(answer.header("x-llmgw-replica").as_deref(), Some("good"));
    assert_eq!(answer.header("x-llmgw-attempts").as_deref(), Some("2"));
    assert!(answer.text().ends_with("data: [DONE]\n\n"));
    assert_eq!(dying.requests(), 1);
}

#[test]
fn quiet_streams_get_comments_before_and_between_events() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let engine = Scripted::start(move |wire, _| {
        let wait = wait.lock().expect("one request");
        wire.stream_head();
        wait.recv().expect("the test goes on");
        wire.event("one");
        wait.recv().expect("the test goes on");
        wire.done();
        Then::Keep
    });
    let gateway = Gateway::start(&[engine.endpoint("e0")], "router: { keep_alive_comment: 100ms }");
    let mut client = gateway.connect();
    client.post(CHAT, "", &streamed(1));
    // Nothing but a comment lets the head go.
    client.head().expect(200);
    let mut next = || String::from_utf8(client.chunk().expect("a chunk")).expect("text");
    assert_eq!(next(), ": keep-alive\n\n");
    go.send(()).expect("the engine waits");
    let mut text = String::new();
    while !text.contains("one") {
        text = next();
    }
    assert_eq!(text, format!("data: {}\n\n", event("one")));
    assert_eq!(next(), ": keep-alive\n\n");
    go.send(()).expect("the engine waits");
    while text != "data: [DONE]\n\n" {
        text = next();
        assert!(events(&text).iter().all(|e| e == ": keep-alive" || e == "data: [DONE]"), "{text}");
    }
    assert_eq!(next(), "", "the last chunk");
    assert!(gateway.metric("llmgw_keep_alive_comments_total") >= 2.0);
}

#[test]
fn an_error_event_of_the_engine_is_the_end() {
    let engine = Scripted::start(|wire, _| {
        wire.stream_head();
        wire.event("one");
        wire.chunk("data: {\"error\":{\"message\":\"out of memory\",\"type\":\"InternalServerError\",\"code\":500}}\n\n");
        wire.done();
        Then::Keep
    });
    let gateway = Gateway::start(&[engine.endpoint("e0")], "");
    let mut client = gateway.connect();
    client.post(CHAT, "", &streamed(3));
    let error = check_error_event(&client.answer().expect(200));
    assert_eq!(error["message"], "out of memory");
    assert!(client.ends());
}

#[test]
fn an_answer_in_one_piece_that_breaks_is_cut() {
    let engine = Scripted::start(|wire, _| {
        wire.send(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"half\":",
        );
        Then::Close
    });
    let gateway = Gateway::start(&[engine.endpoint("e0")], "");
    let answer = gateway.chat(&chat("")).expect(200);
    assert_ne!(answer.end, End::Whole, "no client takes it for the whole");
}
