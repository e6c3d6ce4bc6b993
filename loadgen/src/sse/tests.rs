use proptest::prelude::*;

use super::*;

fn events(bytes: &[u8], cut: usize) -> (Vec<String>, u64) {
    let mut parser = SseParser::default();
    let mut events = Vec::new();
    for piece in bytes.chunks(cut.max(1)) {
        let fed = parser.feed(piece, |data| events.push(String::from_utf8_lossy(data).into_owned()));
        assert_eq!(fed, Ok(()));
    }
    (events, parser.comments())
}

#[rstest::rstest]
#[case("data: a\n\ndata: b\n\n", &["a", "b"])]
#[case("data: a\r\n\r\ndata: b\r\n\r\n", &["a", "b"])]
#[case("data: a\r\rdata: b\r\r", &["a", "b"])]
#[case("data: a\r\n\ndata: b\n\r\n", &["a", "b"])]
#[case("data:a\n\ndata:  b\n\n", &["a", " b"])]
#[case("data: a\ndata: b\n\n", &["a\nb"])]
#[case("data\n\n", &[""])]
#[case("data:\n\n", &[""])]
#[case(": ping\n\ndata: a\n\n", &["a"])]
#[case("event: x\nid: 1\nretry: 5\ndata: a\n\n", &["a"])]
#[case("event: x\n\n\n\n", &[])]
#[case("datum: a\n\n", &[])]
#[case("data: a\n\ndata: unfinished\n", &["a"])]
#[case("data: grün ✓\n\n", &["grün ✓"])]
#[case("data: a: b\n\n", &["a: b"])]
fn events_by_the_standard_in_any_split(#[case] stream: &str, #[case] expected: &[&str]) {
    for cut in 1..=stream.len() {
        assert_eq!(events(stream.as_bytes(), cut).0, expected, "cut at {cut}");
    }
}

#[test]
fn comments_are_counted_apart() {
    assert_eq!(events(b": a\n\n:\n\ndata: x\n\n", 3), (vec!["x".to_owned()], 2));
}

#[test]
fn an_endless_line_is_refused() {
    let mut parser = SseParser::default();
    let block = vec![b'x'; 1 << 20];
    let fed: Vec<_> = (0..5).map(|_| parser.feed(&block, |_| {})).collect();
    assert_eq!(fed, [Ok(()), Ok(()), Ok(()), Ok(()), Err(TooLong)]);
}

proptest! {
    #[test]
    fn the_split_never_matters(stream in "(data: [a-c]{0,3}|:|[a-c]|\r\n|\n|\r){0,20}", cut in 1..9_usize) {
        prop_assert_eq!(events(stream.as_bytes(), cut), events(stream.as_bytes(), usize::MAX));
    }
}
