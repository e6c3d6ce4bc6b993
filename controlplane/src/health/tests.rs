use super::{NotReady, Surface, readiness, router};
use crate::fixture::{config, plane};
use crate::metrics::OwnStats;
use crate::plane::DataPlane;
use llmgw_dataplane::shared::{Shared, Stop};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const FLEET: &str = "endpoints: [{ id: a, model: m, url: 'http://10.0.0.1:1' }]";

fn ready(plane: &Shared<()>) -> Result<(), NotReady> {
    readiness(plane, &OwnStats::default(), 0)
}

#[test]
fn readiness_is_a_routable_endpoint_and_running_shards() {
    let up = plane(&config(FLEET), true);
    assert_eq!(ready(&up), Ok(()));
    let slot = up.snapshot.load().endpoints[0].slot.index();
    up.loads.mark_busy(slot, 10, 0);
    assert_eq!(ready(&up), Ok(()), "a busy engine is not a dead one");
    up.loads.mark_failed(slot, 10);
    assert_eq!(ready(&up), Err(NotReady::NoRoutableEndpoint { endpoints: 1 }));
    assert_eq!(readiness(&*up, &OwnStats::default(), 11), Ok(()), "its cooldown is over");
    let slow = plane(&config(FLEET), false);
    assert_eq!(ready(&slow), Err(NotReady::ShardsNotStarted { started: 0, shards: 1 }));
    let empty = plane(&config(""), true);
    assert_eq!(ready(&empty), Err(NotReady::NoRoutableEndpoint { endpoints: 0 }));
    let prefill =
        plane(&config("endpoints: [{ id: a, model: m, url: 'http://10.0.0.1:1', role: prefill }]"), true);
    assert_eq!(ready(&prefill), Err(NotReady::NoRoutableEndpoint { endpoints: 1 }));
}

#[test]
fn draining_is_not_ready_whoever_began_it() {
    let up = plane(&config(FLEET), true);
    let own = OwnStats::default();
    own.draining.store(true, Ordering::Relaxed);
    assert_eq!(readiness(&*up, &own, 0), Err(NotReady::Draining));
    up.stop(Stop::Drain);
    assert_eq!(ready(&up), Err(NotReady::Draining));
}

#[test]
fn reasons_are_json() {
    let reasons = [
        NotReady::Draining,
        NotReady::ShardsNotStarted { started: 1, shards: 2 },
        NotReady::NoRoutableEndpoint { endpoints: 3 },
    ];
    let parsed = reasons.map(|r| serde_json::from_str::<serde_json::Value>(&r.json()).unwrap());
    assert_eq!(parsed[1]["reason"], "shards_not_started");
    assert_eq!(parsed[2]["endpoints"], 3);
    assert!(parsed.iter().all(|json| json["ready"] == false));
}

async fn ask(plane: Arc<dyn DataPlane>, target: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let surface = Surface { plane, own: Arc::default(), clock: || 0 };
    tokio::spawn(axum::serve(listener, router(surface)).into_future());
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn the_listener_answers() {
    let up: Arc<dyn DataPlane> = plane(&config(FLEET), true);
    let down: Arc<dyn DataPlane> = plane(&config(""), true);
    let healthz = ask(Arc::clone(&down), "GET /healthz").await;
    assert!(healthz.starts_with("HTTP/1.1 200 ") && healthz.ends_with("ok\n"), "{healthz}");
    let readyz = ask(Arc::clone(&up), "GET /readyz").await;
    assert!(readyz.starts_with("HTTP/1.1 200 ") && readyz.ends_with(r#"{"ready":true}"#), "{readyz}");
    let readyz = ask(down, "GET /readyz").await;
    assert!(readyz.starts_with("HTTP/1.1 503 "), "{readyz}");
    assert!(readyz.ends_with(r#"{"ready":false,"reason":"no_routable_endpoint","endpoints":0}"#), "{readyz}");
    let metrics = ask(Arc::clone(&up), "GET /metrics").await;
    assert!(metrics.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{metrics}");
    assert!(
        metrics.contains("process_resident_memory_bytes ") && metrics.contains("llmgw_build_info{"),
        "{metrics}"
    );
    assert!(ask(Arc::clone(&up), "POST /metrics").await.starts_with("HTTP/1.1 405 "));
    assert!(ask(up, "GET /nope").await.starts_with("HTTP/1.1 404 "));
}
