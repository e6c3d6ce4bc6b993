use super::*;
use crate::stats::Failure;

fn slice(total_ms: &[u64]) -> Recorder {
    let mut recorder = Recorder::default();
    for ms in total_ms {
        recorder.ok += 1;
        recorder.total.record(ms * 1_000_000);
    }
    recorder
}

fn pair(direct: &[u64], via: &[u64]) -> Pair {
    Pair { warmup: false, direct: slice(direct), via: slice(via) }
}

fn config(bound_ms: u64) -> OverheadConfig {
    let max_p99_overhead = Some(Duration::from_millis(bound_ms));
    OverheadConfig { max_p99_overhead, ..OverheadConfig::new("http://a", "http://b") }
}

#[test]
fn differences_are_taken_within_a_round() {
    // The machine slowed down threefold in the last round; the gateway added 2 ms all the same, once 12.
    let pairs = [pair(&[10], &[12]), pair(&[10], &[22]), pair(&[30], &[32])];
    let report = conclude(&config(3), &pairs);
    let p99 = report.total.p99_ms;
    assert!((p99.median - 2.0).abs() < 0.05 && (p99.max - 12.0).abs() < 0.05, "{p99:?}");
    assert!(report.passed, "{}", report.table());
    assert!(!conclude(&config(1), &pairs).passed);
}

#[test]
fn warm_up_and_empty_rounds_do_not_count_but_their_failed_checks_do() {
    let mut warmup = pair(&[1], &[500]);
    warmup.warmup = true;
    warmup.via.failures.add(Failure::Status(503));
    let pairs = [warmup, pair(&[10], &[11]), pair(&[], &[40])];
    let report = conclude(&config(2), &pairs);
    assert!(report.passed, "{}", report.table());
    assert_eq!((report.rounds, report.via_errors.len()), (2, 0));
    let mut pairs = pairs;
    pairs[0].via.failures.add(Failure::Check(crate::checker::Violation::Lost));
    assert!(!conclude(&config(2), &pairs).passed);
}

#[test]
fn nothing_measured_is_no_success() {
    assert!(!conclude(&config(2), &[]).passed);
}
