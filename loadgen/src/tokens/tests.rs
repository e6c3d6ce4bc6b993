use proptest::prelude::*;

use super::*;

fn scan(text: &str, cut: usize) -> (Vec<Option<(String, u64)>>, bool) {
    let mut scanner = TokenScanner::default();
    let mut found = Vec::new();
    for piece in text.as_bytes().chunks(cut) {
        let piece = std::str::from_utf8(piece).expect("ASCII");
        scanner.feed(piece, |token| found.push(token.map(|t| (t.tag.to_owned(), t.number))));
    }
    (found, scanner.is_partial())
}

#[rstest::rstest]
#[case("a:0 ", Some(("a", 0)))]
#[case("lg-1/2:41 ", Some(("lg-1/2", 41)))]
#[case("word ", None)]
#[case(":3 ", None)]
#[case("a: ", None)]
#[case("a:-1 ", None)]
#[case("a:1x ", None)]
#[case("a:99999999999999999999 ", None)]
fn tokens_are_read_in_any_split(#[case] text: &str, #[case] expected: Option<(&str, u64)>) {
    for cut in 1..=text.len() {
        let expected = expected.map(|(tag, number)| (tag.to_owned(), number));
        assert_eq!(scan(text, cut), (vec![expected], false), "cut at {cut}");
    }
}

#[test]
fn an_unfinished_token_is_told() {
    assert_eq!(scan("a:0 a:", 2), (vec![Some(("a".to_owned(), 0))], true));
}

proptest! {
    /// What the simulated engine writes is what is read.
    #[test]
    fn the_engines_tokens_are_read_back(tag in "[A-Za-z0-9_.-]{1,64}", count in 0..50_u32, cut in 1..20_usize) {
        let text: String = (0..count).map(|n| llmgw_sim::tokens::token(&tag, n)).collect();
        let expected: Vec<_> = (0..count).map(|n| Some((tag.clone(), u64::from(n)))).collect();
        prop_assert_eq!(scan(&text, cut), (expected, false));
    }
}
