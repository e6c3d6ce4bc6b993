use super::*;
use crate::trace::{BLOCK_BYTES, TraceRequest};

fn drawn(shared_prefix: u32) -> Prompts {
    Prompts::Drawn { prompt: Lengths::Uniform(20, 40), output: Lengths::Uniform(1, 9), shared_prefix }
}

#[test]
fn prompts_share_the_beginning_that_was_asked_for() {
    let mut first = Shaper::new(drawn(10), 0, 2, 7);
    let mut second = Shaper::new(drawn(10), 1, 2, 7);
    let (a, b, c) = (first.next_shape(), first.next_shape(), second.next_shape());
    for other in [&b, &c] {
        assert_eq!(a.prompt[..40], other.prompt[..40]);
        assert_ne!(a.prompt[40..80], other.prompt[40..80]);
    }
    // A prompt shorter than what is shared is cut.
    let short = Prompts::Drawn { prompt: Lengths::Fixed(4), output: Lengths::Fixed(1), shared_prefix: 10 };
    assert_eq!(Shaper::new(short, 0, 1, 7).next_shape().prompt, a.prompt[..16]);
}

#[test]
fn a_seed_repeats_and_another_text_keeps_the_lengths() {
    let shapes = |shaper: Shaper| {
        let mut shaper = shaper;
        (0..20).map(|_| shaper.next_shape()).collect::<Vec<_>>()
    };
    let first = shapes(Shaper::new(drawn(0), 0, 1, 7));
    assert_eq!(first, shapes(Shaper::new(drawn(0), 0, 1, 7)));
    let retold = shapes(Shaper::new(drawn(0), 0, 1, 7).with_text_seed(99));
    for (a, b) in first.iter().zip(&retold) {
        assert_eq!((a.prompt.len(), a.output), (b.prompt.len(), b.output));
        assert_ne!(a.prompt, b.prompt);
    }
}

#[test]
fn workers_deal_a_trace_out_and_start_over() {
    let request =
        |id| TraceRequest { timestamp: 0, input_length: 512, output_length: 50, hash_ids: vec![id] };
    let requests = Arc::new((0..4).map(request).collect::<Vec<_>>());
    let prompts = Prompts::Trace { requests: requests.clone(), input_max: u32::MAX, output_max: 8 };
    let mut odd = Shaper::new(prompts, 1, 2, 0);
    for expected in [1, 3, 1, 3] {
        let shape = odd.next_shape();
        assert_eq!(shape.prompt, requests[expected].prompt(u32::MAX));
        assert_eq!((shape.prompt.len(), shape.output), (BLOCK_BYTES, 8));
    }
}
