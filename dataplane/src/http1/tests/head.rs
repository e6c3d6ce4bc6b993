//! Where a head ends, however it arrives.

use crate::http1::{HeadError, HeadLimits, RequestError, find_head_end, head_over_limit, parse_request};
use proptest::prelude::*;

#[test]
fn head_ends() {
    let cases: &[(&[u8], Option<usize>)] = &[
        (b"", None),
        (b"GET / HTTP/1.1\r\n", None),
        (b"GET / HTTP/1.1\r\n\r", None),
        (b"GET / HTTP/1.1\r\n\r\n", Some(18)),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\nbody\r\n\r\n", Some(27)),
        // One empty line before the head is skipped; a second one is refused at once.
        (b"\r\n", None),
        (b"\r\nGET / HTTP/1.1\r\n\r\nX", Some(20)),
        (b"\r\n\r\n", Some(4)),
        (b"\r\n\r\nGET / HTTP/1.1\r\n\r\n", Some(4)),
        // A bare LF ends the search, so that nobody waits for more.
        (b"\n", Some(1)),
        (b"GET / HTTP/1.1\n", Some(15)),
        (b"GET / HTTP/1.1\r\nA: b\n\n", Some(21)),
        (b"GET / HTTP/1.1\r\nA: b\r\n\n", Some(23)),
    ];
    for (input, expect) in cases {
        assert_eq!(find_head_end(input, 0), *expect, "{}", input.escape_ascii());
    }
}

/// Feeds `input` in the given steps as a connection would and gives the head's end.
fn search_in_steps(input: &[u8], steps: &[usize]) -> Option<usize> {
    let (mut have, mut searched) = (0, 0);
    for step in steps.iter().copied().chain([input.len()]) {
        have = (have + step).min(input.len());
        if let Some(end) = find_head_end(&input[..have], searched) {
            return Some(end);
        }
        searched = have;
    }
    None
}

#[test]
fn bare_line_feeds_are_refused_not_awaited() {
    for input in
        [&b"GET / HTTP/1.1\nHost: a\n\n"[..], b"\nGET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\n\r\n"]
    {
        let end = search_in_steps(input, &[1; 64]).expect("ends");
        let error = parse_request(&input[..end], &HeadLimits::default()).unwrap_err();
        assert_eq!(error, RequestError::Head(HeadError::BareLineFeed), "{}", input.escape_ascii());
    }
}

#[test]
fn what_exceeds_the_limit_is_named() {
    assert_eq!(head_over_limit(b"GET /aaaaaaaaaaaaa").status(), 414);
    assert_eq!(head_over_limit(b"\r\nGET /aaaaaaaaaaaaa").status(), 414);
    assert_eq!(head_over_limit(b"GET / HTTP/1.1\r\nA: aaaaaa").status(), 431);
}

proptest! {
    #[test]
    fn splits_do_not_move_the_end(
        input in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'a')], 0..40),
        steps in proptest::collection::vec(0usize..4, 0..60),
    ) {
        let whole = find_head_end(&input, 0);
        prop_assert_eq!(search_in_steps(&input, &steps), whole);
        prop_assert_eq!(search_in_steps(&input, &[1; 64]), whole);
    }

    #[test]
    fn never_panics(input in proptest::collection::vec(any::<u8>(), 0..200)) {
        let limits = HeadLimits { max_headers: 4 };
        let _ = parse_request(&input, &limits);
        let _ = crate::http1::parse_response(&input, &limits, false);
    }
}
