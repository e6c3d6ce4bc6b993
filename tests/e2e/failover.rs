//! What an engine's failure before the first byte costs: another engine's time, and nothing of the client's.

use crate::client::{CHAT, chat, streamed};
use crate::engine::{Scripted, Then, count, endpoints, sim};
use crate::gateway::{Gateway, endpoint};
use llmgw_sim::Engine;

/// Endpoints of which the first has no weight, so that it is chosen when no other is left.
const LAST: &str = "router: { policy: weighted, retries: 8 }";

/// Endpoints `e0` (weight 0), `e1`, ...
fn last_is_good(good: &Engine, bad: &[Engine]) -> Vec<String> {
    let good = format!("{{ id: good, model: m, url: \"{}\", engine: sim, weight: 0 }}", good.url());
    std::iter::once(good).chain(endpoints(bad)).collect()
}

#[test]
fn every_failure_before_the_answer_is_tried_elsewhere() {
    let faults =
        ["reset-before-head", "malformed-head=status", "malformed-head=length", "malformed-head=both"];
    let busy = ["503=7", "429=3"];
    let (good, refusing) = (sim(), sim());
    let bad: Vec<Engine> = faults.iter().chain(&busy).map(|_| sim()).collect();
    let mut fleet = last_is_good(&good, &bad);
    fleet.push(endpoint("refusing", &refusing.url()));
    let gateway = Gateway::start(&fleet, LAST);
    for (engine, fault) in bad.iter().zip(faults.iter().chain(&busy)) {
        engine.set_fault(fault).expect("a fault");
    }
    refusing.set_fault("refuse").expect("a fault");
    let answer = gateway.chat(&streamed(5)).expect(200);
    assert_eq!(answer.header("x-llmgw-replica").as_deref(), Some("good"));
    assert_eq!(answer.header("x-llmgw-attempts").as_deref(), Some("8"));
    assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    for engine in &bad {
        assert_eq!(count(engine, "faults_injected"), 1, "each is tried once");
    }
    assert_eq!(gateway.metric("llmgw_retries_total{kind=\"never_sent\"}"), 1.0);
    assert_eq!(gateway.metric("llmgw_retries_total{kind=\"sent\"}"), 4.0);
    assert_eq!(gateway.metric("llmgw_retries_total{kind=\"busy\"}"), 2.0);
    // Busy is not failed, failed is not busy.
    let state = |id: &str, state: &str| {
        gateway.metric(&format!("llmgw_endpoint_health{{replica=\"{id}\",state=\"{state}\"}}"))
    };
    for id in ["e4", "e5"] {
        assert_eq!((state(id, "busy"), state(id, "failed")), (1.0, 0.0), "{id}");
    }
    assert_eq!((state("refusing", "failed"), state("refusing", "busy")), (1.0, 0.0));
    let rest = gateway.metric("llmgw_endpoint_cooldown_seconds{replica=\"e4\"}");
    assert!((5.0..=7.0).contains(&rest), "its own Retry-After counts, not {rest}");
}

/// A worker that refuses and one that answers 503 are each tried once, and the request completes on the next. The busy
/// one may be asked again at once by whoever comes: it is the request that does not go there twice.
#[test]
fn failover_before_first_byte() {
    let (good, refusing) = (sim(), sim());
    let busy = Scripted::start(|wire, _| wire.json("503 Service Unavailable", "retry-after: 0\r\n", "{}"));
    let fleet = [
        format!("{{ id: good, model: m, url: \"{}\", engine: sim, weight: 0 }}", good.url()),
        busy.endpoint("busy"),
        endpoint("refusing", &refusing.url()),
    ];
    let gateway = Gateway::start(&fleet, "router: { policy: weighted }");
    refusing.set_fault("refuse").expect("a fault");
    let answer = gateway.chat(&streamed(5)).expect(200);
    assert_eq!(answer.header("x-llmgw-attempts").as_deref(), Some("3"));
    assert_eq!(answer.header("x-tl-route").as_deref(), Some("good"));
    assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    assert_eq!((busy.requests(), count(&good, "completed")), (1, 1));
    assert_eq!(gateway.metric("llmgw_retries_total{kind=\"never_sent\"}"), 1.0);
    assert_eq!(gateway.metric("llmgw_retries_total{kind=\"busy\"}"), 1.0);
}

#[test]
fn all_busy_is_503_with_the_largest_retry_after() {
    let engines = [sim(), sim(), sim()];
    let gateway = Gateway::start(&endpoints(&engines), "");
    for (engine, fault) in engines.iter().zip(["503=4", "429=9", "503"]) {
        engine.set_fault(fault).expect("a fault");
    }
    let answer = gateway.chat(&streamed(5)).expect(503);
    assert_eq!(answer.error_code(), "no_capacity");
    assert_eq!(answer.json()["error"]["type"], "server_error");
    assert_eq!(answer.header("retry-after").as_deref(), Some("9"));
    // While all rest, nobody is asked.
    gateway.chat(&streamed(5)).expect(503);
    assert!(engines.iter().all(|engine| count(engine, "faults_injected") == 1));
    // Busy is alive: the gateway stays ready.
    gateway.page("/readyz").expect(200);
    assert_eq!(gateway.metric("llmgw_replicas{model=\"m\",state=\"failed\"}"), 0.0);
}

#[test]
fn malformed_answer_of_the_only_engine_is_502() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    for fault in ["malformed-head=status", "malformed-head=nul"] {
        engine.clear_faults();
        engine.set_fault(fault).expect("a fault");
        gateway.wait_metric("llmgw_endpoint_health{replica=\"e0\",state=\"ready\"}", |n| n == 1.0);
        let answer = gateway.chat(&streamed(5)).expect(502);
        assert_eq!(answer.error_code(), "bad_upstream_response");
        let port = engine.local_addr().port().to_string();
        assert!(!answer.text().contains(&port) && !answer.head.contains(&port), "{}", answer.text());
    }
}

#[test]
fn tries_are_bounded_by_retries() {
    let engines = [sim(), sim(), sim(), sim()];
    let gateway = Gateway::start(&endpoints(&engines), "router: { retries: 1 }");
    for engine in &engines {
        engine.set_fault("reset-before-head").expect("a fault");
    }
    let answer = gateway.chat(&streamed(5)).expect(503);
    assert_eq!(answer.error_code(), "no_capacity");
    assert_eq!(answer.header("x-llmgw-attempts").as_deref(), Some("2"));
    assert_eq!(engines.iter().map(|engine| count(engine, "faults_injected")).sum::<u64>(), 2);
}

#[test]
fn budget_bounds_tries_after_busy_and_no_others() {
    // Two engines busy for no time at all: each request would be tried twice, forever.
    let busy = || Scripted::start(|wire, _| wire.json("503 Service Unavailable", "retry-after: 0\r\n", "{}"));
    let engines = [busy(), busy()];
    let fleet: Vec<String> = engines.iter().zip(["e0", "e1"]).map(|(e, id)| e.endpoint(id)).collect();
    let gateway = Gateway::start(&fleet, "router: { retry_budget: 0 }");
    for _ in 0..50 {
        gateway.chat(&streamed(5)).expect(503);
    }
    assert!(gateway.metric("llmgw_retry_budget_exhausted_total") > 0.0);
    let retried = gateway.metric("llmgw_retries_total{kind=\"busy\"}");
    assert!(retried < 40.0, "{retried} of 50 were tried again");

    // Connections that die are no matter of the budget: cooldown bounds them.
    let (dying, good) = (sim(), sim());
    let gateway = Gateway::start(&endpoints([&dying, &good]), "router: { retry_budget: 0, cooldown: 1ms }");
    dying.set_fault("reset-before-head").expect("a fault");
    for _ in 0..50 {
        gateway.chat(&streamed(1)).expect(200);
    }
    assert_eq!(gateway.metric("llmgw_retry_budget_exhausted_total"), 0.0);
}

#[test]
fn a_refusing_endpoint_is_out_at_once_and_back_soon_after_it_listens() {
    let (down, up) = (sim(), sim());
    let extra = "router: { policy: rr, profiles: { rr: { picker: { type: round-robin } } }, cooldown: 1h }";
    let gateway = Gateway::start(&endpoints([&down, &up]), extra);
    down.set_fault("refuse").expect("a fault");
    for _ in 0..6 {
        let answer = gateway.chat(&streamed(2)).expect(200);
        assert_eq!(answer.header("x-llmgw-replica").as_deref(), Some("e1"));
    }
    assert_eq!(
        gateway.metric("llmgw_retries_total{kind=\"never_sent\"}"),
        1.0,
        "the first to meet it, no other"
    );
    down.clear_faults();
    // The cooldown is an hour: it is the probe that brings it back.
    gateway.wait_log("endpoint is back");
    let replicas: Vec<_> =
        (0..4).map(|_| gateway.chat(&streamed(2)).expect(200).header("x-llmgw-replica")).collect();
    assert!(replicas.iter().any(|replica| replica.as_deref() == Some("e0")), "{replicas:?}");
}

#[test]
fn an_engine_that_is_down_at_start_costs_no_request() {
    let (down, up) = (sim(), sim());
    down.set_fault("refuse").expect("a fault");
    let gateway = Gateway::start(&endpoints([&down, &up]), "");
    for _ in 0..4 {
        assert_eq!(gateway.chat(&streamed(2)).expect(200).header("x-llmgw-attempts").as_deref(), Some("1"));
    }
    assert_eq!(gateway.metric("llmgw_retries_total"), 0.0);
}

#[test]
fn no_engine_at_all_is_503_and_not_ready() {
    let down = sim();
    down.set_fault("refuse").expect("a fault");
    let gateway = Gateway::start(&endpoints([&down]), "");
    gateway.wait_ready(503);
    assert_eq!(gateway.page("/readyz").json()["reason"], "no_routable_endpoint");
    let answer = gateway.chat(&streamed(2)).expect(503);
    assert_eq!(answer.error_code(), "no_capacity");
    assert!(answer.header("retry-after").is_some());
    down.clear_faults();
    gateway.wait_ready(200);
    gateway.chat(&streamed(2)).expect(200);
}

#[test]
fn a_request_that_an_engine_works_on_is_never_tried_again() {
    let good = sim();
    let slow = Scripted::start(|wire, _| {
        // Silent until the gateway gives up.
        wire.ended();
        Then::Close
    });
    let fleet =
        [slow.endpoint("slow"), format!("{{ id: good, model: m, url: \"{}\", weight: 0 }}", good.url())];
    let gateway = Gateway::start(&fleet, "timeouts: { first_token: 200ms }\nrouter: { policy: weighted }");
    let answer = gateway.chat(&chat("")).expect(504);
    assert_eq!(answer.error_code(), "upstream_timeout");
    assert_eq!(answer.json()["error"]["param"], "first_token");
    assert_eq!((slow.requests(), count(&good, "requests")), (1, 0));
    assert_eq!(gateway.metric("llmgw_timeouts_total{phase=\"first_token\"}"), 1.0);
}

#[test]
fn redirects_of_engines_are_not_passed_on() {
    let engine = Scripted::start(|wire, _| {
        wire.json("307 Temporary Redirect", "location: http://10.9.8.7:8000/\r\n", "{}")
    });
    let gateway = Gateway::start(&[engine.endpoint("e0")], "");
    let answer = gateway.post(CHAT, "", &chat("")).expect(502);
    assert!(!answer.head.contains("10.9.8.7"), "{}", answer.head);
}

#[test]
fn an_engine_that_takes_no_connection_is_504_connect() {
    use std::net::{TcpListener, TcpStream};
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    rustix::net::listen(&listener, 0).expect("the shortest backlog");
    let address = listener.local_addr().expect("its address");
    let gateway =
        Gateway::start(&[endpoint("e0", &format!("http://{address}"))], "timeouts: { connect: 200ms }");
    // Connections that nobody accepts, until the kernel drops what comes: to the gateway, a host that is away.
    let wait = std::time::Duration::from_millis(100);
    let held: Vec<_> = (0..16).map_while(|_| TcpStream::connect_timeout(&address, wait).ok()).collect();
    assert!(held.len() < 16, "the backlog has an end");
    let answer = gateway.chat(&chat("")).expect(504);
    assert_eq!(answer.error_code(), "upstream_timeout");
    assert_eq!(answer.json()["error"]["param"], "connect");
    assert_eq!(gateway.metric("llmgw_timeouts_total{phase=\"connect\"}"), 1.0);
}

#[test]
fn an_endless_head_of_an_engine_is_502() {
    let engine = Scripted::start(|wire, _| {
        wire.send("HTTP/1.1 200 OK\r\n");
        while wire.send("x: y\r\n".repeat(1000)) {}
        Then::Close
    });
    let gateway = Gateway::start(&[engine.endpoint("e0")], "");
    assert_eq!(gateway.chat(&chat("")).expect(502).error_code(), "bad_upstream_response");
}
