//! What a peer says stays what it is: text in its place. It chooses no address, begins no header, no log line, no
//! label.

use crate::client::{CHAT, chat, post};
use crate::engine::{Request, Scripted, Then, Wire, endpoints, sim};
use crate::gateway::Gateway;
use crate::raw::Raw;
use rustix::process::Signal;
use serde_json::Value;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// What attackers would like to see begin a line, a label or a header.
pub const MARK: &str = "x-evil";

/// Texts that break out of what does not escape them.
pub const TEXTS: [&str; 12] = [
    "a\r\nx-evil: 1",
    "a\nx-evil: 1",
    "a\rx-evil: 1",
    "a\"} 1\nx-evil{b=\"",
    "a\\",
    "a\" x-evil=1 \"",
    "a\u{85}x-evil\u{2028}x-evil\u{2029}x-evil",
    "a\u{1b}[2Jx-evil\u{7}",
    "a\0x-evil",
    "\u{202e}x-evil",
    "{\"level\":\"ERROR\",\"x-evil\":1}",
    "${jndi:ldap://127.0.0.1/x-evil} %0d%0ax-evil: 1",
];

/// An engine that keeps the heads of the requests it gets.
pub fn recording() -> (Scripted, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heads);
    let engine = Scripted::start(move |wire, request| {
        kept.lock().expect("no panic under the lock").push(request.head.clone());
        wire.json("200 OK", "", "{}")
    });
    (engine, heads)
}

/// Every line of the log is one the gateway meant: a JSON object with a known target, or a text line with a time.
pub fn check_log(log: &str, json: bool) {
    for line in log.split('\n').filter(|line| !line.is_empty()) {
        assert!(!line.chars().any(|c| c.is_control()), "a control character in {line:?}");
        if json {
            let object: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            assert!(object["target"].is_string() && object.get(MARK).is_none(), "{line}");
        } else {
            assert!(line.starts_with("20") && line.as_bytes()[10] == b'T', "{line}");
            assert!(!line.contains(" x-evil=1"), "{line}");
        }
    }
}

/// Every line of the metrics is a comment or a series of ours, and the attacker's mark is in none.
pub fn check_metrics(page: &str) {
    assert!(!page.contains(MARK), "{page}");
    for line in page.lines() {
        assert!(
            line.starts_with("# ") || line.starts_with("llmgw_") || line.starts_with("process_"),
            "{line}"
        );
    }
}

/// A head as sent to the client, field by field: none is the attacker's.
fn check_head(head: &str) {
    for line in head.split("\r\n") {
        assert!(!line.to_lowercase().starts_with(MARK), "{head:?}");
        assert!(!line.contains(['\r', '\n', '\0']), "{head:?}");
    }
}

#[test]
fn what_a_client_says_stays_text() {
    for format in ["json", "text"] {
        let (engine, heads) = recording();
        let gateway = Gateway::start(&[engine.endpoint("e0")], &format!("log: {{ format: {format} }}"));
        for text in TEXTS {
            // In the body: the model's name, escaped as JSON.
            let model = Value::from(text).to_string();
            let answer = gateway.chat(&chat("").replace("\"m\"", &model)).expect(404);
            assert!(answer.error_code() == "model_not_found");
            check_head(&answer.head);
            gateway.chat(&chat(&format!(",\"user\":{model}"))).expect(200);
            // In fields and in the target, raw. What is refused is refused whole; what is not must not break out.
            for place in [
                format!("GET /v1/models/{text} HTTP/1.1\r\nhost: gw\r\n\r\n"),
                format!("GET /v1/models?{text} HTTP/1.1\r\nhost: gw\r\n\r\n"),
                format!("{text} /v1/models HTTP/1.1\r\nhost: gw\r\n\r\n"),
                format!("GET /{text} HTTP/1.1\r\nhost: {text}\r\n\r\n"),
                post(CHAT, &format!("x-request-id: {text}\r\n"), &chat("")),
                post(CHAT, &format!("traceparent: 00-{text}-{text}-01\r\n"), &chat("")),
                post(CHAT, &format!("origin: http://{text}\r\n"), &chat("")),
                post(CHAT, &format!("x-session-id: {text}\r\nuser-agent: {text}\r\n"), &chat("")),
                format!(
                    "OPTIONS {CHAT} HTTP/1.1\r\nhost: gw\r\norigin: {text}\r\naccess-control-request-headers: {text}\r\n\r\n"
                ),
            ] {
                let mut raw = Raw::connect(gateway.address);
                raw.send(place.replacen("host:", "connection: close\r\nhost:", 1).as_bytes());
                let said = raw.rest();
                let head = said.split("\r\n\r\n").next().expect("a head");
                assert!(head.starts_with("HTTP/1.1 "), "{place:?} is answered by {said:?}");
                check_head(head);
            }
        }
        // A text with a line end of its own is two fields, and the second one its sender's right; anything else is not.
        for head in heads.lock().expect("no panic under the lock").iter() {
            for line in head.split("\r\n") {
                assert!(!line.starts_with(MARK) || line.starts_with("x-evil: 1"), "{head:?}");
                assert!(!line.contains(['\r', '\n', '\0']), "{head:?}");
            }
        }
        check_metrics(&gateway.page("/metrics").expect(200).text());
        gateway.signal(Signal::TERM);
        check_log(&gateway.ended().1, format == "json");
    }
}

#[test]
fn names_of_any_length_do_not_grow_the_answer_or_the_labels() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    // The first of each kind makes its series.
    gateway.chat(&chat("")).expect(200);
    gateway.chat(&chat("").replace("\"m\"", "\"unknown\"")).expect(404);
    gateway.chat("{}").expect(400);
    let before = gateway.page("/metrics").text().lines().count();
    for length in [1_000, 4_000, 20_000] {
        let answer = gateway.chat(&chat("").replace("\"m\"", &format!("\"{}\"", "x".repeat(length))));
        assert!(matches!(answer.status, 400 | 404) && answer.body.len() < 1024, "{}", answer.text());
        let id = "i".repeat(length);
        let answer = gateway.post(CHAT, &format!("x-request-id: {id}\r\n"), &chat("")).expect(200);
        assert!(answer.header("x-request-id").is_some_and(|made| made.len() <= 128));
    }
    for n in 0..200 {
        gateway.chat(&chat("").replace("\"m\"", &format!("\"unknown-{n}\""))).expect(404);
        gateway.get(&format!("/unknown/{n}")).expect(404);
    }
    let after = gateway.page("/metrics").text();
    assert!(!after.contains("unknown-"), "{after}");
    assert!(after.lines().count() < before + 20, "{} lines, then {}", before, after.lines().count());
}

/// A listener that nobody must ever connect to.
pub struct Trap(TcpListener);

impl Trap {
    pub fn set() -> Trap {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("non-blocking");
        Trap(listener)
    }

    pub fn address(&self) -> String {
        self.0.local_addr().expect("its address").to_string()
    }

    pub fn untouched(&self) -> bool {
        self.0.accept().is_err()
    }
}

#[test]
fn nothing_that_a_client_says_chooses_an_address() {
    let (engine, heads) = recording();
    let gateway = Gateway::start(&[engine.endpoint("e0")], "");
    let trap = Trap::set();
    let to = trap.address();
    let body = chat("");
    let length = body.len();
    let rest = format!(
        "content-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    for request in [
        format!("POST http://{to}{CHAT} HTTP/1.1\r\nhost: {to}\r\n{rest}"),
        format!("POST {CHAT} HTTP/1.1\r\nhost: {to}\r\n{rest}"),
        format!("POST //{to}{CHAT} HTTP/1.1\r\nhost: gw\r\n{rest}"),
        format!("POST @{to}{CHAT} HTTP/1.1\r\nhost: gw\r\n{rest}"),
        format!("POST {CHAT}@{to} HTTP/1.1\r\nhost: gw\r\n{rest}"),
        format!("CONNECT {to} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n\r\n"),
        format!("GET http://{to}/v1/models HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n\r\n"),
        "GET /v1/models HTTP/1.1\r\nhost: gw\r\nconnection: close\r\nupgrade: websocket\r\n\r\n".to_owned(),
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: gw\r\nforwarded: host={to}\r\nx-forwarded-host: {to}\r\nx-forwarded-for: {to}\r\n\
             x-real-ip: {to}\r\nx-original-url: http://{to}/\r\nx-rewrite-url: http://{to}/\r\n\
             referer: http://{to}/\r\n\
             x-llmgw-replica: http://{to}\r\nx-tl-kv-handle: {to}\r\nx-tl-priority: 9\r\nproxy: http://{to}\r\n{rest}"
        ),
    ] {
        let mut raw = Raw::connect(gateway.address);
        raw.send(request.as_bytes());
        let status = raw.refused();
        assert!((200..502).contains(&status), "{status} to {request}");
    }
    for model in [format!("http://{to}"), format!("http://{to}/v1#"), format!("../../{to}"), to.clone()] {
        gateway.chat(&chat("").replace("\"m\"", &format!("\"{model}\""))).expect(404);
    }
    assert!(trap.untouched(), "the gateway connected to an address that a client named");
    // Nor does the engine learn of such a host, of internal fields, or of the client's key.
    gateway
        .post(CHAT, &format!("authorization: Bearer sk-secret\r\nx-tl-kv-handle: {to}\r\n"), &body)
        .expect(200);
    for head in heads.lock().expect("no panic under the lock").iter() {
        for secret in ["sk-secret", "x-tl-kv-handle", "authorization", &format!("host: {to}")] {
            assert!(!head.to_lowercase().contains(secret), "{secret} in {head}");
        }
    }
}

/// An engine that answers what the test says next.
fn engine_saying(answer: &Arc<Mutex<Vec<u8>>>) -> Scripted {
    let answer = Arc::clone(answer);
    Scripted::start(move |wire: &mut Wire, _: &Request| {
        let bytes = answer.lock().expect("no panic under the lock").clone();
        wire.send(&bytes);
        Then::Close
    })
}

#[test]
fn nothing_that_an_engine_says_breaks_out() {
    let answer = Arc::new(Mutex::new(Vec::new()));
    let engine = engine_saying(&answer);
    let trap = Trap::set();
    let own = engine.address.to_string();
    let extra = "router: { retries: 0, cooldown: 1ms }";
    for format in ["json", "text"] {
        let gateway =
            Gateway::start(&[engine.endpoint("e0")], &format!("log: {{ format: {format} }}\n{extra}"));
        let say = |bytes: Vec<u8>| {
            *answer.lock().expect("no panic under the lock") = bytes;
            gateway.wait_metric("llmgw_endpoint_cooldown_seconds", |seconds| seconds == 0.0);
            gateway.wait_ready(200);
            let said = gateway.chat(&chat(""));
            check_head(&said.head);
            said
        };
        let with = |fields: &str, status: &str, body: &str| {
            let length = body.len();
            format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{fields}\r\n{body}").into_bytes()
        };
        // A field's value that is no field's value makes the answer no answer.
        for bad in [
            "x: a\rx-evil: 1\r\n",
            "x: a\nx-evil: 1\r\n",
            "x: a\0b\r\n",
            "x\r\n",
            " x-evil: 1\r\n",
            "x : 1\r\n",
        ] {
            assert_eq!(say(with(bad, "200 OK", "{}")).error_code(), "bad_upstream_response", "{bad:?}");
        }
        // Where to go next is the client's own affair; the gateway does not follow.
        let to = trap.address();
        let moved = say(with(&format!("location: http://{to}/\r\n"), "307 Temporary Redirect", "{}"));
        assert!(trap.untouched(), "the gateway followed an engine's redirect");
        assert!(moved.status != 200, "{}", moved.head);
        // Fields of this hop, and those that are the gateway's to say.
        let said = say(with(
            "connection: x-evil\r\nx-evil: 1\r\nx-request-id: forged\r\nserver: engine-7\r\nx-llmgw-replica: forged\r\n\
             keep-alive: timeout=9\r\n",
            "200 OK",
            "{}",
        ));
        assert_eq!(said.status, 200);
        assert!(!said.head.contains("forged"), "{}", said.head);
        // Errors with addresses, with texts that break out, and in shapes of their own.
        for text in TEXTS {
            let message = Value::from(format!("{text} at http://{own}/v1, {own}")).to_string();
            for (status, body) in [
                (
                    "500 Internal Server Error",
                    format!("{{\"error\":{{\"message\":{message},\"type\":{message},\"code\":{message}}}}}"),
                ),
                ("400 Bad Request", format!("{{\"detail\":{message}}}")),
                ("404 Not Found", format!("{{\"message\":{message},\"param\":{message}}}")),
                ("500 Internal Server Error", format!("Traceback: {text} at {own}")),
            ] {
                let said = say(with("", status, &body));
                said.error_code();
                assert!(!said.text().contains(&own), "an engine's address in {}", said.text());
            }
            let event = format!("data: {{\"error\":{{\"message\":{message}}}}}\n\n");
            let length = event.len();
            let stream = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {length}\r\n\r\n{event}"
            );
            let said = say(stream.into_bytes());
            assert!(!said.text().contains(&own), "an engine's address in {}", said.text());
        }
        check_metrics(&gateway.page("/metrics").expect(200).text());
        gateway.signal(Signal::TERM);
        check_log(&gateway.ended().1, format == "json");
    }
}
