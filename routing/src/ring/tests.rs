use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[test]
fn hash_vectors() {
    for (text, expected) in
        [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
    {
        assert_eq!(fnv1a64(text.as_bytes()), expected, "{text:?}");
    }
    // The finalizer's place in SplitMix64: its first output for seed 0.
    assert_eq!(mix64(0x9e37_79b9_7f4a_7c15), 0xe220_a839_7b1d_cdaf);
    assert_eq!(hash64(b"a"), mix64(fnv1a64(b"a")));
}

#[test]
fn capacities() {
    for (total, nodes, factor, expected) in [
        (3, 3, 1.25, 2),
        (8, 4, 1.0, 3),
        (7, 4, 1.0, 2),
        (0, 3, 1.25, 1),
        (3, 4, 1.25, 2),
        (7, 4, 0.1, 2),
        (7, 4, f64::NAN, 2),
    ] {
        assert_eq!(capacity(factor, total, nodes), expected, "total {total}, n {nodes}, c {factor}");
    }
}

/// a at 10 and 60, b at 30 and 80, c at 50 and 95.
fn worked() -> Ring {
    Ring::from_points(vec![(10, 0, 0), (60, 0, 0), (30, 1, 1), (80, 1, 1), (50, 2, 2), (95, 2, 2)])
}

#[test]
fn worked_example() {
    let ring = worked();
    let owner = |hash| ring.walk(hash, |_| true, |_| true).map(|placed| placed.node);
    assert_eq!([5, 55, 85, 97, 30].map(owner), [0, 0, 2, 0, 1].map(Some));
    let loads = [2, 0, 1];
    let bound = capacity(1.25, 3, 3);
    let place = |hash| ring.walk(hash, |_| true, |node| loads[node as usize] < bound);
    assert_eq!(place(5), Some(Placed { node: 1, owner: false }));
    assert_eq!(place(85), Some(Placed { node: 2, owner: true }));
}

#[test]
fn equal_positions_go_to_the_smaller_name() {
    for points in [vec![(7, 0, 5), (7, 1, 3)], vec![(7, 1, 3), (7, 0, 5)]] {
        let ring = Ring::from_points(points);
        assert_eq!(ring.walk(1, |_| true, |_| true).map(|p| p.node), Some(5));
        // Of the members alone.
        assert_eq!(ring.walk(1, |n| n == 3, |_| true), Some(Placed { node: 3, owner: true }));
    }
}

#[test]
fn edges() {
    let none = Ring::new(&["a"], 0).map(|_| ()).expect_err("0 is refused");
    assert_eq!(none.to_string(), "a ring needs at least 1 virtual node for each node, got 0");
    let empty = Ring::new::<&str>(&[], VNODES).expect("160 is not 0");
    assert!(empty.is_empty() && !worked().is_empty());
    assert_eq!(empty.walk(3, |_| true, |_| true), None);
    assert_eq!(worked().walk(3, |_| false, |_| true), None);
    assert_eq!(worked().walk(3, |_| true, |_| false), None);
}

#[test]
fn points_are_at_the_hashes_of_numbered_names() {
    let ring = Ring::new(&["x"], 2).expect("2 is not 0");
    let expected = BTreeSet::from([hash64(b"x#0"), hash64(b"x#1")]);
    assert_eq!(ring.positions.iter().copied().collect::<BTreeSet<_>>(), expected);
}

#[test]
fn a_name_given_twice_is_one_node() {
    let once = Ring::new(&["b", "a"], 40).expect("valid");
    let twice = Ring::new(&["b", "a", "b"], 40).expect("valid");
    assert_eq!((&once.positions, &once.owners), (&twice.positions, &twice.owners));
}

fn names(n: u32) -> Vec<String> {
    (0..n).map(|i| format!("w{i}")).collect()
}

#[test]
fn keys_spread_and_few_move_when_a_node_leaves() {
    let ring = Ring::new(&names(8), VNODES).expect("valid");
    let mut counts = [0u32; 8];
    for key in 0..8000u32 {
        let hash = hash64(&key.to_le_bytes());
        let before = ring.walk(hash, |_| true, |_| true).expect("a node");
        counts[before.node as usize] += 1;
        let after = ring.walk(hash, |node| node != 3, |_| true).expect("a node");
        assert!(before.node == 3 || before.node == after.node);
    }
    assert!(counts.iter().all(|count| (700..1350).contains(count)), "{counts:?}");
}

proptest! {
    /// A walk over some members ends where it does on a ring of those members alone.
    #[test]
    fn a_subset_walks_like_its_own_ring(
        n in 1u32..9, members in any::<u8>(), key in any::<u64>(), loads in prop::collection::vec(0u64..4, 9),
    ) {
        let names = names(n);
        let chosen: Vec<u32> = (0..n).filter(|node| members >> (node % 8) & 1 == 1).collect();
        let own: Vec<&String> = chosen.iter().map(|node| &names[*node as usize]).collect();
        let ring = Ring::new(&names, 16).expect("valid");
        let alone = Ring::new(&own, 16).expect("valid");
        let total: u64 = chosen.iter().map(|node| loads[*node as usize]).sum();
        let bound = capacity(1.25, total, chosen.len());
        let within = ring.walk(key, |node| chosen.contains(&node), |node| loads[node as usize] < bound);
        let expected = alone
            .walk(key, |_| true, |node| loads[chosen[node as usize] as usize] < bound)
            .map(|placed| Placed { node: chosen[placed.node as usize], ..placed });
        prop_assert_eq!(within, expected);
        prop_assert_eq!(within.is_some(), !chosen.is_empty());
    }

    /// However keys are distributed, one hot key included, no node ever holds more than its share.
    #[test]
    fn placing_keys_one_by_one_stays_bounded(
        n in 1u32..9, factor in 0.5..3.0f64, keys in prop::collection::vec(0u32..6, 1..200),
    ) {
        let ring = Ring::new(&names(n), 32).expect("valid");
        let mut loads = vec![0u64; n as usize];
        for (placed, key) in (0u64..).zip(&keys) {
            let bound = capacity(factor, placed, loads.len());
            let node = ring
                .walk(hash64(&key.to_le_bytes()), |_| true, |node| loads[node as usize] < bound)
                .expect("some node is below the mean");
            loads[node.node as usize] += 1;
            prop_assert!(loads.iter().all(|load| *load <= bound));
        }
    }
}
