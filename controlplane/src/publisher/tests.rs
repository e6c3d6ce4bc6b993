use super::{Addresses, ENDPOINTS_MAX, PublishError, Publisher, resolve};
use crate::config::Config;
use crate::fixture::{addresses, config};
use llmgw_routing::load::Health;
use llmgw_routing::pipeline::PickerKind;
use llmgw_routing::snapshot::{Endpoint, Snapshot};
use rstest::rstest;
use std::sync::Arc;

fn build(publisher: &mut Publisher, config: &Config) -> Arc<Snapshot> {
    publisher.build(config, &addresses(config), 77).unwrap()
}

fn fleet(lines: &[&str]) -> Config {
    config(&format!(
        "endpoints: [{}]",
        lines.iter().map(|line| format!("{{ {line} }}")).collect::<Vec<_>>().join(", ")
    ))
}

const A: &str = "id: a, model: m, url: 'http://10.0.0.1:1'";
const B: &str = "id: b, model: m, url: 'http://10.0.0.2:1'";

fn by_id<'s>(snapshot: &'s Snapshot, id: &str) -> &'s Arc<Endpoint> {
    snapshot.endpoints.iter().find(|endpoint| &*endpoint.id == id).unwrap()
}

#[test]
fn a_snapshot_holds_what_the_configuration_says() {
    let mut publisher = Publisher::new(1000);
    let text = "limits: { max_headers: 7 }\n\
                endpoints:\n\
                - { id: z, model: m, url: 'http://10.0.0.1:1/team/', engine: sglang, pool: fast, weight: 0 }\n\
                - { id: a, model: m, url: 'http://[::1]:2' }\n\
                - { id: p, model: m, url: 'http://10.0.0.3:3', role: prefill }\n\
                routes: [{ model: r, aliases: [alias] }]\n\
                models: [{ name: catalogued }]";
    let snapshot = build(&mut publisher, &config(text));
    assert_eq!(
        (snapshot.version, snapshot.settings.max_headers, snapshot.settings.max_connections),
        (1, 7, 1000)
    );
    let ids: Vec<&str> = snapshot.endpoints.iter().map(|e| &*e.id).collect();
    assert_eq!(ids, ["z", "a", "p"], "in the order of the file");
    let model = &snapshot.models["m"];
    let ids: Vec<&str> = model.endpoints.iter().map(|e| &*e.id).collect();
    assert_eq!(ids, ["a", "z"], "sorted, and only those that take whole requests");
    assert_eq!(model.created, 77);
    let z = by_id(&snapshot, "z");
    assert_eq!((&*z.authority, &*z.base_path, &*z.pool, z.weight), ("10.0.0.1:1", "/team", "fast", 0.0));
    assert_eq!(&*by_id(&snapshot, "a").authority, "[::1]:2");
    assert_ne!(z.series, by_id(&snapshot, "a").series, "a series is a model and a pool");
    for known in ["r", "alias", "catalogued"] {
        let found = snapshot.resolve(known, "request").unwrap();
        assert!(found.model.endpoints.is_empty(), "{known} is known and unserved");
    }
    let listed: Vec<&str> = snapshot.listed.iter().map(|listed| &*listed.name).collect();
    assert_eq!(listed, ["alias", "catalogued", "m", "r"]);
}

#[rstest]
#[case("", PickerKind::Affinity { load_factor: 1.25 })]
#[case("router: { policy: affinity, affinity_load_factor: 2 }", PickerKind::Affinity { load_factor: 2.0 })]
#[case("router: { policy: weighted }", PickerKind::Weighted)]
#[case("router: { policy: least_outstanding }", PickerKind::LeastOutstanding)]
#[case("router: { policy: x, profiles: { x: { picker: { type: round-robin } } } }", PickerKind::RoundRobin)]
#[case("router: { policy: x, profiles: { x: { scorers: { kv: 2, inflight: 0 } } } }", PickerKind::P2c)]
#[case(
    "router: { default_profile: x, profiles: { x: { picker: { type: max-score } } } }",
    PickerKind::MaxScore
)]
fn the_policy_decides_the_picker(#[case] router: &str, #[case] picker: PickerKind) {
    let config = config(&format!("{router}\nendpoints: [{{ {A} }}]"));
    let snapshot = build(&mut Publisher::new(1), &config);
    let profile = &snapshot.models["m"].profile;
    assert_eq!(profile.picker, picker);
    assert_eq!(&*profile.name, config.router.policy);
}

#[test]
fn an_unchanged_endpoint_keeps_its_slot_counts_and_cooldown() {
    let mut publisher = Publisher::new(1);
    let loads = Arc::clone(publisher.loads());
    let first = build(&mut publisher, &fleet(&[A, B]));
    let slot = by_id(&first, "a").slot.index();
    loads.acquire(slot);
    loads.mark_failed(slot, 1000);
    let second = build(&mut publisher, &fleet(&[B, A, "id: c, model: n, url: 'http://10.0.0.3:1'"]));
    assert_eq!(second.version, 2);
    assert!(Arc::ptr_eq(by_id(&first, "a"), by_id(&second, "a")));
    assert!(Arc::ptr_eq(&first.models["m"].ring, &second.models["m"].ring), "same members, same ring");
    assert_eq!((loads.inflight(slot), loads.health(slot, 0)), (1, Health::Failed { until: 1000 }));
}

#[rstest]
#[case("id: a, model: m, url: 'http://10.0.0.9:1'", false)]
#[case("id: a, model: m2, url: 'http://10.0.0.1:1'", false)]
#[case("id: c, model: m, url: 'http://10.0.0.1:1'", false)]
#[case("id: a, model: m, url: 'http://10.0.0.1:1', weight: 3", true)]
#[case("id: a, model: m, url: 'http://10.0.0.1:1', pool: p", true)]
fn counts_stay_with_the_engine(#[case] changed: &str, #[case] same_engine: bool) {
    let mut publisher = Publisher::new(1);
    let loads = Arc::clone(publisher.loads());
    let first = build(&mut publisher, &fleet(&[A]));
    let slot = first.endpoints[0].slot.index();
    loads.acquire(slot);
    let second = build(&mut publisher, &fleet(&[changed]));
    let (old, new) = (&first.endpoints[0], &second.endpoints[0]);
    assert!(!Arc::ptr_eq(old, new));
    assert_eq!(new.slot.index() == slot, same_engine);
    assert_eq!(loads.inflight(new.slot.index()), u32::from(same_engine));
    drop(first);
    loads.release(slot);
}

#[test]
fn a_slot_comes_back_when_the_last_user_of_its_endpoint_is_gone() {
    let mut publisher = Publisher::new(1);
    let first = build(&mut publisher, &fleet(&[A]));
    let free = |publisher: &Publisher| {
        let mut slots = Vec::new();
        while let Some(slot) = publisher.loads().allocate() {
            slots.push(slot);
        }
        slots.len()
    };
    let before = free(&publisher);
    build(&mut publisher, &fleet(&[]));
    assert_eq!(free(&publisher), before, "a shard still has the first snapshot");
    drop(first);
    assert_eq!(free(&publisher), before + 1);
}

#[test]
fn series_ids_are_kept_while_in_use_and_never_given_to_another_pair() {
    let mut publisher = Publisher::new(1);
    let first = build(&mut publisher, &fleet(&[A]));
    let a = first.endpoints[0].series;
    assert_ne!(a, 0, "0 is for requests without an endpoint");
    let second = build(&mut publisher, &fleet(&[A, "id: c, model: n, url: 'http://10.0.0.3:1'"]));
    let c = by_id(&second, "c").series;
    assert_eq!(by_id(&second, "a").series, a);
    build(&mut publisher, &fleet(&[]));
    let third = build(&mut publisher, &fleet(&[A]));
    assert!(third.endpoints[0].series > a.max(c));
}

#[test]
fn a_model_keeps_the_time_it_was_first_seen() {
    let mut publisher = Publisher::new(1);
    let config = fleet(&[A]);
    publisher.build(&config, &addresses(&config), 5).unwrap();
    let later = publisher.build(&config, &addresses(&config), 9).unwrap();
    assert_eq!(later.models["m"].created, 5);
}

#[test]
fn a_refused_configuration_changes_nothing() {
    let mut publisher = Publisher::new(1);
    let first = build(&mut publisher, &fleet(&[A]));
    let bad = fleet(&["id: n, model: n, url: 'http://10.0.0.5:1'", B]);
    let mut partial = addresses(&bad);
    partial.remove(&("10.0.0.2".to_owned(), 1));
    let error = publisher.build(&bad, &partial, 78).unwrap_err();
    assert_eq!(error.to_string(), "endpoint b: the host name 10.0.0.2 does not resolve: it has no address");
    let again = build(&mut publisher, &fleet(&[A]));
    assert_eq!(again.version, 2, "the refused one has no number");
    assert!(Arc::ptr_eq(&first.endpoints[0], &again.endpoints[0]));
    assert!(!again.models.contains_key("n"));
}

#[test]
fn endpoints_are_bounded() {
    let many: Vec<String> = (0..=ENDPOINTS_MAX)
        .map(|i| format!("id: e{i}, model: m, url: 'http://10.0.0.1:{}'", 1 + i % 60000))
        .collect();
    let config = fleet(&many.iter().map(String::as_str).collect::<Vec<_>>());
    let error = Publisher::new(1).build(&config, &addresses(&config), 0).unwrap_err();
    assert!(matches!(error, PublishError::TooManyEndpoints { asked: 4097 }), "{error}");
}

#[test]
fn a_name_keeps_its_address_while_the_name_server_still_gives_it() {
    let mut publisher = Publisher::new(1);
    let config = fleet(&["id: a, model: m, url: 'http://engine:1'"]);
    let given = |list: &[&str]| -> Addresses {
        [(("engine".to_owned(), 1), list.iter().map(|a| a.parse().unwrap()).collect())].into()
    };
    let first = publisher.build(&config, &given(&["10.0.0.1:1", "10.0.0.2:1"]), 0).unwrap();
    let turned = publisher.build(&config, &given(&["10.0.0.2:1", "10.0.0.1:1"]), 0).unwrap();
    assert!(Arc::ptr_eq(&first.endpoints[0], &turned.endpoints[0]));
    let moved = publisher.build(&config, &given(&["10.0.0.2:1"]), 0).unwrap();
    assert_eq!(moved.endpoints[0].address.to_string(), "10.0.0.2:1");
    assert_ne!(moved.endpoints[0].slot.index(), first.endpoints[0].slot.index());
}

#[tokio::test]
async fn addresses_need_no_name_server() {
    let config =
        fleet(&[A, "id: v6, model: m, url: 'http://[::1]:2'", "id: l, model: m, url: 'http://localhost:3'"]);
    let found = resolve(&config).await.unwrap();
    assert_eq!(found[&("10.0.0.1".to_owned(), 1)], ["10.0.0.1:1".parse().unwrap()]);
    assert_eq!(found[&("::1".to_owned(), 2)], ["[::1]:2".parse().unwrap()]);
    assert!(found[&("localhost".to_owned(), 3)].iter().all(|a| a.ip().is_loopback()));
}
