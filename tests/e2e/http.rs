//! HTTP/1.1 as clients speak it: connections that go on, framings, and which headers reach whom.

use crate::client::{CHAT, Client, End, chat, post, streamed};
use crate::engine::{Scripted, endpoints, received, sim};
use crate::gateway::Gateway;

#[test]
fn connections_go_on_after_answers_of_all_kinds() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let mut client = gateway.connect();
    for _ in 0..2 {
        client.post(CHAT, "", &streamed(3));
        assert!(client.answer().expect(200).text().ends_with("data: [DONE]\n\n"));
        client.post(CHAT, "", &chat(""));
        assert_eq!(client.answer().expect(200).header("connection"), None);
        client.send("GET /nowhere HTTP/1.1\r\nhost: gw\r\n\r\n");
        client.answer().expect(404);
        client.post(CHAT, "", r#"{"model":"other","messages":[]}"#);
        client.answer().expect(404);
        client.post(CHAT, "", r#"{"model":"m","messages":[],"max_tokens":-1}"#);
        client.answer().expect(400);
    }
    client.post(CHAT, "connection: close\r\n", &chat(""));
    assert_eq!(client.answer().expect(200).header("connection").as_deref(), Some("close"));
    assert!(client.ends());
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let mut requests = String::new();
    for i in 0..20 {
        let id = format!("x-request-id: p{i}\r\n");
        requests.push_str(&match i % 4 {
            0 => post(CHAT, &id, &streamed(4)),
            1 => format!("GET /v1/models HTTP/1.1\r\nhost: gw\r\n{id}\r\n"),
            2 => post(CHAT, &id, &chat("")),
            _ => format!("GET /nowhere HTTP/1.1\r\nhost: gw\r\n{id}\r\n"),
        });
    }
    // In one write, and a few bytes at a time: the boundaries mean nothing.
    for size in [requests.len(), 37] {
        let mut client = gateway.connect();
        for piece in requests.as_bytes().chunks(size) {
            client.send(piece);
        }
        for i in 0..20 {
            let answer = client.answer();
            assert_eq!(answer.header("x-request-id"), Some(format!("p{i}")), "in order");
            assert_eq!(answer.status, [200, 200, 200, 404][i % 4]);
            assert_eq!(answer.end, End::Whole);
            if i % 4 == 0 {
                assert!(answer.text().contains(&format!("p{i}:3 ")), "its own tokens: {}", answer.text());
            }
        }
    }
}

#[test]
fn expect_100_continue() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "limits: { max_body: 64KiB }");
    let head = |length: usize| {
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: gw\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    let mut client = gateway.connect();
    let body = chat("");
    client.send(head(body.len()));
    client.head().expect(100);
    client.send(&body);
    client.answer().expect(200);
    // A body that will not be read is not asked for.
    client.send(head(100 * 1024));
    client.answer().expect(413);
}

#[test]
fn http_1_0_gets_no_chunks() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let request = |body: &str, fields: &str| {
        format!("POST {CHAT} HTTP/1.0\r\n{fields}content-length: {}\r\n\r\n{body}", body.len())
    };
    let mut client = gateway.connect();
    client.send(request(&streamed(5), ""));
    let answer = client.answer().expect(200);
    assert_eq!((answer.header("transfer-encoding"), answer.end), (None, End::Whole));
    assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    // It stays where the client asks and the length is known.
    let mut client = gateway.connect();
    for _ in 0..2 {
        client.send(request(&chat(""), "connection: keep-alive\r\n"));
        let answer = client.answer().expect(200);
        assert_eq!(answer.header("connection").as_deref(), Some("keep-alive"));
    }
    client.send(request(&chat(""), ""));
    client.answer().expect(200);
    assert!(client.ends());
}

#[test]
fn chunked_bodies_reach_the_engine_whole() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let body = chat(r#","max_tokens":3,"pad":"äöü \u0041""#);
    for size in [1, 10, body.len()] {
        let id = format!("chunks-of-{size}");
        let mut request = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: gw\r\nx-request-id: {id}\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        .into_bytes();
        for piece in body.as_bytes().chunks(size) {
            request.extend_from_slice(format!("{:x};ext=1\r\n", piece.len()).as_bytes());
            request.extend_from_slice(piece);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"0\r\ntrailer: x\r\n\r\n");
        gateway.ask(&request).expect(200);
        let record = engine.request(&id).expect("its record");
        assert_eq!(record["body"].as_str(), Some(&*body));
        let length = received(&record, "content-length").map(str::to_owned);
        assert_eq!((length, received(&record, "trailer")), (Some(body.len().to_string()), None));
    }
}

#[test]
fn hop_by_hop_and_secret_headers_never_reach_an_engine() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let fields = "x-request-id: headers\r\nauthorization: Bearer sk-secret\r\nx-api-key: sk-secret\r\n\
        cookie: a=sk-secret\r\nproxy-authorization: Basic sk-secret\r\nconnection: keep-alive, x-hop\r\nx-hop: 1\r\n\
        keep-alive: timeout=5\r\nte: trailers\r\nupgrade: h2c\r\nx-tl-kv-handle: stolen\r\nx-tl-priority: 9\r\n\
        x_tl_priority: 9\r\ntraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\
        tracestate: a=1\r\nx-session-id: s1\r\naccept: text/event-stream\r\nuser-agent: ua/1\r\n";
    gateway.post(CHAT, fields, &chat("")).expect(200);
    let record = engine.request("headers").expect("its record");
    assert!(!record.to_string().contains("sk-secret"), "{record}");
    for name in ["x-hop", "keep-alive", "te", "upgrade", "x-tl-kv-handle", "x_tl_priority"] {
        assert_eq!(received(&record, name), None, "{name}");
    }
    assert_eq!(received(&record, "x-tl-priority"), Some("0"), "the gateway's, not the client's");
    let traceparent = received(&record, "traceparent");
    assert_eq!(traceparent, Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
    assert_eq!(received(&record, "tracestate"), Some("a=1"));
    assert_eq!(received(&record, "accept"), Some("text/event-stream"));
    assert_eq!(received(&record, "host"), Some(&*engine.local_addr().to_string()));
    assert_eq!(gateway.access("headers")["traceparent"], traceparent.expect("it passes"));
}

#[test]
fn hop_by_hop_headers_of_engines_never_reach_a_client() {
    let engine = Scripted::start(|wire, _| {
        let fields = "connection: x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=9\r\nserver: uvicorn\r\nx-kept: yes\r\n\
            x-llmgw-replica: forged\r\nx-request-id: forged\r\naccess-control-allow-origin: forged\r\n";
        wire.json("200 OK", fields, "{}")
    });
    let gateway = Gateway::start(&[engine.endpoint("e0")], "");
    let answer = gateway.post(CHAT, "x-request-id: mine\r\n", &chat("")).expect(200);
    for name in ["x-hop", "keep-alive"] {
        assert_eq!(answer.header(name), None, "{name}");
    }
    assert!(!answer.head.contains("forged"), "{}", answer.head);
    assert_eq!(answer.header("x-kept").as_deref(), Some("yes"));
    assert_eq!(answer.header("x-request-id").as_deref(), Some("mine"));
}

#[test]
fn request_ids_are_kept_or_made() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let id_of = |fields: &str| {
        let answer = gateway.post(CHAT, fields, &chat("")).expect(200);
        let id = answer.header("x-request-id").expect("always one");
        let record = engine.request(&id).unwrap_or_else(|| panic!("{id} is the engine's too"));
        assert_eq!(received(&record, "x-request-id"), Some(&*id));
        assert_eq!(gateway.access(&id)["request_id"], *id);
        id
    };
    assert_eq!(id_of("x-request-id: given-1\r\n"), "given-1");
    let (one, two) = (id_of(""), id_of(""));
    assert_ne!(one, two);
    let long = "y".repeat(129);
    assert_ne!(id_of(&format!("x-request-id: {long}\r\n")), long);
    assert_eq!(id_of(&format!("x-request-id: {}\r\n", &long[1..])), long[1..]);
    assert!(gateway.get("/v1/models").header("x-request-id").is_some());
}

#[test]
fn bodies_pass_byte_for_byte() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let bodies = [
        // White space, escapes, numbers no parser keeps, keys twice: the last model routes.
        "{ \"model\" : \"m\" ,\n\t\"messages\":[{\"role\":\"user\",\"content\":\"\\u00e9\\/é\"}], \"temperature\": 1.0e0 }\r\n",
        r#"{"model":"other","messages":[{"role":"user","content":"x"}],"big":123456789012345678901234567890,"model":"m"}"#,
        r#"{"messages":[{"role":"user","content":"x"}],"stream":false,"seed":null,"model":"\u006d"}"#,
    ];
    for (i, body) in bodies.iter().enumerate() {
        let id = format!("bytes-{i}");
        gateway.post(CHAT, &format!("x-request-id: {id}\r\n"), body).expect(200);
        assert_eq!(engine.request(&id).expect("its record")["body"].as_str(), Some(*body));
    }
    // With injection off streams pass too.
    let gateway = Gateway::start(&endpoints([&engine]), "router: { inject_usage: false }");
    gateway.post(CHAT, "x-request-id: stream\r\n", &streamed(2)).expect(200);
    assert_eq!(engine.request("stream").expect("its record")["body"], streamed(2));
}

#[test]
fn all_surfaces_reach_their_path() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let cases = [
        ("/v1/completions", r#"{"model":"m","prompt":"hi","max_tokens":2}"#),
        ("/v1/completions", r#"{"model":"m","prompt":"hi","max_tokens":2,"stream":true}"#),
        ("/v1/embeddings", r#"{"model":"m","input":["a","b"]}"#),
        (CHAT, r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#),
    ];
    for (i, (path, body)) in cases.iter().enumerate() {
        let id = format!("surface-{i}");
        let answer = gateway.post(path, &format!("x-request-id: {id}\r\n"), body).expect(200);
        assert_eq!(engine.request(&id).expect("its record")["request"], format!("POST {path}"));
        assert_eq!(answer.header("x-llmgw-served-model").as_deref(), Some("m"));
        assert_eq!(answer.header("x-llmgw-replica").as_deref(), Some("e0"));
        assert_eq!(answer.header("x-llmgw-pool").as_deref(), Some("default"));
        assert!(answer.header("x-llmgw-queue-ms").is_some());
        assert!(answer.header("x-llmgw-route-reason").is_some());
    }
}

#[test]
fn a_half_closed_client_is_gone_or_served_as_configured() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "limits: { half_close: allow }");
    let half_closed = |gateway: &Gateway, tokens: u32| -> Client {
        let mut client = gateway.connect();
        client.post(CHAT, "", &streamed(tokens));
        client.half_close();
        client
    };
    let mut client = half_closed(&gateway, 20);
    assert!(client.answer().expect(200).text().ends_with("data: [DONE]\n\n"));
    assert!(client.ends());
    let gateway = Gateway::start(&endpoints([&engine]), "limits: { half_close: abort }");
    let mut client = half_closed(&gateway, 100_000);
    gateway.wait_metric(
        "llmgw_request_outcomes_total{model=\"m\",pool=\"default\",outcome=\"client_gone\"}",
        |n| n == 1.0,
    );
    gateway.wait_metric("llmgw_endpoint_inflight", |n| n == 0.0);
    client.drain();
}

#[test]
fn an_early_answer_spares_the_rest_of_the_body() {
    // The engine says no before it has read the body, and closes.
    let engine =
        Scripted::early("HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}");
    let gateway = Gateway::start(&[engine.endpoint("e0")], "");
    let body = chat(&format!(r#","pad":"{}""#, "x".repeat(8 << 20)));
    gateway.chat(&body).expect(413);
}
