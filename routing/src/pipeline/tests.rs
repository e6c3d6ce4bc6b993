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
fn affinity_keeps_prefixes_together() {
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
