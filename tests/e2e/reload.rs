//! SIGHUP: endpoints come and go under running streams, and a wrong file changes nothing.

use crate::client::{CHAT, End, streamed};
use crate::engine::{Scripted, Then, count, endpoints, event, sim};
use crate::gateway::{Gateway, endpoint};
use std::sync::Mutex;
use std::sync::mpsc::channel;

const LAST: &str = "router: { policy: least_outstanding }";

#[test]
fn endpoints_come_and_go_without_disturbing_a_stream() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let old = Scripted::start(move |wire, _| {
        wire.stream_head();
        wire.event("one");
        wait.lock().expect("one request").recv().expect("the test goes on");
        wire.event("two");
        wire.done();
        Then::Keep
    });
    let new = sim();
    let gateway = Gateway::start(&[old.endpoint("old")], LAST);
    let mut client = gateway.connect();
    client.post(CHAT, "", &streamed(2));
    let head = client.head().expect(200);
    let said = gateway.reload(&[endpoint("new", &new.url())], LAST);
    assert!(said.contains("configuration reloaded"), "{said}");
    for _ in 0..3 {
        let answer = gateway.chat(&streamed(2)).expect(200);
        assert_eq!(answer.header("x-llmgw-replica").as_deref(), Some("new"));
    }
    let page = gateway.page("/metrics").text();
    assert!(!page.contains("replica=\"old\""), "series of the removed endpoint go");
    assert!(page.contains("replica=\"new\""));
    go.send(()).expect("the engine waits");
    let answer = client.body(head);
    let text = format!("data: {}\n\ndata: {}\n\ndata: [DONE]\n\n", event("one"), event("two"));
    assert_eq!((answer.text(), answer.end), (text, End::Whole));
    // Its connection is not kept for an endpoint that is gone.
    gateway.wait_metric("llmgw_upstream_idle_connections", |n| n == 1.0);
    assert_eq!(gateway.metric("llmgw_config_reloads_total{result=\"taken\"}"), 1.0);
}

#[test]
fn idle_connections_of_a_removed_endpoint_are_closed() {
    let (stays, goes) = (sim(), sim());
    let fleet = endpoints([&stays, &goes]);
    let extra = "router: { policy: rr, profiles: { rr: { picker: { type: round-robin } } } }\ntimeouts: { upstream_idle: 1h }";
    let gateway = Gateway::start(&fleet, extra);
    for _ in 0..2 {
        gateway.chat(&streamed(2)).expect(200);
    }
    gateway.wait_metric("llmgw_upstream_idle_connections", |n| n == 2.0);
    gateway.reload(&fleet[..1], extra);
    gateway.wait_metric("llmgw_upstream_idle_connections", |n| n == 1.0);
    for _ in 0..4 {
        gateway.chat(&streamed(2)).expect(200);
    }
    assert_eq!((count(&stays, "completed"), count(&goes, "completed")), (5, 1));
}

#[test]
fn a_model_that_goes_is_not_found_and_its_series_vanish() {
    let (m, other) = (sim(), sim());
    let fleet = endpoints([&m]);
    let both = [fleet[0].clone(), format!("{{ id: x, model: other, url: \"{}\" }}", other.url())];
    let gateway = Gateway::start(&both, "");
    gateway.post(CHAT, "", &streamed(2).replace("\"m\"", "\"other\"")).expect(404).error_code();
    gateway.wait_metric("llmgw_requests_total{model=\"other\"", |n| n == 1.0);
    gateway.reload(&fleet, "");
    let answer = gateway.post(CHAT, "", &streamed(2).replace("\"m\"", "\"other\"")).expect(404);
    assert_eq!(answer.error_code(), "model_not_found");
    let page = gateway.page("/metrics").text();
    assert!(!page.contains("model=\"other\""), "{page}");
}

#[test]
fn a_wrong_file_is_refused_whole_and_the_old_one_serves_on() {
    let engine = sim();
    let fleet = endpoints([&engine]);
    let gateway = Gateway::start(&fleet, "");
    let good = gateway.config().to_owned();
    let cases = [
        (good.replace("  - {", "  - { wieght: 2,"), "did you mean `weight`"),
        (format!("{good}limits: {{ max_body: lots }}\n"), "limits"),
        ("listen: [".to_owned(), "server.yaml:"),
        (format!("{good}timeouts: {{ connect: 1s, conect: 2s }}\n"), "did you mean `connect`"),
        (good.replace("shards: 1", "shards: 2"), "shards cannot change"),
        (good.replace("listen: 127.0.0.1:0\nh", "listen: 127.0.0.1:1\nh"), "listen cannot change"),
        (good.replace("http://127.0.0.1", "http://no.such.host.invalid"), "does not resolve"),
    ];
    let count = cases.len();
    for (text, reason) in cases {
        assert_ne!(text, good, "{reason}");
        let said = gateway.reload_file(&text);
        assert!(said.contains("reload refused") && said.contains(reason), "{reason} in {said}");
        gateway.chat(&streamed(2)).expect(200);
    }
    assert_eq!(gateway.metric("llmgw_config_last_reload_successful"), 0.0);
    let refused = u32::try_from(count).expect("few");
    assert_eq!(gateway.metric("llmgw_config_reloads_total{result=\"refused\"}"), f64::from(refused));
    let said = gateway.reload_file(&good);
    assert!(said.contains("configuration reloaded"), "{said}");
    assert_eq!(gateway.metric("llmgw_config_last_reload_successful"), 1.0);
}

#[test]
fn limits_change_with_a_reload() {
    let engine = sim();
    let fleet = endpoints([&engine]);
    let gateway = Gateway::start(&fleet, "limits: { max_body: 1KiB }");
    let body = format!("{}{}", streamed(2), " ".repeat(2000));
    gateway.chat(&body).expect(413);
    gateway.reload(&fleet, "limits: { max_body: 1MiB }");
    gateway.chat(&body).expect(200);
}
