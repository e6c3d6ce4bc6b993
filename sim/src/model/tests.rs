use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const MS: Nanos = 1_000_000;

fn config() -> ModelConfig {
    ModelConfig {
        max_seqs: 4,
        prefill_tps: 1000,
        ttft_ns: 5 * MS,
        itl_ns: 10 * MS,
        itl_growth_permille: 0,
        lockstep: false,
        kv_blocks: 100,
        block_size: 4,
    }
}

/// A prompt of `tokens` tokens whose blocks are named after `family` and their place.
fn prompt(family: u64, tokens: u32) -> Prompt {
    Prompt { tokens, blocks: (0..u64::from(tokens / 4)).map(|i| (family << 32) | i).collect() }
}

fn request(family: u64, tokens: u32, output_tokens: u32) -> Request {
    Request { prompt: prompt(family, tokens), output_tokens }
}

/// Runs until nothing is left to happen.
fn run(model: &mut Model) -> Vec<(Nanos, SeqId, Event)> {
    let mut events = Vec::new();
    while let Some(at) = model.next_event_at() {
        model.advance(at, &mut |at, id, event| events.push((at, id, event)));
    }
    events
}

fn times(events: &[(Nanos, SeqId, Event)], of: SeqId) -> Vec<Nanos> {
    let tokens = events.iter().filter(|(_, id, event)| *id == of && matches!(event, Event::Token { .. }));
    tokens.map(|(at, ..)| *at / MS).collect()
}

#[test]
fn prefill_then_ttft_then_one_token_an_interval() {
    let mut model = Model::new(config());
    let id = model.submit(0, request(1, 20, 4)).unwrap();
    let events = run(&mut model);
    assert_eq!(times(&events, id), [25, 35, 45, 55]);
    assert_eq!(events.first().unwrap().2, Event::Prefilled { cached_tokens: 0 });
    assert_eq!(events.last().unwrap(), &(55 * MS, id, Event::Finished));
}

#[test]
fn cache_shortens_prefill_and_is_reported() {
    let mut model = Model::new(config());
    model.submit(0, request(1, 40, 1)).unwrap();
    run(&mut model);
    // The same 40 tokens again: all but the last block are cached, since one token must be computed.
    let again = model.submit(100 * MS, request(1, 40, 1)).unwrap();
    let events = run(&mut model);
    assert_eq!(events[0].2, Event::Prefilled { cached_tokens: 36 });
    assert_eq!(times(&events, again), [109]);
    // Half of it: the common blocks only.
    let other = Prompt { tokens: 40, blocks: [prompt(1, 20).blocks, prompt(2, 20).blocks].concat() };
    model.submit(200 * MS, Request { prompt: other, output_tokens: 1 }).unwrap();
    assert_eq!(run(&mut model)[0].2, Event::Prefilled { cached_tokens: 20 });
}

#[test]
fn prefill_rate_is_shared() {
    let mut model = Model::new(config());
    let ids = [1, 2].map(|family| model.submit(0, request(family, 20, 1)).unwrap());
    let events = run(&mut model);
    // Each alone would take 20 ms.
    assert_eq!(ids.map(|id| times(&events, id)), [[45], [45]]);
}

#[test]
fn interval_grows_with_the_batch() {
    let mut model = Model::new(ModelConfig { itl_growth_permille: 500, ttft_ns: 0, ..config() });
    let ids: Vec<_> = (0..4).map(|family| model.submit(0, request(family, 4, 2)).unwrap()).collect();
    let events = run(&mut model);
    let first = times(&events, ids[0]);
    assert_eq!(first[1] - first[0], 15, "a full batch is half again as slow");
}

#[test]
fn lockstep_decodes_the_batch_at_once() {
    let mut model = Model::new(ModelConfig { lockstep: true, ttft_ns: 0, ..config() });
    let one = model.submit(0, request(1, 10, 4)).unwrap();
    model.advance(12 * MS, &mut |_, _, _| {});
    let two = model.submit(12 * MS, request(2, 3, 3)).unwrap();
    let events = run(&mut model);
    assert_eq!(times(&events, one), [20, 30, 40]);
    // Its first token comes with its prefill; from the next step on it is in the batch.
    assert_eq!(times(&events, two), [15, 30, 40]);
}

#[test]
fn queue_is_first_in_first_out() {
    let mut model = Model::new(ModelConfig { max_seqs: 1, ..config() });
    let ids: Vec<_> = (0..5).map(|family| model.submit(0, request(family, 8, 2)).unwrap()).collect();
    assert_eq!((model.running(), model.waiting()), (1, 4));
    let finished: Vec<_> = run(&mut model)
        .into_iter()
        .filter(|(.., event)| *event == Event::Finished)
        .map(|(_, id, _)| id)
        .collect();
    assert_eq!(finished, ids);
}

#[test]
fn least_recently_used_blocks_go_first_and_from_the_tail() {
    let mut model = Model::new(ModelConfig { kv_blocks: 12, max_seqs: 1, ..config() });
    for (at, family) in [(0, 1), (1, 2), (2, 1)] {
        model.submit(at * 1000 * MS, request(family, 22, 1)).unwrap();
        run(&mut model);
    }
    // 5 named blocks of each; 7 are needed, so 5 of the older family 2 and none of family 1 are evicted.
    model.submit(5000 * MS, request(3, 24, 1)).unwrap();
    run(&mut model);
    assert_eq!(model.pool().evicted(), 5);
    model.submit(6000 * MS, request(1, 24, 1)).unwrap();
    assert_eq!(run(&mut model)[0].2, Event::Prefilled { cached_tokens: 20 });
}

#[test]
fn preemption_repeats_and_loses_no_token() {
    let mut model = Model::new(ModelConfig { kv_blocks: 12, ..config() });
    let ids: Vec<_> = (0..3).map(|family| model.submit(0, request(family, 8, 30)).unwrap()).collect();
    let events = run(&mut model);
    assert!(model.stats().preemptions > 0);
    for id in ids {
        let numbers: Vec<u32> = events
            .iter()
            .filter_map(|(_, of, event)| match event {
                Event::Token { index } if *of == id => Some(*index),
                _ => None,
            })
            .collect();
        assert_eq!(numbers, (0..30).collect::<Vec<_>>());
    }
    assert_eq!((model.pool().used(), model.running(), model.waiting()), (0, 0, 0));
}

#[test]
fn what_never_fits_is_refused() {
    let mut model = Model::new(ModelConfig { kv_blocks: 4, ..config() });
    let error = model.submit(0, request(1, 10, 7)).unwrap_err();
    assert_eq!(error, SubmitError::TooLong { needed: 5, capacity: 4 });
    assert!(model.submit(0, request(1, 10, 6)).is_ok());
}

#[test]
fn held_sequence_is_silent_until_cancelled() {
    let mut model = Model::new(config());
    let id = model.submit(0, request(1, 4, 9)).unwrap();
    model.advance(20 * MS, &mut |_, _, _| {});
    model.hold(20 * MS, id);
    assert_eq!((model.next_event_at(), model.running()), (None, 1));
    assert!(model.cancel(30 * MS, id));
    assert!(!model.cancel(30 * MS, id), "an identifier dies once");
    assert_eq!((model.running(), model.pool().used()), (0, 0));
}

#[test]
fn slowdown_stretches_everything() {
    let mut model = Model::new(config());
    model.set_slowdown(0, 3000);
    let id = model.submit(0, request(1, 20, 2)).unwrap();
    let events = run(&mut model);
    assert_eq!(times(&events, id), [75, 105]);
}

#[derive(Clone, Debug)]
enum Step {
    Submit { family: u64, tokens: u32, output: u32 },
    Cancel(usize),
    Hold(usize),
    Pass(Nanos),
    Slow(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4_u64, 1..60_u32, 0..20_u32)
            .prop_map(|(family, tokens, output)| Step::Submit { family, tokens, output }),
        1 => (0..64_usize).prop_map(Step::Cancel),
        1 => (0..64_usize).prop_map(Step::Hold),
        4 => (0..80 * MS).prop_map(Step::Pass),
        1 => (500..3000_u64).prop_map(Step::Slow),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is submitted, cancelled and held: time never runs backwards, tokens come in order and once, the bounds
    /// hold, and in the end nothing is left behind.
    #[test]
    fn any_history_keeps_order_and_bounds_and_leaves_nothing(
        steps in prop::collection::vec(step(), 1..80), lockstep in any::<bool>(), kv_blocks in 20..60_u32,
    ) {
        let mut model = Model::new(ModelConfig { lockstep, kv_blocks, ttft_ns: MS, ..config() });
        let mut now = 0;
        let mut ids = Vec::new();
        let mut held = Vec::new();
        let mut next: HashMap<SeqId, u32> = HashMap::new();
        let mut last = 0;
        let mut check = |at: Nanos, id: SeqId, event: Event| {
            assert!(at >= last);
            last = at;
            if let Event::Token { index } = event {
                let due = next.entry(id).or_default();
                assert_eq!(index, *due);
                *due += 1;
            }
        };
        for step in steps {
            match step {
                Step::Submit { family, tokens, output } => {
                    ids.extend(model.submit(now, request(family, tokens, output)));
                }
                Step::Cancel(at) if !ids.is_empty() => {
                    model.cancel(now, ids[at % ids.len()]);
                }
                Step::Hold(at) if !ids.is_empty() => {
                    model.hold(now, ids[at % ids.len()]);
                    held.push(ids[at % ids.len()]);
                }
                Step::Pass(time) => {
                    now += time;
                    model.advance(now, &mut check);
                }
                Step::Slow(permille) => model.set_slowdown(now, permille),
                _ => {}
            }
            prop_assert!(model.running() <= 4);
            prop_assert!(model.pool().used() + model.pool().idle() <= kv_blocks);
        }
        for id in held {
            model.cancel(now, id);
        }
        let mut rounds = 0;
        while let Some(at) = model.next_event_at() {
            now = now.max(at);
            model.advance(now, &mut check);
            rounds += 1;
            prop_assert!(rounds < 100_000, "it never comes to rest");
        }
        let stats = model.stats();
        prop_assert_eq!((model.running(), model.waiting(), model.pool().used()), (0, 0, 0));
        prop_assert_eq!(stats.submitted, stats.finished + stats.cancelled);
    }
}
