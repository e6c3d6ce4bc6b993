//! The property behind `inject`: whatever stands in any place that a client controls, it stays there.

use crate::client::CHAT;
use crate::engine::Scripted;
use crate::gateway::Gateway;
use crate::inject::{MARK, TEXTS, Trap, check_log, check_metrics, recording};
use crate::raw::Raw;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;

/// Requests of a run; `PROPTEST_CASES` asks for more.
const CASES: u32 = 400;

/// What texts are made of, besides any character and [`TEXTS`].
const PIECES: [&str; 26] = [
    "\r\n",
    "\r\n\r\n",
    "\n",
    "\r",
    "\0",
    "\t",
    " ",
    "\"",
    "\\",
    "'",
    ":",
    ",",
    ";",
    "=",
    "{",
    "}",
    "#",
    "?",
    "../",
    "%0d%0a",
    "\u{85}",
    "\u{2028}",
    "\u{1b}[31m",
    "\u{7f}",
    "\u{feff}",
    "x-evil: 1",
];

/// Fields that the gateway, an engine or anything between them might believe.
const FIELDS: [&str; 46] = [
    "accept",
    "accept-encoding",
    "access-control-request-headers",
    "access-control-request-method",
    "api-key",
    "authorization",
    "baggage",
    "connection",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-location",
    "content-type",
    "cookie",
    "expect",
    "forwarded",
    "from",
    "if-match",
    "idempotency-key",
    "location",
    "openai-organization",
    "openai-project",
    "origin",
    "prefer",
    "proxy-authorization",
    "range",
    "referer",
    "session-id",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "upgrade",
    "user-agent",
    "via",
    "x-api-key",
    "x-custom",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-http-method-override",
    "x-llmgw-replica",
    "x-original-url",
    "x-request-id",
    "x-session-id",
    "x-tl-kv-handle",
    "x-tl-priority",
];

/// Members of the body that name somebody or something.
const MEMBERS: [&str; 12] = [
    "model",
    "user",
    "session_id",
    "safety_identifier",
    "prompt_cache_key",
    "previous_response_id",
    "metadata",
    "stop",
    "tool_choice",
    "stream_options",
    "priority",
    "service_tier",
];

/// Keys of an access record.
const RECORD: [&str; 27] = [
    "timestamp",
    "level",
    "target",
    "request_id",
    "surface",
    "model",
    "endpoint",
    "pool",
    "reason",
    "status",
    "outcome",
    "stream",
    "attempts",
    "duration_ms",
    "ttft_ms",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "events",
    "finish_reason",
    "bytes_in",
    "bytes_out",
    "peer",
    "traceparent",
    "detail",
    "queue_ms",
    "tenant",
];

/// Where a text goes.
#[derive(Debug, Clone, Copy)]
enum Place {
    Method,
    Target,
    Query,
    Absolute,
    Version,
    Host,
    Name,
    Field(&'static str),
    Member(&'static str),
    Key,
    Message,
    Extension,
    Trailer,
}

fn place() -> impl Strategy<Value = Place> {
    let plain = [
        Place::Method,
        Place::Target,
        Place::Query,
        Place::Absolute,
        Place::Version,
        Place::Host,
        Place::Name,
        Place::Key,
        Place::Message,
        Place::Extension,
        Place::Trailer,
    ];
    prop_oneof![
        11 => proptest::sample::select(plain.to_vec()),
        10 => proptest::sample::select(&FIELDS[..]).prop_map(Place::Field),
        6 => proptest::sample::select(&MEMBERS[..]).prop_map(Place::Member),
    ]
}

/// A text, made of pieces; the mark is always in it. `to`: an address that nobody must go to.
fn text(to: &str) -> impl Strategy<Value = String> + use<> {
    let piece = prop_oneof![
        4 => proptest::sample::select(&PIECES[..]).prop_map(str::to_owned),
        2 => proptest::sample::select(&TEXTS[..]).prop_map(str::to_owned),
        2 => proptest::sample::select(vec![
            to.to_owned(), format!("http://{to}/"), format!("//{to}/v1"), format!("@{to}"), format!("{to}#"),
        ]),
        2 => any::<char>().prop_map(String::from),
        2 => "[a-z0-9.-]{1,12}",
    ];
    let pieces = proptest::collection::vec(piece, 0..5);
    (pieces.clone(), pieces)
        .prop_map(|(before, after)| format!("{}{MARK}{}", before.concat(), after.concat()))
}

/// A request with these texts in it, valid wherever they are not.
fn request(placed: &[(Place, String)]) -> Vec<u8> {
    let (mut method, mut target, mut version) = ("POST".to_owned(), CHAT.to_owned(), "HTTP/1.1".to_owned());
    let (mut host, mut fields) = ("gw".to_owned(), String::new());
    let mut body = serde_json::json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
    let (mut extension, mut trailer) = (None, None);
    for (place, text) in placed {
        match place {
            Place::Method => method.clone_from(text),
            Place::Target => target = format!("/v1/{text}"),
            Place::Query => target.push_str(&format!("?{text}")),
            Place::Absolute => target = format!("http://{text}{CHAT}"),
            Place::Version => version.clone_from(text),
            Place::Host => host.clone_from(text),
            Place::Name => fields.push_str(&format!("{text}: value\r\n")),
            Place::Field(name) => fields.push_str(&format!("{name}: {text}\r\n")),
            Place::Member(name) => body[*name] = text.as_str().into(),
            Place::Key => body[text] = true.into(),
            Place::Message => {
                body["messages"][0] = serde_json::json!({ "role": text, "content": text, "name": text });
            }
            Place::Extension => extension = Some(text),
            Place::Trailer => trailer = Some(text),
        }
    }
    let body = body.to_string();
    let head = format!("{method} {target} {version}\r\nconnection: close\r\nhost: {host}\r\n{fields}");
    let whole = if extension.is_some() || trailer.is_some() {
        let extension = extension.map(|text| format!(";{text}")).unwrap_or_default();
        let trailer = trailer.map(|text| format!("x-trailer: {text}\r\n")).unwrap_or_default();
        let length = body.len();
        format!(
            "{head}transfer-encoding: chunked\r\n\r\n{length:x}{extension}\r\n{body}\r\n0\r\n{trailer}\r\n"
        )
    } else {
        format!("{head}content-length: {}\r\n\r\n{body}", body.len())
    };
    whole.into_bytes()
}

/// Every line of a head that reached the engine is the gateway's own, or a whole line as the client sent it.
fn check_engine_head(head: &str, sent: &str, engine: &str) {
    let (line, fields) = head.split_once("\r\n").expect("a request line");
    assert_eq!(line, format!("POST {CHAT} HTTP/1.1"));
    let said: BTreeSet<(String, &str)> = sent.split("\r\n").filter_map(field).collect();
    for line in fields.split("\r\n").filter(|line| !line.is_empty()) {
        let (name, value) = field(line).unwrap_or_else(|| panic!("no field: {line:?} in {head:?}"));
        assert!(!value.contains(['\r', '\n', '\0']), "{head:?}");
        let graphic = value.bytes().all(|byte| byte.is_ascii_graphic());
        let own = match name.as_str() {
            "host" => value == engine,
            "content-length" | "x-tl-priority" => value.parse::<u64>().is_ok(),
            "x-request-id" => graphic && value.len() <= 128,
            "content-type" => value == "application/json",
            _ => false,
        };
        // Two of what only the gateway may say would be one too many.
        let mine = ["host", "content-length", "x-tl-priority", "x-request-id", "transfer-encoding"];
        assert!(own || !mine.contains(&&*name) && said.contains(&(name, value)), "{line:?} in {head:?}");
    }
}

/// Name and value of a field line.
fn field(line: &str) -> Option<(String, &str)> {
    let (name, value) = line.split_once(':')?;
    Some((name.to_lowercase(), value.trim_matches([' ', '\t'])))
}

/// Each record is one line with the keys that records have; what is refused unread has none.
fn check_records(log: &str, settled: f64) {
    let mut records = 0.0;
    for line in log.lines().filter(|line| line.contains(r#""target":"access""#)) {
        let record: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for key in record.as_object().expect("an object").keys() {
            assert!(RECORD.contains(&&**key), "{key} in {line}");
        }
        records += 1.0;
    }
    assert!(records > 0.0 && records <= settled, "{records} records of {settled} requests");
}

#[test]
fn anything_anywhere_stays_text() {
    let trap = Trap::set();
    let (engine, heads): (Scripted, _) = recording();
    let own = engine.address.to_string();
    // Short times: what is cut off in the middle of its head is not waited for.
    let config =
        "log: { format: json, level: trace }\ntimeouts: { header: 200ms, idle: 200ms, body_idle: 200ms }";
    let gateway = Gateway::start(&[engine.endpoint("e0")], config);
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(CASES);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let several = proptest::collection::vec((place(), text(&trap.address())), 1..4);
    let mut statuses = BTreeSet::new();
    let statuses_seen = std::sync::Mutex::new(&mut statuses);
    let outcome = runner.run(&several, |placed| {
        heads.lock().expect("no panic under the lock").clear();
        let bytes = request(&placed);
        let mut raw = Raw::connect(gateway.address);
        raw.send(&bytes);
        let said = raw.rest();
        // Nothing at all is said to a connection that sent no more than blank lines.
        for line in said.split("\r\n") {
            assert!(!line.contains(['\r', '\n', '\0']), "{said:?}");
            assert!(!line.to_lowercase().starts_with(MARK), "{said:?}");
            if let Some(status) = line.strip_prefix("HTTP/1.1 ") {
                let status = status.get(..3).and_then(|digits| digits.parse::<u16>().ok()).expect("a status");
                assert!((100..502).contains(&status) || status == 505, "{status} in {said:?}");
                statuses_seen.lock().expect("no panic under the lock").insert(status);
            }
        }
        let sent = String::from_utf8(bytes).expect("made of text");
        for head in heads.lock().expect("no panic under the lock").iter() {
            check_engine_head(head, &sent, &own);
        }
        assert!(trap.untouched(), "the gateway connected to an address that a client named");
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    // The property says something only where requests of all sorts were made.
    for status in [200, 400, 404] {
        assert!(statuses.contains(&status), "{statuses:?}");
    }
    let page = gateway.page("/metrics").expect(200).text();
    check_metrics(&page);
    assert!(!page.contains(&trap.address()), "{page}");
    let settled = gateway.metric("llmgw_requests_total");
    gateway.signal(Signal::TERM);
    let log = gateway.ended().1;
    check_log(&log, true);
    check_records(&log, settled);
}
