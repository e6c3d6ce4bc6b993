//! Tables for saturation and the queue; random schedules for the whole are in `schedule`.

mod schedule;

use super::*;
use rstest::rstest;
use std::sync::Arc;

fn tenant(name: &str) -> Arc<str> {
    name.into()
}

fn engine(inflight: u32, configured: Option<u32>, report: Option<Report>) -> Signal {
    let mut learned = Learned::default();
    report.iter().for_each(|report| learned.observe(report));
    Signal { ready: true, inflight, configured, report, learned }
}

fn said(running: u32, waiting: u32, kv: Option<f64>, inflight: u32) -> Option<Report> {
    Some(Report { running, waiting, kv, slots: None, inflight })
}

fn limits(signals: &[Signal], thresholds: &Thresholds) -> (Assessment, Vec<u32>) {
    let mut limits = vec![0; 4];
    let found = assess(signals, thresholds, &[1.0, 0.85, 0.6, 0.3], &mut limits);
    (found, limits)
}

#[rstest]
#[case::idle(engine(0, Some(16), None), 0.0, [20, 19, 18, 17])]
#[case::running_is_no_queue(engine(16, Some(16), said(16, 0, None, 16)), 0.0, [20, 19, 18, 17])]
#[case::own_count_before_any_report(engine(20, Some(16), None), 1.0, [20, 19, 18, 17])]
#[case::configuration_before_slots(
    engine(0, Some(2), Some(Report { slots: Some(16), ..Report::default() })), 0.0, [6, 5, 4, 3])]
#[case::slots(engine(0, None, Some(Report { slots: Some(16), ..Report::default() })), 0.0, [20, 19, 18, 17])]
#[case::nothing_is_known(engine(50, None, None), 0.0, [OPEN; 4])]
#[case::learned_where_something_waits(engine(10, None, said(8, 2, None, 10)), 0.5, [12, 11, 10, 9])]
#[case::others_fill_it(engine(1, Some(16), said(16, 4, None, 1)), 1.0, [1, 0, 0, 0])]
#[case::what_ended_since_made_room(engine(4, Some(16), said(10, 2, None, 12)), 0.0, [14, 13, 12, 11])]
#[case::cache_is_full(engine(8, Some(16), said(8, 0, Some(0.9), 8)), 1.0, [8, 6, 4, 2])]
#[case::cache_since_the_report(engine(4, Some(16), said(8, 0, Some(0.8), 8)), 4.0 / 9.0, [9, 7, 5, 2])]
#[case::unknown_and_idle_grows(engine(0, None, said(0, 0, None, 0)), 0.0, [20, 19, 18, 17])]
#[case::unknown_and_busy_grows(engine(20, None, said(20, 0, None, 20)), 0.0, [44, 43, 42, 41])]
fn what_an_engine_lets_in(#[case] signal: Signal, #[case] saturation: f64, #[case] expected: [u32; 4]) {
    let (found, limits) = limits(&[signal], &Thresholds::default());
    assert!((found.saturation - saturation).abs() < 1e-9, "saturation {}", found.saturation);
    assert_eq!(limits, expected);
}

#[test]
fn a_ceiling_above_one_never_waits() {
    let mut limits = [0];
    assess(
        &[engine(500, Some(1), said(1, 499, Some(1.0), 500))],
        &Thresholds::default(),
        &[1000.0],
        &mut limits,
    );
    assert_eq!(limits, [OPEN]);
}

#[test]
fn a_pool_counts_engines_that_may_be_chosen() {
    let out = Signal { ready: false, ..engine(7, Some(16), None) };
    let (found, with_one) = limits(&[engine(0, Some(16), None), out], &Thresholds::default());
    // What runs on the other holds credits until it ends, and is nobody's room.
    assert_eq!((found.ready, found.capacity, with_one[0]), (1, 16, 27));
    let (found, none) = limits(&[out], &Thresholds::default());
    assert_eq!((found.ready, none), (0, vec![OPEN; 4]), "no engine at all is for others to say");
}

#[test]
fn the_buffer_is_the_pools_not_rounded_for_each_engine() {
    let thresholds = Thresholds { target_waiting: 0.5, ..Thresholds::default() };
    let (_, limits) = limits(&[engine(0, Some(16), None); 3], &thresholds);
    assert_eq!(limits, [49, 49, 48, 48]);
}

#[test]
fn mean_and_p90_differ_by_who_is_full() {
    let mut engines = vec![engine(0, Some(4), None); 9];
    engines.push(engine(24, Some(4), None));
    let p90 = Thresholds { aggregate: Aggregate::P90, ..Thresholds::default() };
    let (mean, by_mean) = limits(&engines, &Thresholds::default());
    assert!((mean.saturation - 0.5).abs() < 1e-9);
    assert_eq!(by_mean[0], 80, "its excess counts against the others' room");
    let (found, by_p90) = limits(&engines, &p90);
    assert!(found.saturation.abs() < 1e-9, "a tenth may be above");
    assert_eq!(by_p90[0], 24 + 72);
    engines.truncate(9);
    engines[0] = engine(24, Some(4), None);
    let (found, by_p90) = limits(&engines, &p90);
    assert!((found.saturation - 5.0).abs() < 1e-9, "one of nine is more than a tenth");
    assert!(by_p90.iter().all(|limit| *limit < 24), "so the pool is closed: {by_p90:?}");
}

#[test]
fn capacity_is_the_most_that_ran_once_something_waits() {
    let mut learned = Learned::default();
    let mut told = |running, waiting| {
        let report = Report { running, waiting, ..Report::default() };
        learned.observe(&report);
        Signal { ready: true, report: Some(report), learned, ..Signal::default() }.capacity()
    };
    assert_eq!(told(0, 0), Some(16));
    assert_eq!(told(12, 0), Some(24));
    assert_eq!(told(6, 3), Some(12), "a full cache stopped it short of its batch");
    assert_eq!(told(32, 1), Some(32));
    assert_eq!(told(1, 0), Some(32));
}

#[test]
fn tenants_take_turns_and_keep_their_order() {
    let mut queue = Queue::new(1, Bounds { per_band: 100, total: 100 });
    let (a, b, c) = (tenant("a"), tenant("b"), tenant("c"));
    for (who, item) in [(&a, 1), (&a, 2), (&a, 3), (&b, 10), (&c, 20), (&c, 21)] {
        queue.push(0, who, (0, 9), item).unwrap();
    }
    let order: Vec<i32> = std::iter::from_fn(|| queue.pop(0).map(|next| next.item)).collect();
    assert_eq!(order, [1, 10, 20, 2, 21, 3]);
    assert!(queue.is_empty() && queue.next_deadline().is_none());
}

#[test]
fn a_full_band_takes_from_who_has_most() {
    let mut queue = Queue::new(2, Bounds { per_band: 3, total: 100 });
    let (a, b) = (tenant("a"), tenant("b"));
    for item in 0..3 {
        queue.push(0, &a, (item, 9), item).unwrap();
    }
    assert_eq!(queue.push(0, &a, (3, 9), 3).unwrap_err(), (3, Bound::Band));
    let placed = queue.push(0, &b, (4, 9), 4).unwrap();
    let (gone, bound) = placed.displaced.unwrap();
    assert_eq!((gone.item, bound), (2, Bound::Band), "the newest of the longest");
    assert_eq!(queue.push(0, &b, (5, 9), 5).unwrap_err(), (5, Bound::Band), "nobody has more by then");
    assert_eq!(queue.waiting(0), 3);
}

#[test]
fn at_the_total_the_lowest_band_loses_its_newest() {
    let mut queue = Queue::new(3, Bounds { per_band: 10, total: 3 });
    let a = tenant("a");
    for (band, item) in [(1, 10), (2, 20), (2, 21)] {
        queue.push(band, &a, (item, 99), item).unwrap();
    }
    let gone = queue.push(0, &a, (30, 99), 30).unwrap().displaced.unwrap();
    assert_eq!((gone.0.item, gone.1), (21, Bound::Total));
    assert_eq!(queue.push(2, &a, (31, 99), 31).unwrap_err(), (31, Bound::Total), "none is lower");
    assert_eq!(queue.push(0, &a, (32, 99), 32).unwrap().displaced.unwrap().0.item, 20);
    assert_eq!(queue.push(0, &a, (33, 99), 33).unwrap().displaced.unwrap().0.item, 10);
    assert_eq!(queue.push(0, &a, (34, 99), 34).unwrap_err(), (34, Bound::Total));
    assert_eq!((queue.len(), queue.waiting(0), queue.oldest(0)), (3, 3, Some(30)));
}

#[test]
fn one_tenant_cannot_have_the_whole_band() {
    let (credits, mut verdicts) = (Arc::new(Credits::default()), Vec::new());
    credits.set(&[8], 1.0, 8);
    let mut desk = Desk::new(1, Bounds { per_band: 2000, total: 4000 }, Arc::default());
    let pools = [Arc::clone(&credits)];
    let others: Vec<Arc<str>> = (0..9).map(|i| tenant(&format!("t{i}"))).collect();
    let heavy = tenant("heavy");
    let mut waits: Vec<u64> = Vec::new();
    // Each turn one request ends. Nine tenants send one request in twenty turns each, the tenth a hundred times that.
    for now in 0..20_000u64 {
        let mut come = |who: &Arc<str>, verdicts: &mut Vec<Verdict<bool>>| {
            let mine = **who != *heavy;
            let refused = desk.arrive(0, who, (now, u64::MAX), mine, verdicts).is_err();
            assert!(!(mine && refused), "a light tenant is refused");
        };
        (0..5).for_each(|_| come(&heavy, &mut verdicts));
        others
            .iter()
            .enumerate()
            .filter(|(i, _)| now % 20 == 2 * *i as u64)
            .for_each(|(_, t)| come(t, &mut verdicts));
        if now >= 8 {
            credits.release();
        }
        desk.serve(&pools, now, &mut verdicts);
        for verdict in verdicts.drain(..) {
            match verdict {
                Verdict::Granted(granted, _) if granted.item => waits.push(now - granted.since),
                Verdict::Displaced(gone, _) => assert!(!gone.item, "a light tenant's request is displaced"),
                _ => {}
            }
        }
    }
    let mean = waits.iter().sum::<u64>() as f64 / waits.len() as f64;
    assert!(waits.len() > 8_900, "all of theirs went: {}", waits.len());
    // Of eight places one is free each turn: two turns are a quarter of what a request takes.
    assert!(mean < 2.0, "mean wait {mean} turns");
}

#[test]
fn a_burst_passes_up_to_capacity_and_buffer() {
    let credits = Credits::default();
    let mut limits = [0];
    let found = assess(&[engine(0, Some(16), None); 3], &Thresholds::default(), &[1.0], &mut limits);
    credits.set(&limits, found.saturation, found.capacity);
    // Nothing has been dispatched: the grants alone are counted.
    let passed = std::thread::scope(|scope| {
        let burst = || (0..250).filter(|_| credits.try_take(0)).count();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(burst)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    assert_eq!(passed, 3 * (16 + 4));
}
