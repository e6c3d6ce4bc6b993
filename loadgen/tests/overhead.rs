//! `overhead` between servers whose difference is known.

mod common;

use std::time::Duration;

use common::{FakeServer, Manner};
use llmgw_loadgen::{OverheadConfig, overhead};

fn config(direct: &FakeServer, via: &FakeServer) -> OverheadConfig {
    OverheadConfig {
        rate: 300.0,
        slice: Duration::from_millis(40),
        rounds: 5,
        warmup_rounds: 1,
        ..OverheadConfig::new(direct.url(), via.url())
    }
}

#[rstest::rstest]
#[case(false)]
#[case(true)]
fn all_rounds_are_paired(#[case] stream: bool) {
    let (direct, via) = (FakeServer::start(Manner::Good), FakeServer::start(Manner::Good));
    let bound = Some(Duration::from_secs(5));
    let config = OverheadConfig { stream, max_p99_overhead: bound, ..config(&direct, &via) };
    let report = overhead(&config).expect("measured");
    assert!(report.passed, "{}", report.table());
    assert_eq!(report.rounds, 5);
    // 40 ms at 300 a second: 12 a slice.
    assert_eq!((report.total.direct.count, report.total.via.count), (60, 60));
    assert_eq!(report.ttft.is_some(), stream);
    let spread = report.total.p99_ms;
    assert!(spread.min <= spread.q1 && spread.q1 <= spread.median && spread.median <= spread.max);
}

#[test]
fn a_bound_that_cannot_hold_fails() {
    let (direct, via) = (FakeServer::start(Manner::Good), FakeServer::start(Manner::GoodBytewise));
    let config = OverheadConfig {
        stream: true,
        rate: 50.0,
        max_p99_overhead: Some(Duration::from_nanos(1)),
        output: llmgw_loadgen::workload::Lengths::Fixed(64),
        ..config(&direct, &via)
    };
    let report = overhead(&config).expect("measured");
    assert!(!report.passed, "{}", report.table());
}

#[test]
fn a_lost_token_fails_whatever_the_times() {
    let (direct, via) = (FakeServer::start(Manner::Good), FakeServer::start(Manner::LostToken));
    let report = overhead(&OverheadConfig { stream: true, max_errors: 1_000, ..config(&direct, &via) });
    let report = report.expect("measured");
    assert!(!report.passed);
    assert!(report.via_errors["lost_token"] > 0 && report.direct_errors.is_empty(), "{}", report.table());
}
