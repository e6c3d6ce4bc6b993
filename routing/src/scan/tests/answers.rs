//! What is read out of engines' answers.

use super::super::usage::walk_chunk;
use super::super::{ChunkInfo, EventSkim, FinishReason, Usage, UsageSkim, skim_answer, skim_chunk};
use proptest::prelude::*;
use serde_json::{Value, json};

fn usage(prompt_tokens: u64, completion_tokens: u64, cached_tokens: Option<u64>) -> Option<Usage> {
    Some(Usage { prompt_tokens, completion_tokens, cached_tokens })
}

/// A whole answer, skimmed as it comes: in one chunk, cut anywhere, and byte by byte, which must agree.
fn skim(json: &[u8]) -> (Option<Usage>, Option<FinishReason>) {
    let run = |chunks: &mut dyn Iterator<Item = &[u8]>| {
        let mut skim = UsageSkim::new();
        chunks.for_each(|chunk| skim.feed(chunk));
        let reason = skim.finish_reason();
        (skim.finish(), reason)
    };
    let whole = run(&mut std::iter::once(json));
    assert_eq!(run(&mut json.chunks(1)), whole, "byte by byte: {}", json.escape_ascii());
    for cut in 0..=json.len() {
        assert_eq!(run(&mut [&json[..cut], &json[cut..]].into_iter()), whole, "cut at {cut}");
    }
    whole
}

/// Both skims and the walk, which must agree where they tell the same.
fn both(json: &str) -> ChunkInfo {
    let info = walk_chunk(json.as_bytes());
    let silent = ChunkInfo { choices_empty: info.choices_empty, ..ChunkInfo::default() } == info;
    let skimmed = skim_chunk(json.as_bytes());
    assert!(skimmed == info || silent && skimmed == ChunkInfo::default(), "{json}");
    assert_eq!(skim(json.as_bytes()), (info.usage, info.finish_reason), "{json}");
    let answer = skim_answer(json.as_bytes());
    assert_eq!((answer.usage, answer.finish_reason), (info.usage, info.finish_reason), "{json}");
    info
}

#[test]
fn vllm_stream() {
    let content = r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"smollm2","choices":[{
        "index":0,"delta":{"content":","},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":{
        "prompt_tokens":36,"total_tokens":38,"completion_tokens":2,"completion_tokens_details":null}}"#;
    let info = both(content);
    assert_eq!((info.choices_empty, info.usage, info.finish_reason), (Some(false), usage(36, 2, None), None));
    let last = r#"{"id":"c","choices":[],"usage":{"prompt_tokens":36,"total_tokens":44,"completion_tokens":8},
        "system_fingerprint":"vllm"}"#;
    let info = both(last);
    assert_eq!((info.choices_empty, info.usage, info.has_error), (Some(true), usage(36, 8, None), false));
}

#[test]
fn llama_server_stream() {
    let last = r#"{"choices":[],"created":1,"id":"c","object":"chat.completion.chunk","usage":{
        "completion_tokens":8,"prompt_tokens":36,"total_tokens":44,"prompt_tokens_details":{"cached_tokens":35}},
        "timings":{"cache_n":35}}"#;
    assert_eq!((both(last).choices_empty, both(last).usage), (Some(true), usage(36, 8, Some(35))));
}

#[test]
fn empty_choices() {
    for (json, expected) in [
        (r#"{"choices":[]}"#, Some(true)),
        (r#"{"choices" : [ ] }"#, Some(true)),
        (r#"{"choi\u0063es":[]}"#, Some(true)),
        (r#"{"choices":[{}]}"#, Some(false)),
        (r#"{"choices":[null]}"#, Some(false)),
        (r#"{"choices":[[]]}"#, Some(false)),
        (r#"{"choices":null}"#, None),
        (r#"{"choices":{}}"#, None),
        (r#"{"x":{"choices":[]}}"#, None),
        (r#"{"x":"\"choices\":[]"}"#, None),
        (r#"{}"#, None),
        (r#"[{"choices":[]}]"#, None),
    ] {
        assert_eq!(both(json).choices_empty, expected, "{json}");
    }
}

#[test]
fn usage_reports() {
    for (json, expected) in [
        (r#"{"usage":null}"#, None),
        (r#"{"usage":[]}"#, None),
        (r#"{"usage":"prompt_tokens"}"#, None),
        (r#"{"usage":{}}"#, usage(0, 0, None)),
        (r#" { "usage" : { "prompt_tokens" : 3 , "completion_tokens" : 4 } } "#, usage(3, 4, None)),
        (r#"{"us\u0061ge":{"prompt_t\u006fkens":3}}"#, usage(3, 0, None)),
        (r#"{"usage":{"prompt_tokens":3,"total_tokens":3}}"#, usage(3, 0, None)),
        (r#"{"usage":{"prompt_tokens_details":null,"prompt_tokens":3}}"#, usage(3, 0, None)),
        (
            r#"{"usage":{"prompt_tokens_details":{"a":{"cached_tokens":1},"cached_tokens":2}}}"#,
            usage(0, 0, Some(2)),
        ),
        (r#"{"usage":{"prompt_tokens":-1,"completion_tokens":1.5}}"#, usage(0, 0, None)),
        (r#"{"usage":{"x":{"prompt_tokens":9},"y":"}{","prompt_tokens":3}}"#, usage(3, 0, None)),
        (r#"{"usage":{"prompt_tokens":3},"usage":null}"#, None),
        (r#"{"x":{"usage":{"prompt_tokens":3}}}"#, None),
        (r#"{"choices":[{"usage":{"prompt_tokens":3}}]}"#, None),
        (r#"{"a":"\",\"usage\":{\"prompt_tokens\":3},\"b\":\""}"#, None),
        (r#"{"a":"usage","b":{"prompt_tokens":3}}"#, None),
        (r#"{"a":"usage", "x":[{"prompt_tokens":3}]}"#, None),
        (r#"["usage",{"prompt_tokens":3}]"#, None),
        (r#"{"a":"\\","usage":{"prompt_tokens":3}}"#, usage(3, 0, None)),
        (r#"{"a":"\\\"","usage":{"prompt_tokens":3},"b":["]"]}"#, usage(3, 0, None)),
    ] {
        assert_eq!(both(json).usage, expected, "{json}");
    }
}

#[test]
fn finish_reasons() {
    let reason = |text: &str| both(&format!(r#"{{"choices":[{{"finish_reason":{text}}}]}}"#)).finish_reason;
    for (text, expected) in [
        ("null", None),
        (r#""stop""#, Some(FinishReason::Stop)),
        (r#""length""#, Some(FinishReason::Length)),
        (r#""tool_calls""#, Some(FinishReason::ToolCalls)),
        (r#""function_call""#, Some(FinishReason::ToolCalls)),
        (r#""content_filter""#, Some(FinishReason::ContentFilter)),
        (r#""abort""#, Some(FinishReason::Other)),
        (r#""st\u006fp""#, Some(FinishReason::Stop)),
        ("3", None),
    ] {
        assert_eq!(reason(text), expected, "{text}");
    }
    for (json, expected) in [
        (r#"{"choices":[{"finish_reason":"stop"},{"finish_reason":null}]}"#, Some(FinishReason::Stop)),
        (r#"{"choices":[{"finish_reason":"stop"},{"finish_reason":"length"}]}"#, Some(FinishReason::Length)),
        (r#"{"choices":[{"delta":{"finish_reason":"stop"}}]}"#, None),
        (r#"{"choices":[{"delta":{"content":"\"finish_reason\":\"stop\""}}]}"#, None),
        (r#"{"choices":[{"text":"finish_reason","a":"stop"}]}"#, None),
        (r#"{"finish_reason":"stop"}"#, None),
        (r#"{"other":[{"finish_reason":"stop"}]}"#, None),
        (r#"{"choices":{"a":{"finish_reason":"stop"}}}"#, None),
        (r#"{"choices":[["finish_reason","stop"]]}"#, None),
    ] {
        assert_eq!(both(json).finish_reason, expected, "{json}");
    }
}

#[test]
fn errors() {
    for (json, expected) in [
        (r#"{"error":{"message":"m"}}"#, true),
        (r#"{"error":null}"#, false),
        (r#"{"error":"m"}"#, false),
        (r#"{"choices":[{"error":{}}]}"#, false),
        (r#"{"choices":[],"error":{}}"#, true),
        (r#"{"a":"\"error\":{}"}"#, false),
    ] {
        assert_eq!(skim_chunk(json.as_bytes()).has_error, expected, "{json}");
    }
}

#[test]
fn memory_is_bounded() {
    let mut long = br#"{"usage":{"prompt_tokens":3,"x":""#.to_vec();
    long.resize(10_000, b'a');
    long.extend_from_slice(br#""},"b":1}"#);
    let mut skim = UsageSkim::new();
    long.chunks(100).for_each(|chunk| skim.feed(chunk));
    assert_eq!(skim.finish(), None, "a usage object beyond the bound is not looked at");
}

/// What a parser finds; the reference for text that is valid.
fn parsed(value: &Value) -> (Option<bool>, Option<Usage>, bool) {
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    let usage = value["usage"].is_object().then(|| Usage {
        prompt_tokens: count(&value["usage"]["prompt_tokens"]),
        completion_tokens: count(&value["usage"]["completion_tokens"]),
        cached_tokens: value["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64(),
    });
    (value["choices"].as_array().map(Vec::is_empty), usage, value["error"].is_object())
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0u64..1000).prop_map(Value::from),
        "[a\"\\\\{}:,\\[\\] é]{0,8}".prop_map(Value::from),
        prop::sample::select(vec!["usage", "choices", "\"usage\":{}"]).prop_map(Value::from),
    ];
    let key = prop::sample::select(vec![
        "usage",
        "choices",
        "error",
        "prompt_tokens",
        "completion_tokens",
        "prompt_tokens_details",
        "cached_tokens",
        "finish_reason",
        "a",
        "\"",
        "\\",
    ]);
    leaf.prop_recursive(4, 32, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..5).prop_map(|members| {
                members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Value>()
            }),
        ]
    })
}

proptest! {
    #[test]
    fn agrees_with_a_parser(mut value in any_value(), pretty in any::<bool>()) {
        if !value.is_object() {
            value = json!({ "usage": value });
        }
        let text = if pretty { format!("{value:#}") } else { value.to_string() };
        let info = both(&text);
        prop_assert_eq!((info.choices_empty, info.usage, info.has_error), parsed(&value));
    }

    #[test]
    fn events_in_turn_tell_what_each_tells(
        events in prop::collection::vec((any_value(), "[a\"\\\\{}:,]{0,6}", 0..3usize), 1..8),
    ) {
        let key = ["content", "text", "usage"];
        let one = |(value, text, which): &(Value, String, usize)| {
            json!({ "choices": [{ "delta": { key[*which]: text } }], "x": value }).to_string()
        };
        let events: Vec<String> = events.iter().flat_map(|event| {
            let other = (event.0.clone(), "other".to_owned(), event.2);
            [one(event), one(&other)]
        }).collect();
        skim_in_turn(events.iter().map(String::as_str));
    }

    /// Nonsense is stepped over: no panic, no endless walk.
    #[test]
    fn survives_noise(pieces in prop::collection::vec(
        prop::sample::select(vec![
            "{", "}", "[", "]", ":", ",", "\"", "\\", "\"usage\"", "\"choices\"", "1", " ", "\\u12",
        ]),
        0..40,
    )) {
        let text = pieces.concat();
        skim_chunk(text.as_bytes());
        skim_chunk(format!("{{{text}").as_bytes());
        skim_chunk(format!("{{\"usage\":{{{text}").as_bytes());
        skim_chunk(format!("{{\"choices\":[{text}").as_bytes());
        skim(text.as_bytes());
        skim(format!("{{\"usage\":{{{text}").as_bytes());
    }
}

/// What the events of a stream tell, one after another: the same as each of them alone.
fn skim_in_turn<'a>(events: impl IntoIterator<Item = &'a str>) {
    let mut skim = EventSkim::new();
    for event in events {
        let (told, alone) = (skim.skim(event.as_bytes()), walk_chunk(event.as_bytes()));
        let silent = ChunkInfo { choices_empty: alone.choices_empty, ..ChunkInfo::default() } == alone;
        assert!(told == alone || silent && told == ChunkInfo::default(), "{event}");
    }
}

#[test]
fn events_in_turn() {
    let event = |text: &str, reason: &str| {
        format!(
            r#"{{"id":"c","choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":{reason}}}],"usage":null}}"#
        )
    };
    let texts = ["Hello", "", " you", r#"","#, r#"\"finish_reason\":\"stop\""#, "usage", "é", r#"\\"#, "x"];
    let mut events: Vec<String> = texts.iter().map(|text| event(text, "null")).collect();
    events.push(event("", r#""stop""#));
    events.push(event(r#""},"finish_reason":"length","x":{"a":""#, "null"));
    events.push(event("again", "null"));
    events.push(r#"{"choices":[],"usage":{"prompt_tokens":1}}"#.to_owned());
    events.push(r#"{"error":{}}"#.to_owned());
    skim_in_turn(events.iter().map(String::as_str));
    skim_in_turn(events.iter().rev().map(String::as_str));
    // Most are told without a walk.
    let mut skim = EventSkim::new();
    let told = events.iter().map(|event| skim.skim(event.as_bytes()));
    assert_eq!(told.filter_map(|info| info.finish_reason).count(), 2);
}

/// Names that stand where a search from the end might take them for the fields.
#[test]
fn only_the_answers_own_fields_count() {
    for json in [
        r#"{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3}}"#,
        r#"{"usage":{"prompt_tokens":3},"choices":[{"finish_reason":"length"}]}"#,
        r#"{"usage":{"prompt_tokens":3},"x":{"usage":{"prompt_tokens":4}}}"#,
        r#"{"x":{"usage":{"prompt_tokens":4}}}"#,
        r#"{"x":[{"usage":{"prompt_tokens":4}}]}"#,
        r#"{"usage":{"prompt_tokens":3},"y":"usage"}"#,
        r#"{"usage":{"prompt_tokens":3},"y":["usage"]}"#,
        r#"{"choices":[{"finish_reason":"stop"},{"finish_reason":null}],"usage":{"prompt_tokens":3}}"#,
        r#"{"choices":[{"finish_reason":"stop","t":[{"name":"finish_reason"}]}],"usage":{"prompt_tokens":3}}"#,
        r#"{"choices":[{"finish_reason":"stop","t":{"n":"finish_reason","k":1}}],"usage":{"prompt_tokens":3}}"#,
        r#"{"choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":9}"}}],"usage":{"prompt_tokens":3} } "#,
        r#"{"choices":[],"usage":null}"#,
        r#"{"usage":{"prompt_tokens":1},"usage":{"prompt_tokens":2}}"#,
        r#"{"object":"list","data":[{"embedding":[0.1]}],"usage":{"prompt_tokens":8,"total_tokens":8}}"#,
    ] {
        both(json);
    }
}
