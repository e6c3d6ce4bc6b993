use super::*;

#[rstest::rstest]
#[case("250us", Duration::from_micros(250))]
#[case("250ms", Duration::from_millis(250))]
#[case("2s", Duration::from_secs(2))]
#[case("1.5m", Duration::from_secs(90))]
#[case("1h", Duration::from_secs(3600))]
#[case("0s", Duration::ZERO)]
fn durations_are_read(#[case] text: &str, #[case] expected: Duration) {
    assert_eq!(parse_duration(text), Ok(expected));
}

#[rstest::rstest]
#[case("5", "no unit")]
#[case("0", "0s")]
#[case("5d", "no unit of time")]
#[case("-1s", "-1s")]
#[case("xs", "no unit of time")]
#[case("s", "not a number")]
#[case("99999999999999999999h", "99999999999999999999h")]
fn nonsense_is_refused(#[case] text: &str, #[case] expected: &str) {
    let error = parse_duration(text).expect_err("nonsense");
    assert!(error.contains(expected), "{error}");
}
