//! Connections and requests from first byte to last: framing, order, queueing, loading, and clients that go.

use rstest::rstest;

use super::client::*;
use crate::Config;

const HOUR_NS: u64 = 3_600_000_000_000;

#[rstest]
#[case::prefilling("prefill", |config: &mut Config| { config.engine.prefill_tps = 1; })]
#[case::before_first_token("ttft", |config: &mut Config| { config.engine.ttft_ns = HOUR_NS; })]
#[case::between_tokens("itl", |config: &mut Config| { config.engine.itl_ns = HOUR_NS; })]
fn a_client_that_goes_frees_everything_in_any_phase(#[case] name: &str, #[case] change: fn(&mut Config)) {
    for (streamed, reset) in [(true, false), (true, true), (false, false)] {
        let engine = engine(|config| {
            config.engine.max_seqs = 1;
            change(config);
        });
        let body = if streamed { stream("t", 9) } else { chat("t", r#","max_tokens":9"#) };
        let mut running = Client::new(engine.local_addr());
        running.send("POST", CHAT, "x-request-id: running\r\n", &body);
        eventually("the first runs", || engine.state()["running"] == 1);
        let mut waiting = Client::new(engine.local_addr());
        waiting.send("POST", CHAT, "x-request-id: waiting\r\n", &body);
        eventually("the second waits", || engine.state()["waiting"] == 1);
        if reset {
            let none = Some(std::time::Duration::ZERO);
            rustix::net::sockopt::set_socket_linger(&waiting.sock, none).unwrap();
        }
        drop(waiting);
        eventually("the waiting one is aborted", || engine.state()["aborted"] == 1);
        assert_eq!(engine.state()["running"], 1, "{name}: the other runs on");
        drop(running);
        eventually("the running one is aborted", || engine.state()["aborted"] == 2);
        let state = engine.state();
        for key in ["running", "waiting", "active"] {
            assert_eq!(state[key], 0, "{name}: {key}");
        }
        assert_eq!(state["cache"]["blocks_used"], 0, "{name}");
        assert!(engine.request("running").unwrap()["aborted_at_ms"].is_number());
    }
}

#[test]
fn requests_in_one_write_are_answered_in_order() {
    let engine = engine(|_| {});
    let mut client = Client::new(engine.local_addr());
    let mut all = String::new();
    for tag in ["a", "b", "c"] {
        let body = stream(tag, 3);
        all += &format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    }
    client.raw(all.as_bytes());
    for tag in ["a", "b", "c"] {
        assert_eq!(client.answer().unwrap().tokens(tag), 3);
    }
}

#[test]
fn chunked_bodies_and_100_continue() {
    let engine = engine(|_| {});
    let mut client = Client::new(engine.local_addr());
    let body = chat("t", "");
    client.raw(
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n"
        )
        .as_bytes(),
    );
    assert_eq!(client.head().unwrap().status, 100);
    for piece in body.as_bytes().chunks(7) {
        client.raw(
            format!("{:x};note=1\r\n{}\r\n", piece.len(), std::str::from_utf8(piece).unwrap()).as_bytes(),
        );
    }
    client.raw(b"0\r\ntrailer: x\r\n\r\n");
    assert_eq!(client.answer().unwrap().status, 200);
    assert_eq!(client.ask("GET", "/health", "").status, 200, "the connection is in step");
}

#[test]
fn http_10_gets_an_unchunked_stream_and_a_close() {
    let engine = engine(|_| {});
    let mut client = Client::new(engine.local_addr());
    let body = stream("t", 2);
    client.raw(format!("POST {CHAT} HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes());
    let head = client.head().unwrap();
    assert_eq!((head.field("transfer-encoding"), head.field("connection")), (None, Some("close")));
    while client.fill().is_ok() {}
}

#[rstest]
#[case("GET / HTTP/1.1\r\nbad field\r\n\r\n", 400)]
#[case("POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400)]
#[case("POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400)]
#[case("POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", 400)]
#[case("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400)]
#[case("POST / HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", 413)]
fn what_is_not_http_is_refused_and_closed(#[case] request: &str, #[case] status: u16) {
    let engine = engine(|_| {});
    let mut client = Client::new(engine.local_addr());
    client.raw(request.as_bytes());
    let answer = client.answer().unwrap();
    assert_eq!((answer.status, answer.field("connection")), (status, Some("close")));
    assert_eq!(client.ended().kind(), std::io::ErrorKind::UnexpectedEof);
}

#[test]
fn loading_engine_answers_503() {
    let engine = engine(|config| config.load_time = std::time::Duration::from_secs(3600));
    let mut client = Client::new(engine.local_addr());
    for (method, path) in [("GET", "/health"), ("GET", "/v1/models"), ("POST", CHAT)] {
        let answer = client.ask(method, path, &chat("t", ""));
        assert_eq!(
            (answer.status, &answer.json()["error"]["message"]),
            (503, &"Loading model".into()),
            "{path}"
        );
    }
    assert_eq!(engine.state()["loading"], true);
    assert_eq!(engine.state()["rejected"], 1);
}

#[test]
fn what_the_engine_saw_can_be_asked_for() {
    let engine = engine(|_| {});
    let mut client = Client::new(engine.local_addr());
    let body = stream("t", 3);
    client.send("POST", CHAT, "x-request-id: r1\r\nx-other: v\r\n", &body);
    assert_eq!(client.answer().unwrap().field("x-request-id"), Some("r1"));
    let seen = client.ask("GET", "/sim/requests/r1", "").json();
    assert_eq!(
        (&seen["body"], &seen["finished"], &seen["tokens_sent"]),
        (&body.into(), &true.into(), &3.into())
    );
    assert!(seen["headers"].as_array().unwrap().contains(&serde_json::json!(["x-other", "v"])));
    assert_eq!(client.ask("GET", "/sim/requests/nope", "").status, 404);
    assert_eq!(client.ask("GET", "/sim/requests", "").json().as_array().unwrap().len(), 1);
}

#[test]
fn a_reader_that_is_slow_loses_nothing() {
    let engine = engine(|config| config.engine.itl_ns = 1000);
    let mut client = Client::new(engine.local_addr());
    client.send("POST", CHAT, "", &stream("t", 60_000));
    // Nothing is read until the engine has generated it all: socket buffers are long full by then.
    eventually("all is generated", || engine.state()["completed"] == 1);
    assert_eq!(client.answer().unwrap().tokens("t"), 60_000);
}

#[test]
fn hundreds_of_streams_do_not_mix() {
    let engine = engine(|_| {});
    let mut clients: Vec<_> = (0..300)
        .map(|i| {
            let mut client = Client::new(engine.local_addr());
            client.send("POST", CHAT, "", &stream(&format!("s{i}"), 20));
            client
        })
        .collect();
    for (i, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.answer().unwrap().tokens(&format!("s{i}")), 20);
    }
    let state = engine.state();
    assert_eq!((&state["completed"], &state["tokens_emitted"]), (&300.into(), &6000.into()));
}

#[test]
fn a_port_in_use_is_an_error_that_names_it() {
    let engine = engine(|_| {});
    let config = Config { listen: engine.local_addr(), ..Config::default() };
    let error = crate::Engine::start(config).unwrap_err().to_string();
    assert!(error.contains(&engine.local_addr().to_string()), "{error}");
}
