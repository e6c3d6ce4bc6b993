use super::*;
use crate::snapshot::{Engine, Role};
use proptest::prelude::*;
use std::collections::BTreeMap;

struct World {
    loads: Arc<LoadTable>,
    model: Model,
    state: PickState,
}

impl World {
    /// Endpoints by id and weight.
    fn new(endpoints: &[(&str, f64)], profile: Profile) -> World {
        let loads = LoadTable::new(64);
        let endpoints = endpoints.iter().map(|(id, weight)| endpoint(&loads, id, *weight)).collect();
        let model = Model::new("m", endpoints, Arc::new(profile), 0, None);
        World { loads, model, state: PickState::new(7) }
    }

    fn policy(endpoints: &[(&str, f64)], name: &str) -> World {
        World::new(endpoints, Profile::from_policy(name, 1.25).expect("a policy"))
    }

    fn picker(ids: &[&str], picker: &str) -> World {
        let endpoints: Vec<(&str, f64)> = ids.iter().map(|id| (*id, 1.0)).collect();
        World::new(&endpoints, Profile::builder("chat").picker(picker).expect("a picker").build())
    }

    fn slot(&self, id: &str) -> u32 {
        let endpoint = self.model.endpoints.iter().find(|e| &*e.id == id);
        endpoint.expect("a known id").slot.index()
    }

    fn load(&self, id: &str, requests: u32) {
        (0..requests).for_each(|_| self.loads.acquire(self.slot(id)));
    }

    fn decide(&mut self, key: &[u8], exclude: &[&str], now: Nanos) -> Result<(String, String), NoEndpoint> {
        let exclude: Vec<u32> = exclude.iter().map(|id| self.slot(id)).collect();
        let request = Request { request_id: "r", prefix_key: key, exclude: &exclude };
        decide(&self.model, &request, &self.loads, now, &mut self.state)
            .map(|decision| (decision.endpoint.id.to_string(), decision.reason.to_string()))
    }

    /// Picks one, holding nothing.
    fn pick(&mut self, exclude: &[&str]) -> String {
        self.decide(b"k", exclude, 0).expect("an endpoint").0
    }

    fn picks(&mut self, n: usize) -> String {
        (0..n).map(|_| self.pick(&[])).collect::<Vec<_>>().join(" ")
    }
}

fn endpoint(loads: &Arc<LoadTable>, id: &str, weight: f64) -> Arc<Endpoint> {
    Arc::new(Endpoint {
        id: id.into(),
        slot: loads.allocate().expect("room"),
        served_model: "m".into(),
        pool: "default".into(),
        series: 0,
        address: ([127, 0, 0, 1], 1).into(),
        authority: "127.0.0.1:1".into(),
        base_path: "".into(),
        engine: Engine::Sim,
        weight,
        role: Role::Unified,
        priority_scheduling: false,
        announced: false,
    })
}

const ABC: [(&str, f64); 3] = [("c", 1.0), ("a", 1.0), ("b", 1.0)];

#[test]
fn least_outstanding_by_hand() {
    let mut world = World::policy(&ABC, "least_outstanding");
    for (id, queue) in [("a", 2), ("b", 0), ("c", 1)] {
        world.loads.set_queue_depth(world.slot(id), queue);
    }
    assert_eq!(world.decide(b"", &[], 0), Ok(("b".into(), "least_outstanding".into())));
    world.load("b", 2);
    assert_eq!(world.pick(&[]), "c");
    world.loads.set_queue_depth(world.slot("c"), 2);
    assert_eq!(world.pick(&[]), "a", "ties go to the smallest id");
}

#[test]
fn weighted_is_smooth() {
    let mut world = World::policy(&[("small", 1.0), ("big", 3.0)], "weighted");
    assert_eq!(world.picks(8), "big big small big big big small big");
    assert_eq!(world.decide(b"", &[], 0).map(|d| d.1), Ok("weighted".into()));
}

/// Capacities 1 and 3 give big, big, small, big, twice; what an engine reports counts before what is configured.
#[test]
fn weighted_by_capacity() {
    let mut world = World::policy(&[("small", 9.0), ("big", 0.0)], "weighted");
    world.loads.set_kv_blocks(world.slot("small"), 1);
    world.loads.set_kv_blocks(world.slot("big"), 3);
    assert_eq!(world.picks(8), "big big small big big big small big");
    let mut world = World::policy(&[("silent", 2.0), ("told", 9.0)], "weighted");
    world.loads.set_kv_blocks(world.slot("told"), 1);
    assert_eq!(world.picks(6), "silent told silent silent told silent");
}

#[test]
fn weight_zero_is_for_emergencies() {
    let mut world = World::policy(&[("a", 0.0), ("b", 1.0), ("c", 0.0)], "weighted");
    assert_eq!(world.picks(4), "b b b b");
    assert_eq!(world.pick(&["b"]), "a");
    assert_eq!(world.pick(&["b"]), "c");
    assert_eq!(world.picks(2), "b b");
}

#[test]
fn weighted_counters_survive_a_new_snapshot() {
    let mut world = World::policy(&[("small", 1.0), ("big", 3.0)], "weighted");
    assert_eq!(world.picks(2), "big big");
    let kept: Vec<_> = world.model.endpoints.clone();
    let with_third = kept.iter().cloned().chain([endpoint(&world.loads, "third", 0.0)]).collect();
    world.model = Model::new("m", with_third, Arc::clone(&world.model.profile), 0, Some(&world.model));
    assert_eq!(world.picks(2), "small big");
}

#[test]
fn round_robin_is_exact_and_skips() {
    let mut world = World::picker(&["b", "c", "a"], "round-robin");
    assert_eq!(world.picks(5), "a b c a b");
    assert_eq!(world.pick(&["c"]), "a");
    world.loads.mark_busy(world.slot("b"), 10, 0);
    assert_eq!(world.picks(3), "c a c");
    world.load("a", 50);
    assert_eq!(world.picks(2), "a c", "loads do not matter");
    assert_eq!(world.decide(b"", &[], 0).map(|d| d.1), Ok("chat".into()));
}

#[test]
fn sequences_follow_a_change_of_the_membership() {
    let members = |world: &World, keep: &[&str]| -> Vec<Arc<Endpoint>> {
        let kept = |e: &&Arc<Endpoint>| keep.contains(&&*e.id);
        world.model.endpoints.iter().filter(kept).cloned().collect()
    };
    let mut world = World::picker(&["a", "b", "c", "d"], "round-robin");
    let all = world.model.endpoints.clone();
    let publish = |world: &mut World, endpoints: Vec<Arc<Endpoint>>| {
        world.model = Model::new("m", endpoints, Arc::clone(&world.model.profile), 0, Some(&world.model));
    };
    assert_eq!(world.picks(2), "a b");
    let fewer = members(&world, &["a", "c", "d"]);
    publish(&mut world, fewer);
    assert_eq!(world.picks(2), "c d", "the one taken last is gone: on from its place");
    publish(&mut world, all);
    assert_eq!(world.picks(3), "a b c");
    let fewer = members(&world, &["a", "b"]);
    publish(&mut world, fewer);
    assert_eq!(world.picks(2), "a b", "nothing after it: from the beginning");

    let mut world = World::policy(&[("a", 1.0), ("b", 1.0), ("c", 2.0)], "weighted");
    let all = world.model.endpoints.clone();
    assert_eq!(world.picks(2), "c a");
    let fewer = members(&world, &["b", "c"]);
    publish(&mut world, fewer);
    assert_eq!(world.picks(1), "b", "b had waited, and still has");
    publish(&mut world, all);
    assert_eq!(world.picks(1), "c");
}

#[test]
fn draining_endpoints_get_nothing_new() {
    for policy in ["affinity", "weighted", "least_outstanding"] {
        let mut world = World::policy(&ABC, policy);
        world.loads.drain(world.slot("a"), 100);
        world.loads.set_leaving(world.slot("b"), true);
        assert_eq!(world.picks(3), "c c c", "{policy}");
        assert_eq!(world.decide(b"", &["c"], 0), Err(NoEndpoint::Draining));
        world.loads.mark_busy(world.slot("c"), 50, 0);
        assert_eq!(world.decide(b"", &[], 0), Err(NoEndpoint::Unavailable { retry_at: 50, busy: true }));
        world.loads.undrain(world.slot("b"));
        assert_eq!(world.decide(b"", &["c"], 0), Err(NoEndpoint::Draining), "it says so itself");
        world.loads.set_leaving(world.slot("b"), false);
        assert_eq!(world.pick(&[]), "b");
        world.loads.undrain(world.slot("a"));
        assert_eq!(world.pick(&["b"]), "a");
    }
}

#[test]
fn explanations_tell_each_step() {
    let world = World::policy(&ABC, "affinity");
    world.load("a", 2);
    world.loads.set_queue_depth(world.slot("a"), 3);
    world.loads.set_kv_blocks(world.slot("b"), 7);
    world.loads.mark_failed(world.slot("b"), 10);
    world.loads.drain(world.slot("c"), 10);
    let exclude = [world.slot("a")];
    let request = Request { request_id: "r", prefix_key: b"k", exclude: &exclude };
    let told = explain(&world.model, &request, &world.loads, 5, &world.state);
    let verdicts = |id: &str| {
        let one = told.endpoints.iter().find(|e| &*e.endpoint.id == id).expect("known");
        (one.filters.iter().map(|(_, keeps)| *keeps).collect::<Vec<_>>(), one.candidate)
    };
    assert_eq!(verdicts("a"), (vec![false, true, true], false));
    assert_eq!(verdicts("b"), (vec![true, true, false], false));
    assert_eq!(verdicts("c"), (vec![true, false, true], false));
    let a = &told.endpoints[0];
    assert_eq!((a.inflight, a.queue_depth, a.load, a.weight), (2, 3, 5, 1.0));
    assert!((told.endpoints[1].weight - 7.0).abs() < 1e-9 && told.affinity.is_none());
    assert_eq!(told.pick, Err(NoEndpoint::Unavailable { retry_at: 10, busy: false }));
    let names: Vec<&str> = a.filters.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        (names, told.picker, &*told.profile),
        (vec!["exclusion", "draining", "health"], "affinity", "affinity")
    );

    world.loads.undrain(world.slot("c"));
    let request = Request { exclude: &[], ..request };
    let told = explain(&world.model, &request, &world.loads, 10, &world.state);
    let affinity = told.affinity.expect("there are candidates");
    assert_eq!((affinity.hash, affinity.capacity), (crate::ring::hash64(b"k"), 3), "ceil(1.25 * 6 / 3)");
    let (endpoint, reason) = told.pick.expect("there are candidates");
    assert_eq!(affinity.owner.as_ref() == Some(&endpoint), &*reason == "affinity");

    let world = World::picker(&["a", "b"], "max-score");
    world.load("a", 1);
    let told = explain(&world.model, &request, &world.loads, 0, &world.state);
    let shown: Vec<_> =
        told.endpoints.iter().map(|e| (e.scores[0].scorer, e.scores[0].value, e.score)).collect();
    assert_eq!(shown, [("inflight", 0.0, 0.0), ("inflight", 1.0, 1.0)]);
    assert_eq!((told.certainty.name(), told.pick.map(|p| p.0.to_string())), ("random", Ok("b".to_owned())));
}

#[test]
fn a_route_is_explained_from_its_name() {
    use crate::snapshot::{BackendSpec, RouteSpec, RouteTable, Settings, Snapshot};
    let world = World::policy(&ABC, "least_outstanding");
    let spec = RouteSpec {
        model: "smol".into(),
        aliases: vec!["default".into()],
        backends: vec![BackendSpec { served_model: "m".into(), weight: 1.0 }],
        priority: Some(3),
        ..RouteSpec::default()
    };
    let endpoints = world.model.endpoints.clone();
    let models = [("m".into(), Arc::new(world.model))].into_iter().collect();
    let mut snapshot = Snapshot::new(1, models, endpoints, Arc::new(Settings::default()));
    snapshot.routes = Arc::new(RouteTable::new([spec].into()).expect("valid"));
    let ask = |name: &str| explain_route(&snapshot, &world.loads, name, Prompt::Chat("hi"), "r", 0);
    let told = ask("default").expect("an alias");
    assert_eq!((&*told.name, &*told.served_model, told.priority, told.routed), ("smol", "m", 3, true));
    assert_eq!(told.decision.pick, Ok(("a".into(), "least_outstanding".into())));
    let told = ask("m").expect("a model is its own route");
    assert_eq!((&*told.name, told.priority, told.routed), ("m", 0, false));
    assert!(ask("stranger").is_none());
    assert_eq!(Prompt::Chat("hi").key(), b"user\nhi\n");
    assert_eq!(Prompt::Completion(&"x".repeat(65)).key(), b"x".repeat(64));
    assert_eq!(Prompt::None.key(), b"");
}

#[test]
fn affinity_keeps_prefix_together() {
    let ids = [("w0", 1.0), ("w1", 1.0), ("w2", 1.0), ("w3", 1.0)];
    let mut world = World::policy(&ids, "affinity");
    let (owner, reason) = world.decide(b"system\nS\n", &[], 0).expect("an endpoint");
    assert_eq!(reason, "affinity");
    for _ in 0..20 {
        assert_eq!(world.decide(b"system\nS\n", &[], 0), Ok((owner.clone(), reason.clone())));
    }
    let spread: std::collections::BTreeSet<String> =
        (0..40u32).map(|i| world.decide(&i.to_le_bytes(), &[], 0).expect("an endpoint").0).collect();
    assert!(spread.len() >= 3);
    // Three in flight on the owner, none elsewhere: its bound is 2.
    world.load(&owner, 3);
    let (second, reason) = world.decide(b"system\nS\n", &[], 0).expect("an endpoint");
    assert_eq!(reason, "load");
    assert_ne!(second, owner);
    // Once the owner is excluded, the next one owns the key.
    assert_eq!(world.decide(b"system\nS\n", &[&owner], 0), Ok((second, "affinity".into())));
}

#[test]
fn p2c_takes_the_better_of_two() {
    let mut world = World::picker(&["a", "b"], "p2c");
    world.load("a", 1);
    assert_eq!(world.picks(4), "b b b b");
    assert_eq!(world.pick(&["b"]), "a");
    let mut world = World::picker(&["a", "b", "c", "d"], "p2c");
    world.load("a", 5);
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    (0..600).for_each(|_| *counts.entry(world.pick(&[])).or_default() += 1);
    assert!(!counts.contains_key("a"), "the worst of all never wins");
    assert!(counts.len() == 3 && counts.values().all(|n| (130..270).contains(n)), "{counts:?}");
}

#[test]
fn max_score_takes_the_best_and_spreads_ties() {
    let mut world = World::picker(&["a", "b", "c", "d"], "max-score");
    world.load("a", 2);
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    (0..600).for_each(|_| *counts.entry(world.pick(&[])).or_default() += 1);
    assert!(counts.len() == 3 && counts.values().all(|n| (130..270).contains(n)), "{counts:?}");
    world.load("b", 1);
    world.load("c", 1);
    assert_eq!(world.picks(3), "d d d");
}

#[test]
fn choices_follow_from_the_seed() {
    let run = |seed| {
        let mut world = World::picker(&["a", "b", "c"], "p2c");
        world.state = PickState::new(seed);
        world.picks(50)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn why_there_is_none() {
    let mut world = World::policy(&[], "affinity");
    assert_eq!(world.decide(b"", &[], 0), Err(NoEndpoint::Unserved));
    for policy in ["affinity", "weighted", "least_outstanding"] {
        let mut world = World::policy(&ABC, policy);
        assert_eq!(world.decide(b"", &["a", "b", "c"], 0), Err(NoEndpoint::AllExcluded));
        world.loads.mark_busy(world.slot("a"), 30, 0);
        world.loads.mark_busy(world.slot("b"), 20, 0);
        let busy = NoEndpoint::Unavailable { retry_at: 20, busy: true };
        assert_eq!(world.decide(b"", &["c"], 0), Err(busy));
        world.loads.mark_failed(world.slot("c"), 10);
        let failed = NoEndpoint::Unavailable { retry_at: 10, busy: false };
        assert_eq!(world.decide(b"", &[], 0), Err(failed));
        // Routable again when its cooldown is over.
        assert_eq!(world.decide(b"", &[], 10).map(|d| d.0), Ok("c".into()));
    }
}

#[test]
fn why_there_is_none_in_words() {
    let resting = |busy| NoEndpoint::Unavailable { retry_at: 0, busy };
    for (none, said) in [
        (NoEndpoint::Unserved, "no endpoint serves this model"),
        (NoEndpoint::AllExcluded, "every endpoint of this model has been tried"),
        (NoEndpoint::Draining, "every endpoint of this model is draining"),
        (resting(true), "every endpoint of this model is busy"),
        (resting(false), "no endpoint of this model is reachable"),
    ] {
        assert_eq!(none.to_string(), said);
    }
}

#[test]
fn configured_profiles() {
    let check = |scorer: &str, weight, picker: &str| {
        let profile = Profile::builder("p").scorer(scorer, weight).and_then(|b| b.picker(picker));
        profile.map(|b| (b.build().scorers.len(), ())).map_err(|e| e.to_string())
    };
    assert_eq!(check("inflight", 2.0, "p2c"), Ok((1, ())));
    let unknown = "unknown scorer `inflght`; known ones: inflight";
    assert_eq!(check("inflght", 2.0, "p2c"), Err(unknown.into()));
    let unknown = "unknown picker `best`; known ones: p2c, max-score, round-robin";
    assert_eq!(check("inflight", 2.0, "best"), Err(unknown.into()));
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(check("inflight", weight, "p2c").is_err(), "{weight}");
    }
    assert_eq!(Profile::builder("p").build().scorers, [(ScorerKind::Inflight, 1.0)]);
    assert!(Profile::from_policy("p2c", 1.25).is_none());
}

#[test]
fn a_ring_is_rebuilt_only_for_other_members() {
    let world = World::policy(&ABC, "affinity");
    let profile = || Arc::clone(&world.model.profile);
    let same = Model::new("m", world.model.endpoints.clone(), profile(), 0, Some(&world.model));
    assert!(Arc::ptr_eq(&same.ring, &world.model.ring));
    let fewer = Model::new("m", world.model.endpoints[1..].to_vec(), profile(), 0, Some(&world.model));
    assert!(!Arc::ptr_eq(&fewer.ring, &world.model.ring));
}

proptest! {
    /// Asking changes nothing: the decision after it is the one that was told, and the sequence goes on as if nobody
    /// had asked. The filters, one by one, agree with the pass that applies them all.
    #[test]
    fn explaining_tells_the_next_decision(
        kind in 0usize..6,
        endpoints in prop::collection::vec((0u32..4, 0u8..6, any::<bool>(), 0.0..2.0f64, 0u32..3), 1..9),
        seed in any::<u64>(),
    ) {
        let profile = match kind {
            0..3 => Profile::builder("p").picker(PickerKind::CONFIGURABLE[kind]).expect("known").build(),
            _ => Profile::from_policy(["affinity", "weighted", "least_outstanding"][kind - 3], 1.25).expect("known"),
        };
        let ids: Vec<String> = (0..endpoints.len()).map(|i| format!("e{i:02}")).collect();
        let list: Vec<(&str, f64)> = ids.iter().zip(&endpoints).map(|(id, e)| (id.as_str(), e.3)).collect();
        let mut world = World::new(&list, profile);
        world.state = PickState::new(seed);
        let mut exclude = Vec::new();
        for (id, (load, health, excluded, _, blocks)) in ids.iter().zip(&endpoints) {
            let slot = world.slot(id);
            world.load(id, *load);
            world.loads.set_kv_blocks(slot, *blocks);
            match health {
                0 => world.loads.mark_failed(slot, 100),
                1 => world.loads.mark_busy(slot, 100, 0),
                2 => world.loads.drain(slot, 100),
                // Over by now.
                3 => world.loads.mark_failed(slot, 50),
                _ => {}
            }
            if *excluded {
                exclude.push(slot);
            }
        }
        let mut unasked = world.state.clone();
        for i in 0..6u8 {
            let request = Request { request_id: "r", prefix_key: &[i], exclude: &exclude };
            let told = explain(&world.model, &request, &world.loads, 50, &world.state);
            let told_again = explain(&world.model, &request, &world.loads, 50, &world.state);
            let as_pick = |d: Result<Decision, NoEndpoint>| d.map(|d| (Arc::clone(&d.endpoint.id), d.reason));
            let decided = as_pick(decide(&world.model, &request, &world.loads, 50, &mut world.state));
            let without = as_pick(decide(&world.model, &request, &world.loads, 50, &mut unasked));
            prop_assert_eq!(&told.pick, &decided);
            prop_assert_eq!(&told_again.pick, &decided);
            prop_assert_eq!(&without, &decided);
            let candidates = told.endpoints.iter().filter(|e| e.candidate).count();
            prop_assert_eq!(candidates == 0, decided.is_err());
            if let Ok((id, _)) = &decided {
                let picked = told.endpoints.iter().find(|e| e.endpoint.id == *id);
                prop_assert!(picked.is_some_and(|e| e.candidate));
            }
        }
    }

    /// Whatever the state of the world, no picker takes an endpoint that is excluded or in cooldown, and each finds one
    /// if there is one.
    #[test]
    fn only_routable_endpoints_are_picked(
        kind in 0usize..6,
        endpoints in prop::collection::vec((0u32..5, 0u8..4, any::<bool>(), 0.0..2.0f64), 0..12),
        key in any::<[u8; 4]>(),
        seed in any::<u64>(),
    ) {
        let profile = match kind {
            0..3 => {
                let picker = PickerKind::CONFIGURABLE[kind];
                Profile::builder("p").picker(picker).expect("known").build()
            }
            _ => Profile::from_policy(["affinity", "weighted", "least_outstanding"][kind - 3], 1.25).expect("known"),
        };
        let ids: Vec<String> = (0..endpoints.len()).map(|i| format!("e{i:02}")).collect();
        let list: Vec<(&str, f64)> = ids.iter().zip(&endpoints).map(|(id, e)| (id.as_str(), e.3)).collect();
        let mut world = World::new(&list, profile);
        world.state = PickState::new(seed);
        let mut exclude = Vec::new();
        let mut routable = Vec::new();
        for (id, (load, health, excluded, _)) in ids.iter().zip(&endpoints) {
            world.load(id, *load);
            match health {
                0 => world.loads.mark_failed(world.slot(id), 100),
                1 => world.loads.mark_busy(world.slot(id), 100, 0),
                _ => {}
            }
            if *excluded {
                exclude.push(id.as_str());
            } else if *health > 1 {
                routable.push(id.clone());
            }
        }
        for _ in 0..8 {
            match world.decide(&key, &exclude, 50) {
                Ok((id, _)) => prop_assert!(routable.contains(&id)),
                Err(_) => prop_assert!(routable.is_empty()),
            }
        }
    }

    /// Over a whole round, smooth weighted round robin gives each endpoint exactly its weight.
    #[test]
    fn weighted_is_exact_over_a_round(weights in prop::collection::vec(0u32..6, 1..8)) {
        let ids: Vec<String> = (0..weights.len()).map(|i| format!("e{i}")).collect();
        let list: Vec<(&str, f64)> = ids.iter().zip(&weights).map(|(id, w)| (id.as_str(), f64::from(*w))).collect();
        let mut world = World::policy(&list, "weighted");
        let round: u32 = weights.iter().sum();
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        (0..round).for_each(|_| *counts.entry(world.pick(&[])).or_default() += 1);
        for (id, weight) in ids.iter().zip(&weights) {
            prop_assert_eq!(counts.get(id).copied().unwrap_or(0), *weight);
        }
    }
}
