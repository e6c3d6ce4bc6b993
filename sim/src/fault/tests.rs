use rstest::rstest;

use super::*;

#[rstest]
#[case("refuse", FaultKind::Refuse(None))]
#[case("refuse=2s", FaultKind::Refuse(Some(Duration::from_secs(2))))]
#[case("hang", FaultKind::Hang)]
#[case("429=7", FaultKind::Status(429, Some(7)))]
#[case("503", FaultKind::Status(503, None))]
#[case("500", FaultKind::Status(500, None))]
#[case("reset-before-head", FaultKind::ResetBeforeHead)]
#[case("reset-after=3", FaultKind::ResetAfter(3))]
#[case("no-terminator", FaultKind::NoTerminator(Missing::All))]
#[case("no-terminator=done", FaultKind::NoTerminator(Missing::Done))]
#[case("malformed-head", FaultKind::MalformedHead(BadHead::Status))]
#[case("malformed-head=nul", FaultKind::MalformedHead(BadHead::Nul))]
#[case("bad-chunk", FaultKind::BadChunk(1))]
#[case("split-bytes", FaultKind::SplitBytes)]
#[case("two-events", FaultKind::TwoEvents)]
#[case("stall=0", FaultKind::Stall(0))]
#[case("slow=2.5", FaultKind::Slow(2.5))]
fn every_fault_is_read(#[case] text: &str, #[case] kind: FaultKind) {
    let fault = Fault::parse(text).unwrap();
    assert_eq!((fault.kind, fault.count, fault.probability), (kind, None, 1.0));
}

#[rstest]
#[case("bogus", "unknown fault \"bogus\"")]
#[case("200", "unknown fault \"200\"")]
#[case("stall", "stall needs a number, as in stall=3")]
#[case("reset-after=x", "reset-after: \"x\" is not a number it takes")]
#[case("no-terminator=half", "no-terminator=half is unknown")]
#[case("slow=0", "slow=0 is not between")]
#[case("hang,twice", "\"twice\" is neither count=N nor p=P")]
#[case("hang,count=0", "count=0 would never strike")]
#[case("hang,p=2", "p=2 is not between 0 and 1")]
#[case("refuse=soon", "\"soon\" is not a duration")]
fn what_is_wrong_is_named(#[case] text: &str, #[case] message: &str) {
    let error = Fault::parse(text).unwrap_err().to_string();
    assert!(error.contains(message), "{error}");
}

#[test]
fn count_bounds_the_requests_struck() {
    let mut faults = FaultSet::default();
    faults.set(Fault::parse("hang,count=2").unwrap());
    let mut rng = fastrand::Rng::with_seed(1);
    let struck: Vec<bool> = (0..4).map(|_| faults.draw(&mut rng).hang).collect();
    assert_eq!(struck, [true, true, false, false]);
    assert_eq!((faults.injected, faults.active().count()), (2, 0));
}

#[test]
fn probability_is_a_share_of_requests() {
    let mut faults = FaultSet::default();
    faults.set(Fault::parse("hang,p=0.25").unwrap());
    let mut rng = fastrand::Rng::with_seed(7);
    let struck = (0..4000).filter(|_| faults.draw(&mut rng).hang).count();
    assert!((900..1100).contains(&struck), "{struck} of 4000");
}

#[test]
fn engine_wide_faults_strike_no_request() {
    let mut faults = FaultSet::default();
    faults.set(Fault::parse("slow=3").unwrap());
    faults.set(Fault::parse("refuse").unwrap());
    let plan = faults.draw(&mut fastrand::Rng::with_seed(1));
    assert!(plan.struck.is_empty());
    assert_eq!((faults.slow_permille(), faults.refusing()), (3000, Some(None)));
    faults.stop_refusing();
    assert_eq!(faults.refusing(), None);
}
