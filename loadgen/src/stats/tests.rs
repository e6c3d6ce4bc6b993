use super::*;

#[test]
fn percentiles_of_known_values() {
    let mut latencies = Latencies::default();
    (1..=1_000).for_each(|ms| latencies.record(ms * 1_000_000));
    let summary = latencies.summary();
    assert_eq!(summary.count, 1_000);
    for (got, expected) in [
        (summary.min_ms, 1.0),
        (summary.p50_ms, 500.0),
        (summary.p90_ms, 900.0),
        (summary.p95_ms, 950.0),
        (summary.p99_ms, 990.0),
        (summary.p999_ms, 999.0),
        (summary.max_ms, 1_000.0),
        (summary.mean_ms, 500.5),
    ] {
        assert!((got - expected).abs() <= expected / 1_000.0, "{got} instead of {expected}");
    }
}

#[test]
fn merging_is_recording_together() {
    let (mut odd, mut even, mut all) = (Latencies::default(), Latencies::default(), Latencies::default());
    for n in 1..=500_u64 {
        all.record(n * n);
        if n % 2 == 0 { even.record(n * n) } else { odd.record(n * n) }
    }
    odd.merge(&even);
    assert_eq!(odd.summary(), all.summary());
}

#[test]
fn what_is_out_of_range_is_kept_at_its_edge() {
    let mut latencies = Latencies::default();
    latencies.record(0);
    latencies.record(u64::MAX);
    assert_eq!(latencies.count(), 2);
    assert!(latencies.quantile_ns(1.0) >= LONGEST_NS);
    assert_eq!(Latencies::default().summary(), Summary::default());
    assert_eq!(Latencies::default().quantile_ns(0.99), 0);
}

#[rstest::rstest]
// NumPy: np.percentile(values, [0, 25, 50, 75, 100])
#[case(&[], [0.0, 0.0, 0.0, 0.0, 0.0])]
#[case(&[7.0], [7.0, 7.0, 7.0, 7.0, 7.0])]
#[case(&[4.0, 1.0, 3.0, 2.0], [1.0, 1.75, 2.5, 3.25, 4.0])]
#[case(&[-2.0, 10.0, 0.5, 1.0, 3.0], [-2.0, 0.5, 1.0, 3.0, 10.0])]
fn quartiles_of_known_values(#[case] values: &[f64], #[case] expected: [f64; 5]) {
    let [min, q1, median, q3, max] = expected;
    assert_eq!(Spread::of(values), Spread { min, q1, median, q3, max });
}

#[test]
fn failures_are_counted_by_kind_and_checks_apart() {
    let mut failures = Failures::default();
    failures.add(Failure::Status(503));
    failures.add(Failure::Status(503));
    failures.add(Failure::Check(Violation::Lost));
    failures.add_many(Failure::Unfinished, 0);
    assert_eq!((failures.total(), failures.checks()), (3, 1));
    let names = failures.by_name();
    assert_eq!((names["status_503"], names["lost_token"], names.len()), (2, 1, 2));
    assert_eq!(failures.only_checks().total(), 1);
}
