//! What the gateway refuses, and how it says so.

use crate::client::{CHAT, chat, post, streamed};
use crate::engine::{Scripted, count, endpoints, sim};
use crate::gateway::Gateway;
use serde_json::json;

#[test]
fn unknown_paths_and_methods() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    for path in ["/", "/v1", "/v1/chat", "/v1/chat/completions/", "/metrics", "/v1/models/", "/admin/v1/keys"]
    {
        assert_eq!(gateway.get(path).expect(404).error_code(), "not_found", "{path}");
    }
    let cases = [
        ("GET", CHAT, "POST, OPTIONS"),
        ("DELETE", "/v1/embeddings", "POST, OPTIONS"),
        ("PUT", "/v1/models", "GET, HEAD, OPTIONS"),
        ("BREW", "/v1/models/m", "GET, HEAD, OPTIONS"),
    ];
    for (method, path, allow) in cases {
        let answer = gateway.ask(format!("{method} {path} HTTP/1.1\r\nhost: gw\r\n\r\n")).expect(405);
        assert_eq!(answer.error_code(), "method_not_allowed", "{method} {path}");
        assert_eq!(answer.header("allow").as_deref(), Some(allow), "{method} {path}");
    }
    assert_eq!(gateway.post("/v1/models", "", "{}").expect(405).error_code(), "method_not_allowed");
}

#[test]
fn bodies_that_say_nothing_useful() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "limits: { max_json_depth: 8 }");
    let deep = format!(r#"{{"model":"m","x":{}{}}}"#, "[".repeat(8), "]".repeat(8));
    let cases: [(&str, Option<&str>, &[&str]); 8] = [
        (r#"{"model":"m","messages":[}"#, None, &["25"]),
        (r#"{"model":"m""#, None, &["12"]),
        ("", None, &["0"]),
        ("not json", None, &["0"]),
        (r#"{"messages":[]}"#, Some("model"), &["model"]),
        (r#"{"model":5}"#, Some("model"), &["model", "string"]),
        (r#"{"model":null}"#, Some("model"), &["model"]),
        (&deep, None, &["8"]),
    ];
    let mut client = gateway.connect();
    for (body, param, words) in cases {
        client.post(CHAT, "", body);
        let answer = client.answer().expect(400);
        let error = &answer.json()["error"];
        assert_eq!(error["type"], "invalid_request_error", "{body}");
        assert_eq!(error["param"].as_str(), param, "{body}: {error}");
        let message = error["message"].as_str().expect("a message");
        assert!(words.iter().all(|word| message.contains(word)), "{body}: {message}");
        if client.over() {
            client = gateway.connect();
        }
    }
    assert_eq!(count(&engine, "requests"), 0, "no engine is bothered");
}

#[test]
fn unknown_models_are_named() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let answer = gateway.chat(r#"{"model":"gpt-\"5\"","messages":[]}"#).expect(404);
    assert_eq!(answer.error_code(), "model_not_found");
    let error = &answer.json()["error"];
    assert_eq!(error["param"], "model");
    assert!(error["message"].as_str().is_some_and(|m| m.contains("gpt-\"5\"")), "{error}");
    gateway.wait_metric("llmgw_requests_total{model=\"\",pool=\"\",status=\"404\"}", |n| n == 1.0);
}

#[test]
fn bodies_beyond_max_body_are_413() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "limits: { max_body: 4KiB }");
    let body = chat(&format!(r#","pad":"{}""#, "x".repeat(5000)));
    // Sized: told by the head alone.
    let mut client = gateway.connect();
    client.send(format!("POST {CHAT} HTTP/1.1\r\nhost: gw\r\ncontent-length: {}\r\n\r\n", body.len()));
    let answer = client.answer().expect(413);
    assert_eq!(answer.error_code(), "request_too_large");
    assert!(client.ends());
    // Chunked: told once it is too much.
    let mut client = gateway.connect();
    client.send(format!("POST {CHAT} HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n"));
    client.try_send(format!("{:x}\r\n{body}\r\n", body.len()));
    assert_eq!(client.answer().expect(413).error_code(), "request_too_large");
    assert!(client.ends());
    // At the limit is within it.
    let room = 4096 - chat(r#","pad":"""#).len();
    gateway.chat(&chat(&format!(r#","pad":"{}""#, "x".repeat(room)))).expect(200);
    let over = chat(&format!(r#","pad":"{}""#, "x".repeat(room + 1)));
    gateway.chat(&over).expect(413);
}

#[test]
fn heads_beyond_their_limits_are_431_and_414() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "limits: { max_header: 1KiB, max_headers: 10 }");
    let many: String = (0..11).map(|i| format!("h{i}: v\r\n")).collect();
    let cases = [
        (format!("GET /v1/models HTTP/1.1\r\nhost: gw\r\nlong: {}\r\n\r\n", "x".repeat(1100)), 431),
        (format!("GET /v1/models HTTP/1.1\r\nhost: gw\r\n{many}\r\n"), 431),
        (format!("GET /v1/models?{} HTTP/1.1\r\nhost: gw\r\n\r\n", "x".repeat(1100)), 414),
        // Without any end in sight.
        (format!("GET /v1/models HTTP/1.1\r\nlong: {}", "x".repeat(1100)), 431),
    ];
    for (request, status) in cases {
        let mut client = gateway.connect();
        client.try_send(&request);
        assert_eq!(client.answer().expect(status).error_code(), "headers_too_large");
        assert!(client.ends());
    }
    gateway.wait_metric("llmgw_bad_heads_total", |n| n == 4.0);
}

#[test]
fn requests_that_do_not_arrive_are_408() {
    let engine = sim();
    let extra = "timeouts: { header: 200ms, body_idle: 200ms, idle: 300ms }";
    let gateway = Gateway::start(&endpoints([&engine]), extra);
    for begun in [
        "POST /v1/chat/completions HT".to_owned(),
        format!("POST {CHAT} HTTP/1.1\r\nhost: gw\r\ncontent-length: 100\r\n\r\n{{\"model\""),
        format!("POST {CHAT} HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{{\"mod"),
    ] {
        let mut client = gateway.connect();
        client.send(&begun);
        assert_eq!(client.answer().expect(408).error_code(), "request_timeout", "{begun}");
        assert!(client.ends());
    }
    // Nothing was begun: nothing is said.
    assert!(gateway.connect().ends());
    assert_eq!(count(&engine, "requests"), 0);
    assert_eq!(gateway.metric("llmgw_timeouts_total{phase=\"client\"}"), 3.0);
}

#[test]
fn smuggled_and_malformed_requests_are_400_and_closed() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let start = format!("POST {CHAT} HTTP/1.1\r\nhost: gw\r\n");
    let cases = [
        format!("{start}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("{start}content-length: 5\r\ncontent-length: 6\r\n\r\n{{}}   "),
        format!("{start}content-length: +5\r\n\r\n{{}}   "),
        format!("{start}transfer-encoding: chunked\r\n\r\nzz\r\n"),
        format!("{start}a: b\r\n folded\r\n\r\n"),
        format!("{start}a : b\r\n\r\n"),
        format!("POST {CHAT} HTTP/1.1\nhost: gw\n\n"),
        format!("POST {CHAT} HTTP/1.1\r\n\r\n"),
        "hello\r\n\r\n".to_owned(),
    ];
    for request in cases {
        let mut client = gateway.connect();
        client.try_send(&request);
        let answer = client.answer();
        assert_eq!((answer.status, answer.error_code().as_str()), (400, "none"), "{request:?}");
        assert!(client.ends(), "{request:?}");
    }
    assert_eq!(count(&engine, "requests"), 0);
}

#[test]
fn engine_errors_come_in_openai_shape_without_addresses() {
    let engine = Scripted::start(|wire, request| {
        let host = request.head.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
        match wire.request {
            0 => wire.json("400 Bad Request", "", &json!({"detail": format!("{host} says no")}).to_string()),
            1 => wire.json(
                "422 Unprocessable Entity",
                "",
                r#"{"error":{"message":"m","type":"t","param":"p","code":7}}"#,
            ),
            2 => {
                let html = "<html>oops</html>";
                wire.send(format!(
                    "HTTP/1.1 500 Oh\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n{html}",
                    html.len()
                ));
                crate::engine::Then::Keep
            }
            _ => wire.json("404 Not Found", "", ""),
        }
    });
    let gateway = Gateway::start(&[engine.endpoint("e0")], "");
    let answer = gateway.chat(&streamed(2)).expect(400);
    assert_eq!(answer.json()["error"]["message"], "engine says no");
    assert!(!answer.head.contains(&engine.address.port().to_string()), "{}", answer.head);
    let answer = gateway.chat(&streamed(2)).expect(422);
    assert_eq!(answer.json(), json!({"error": {"message": "m", "type": "t", "param": "p", "code": 7}}));
    let answer = gateway.chat(&streamed(2)).expect(500);
    assert_eq!(answer.header("content-type").as_deref(), Some("application/json"));
    assert_eq!(
        (answer.error_code().as_str(), &answer.json()["error"]["type"]),
        ("none", &json!("server_error"))
    );
    gateway.chat(&streamed(2)).expect(404).error_code();
    assert_eq!(engine.requests(), 4, "an engine's no is an answer, never tried elsewhere");
    gateway.wait_metric(
        "llmgw_request_outcomes_total{model=\"m\",pool=\"default\",outcome=\"engine_error\"}",
        |n| n == 4.0,
    );
}

#[test]
fn head_and_options() {
    let engine = sim();
    let extra = "cors: { allow_origins: [\"https://app.example\"], max_age: 5m }";
    let gateway = Gateway::start(&endpoints([&engine]), extra);
    let mut client = gateway.connect();
    client.send("HEAD /v1/models HTTP/1.1\r\nhost: gw\r\n\r\n");
    let head = client.head().expect(200);
    let length: usize = head.header("content-length").and_then(|n| n.parse().ok()).expect("a length");
    client.send("HEAD /nowhere HTTP/1.1\r\nhost: gw\r\n\r\n");
    client.head().expect(404);
    // Had a body followed, this would read it.
    client.send("GET /v1/models HTTP/1.1\r\nhost: gw\r\n\r\n");
    assert_eq!(client.answer().expect(200).body.len(), length);

    client.send(format!(
        "OPTIONS {CHAT} HTTP/1.1\r\nhost: gw\r\norigin: https://app.example\r\naccess-control-request-method: POST\r\n\
         access-control-request-headers: authorization\r\n\r\n"
    ));
    let preflight = client.answer().expect(204);
    let field = |name: &str| preflight.header(name).unwrap_or_default();
    assert_eq!(field("access-control-allow-origin"), "https://app.example");
    assert_eq!(field("vary"), "Origin");
    assert_eq!(field("access-control-allow-methods"), "POST, OPTIONS");
    assert_eq!(field("access-control-allow-headers"), "authorization");
    assert_eq!(field("access-control-max-age"), "300");
    client.send(format!("OPTIONS {CHAT} HTTP/1.1\r\nhost: gw\r\norigin: https://evil.example\r\n\r\n"));
    assert_eq!(client.answer().expect(204).header("access-control-allow-origin"), None);
    client.send("OPTIONS * HTTP/1.1\r\nhost: gw\r\n\r\n");
    client.answer().expect(204);
    // Answers of engines and errors carry it too.
    for body in [streamed(2), "{".to_owned()] {
        let answer = gateway.ask(post(CHAT, "origin: https://app.example\r\n", &body));
        assert_eq!(answer.header("access-control-allow-origin").as_deref(), Some("https://app.example"));
    }
}

#[test]
fn models_are_listed_and_found_by_names_with_slashes() {
    let engine = sim();
    let url = engine.url();
    let fleet: Vec<String> = ["b", "org/a", "b"]
        .iter()
        .enumerate()
        .map(|(i, model)| format!("{{ id: e{i}, model: {model}, url: \"{url}\" }}"))
        .collect();
    let gateway = Gateway::start(&fleet, "");
    let list = gateway.get("/v1/models").expect(200).json();
    assert_eq!(list["object"], "list");
    let ids: Vec<_> = list["data"].as_array().expect("a list").iter().map(|m| m["id"].clone()).collect();
    assert_eq!(ids, ["b", "org/a"]);
    for path in ["/v1/models/org/a", "/v1/models/org%2Fa", "/v1/models/org%2fa"] {
        let model = gateway.get(path).expect(200).json();
        assert_eq!(
            (model["id"].as_str(), model["object"].as_str()),
            (Some("org/a"), Some("model")),
            "{path}"
        );
        assert_eq!(model["created"], list["data"][1]["created"]);
    }
    for path in ["/v1/models/org", "/v1/models/org%252Fa"] {
        assert_eq!(gateway.get(path).expect(404).error_code(), "model_not_found", "{path}");
    }
}
