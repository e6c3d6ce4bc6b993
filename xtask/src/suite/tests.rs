use super::*;

#[test]
fn summaries_of_both_runners_are_counted() {
    let bold = "\u{1b}[32;1m     Summary\u{1b}[0m [ 0.1s] \u{1b}[1m1\u{1b}[0m test run: \u{1b}[1m1\u{1b}[0m passed, 0 skipped";
    let table = [
        (NEXTEST, "     Summary [   0.012s] 3 tests run: 3 passed, 2 skipped", (3, 0, 2)),
        (
            NEXTEST,
            "     Summary [  61.2s] 12 tests run: 9 passed (1 slow), 2 failed, 1 timed out, 0 skipped",
            (9, 3, 0),
        ),
        (NEXTEST, bold, (1, 0, 0)),
        (NEXTEST, "    test result: FAILED. 0 passed; 1 failed; 0 ignored", (0, 0, 0)),
        (HARNESS, "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 4 filtered out", (5, 0, 1)),
        (
            HARNESS,
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
            (1, 2, 0),
        ),
        (HARNESS, "test says_3_passed ... ok", (0, 0, 0)),
        (HARNESS, "running 3 tests", (0, 0, 0)),
    ];
    for (prefix, line, (passed, failed, skipped)) in table {
        let mut count = Count::default();
        count.read(line, prefix);
        assert_eq!(count, Count { passed, failed, skipped }, "{line}");
    }
}

#[test]
fn the_last_line_is_plain() {
    assert_eq!(Count { passed: 7, failed: 1, skipped: 2 }.to_string(), "7 passed, 1 failed, 2 skipped");
}

#[test]
fn filters_and_skips_go_to_either_runner() {
    let spell = |nextest| proc::spell(&runner(nextest, &["--workspace"], Some("sse"), &["thousand_streams"]));
    assert_eq!(
        spell(true).split_once(' ').map(|(_, args)| args.to_owned()).unwrap_or_default(),
        "nextest run --no-fail-fast --no-tests pass --workspace sse -- --skip thousand_streams"
    );
    assert_eq!(
        spell(false).split_once(' ').map(|(_, args)| args.to_owned()).unwrap_or_default(),
        "test --no-fail-fast --workspace sse -- --skip thousand_streams"
    );
}
