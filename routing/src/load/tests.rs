use super::*;

const FAR: Nanos = 1 << 40;

#[test]
fn counters_are_per_slot_and_load_adds_the_queue() {
    let table = LoadTable::new(20);
    let slots: Vec<Slot> = std::iter::from_fn(|| table.allocate()).collect();
    assert_eq!(slots.len(), 20);
    for slot in &slots {
        for _ in 0..slot.index() {
            table.acquire(slot.index());
        }
        table.set_queue_depth(slot.index(), 100);
    }
    for slot in &slots {
        assert_eq!(table.inflight(slot.index()), slot.index());
        assert_eq!(table.load(slot.index()), slot.index() + 100);
    }
    table.release(7);
    assert_eq!((table.inflight(6), table.inflight(7), table.inflight(8)), (6, 6, 8));
}

#[test]
fn load_saturates() {
    let table = LoadTable::new(1);
    table.acquire(0);
    table.set_queue_depth(0, u32::MAX);
    assert_eq!(table.load(0), u32::MAX);
}

#[test]
fn a_dropped_slot_is_handed_out_again_clean() {
    let table = LoadTable::new(1);
    let slot = table.allocate().expect("room");
    assert!(table.allocate().is_none());
    table.set_queue_depth(0, 9);
    table.mark_failed(0, FAR);
    drop(slot);
    let slot = table.allocate().expect("given back");
    assert_eq!((slot.index(), table.load(0), table.health(0, 1)), (0, 0, Health::Ready));
}

#[test]
fn a_late_release_never_reaches_the_next_owner() {
    let table = LoadTable::new(2);
    let old = table.allocate().expect("room");
    let index = old.index();
    table.acquire(index);
    drop(old);
    let new = table.allocate().expect("the other index");
    assert_ne!(new.index(), index);
    assert!(table.allocate().is_none(), "an index waits for its last release");
    table.release(index);
    assert_eq!(table.inflight(new.index()), 0);
    assert_eq!(table.allocate().map(|slot| slot.index()), Some(index));
}

#[test]
fn a_clone_keeps_the_index_and_its_counts() {
    let table = LoadTable::new(1);
    let first = table.allocate().expect("room");
    table.acquire(first.index());
    let second = first.clone();
    drop(first);
    table.mark_busy(second.index(), FAR, 0);
    assert!(table.allocate().is_none());
    assert_eq!((table.inflight(second.index()), table.health(0, 1)), (1, Health::Busy { until: FAR }));
    table.release(second.index());
    drop(second);
    assert!(table.allocate().is_some());
}

#[test]
fn a_mark_made_after_the_drop_does_not_reach_the_next_owner() {
    let table = LoadTable::new(1);
    drop(table.allocate());
    table.mark_failed(0, FAR);
    let _slot = table.allocate().expect("free");
    assert_eq!(table.health(0, 1), Health::Ready);
}

#[test]
#[should_panic(expected = "released more often")]
#[cfg(debug_assertions)]
fn releasing_too_often_is_noticed() {
    LoadTable::new(1).release(0);
}

#[derive(Clone, Copy)]
enum Do {
    Fail(Nanos),
    Busy(Nanos),
    BusyAt(Nanos, Nanos),
    Clear,
    Look(Nanos),
}

#[test]
fn cooldowns() {
    use Do::{Busy, BusyAt, Clear, Fail, Look};
    let failed = |until| Health::Failed { until };
    let busy = |until| Health::Busy { until };
    let cases: &[(&[Do], Nanos, Health)] = &[
        (&[], 0, Health::Ready),
        (&[Fail(10)], 9, failed(10)),
        (&[Fail(10)], 10, Health::Ready),
        (&[Busy(10)], 9, busy(10)),
        (&[Busy(10)], 10, Health::Ready),
        // Busy never downgrades a failure, nor shortens a cooldown.
        (&[Fail(10), Busy(20)], 9, failed(10)),
        (&[Busy(20), Busy(10)], 9, busy(20)),
        (&[Busy(20), Fail(10)], 9, failed(20)),
        (&[Fail(20), Fail(10)], 9, failed(20)),
        (&[Fail(10), Fail(20)], 9, failed(20)),
        // A failure long past does not hide that the engine is busy now.
        (&[Fail(10), Look(11), BusyAt(20, 11)], 12, busy(20)),
        (&[Fail(10), BusyAt(20, 10)], 12, busy(20)),
        (&[Fail(10), BusyAt(20, 9)], 9, failed(10)),
        (&[Fail(10), Clear], 5, Health::Ready),
        // A probe says nothing of capacity.
        (&[Busy(10), Clear], 5, busy(10)),
        (&[Fail(10), Clear, Busy(20)], 5, busy(20)),
        (&[Fail(Nanos::MAX)], FAR, failed(UNTIL_MAX)),
    ];
    for (number, (steps, now, expected)) in cases.iter().enumerate() {
        let table = LoadTable::new(1);
        for step in *steps {
            match *step {
                Fail(until) => table.mark_failed(0, until),
                Busy(until) => table.mark_busy(0, until, 0),
                BusyAt(until, now) => table.mark_busy(0, until, now),
                Clear => table.clear(0),
                Look(now) => assert_eq!(table.health(0, now), Health::Ready),
            }
        }
        assert_eq!(table.health(0, *now), *expected, "case {number}");
    }
}

#[test]
fn drains_and_cooldowns_do_not_touch_each_other() {
    let table = LoadTable::new(1);
    table.mark_failed(0, 10);
    table.drain(0, 77);
    table.set_leaving(0, true);
    assert_eq!((table.health(0, 20), table.cut_at(0)), (Health::Draining, 77));
    table.clear(0);
    table.mark_busy(0, 30, 20);
    table.undrain(0);
    assert_eq!((table.health(0, 20), table.cut_at(0)), (Health::Draining, Nanos::MAX));
    table.set_leaving(0, false);
    assert_eq!(table.health(0, 20), Health::Busy { until: 30 });
    table.set_leaving(0, true);
    table.mark_failed(0, Nanos::MAX);
    table.set_leaving(0, false);
    assert_eq!(table.health(0, 20), Health::Failed { until: UNTIL_MAX });
    assert_eq!(table.health(0, Nanos::MAX), Health::Ready, "a time beyond all marks");
    table.drain(0, 5);
    assert_eq!(table.health(0, Nanos::MAX), Health::Draining);
}

#[test]
fn each_change_of_a_cut_is_numbered() {
    let table = LoadTable::new(2);
    let first = table.cuts();
    table.drain(1, 5);
    let second = table.cuts();
    table.drain(1, 5);
    assert_eq!(table.cuts(), second);
    table.undrain(1);
    assert!(first != second && table.cuts() != second && table.cut_at(0) == Nanos::MAX);
}

#[test]
fn a_dropped_slot_leaves_no_drain_and_no_capacity() {
    let table = LoadTable::new(1);
    let slot = table.allocate().expect("room");
    table.drain(0, 5);
    table.set_leaving(0, true);
    table.set_kv_blocks(0, 9);
    assert_eq!(table.kv_blocks(0), 9);
    drop(slot);
    let _slot = table.allocate().expect("given back");
    assert_eq!((table.health(0, 0), table.cut_at(0), table.kv_blocks(0)), (Health::Ready, Nanos::MAX, 0));
}

#[test]
fn gathering_reads_each_load_once_and_leaves_out_who_must_not_be_chosen() {
    let table = LoadTable::new(6);
    for index in 0..6 {
        (0..index).for_each(|_| table.acquire(index));
        table.set_queue_depth(index, 10);
    }
    table.mark_failed(1, 50);
    table.mark_busy(2, 49, 0);
    table.drain(3, 99);
    let mut loads = vec![7; 9];
    let found = table.gather(&[5, 1, 2, 3, 0], &[], 49, &mut loads);
    assert_eq!((found, &loads[..]), (Gathered { candidates: 3, total: 37 }, &[15, OUT, 12, OUT, 10][..]));
    let found = table.gather(&[5, 1, 2, 3, 0], &[0, 3, 4], 50, &mut loads);
    assert_eq!((found, &loads[..]), (Gathered { candidates: 3, total: 38 }, &[15, 11, 12, OUT, OUT][..]));
    table.set_queue_depth(4, u32::MAX);
    let found = table.gather(&[4], &[], 0, &mut loads);
    assert_eq!((found.candidates, &loads[..]), (1, &[OUT - 1][..]), "however loaded, a candidate");
    assert_eq!(table.gather(&[], &[], 0, &mut loads), Gathered::default());
    assert!(loads.is_empty() && table.capacity() == 6);
}

#[test]
fn counts_balance_over_threads() {
    let table = LoadTable::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..20_000u32 {
                    table.acquire(round % 4);
                    table.release(round % 4);
                }
            });
        }
    });
    assert!((0..4).all(|index| table.inflight(index) == 0));
}
