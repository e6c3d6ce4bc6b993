use super::SetRoutesError;
use super::view::Origin;
use crate::config::Route;
use crate::fixture::{config, fleet};
use crate::registry::{HeartbeatError, Status};
use llmgw_routing::SECOND;
use llmgw_routing::load::Health;
use std::time::Duration;

fn status(id: &str) -> Status {
    Status {
        worker_id: id.into(),
        http_address: "127.0.0.1:1".into(),
        grpc_address: String::new(),
        kv_address: String::new(),
        role: "unified".into(),
        model: "smol".into(),
        kv_format: 0,
        queue_depth: 0,
        running: 0,
        kv_free_blocks: 0,
        kv_total_blocks: 0,
        draining: false,
    }
}

fn route(model: &str) -> Route {
    Route { model: model.into(), ..Route::default() }
}

#[test]
fn one_of_two_writers_of_the_route_table_wins() {
    let (fleet, shared) = fleet(config("routes: [{ model: first }]"));
    let (routes, epoch) = fleet.routes();
    assert_eq!((routes[0].model.as_str(), epoch), ("first", 1));
    assert_eq!(fleet.set_routes(vec![route("second")], Some(1)).unwrap(), 2);
    let late = fleet.set_routes(vec![route("third")], Some(1)).unwrap_err();
    assert!(matches!(late, SetRoutesError::Stale { epoch: 2 }), "{late}");
    let snapshot = shared.snapshot.load_full();
    assert!(snapshot.resolve("second", "r").is_some() && snapshot.resolve("first", "r").is_none());
    assert_eq!(fleet.heartbeat(&status("a"), 0).unwrap().route_epoch, 2);
}

#[test]
fn a_worker_is_routed_at_once_and_gone_when_it_is_silent_for_too_long() {
    let (fleet, shared) = fleet(config(""));
    let ack = fleet.heartbeat(&Status { queue_depth: 7, ..status("a") }, 0).unwrap();
    assert!(!ack.drain);
    let snapshot = shared.snapshot.load_full();
    let endpoint = &snapshot.models["smol"].endpoints[0];
    assert_eq!((&*endpoint.id, &*endpoint.authority), ("a", "127.0.0.1:1"));
    assert_eq!(shared.loads.load(endpoint.slot.index()), 7);
    fleet.heartbeat(&Status { queue_depth: 2, ..status("a") }, SECOND).unwrap();
    assert_eq!((shared.loads.load(endpoint.slot.index()), shared.snapshot.load().version), (2, 2));
    fleet.tick(7 * SECOND - 1);
    assert_eq!(fleet.workers().len(), 1);
    fleet.tick(7 * SECOND);
    assert_eq!(fleet.workers().len(), 0);
    let snapshot = shared.snapshot.load_full();
    assert!(snapshot.models["smol"].endpoints.is_empty(), "known, and unserved");
}

#[test]
fn draining_takes_a_models_workers_away_and_undraining_brings_them_back() {
    let (fleet, shared) = fleet(config("endpoints: [{ id: s, model: smol, url: 'http://127.0.0.1:9' }]"));
    fleet.heartbeat(&status("a"), 0).unwrap();
    let ready = |slot: &&u32| shared.loads.health(**slot, 0) == Health::Ready;
    let routed = || shared.snapshot.load().models["smol"].slots.iter().filter(ready).count();
    assert_eq!(routed(), 2);
    assert_eq!(fleet.drain("stranger", None), None);
    assert_eq!(fleet.drain("smol", Some(Duration::from_secs(5))), Some(2));
    assert_eq!((routed(), fleet.drained()[0].deadline), (0, Some(5 * SECOND)));
    assert!(fleet.heartbeat(&status("a"), 1).unwrap().drain);
    assert_eq!(fleet.undrain("smol"), Some(2));
    assert_eq!(routed(), 2);
    let sources: Vec<_> = fleet.workers().iter().map(|w| (w.worker_id.clone(), w.source)).collect();
    assert_eq!(sources, [("s".to_owned(), Origin::Static), ("a".to_owned(), Origin::Registered)]);
}

#[test]
fn an_endpoints_id_is_taken() {
    let (fleet, _shared) = fleet(config("endpoints: [{ id: s, model: m, url: 'http://127.0.0.1:9' }]"));
    let error = fleet.heartbeat(&status("s"), 0).unwrap_err();
    assert!(matches!(&error, HeartbeatError::Invalid(e) if e.field == "worker_id"), "{error}");
}
