use super::serve::{Listener, trace_id};
use super::status::Status;
use super::{Ack, HeartbeatError, MODELS_MAX, Members, WORKERS_MAX};
use crate::config::RegistryTls;
use crate::fixture::{config, fleet};
use crate::fleet::Fleet;
use llmgw_dataplane::shared::Shared;
use llmgw_proto::control::v1::WorkerStatus;
use llmgw_proto::control::v1::worker_registry_client::WorkerRegistryClient;
use llmgw_routing::load::LoadTable;
use llmgw_routing::pipeline::{PickState, Request, decide};
use llmgw_routing::{Nanos, SECOND};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rstest::rstest;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::Code;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

fn status(id: &str) -> Status {
    WorkerStatus {
        worker_id: id.into(),
        http_address: "10.0.0.1:8000".into(),
        role: "unified".into(),
        model: "smol".into(),
        ..WorkerStatus::default()
    }
    .into()
}

/// What the policy picks, counted as in flight.
fn pick(shared: &Shared<()>, state: &mut PickState, now: Nanos) -> Option<String> {
    let snapshot = shared.snapshot.load();
    let request = Request { request_id: "r", prefix_key: b"", exclude: &[] };
    let decision = decide(&snapshot.models["smol"], &request, &shared.loads, now, state).ok()?;
    shared.loads.acquire(decision.endpoint.slot.index());
    Some(decision.endpoint.id.to_string())
}

/// Heartbeats and then whatever was put off.
fn beat(fleet: &Fleet, status: &Status, now: Nanos) -> Ack {
    let ack = fleet.heartbeat(status, now).unwrap();
    fleet.tick(now);
    ack
}

fn ids(fleet: &Fleet) -> Vec<String> {
    fleet.workers().into_iter().map(|worker| worker.worker_id).collect()
}

#[test]
fn hand_example() {
    let (fleet, shared) = fleet(config("router: { policy: least_outstanding }"));
    let mut state = PickState::new(1);
    for (id, queue_depth) in [("a", 2), ("b", 0), ("c", 1)] {
        beat(&fleet, &Status { queue_depth, ..status(id) }, 0);
    }
    assert_eq!(pick(&shared, &mut state, 0).as_deref(), Some("b"));
    // Another request is on b: loads 2, 2, 1.
    let snapshot = shared.snapshot.load_full();
    let b = snapshot.endpoints.iter().find(|endpoint| &*endpoint.id == "b").unwrap();
    shared.loads.acquire(b.slot.index());
    assert_eq!(pick(&shared, &mut state, 0).as_deref(), Some("c"));
    for seconds in [2, 4] {
        beat(&fleet, &Status { queue_depth: 2, ..status("a") }, seconds * SECOND);
    }
    fleet.tick(5_999 * SECOND / 1000);
    assert_eq!(ids(&fleet), ["a", "b", "c"]);
    fleet.tick(6 * SECOND);
    assert_eq!(ids(&fleet), ["a"]);
    assert_eq!(pick(&shared, &mut state, 6 * SECOND).as_deref(), Some("a"));
}

#[rstest]
#[case("2s", 3, 6 * SECOND)]
#[case("100ms", 1, SECOND / 10)]
#[case("1s", 10, 10 * SECOND)]
fn a_worker_is_evicted_at_exactly_interval_times_limit(
    #[case] interval: &str,
    #[case] limit: u64,
    #[case] lifetime: Nanos,
) {
    let router = format!("router: {{ heartbeat_interval: {interval}, heartbeat_miss_limit: {limit} }}");
    let (fleet, shared) = fleet(config(&router));
    beat(&fleet, &status("a"), SECOND);
    assert_eq!(fleet.tick(SECOND).min(SECOND + lifetime), SECOND + lifetime.min(SECOND), "it comes in time");
    fleet.tick(SECOND + lifetime - 1);
    assert_eq!(ids(&fleet), ["a"]);
    fleet.tick(SECOND + lifetime);
    assert!(ids(&fleet).is_empty());
    let snapshot = shared.snapshot.load_full();
    assert!(snapshot.endpoints.is_empty(), "its series go with it");
    assert!(snapshot.models["smol"].endpoints.is_empty(), "the model stays known");
    beat(&fleet, &status("a"), SECOND + lifetime);
    assert_eq!(shared.snapshot.load().models["smol"].endpoints.len(), 1, "back with its first new heartbeat");
}

#[test]
fn weighted_by_capacity() {
    let (fleet, shared) = fleet(config("router: { policy: weighted }"));
    let mut state = PickState::new(1);
    for (id, kv_total_blocks) in [("small", 1), ("big", 3)] {
        beat(&fleet, &Status { kv_total_blocks, ..status(id) }, 0);
    }
    let picked: Vec<String> = (0..8).filter_map(|_| pick(&shared, &mut state, 0)).collect();
    assert_eq!(picked, ["big", "big", "small", "big", "big", "big", "small", "big"]);
}

#[test]
fn a_new_address_is_a_new_incarnation() {
    let (fleet, shared) = fleet(config(""));
    beat(&fleet, &status("a"), 0);
    let endpoint = || Arc::clone(&shared.snapshot.load().endpoints[0]);
    let first = endpoint();
    shared.loads.acquire(first.slot.index());
    shared.loads.mark_failed(first.slot.index(), 100 * SECOND);
    beat(&fleet, &Status { queue_depth: 9, ..status("a") }, SECOND);
    assert!(Arc::ptr_eq(&first, &endpoint()), "numbers change no snapshot");
    assert_eq!(fleet.workers()[0].in_flight, 1);
    beat(&fleet, &Status { http_address: "10.0.0.2:8000".into(), ..status("a") }, SECOND);
    let second = endpoint();
    assert_ne!(first.slot.index(), second.slot.index());
    assert_eq!(second.address, SocketAddr::from(([10, 0, 0, 2], 8000)));
    assert_eq!(shared.loads.load(second.slot.index()), 0);
    assert!(fleet.workers()[0].routable, "its cooldown does not follow it");
}

#[test]
fn a_worker_that_says_it_drains_gets_nothing_at_once() {
    let (fleet, shared) = fleet(config(""));
    let mut state = PickState::new(1);
    beat(&fleet, &status("a"), 0);
    let version = shared.snapshot.load().version;
    fleet.heartbeat(&Status { draining: true, ..status("a") }, 1).unwrap();
    assert_eq!(pick(&shared, &mut state, 1), None);
    assert!(!fleet.workers()[0].routable);
    fleet.heartbeat(&status("a"), 2).unwrap();
    assert_eq!(pick(&shared, &mut state, 2).as_deref(), Some("a"));
    assert_eq!(shared.snapshot.load().version, version, "and nothing is rebuilt for it");
    // One that drains from the start is never chosen.
    beat(&fleet, &Status { draining: true, ..status("b") }, 2);
    assert!((0..9).all(|_| pick(&shared, &mut state, 2).as_deref() == Some("a")));
}

#[test]
fn a_drained_model_takes_no_work_and_its_workers_are_told() {
    let (fleet, shared) = fleet(config(""));
    let mut state = PickState::new(1);
    assert!(!beat(&fleet, &status("a"), 0).drain);
    assert_eq!(fleet.drain("smol", None), Some(1));
    assert_eq!(pick(&shared, &mut state, 0), None);
    assert!(beat(&fleet, &status("a"), 1).drain);
    assert!(beat(&fleet, &status("late"), 1).drain);
    assert_eq!(pick(&shared, &mut state, 1), None, "one that joins is drained too");
    assert_eq!(fleet.undrain("smol"), Some(2));
    assert!(!beat(&fleet, &status("a"), 2).drain);
    assert!(pick(&shared, &mut state, 2).is_some());
}

#[test]
fn many_that_join_at_once_are_published_together() {
    let (fleet, shared) = fleet(config(""));
    for i in 0..1000 {
        fleet.heartbeat(&status(&format!("w{i:04}")), 0).unwrap();
    }
    let joined = shared.snapshot.load().version;
    assert!((2..=9).contains(&joined), "the first at once, the others not one by one: {joined}");
    let again = fleet.tick(0);
    assert!(again < SECOND / 10, "{again} ns");
    fleet.tick(again);
    assert_eq!((shared.snapshot.load().endpoints.len(), shared.snapshot.load().version), (1000, joined + 1));
}

#[test]
fn the_table_of_workers_is_bounded() {
    let loads = LoadTable::new(1);
    let mut members = Members::default();
    members.lifetime = SECOND;
    let mut join = |status: &Status| members.beat(status, None, (0, 0), 1, &loads);
    for i in 0..MODELS_MAX {
        join(&Status { model: format!("m{i}"), ..status("turning") }).unwrap();
    }
    assert_eq!(join(&status("turning")), Err(HeartbeatError::TooManyModels));
    for i in 1..WORKERS_MAX {
        join(&Status { model: "m0".into(), ..status(&format!("w{i}")) }).unwrap();
    }
    let late = Status { model: "m0".into(), ..status("late") };
    assert_eq!(join(&late), Err(HeartbeatError::TooManyWorkers));
    assert!(join(&Status { model: "m0".into(), ..status("w1") }).is_ok(), "those that are in stay in");
}

#[rstest]
#[case("worker_id", |s: &mut Status| s.worker_id.clear())]
#[case("worker_id", |s: &mut Status| s.worker_id = "a".repeat(257))]
#[case("worker_id", |s: &mut Status| s.worker_id = "a\nb".into())]
#[case("worker_id", |s: &mut Status| s.worker_id = "a b".into())]
#[case("worker_id", |s: &mut Status| s.worker_id = "fixed".into())]
#[case("model", |s: &mut Status| s.model.clear())]
#[case("model", |s: &mut Status| s.model = "\u{7f}".into())]
#[case("role", |s: &mut Status| s.role.clear())]
#[case("role", |s: &mut Status| s.role = "Unified".into())]
#[case("http_address", |s: &mut Status| s.http_address.clear())]
#[case("http_address", |s: &mut Status| s.http_address = "10.0.0.1".into())]
#[case("http_address", |s: &mut Status| s.http_address = "http://10.0.0.1:1".into())]
#[case("http_address", |s: &mut Status| s.http_address = "10.0.0.1:0".into())]
#[case("http_address", |s: &mut Status| s.http_address = "10.0.0.1:65536".into())]
#[case("grpc_address", |s: &mut Status| s.grpc_address = "x".into())]
#[case("kv_address", |s: &mut Status| s.kv_address = "x y:1".into())]
#[case("queue_depth", |s: &mut Status| s.queue_depth = -1)]
#[case("running", |s: &mut Status| s.running = -1)]
#[case("kv_free_blocks", |s: &mut Status| s.kv_free_blocks = i32::MIN)]
#[case("kv_free_blocks", |s: &mut Status| s.kv_free_blocks = 1)]
#[case("kv_total_blocks", |s: &mut Status| s.kv_total_blocks = -1)]
fn nonsense_is_refused_by_the_fields_name(#[case] field: &str, #[case] spoil: fn(&mut Status)) {
    let (fleet, shared) = fleet(config("endpoints: [{ id: fixed, model: m, url: 'http://10.0.0.9:1' }]"));
    // Of a stranger, and of a worker that was believable before.
    for known in [false, true] {
        if known {
            beat(&fleet, &status("a"), 0);
        }
        let version = shared.snapshot.load().version;
        let mut spoilt = status("a");
        spoil(&mut spoilt);
        match fleet.heartbeat(&spoilt, 5 * SECOND) {
            Err(HeartbeatError::Invalid(invalid)) => assert_eq!(invalid.field, field, "{invalid}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(shared.snapshot.load().version, version);
    }
    fleet.tick(6 * SECOND);
    assert_eq!(ids(&fleet), ["fixed"], "it does not keep the worker alive either");
}

/// A served registry; gone with the sender.
async fn served(fleet: &Arc<Fleet>, tls: Option<&RegistryTls>) -> (SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = tls.map(|files| super::tls(files).unwrap());
    let (stop, stopped) = watch::channel(false);
    let fleet = Arc::clone(fleet);
    let listener = Listener { listener, tls, fleet, own: Arc::default(), clock: || 0 };
    tokio::spawn(listener.serve(stopped));
    (address, stop)
}

async fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

fn message(id: &str) -> WorkerStatus {
    WorkerStatus {
        worker_id: id.into(),
        http_address: "localhost:8000".into(),
        role: "unified".into(),
        model: "smol".into(),
        queue_depth: 3,
        ..WorkerStatus::default()
    }
}

#[tokio::test]
async fn registry_over_grpc() {
    let (fleet, shared) = fleet(config(""));
    let (address, _stop) = served(&fleet, None).await;
    let mut client = WorkerRegistryClient::new(channel(address).await);
    let ack = client.heartbeat(message("a")).await.unwrap().into_inner();
    assert_eq!((ack.drain, ack.route_epoch), (false, 1));
    let snapshot = shared.snapshot.load_full();
    let endpoint = &snapshot.models["smol"].endpoints[0];
    assert!(endpoint.address.ip().is_loopback(), "its host name was looked up");
    assert_eq!(shared.loads.load(endpoint.slot.index()), 3);
    fleet.drain("smol", None);
    assert!(client.heartbeat(message("a")).await.unwrap().into_inner().drain);
    assert!(!fleet.workers()[0].routable);
    fleet.undrain("smol");
    client.heartbeat(WorkerStatus { draining: true, ..message("a") }).await.unwrap();
    assert!(!fleet.workers()[0].routable);
    let refused = client.heartbeat(WorkerStatus { running: -4, ..message("a") }).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, "running: -4 is negative"));
    let nowhere = WorkerStatus { http_address: "no.such.host.invalid:1".into(), ..message("b") };
    assert_eq!(client.heartbeat(nowhere).await.unwrap_err().code(), Code::Unavailable);
    let long = WorkerStatus { model: "m".repeat(5 << 20), ..message("b") };
    assert_eq!(client.heartbeat(long).await.unwrap_err().code(), Code::OutOfRange, "over 4 MiB");
}

#[rstest]
#[case("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Some("0af7651916cd43dd8448eb211c80319c"))]
#[case("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", None)]
#[case("00-00000000000000000000000000000000-b7ad6b7169203331-01", None)]
#[case("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None)]
#[case("00-0af7", None)]
fn the_trace_is_that_of_the_metadata(#[case] text: &'static str, #[case] id: Option<&str>) {
    let mut metadata = tonic::metadata::MetadataMap::new();
    assert_eq!(trace_id(&metadata), None);
    metadata.insert("traceparent", tonic::metadata::MetadataValue::from_static(text));
    assert_eq!(trace_id(&metadata).as_deref(), id);
}

/// A certificate authority and what it has signed, in files.
struct Pki {
    dir: PathBuf,
    ca: String,
}

impl Pki {
    fn new(name: &str) -> (Pki, Issuer<'static, KeyPair>) {
        let dir = std::env::temp_dir().join(format!("llmgw-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let ca = params.self_signed(&key).unwrap().pem();
        (Pki { dir, ca }, Issuer::new(params, key))
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Pki {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn signed(issuer: &Issuer<'static, KeyPair>, usage: ExtendedKeyUsagePurpose) -> (String, String) {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.extended_key_usages = vec![usage];
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem())
}

#[tokio::test]
async fn with_tls_a_worker_shows_a_certificate_or_is_refused() {
    let (pki, issuer) = Pki::new("tls");
    let (cert, key) = signed(&issuer, ExtendedKeyUsagePurpose::ServerAuth);
    let files = RegistryTls {
        ca: pki.write("ca.pem", &pki.ca),
        cert: pki.write("cert.pem", &cert),
        key: pki.write("key.pem", &key),
    };
    let (fleet, _shared) = fleet(config(""));
    let (address, _stop) = served(&fleet, Some(&files)).await;
    let stranger = Pki::new("stranger").1;
    let (cert, key) = signed(&issuer, ExtendedKeyUsagePurpose::ClientAuth);
    let (other_cert, other_key) = signed(&stranger, ExtendedKeyUsagePurpose::ClientAuth);
    let shown = [None, Some(Identity::from_pem(other_cert, other_key)), Some(Identity::from_pem(cert, key))];
    for (who, identity) in shown.into_iter().enumerate() {
        let tls =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&pki.ca)).domain_name("localhost");
        let tls = identity.into_iter().fold(tls, ClientTlsConfig::identity);
        let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap().tls_config(tls).unwrap();
        let mut client = WorkerRegistryClient::new(endpoint.connect_lazy());
        let taken = client.heartbeat(message(&format!("w{who}"))).await;
        assert_eq!(taken.is_ok(), who == 2, "{who}: {taken:?}");
    }
    let plain = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    assert!(WorkerRegistryClient::new(plain).heartbeat(message("plain")).await.is_err());
    assert_eq!(ids(&fleet), ["w2"]);
    let missing = RegistryTls { ca: pki.dir.join("none"), ..files };
    let error = super::tls(&missing).unwrap_err().to_string();
    assert!(error.starts_with("registry_tls.ca: "), "{error}");
}
