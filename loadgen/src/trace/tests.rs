use proptest::prelude::*;

use super::*;

fn request(hash_ids: Vec<u64>, input_length: u32) -> TraceRequest {
    TraceRequest { timestamp: 0, input_length, output_length: 1, hash_ids }
}

fn common_bytes(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
}

const SAMPLE: &[u8] = include_bytes!("../../tests/data/conversation_sample.jsonl");

proptest! {
    /// Two prompts share the text of the blocks they share from the start, to the token, and no more.
    #[test]
    fn prompts_share_exactly_their_blocks(
        shared in prop::collection::vec(0..1_000_000_u64, 0..6),
        (first, second) in (0..1_000_000_u64, 0..1_000_000_u64).prop_filter("they part", |(a, b)| a != b),
        tails in (prop::collection::vec(0..1_000_000_u64, 0..3), prop::collection::vec(0..1_000_000_u64, 0..3)),
    ) {
        let prompt = |own: u64, tail: &[u64]| {
            let ids: Vec<u64> = shared.iter().copied().chain([own]).chain(tail.iter().copied()).collect();
            let tokens = u32::try_from(ids.len() * BLOCK_TOKENS).expect("small");
            request(ids, tokens).prompt(u32::MAX)
        };
        let (a, b) = (prompt(first, &tails.0), prompt(second, &tails.1));
        prop_assert_eq!(a.len() % BLOCK_BYTES, 0);
        prop_assert_eq!(common_bytes(&a, &b) / BYTES_PER_TOKEN, shared.len() * BLOCK_TOKENS);
    }

    /// The same holds for ids of any size, to the block.
    #[test]
    fn any_two_ids_have_different_blocks(first: u64, second: u64) {
        prop_assume!(first != second);
        let text = |id| { let mut text = String::new(); push_block(&mut text, id); text };
        prop_assert!(common_bytes(&text(first), &text(second)) < 13);
        prop_assert_eq!(text(first).len(), BLOCK_BYTES);
    }
}

#[test]
fn a_prompt_has_the_length_that_was_recorded() {
    for request in read(SAMPLE, None).expect("a trace") {
        let tokens = usize::try_from(request.input_length).expect("small");
        assert_eq!(request.prompt(u32::MAX).len(), tokens * BYTES_PER_TOKEN);
        assert_eq!(request.prompt(100).len(), tokens.min(100) * BYTES_PER_TOKEN);
    }
    // An id is missing: as much text as there are blocks.
    assert_eq!(request(vec![1], 2_000).prompt(u32::MAX).len(), BLOCK_BYTES);
}

#[test]
fn the_sample_shares_what_its_ids_say() {
    let requests = read(SAMPLE, Some(60)).expect("a trace");
    let prompts: Vec<String> = requests.iter().map(|r| r.prompt(u32::MAX)).collect();
    for (a, text_a) in requests.iter().zip(&prompts) {
        for (b, text_b) in requests.iter().zip(&prompts) {
            let blocks = a.hash_ids.iter().zip(&b.hash_ids).take_while(|(a, b)| a == b).count();
            let expected = (blocks * BLOCK_BYTES).min(text_a.len()).min(text_b.len());
            assert_eq!(common_bytes(text_a, text_b) / BYTES_PER_TOKEN, expected / BYTES_PER_TOKEN);
        }
    }
}

#[test]
fn times_are_scaled() {
    let late = TraceRequest { timestamp: 3_000, ..request(vec![], 1) };
    assert_eq!(late.due(1.0), Duration::from_secs(3));
    assert_eq!(late.due(60.0), Duration::from_millis(50));
    assert_eq!(late.due(0.5), Duration::from_secs(6));
}

#[rstest::rstest]
#[case("", "holds no request")]
#[case("{\"timestamp\":1}\n", "line 1")]
#[case("\n{\"timestamp\":5,\"input_length\":1,\"output_length\":1,\"hash_ids\":[]}\nnonsense\n", "line 3")]
#[case(
    "{\"timestamp\":5,\"input_length\":1,\"output_length\":1,\"hash_ids\":[]}\n\
     {\"timestamp\":4,\"input_length\":1,\"output_length\":1,\"hash_ids\":[]}\n",
    "line 2 of the trace is earlier"
)]
fn a_wrong_trace_is_refused_with_its_line(#[case] text: &str, #[case] expected: &str) {
    let error = read(text.as_bytes(), None).expect_err("wrong").to_string();
    assert!(error.contains(expected), "{error}");
}
