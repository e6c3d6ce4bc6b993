//! The scan of request bodies against serde_json, and the scans of answers, which trust their JSON: they must end and
//! agree with themselves. Nothing depends on how the input was split, and edits change what they are to change only.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmgw_fuzz::oracle::{Member, as_text, members, nesting};
use llmgw_fuzz::{every_byte, ranges, split_recipe};
use llmgw_routing::scan::{
    Edits, Fields, RequestScan, ScanError, ScanErrorKind, UsageAsk, UsageSkim, inject_usage, rewrite_model,
    skim_chunk,
};
use serde_json::Value;

const MAX_DEPTH: u16 = 64;
/// Fields whose value is a number.
const COUNTS: [&str; 3] = ["max_tokens", "max_completion_tokens", "n"];
const NEW_MODEL: &str = "served \"x\" \\ \u{1}é";

fuzz_target!(|data: &[u8]| {
    let Some((body, cuts)) = split_recipe(data) else { return };
    let whole = scan(body, &[]);
    assert_eq!(scan(body, &cuts), whole);
    assert_eq!(scan(body, &every_byte(body)), whole);
    match members(body) {
        Some(members) if nesting(body) <= usize::from(MAX_DEPTH) => check(body, &members, whole),
        _ => assert!(whole.is_err(), "serde_json refuses it, or it is too deep"),
    }
    answers(body, &cuts);
});

fn scan(body: &[u8], cuts: &[usize]) -> Result<Fields, ScanError> {
    let mut scan = RequestScan::new(MAX_DEPTH);
    for range in ranges(cuts, body.len()) {
        scan.feed(&body[range])?;
    }
    scan.finish(body)
}

/// The skims of answers: no panic, no dependence on splits.
fn answers(body: &[u8], cuts: &[usize]) {
    skim_chunk(body);
    let skim = |cuts: &[usize]| {
        let mut skim = UsageSkim::new();
        for range in ranges(cuts, body.len()) {
            skim.feed(&body[range]);
        }
        (skim.finish_reason(), skim.finish())
    };
    let whole = skim(&[]);
    assert_eq!(skim(cuts), whole);
    assert_eq!(skim(&every_byte(body)), whole);
}

/// A body that is one JSON object, not nested too deeply: what the scan says of it.
fn check(body: &[u8], members: &[Member], scanned: Result<Fields, ScanError>) {
    let last = |key: &str| members.iter().rev().find(|m| m.key == key.as_bytes()).map(|m| m.value.clone());
    let some = |key: &str| last(key).filter(|range| body[range.clone()] != *b"null");
    let model = last("model").and_then(|range| as_text(&body[range]));
    let stream = some("stream").map(|range| &body[range]);
    let fields = match scanned {
        Ok(fields) => fields,
        Err(error) => {
            let explained = match error.kind {
                ScanErrorKind::Missing("model") => last("model").is_none(),
                ScanErrorKind::Type { field: "model", .. } => {
                    let text = model.as_deref().map(String::from_utf8_lossy);
                    last("model").is_some() && text.is_none_or(|text| text.contains('\u{fffd}'))
                }
                ScanErrorKind::Type { field: "stream_options", .. } => some("stream_options").is_some(),
                ScanErrorKind::Type { field, .. } if COUNTS.contains(&field) => {
                    some(field).is_some_and(|range| !is_whole(&body[range]))
                }
                ScanErrorKind::Type { field: "stream", .. } => {
                    !matches!(stream, None | Some(b"true" | b"false"))
                }
                ScanErrorKind::Repeated { max, .. } => members.len() > max || body.len() > 10 * max,
                _ => false,
            };
            assert!(explained, "refused without reason: {error}");
            return;
        }
    };
    assert_eq!(Some(fields.model.as_bytes()), model.as_deref());
    assert_eq!(fields.stream, stream == Some(b"true"));
    for (key, range) in [
        ("messages", &fields.messages),
        ("prompt", &fields.prompt),
        ("input", &fields.input),
        ("user", &fields.user),
        ("seed", &fields.seed),
        ("logprobs", &fields.logprobs),
        ("stream_options", &fields.stream_options),
    ] {
        assert_eq!(*range, some(key), "{key}");
    }
    for (key, number) in [
        ("max_tokens", fields.max_tokens),
        ("max_completion_tokens", fields.max_completion_tokens),
        ("n", fields.n),
    ] {
        let read = some(key).map(|range| &body[range]);
        let whole = read.and_then(|text| serde_json::from_slice::<u64>(text).ok());
        if whole.is_some() {
            assert_eq!(number, whole, "{key}");
        } else if let Some(float) = read.and_then(|text| serde_json::from_slice::<f64>(text).ok()) {
            // What it is as a double, as far as a double is exact; nothing for a negative number.
            if float.abs() < 9e15 {
                assert_eq!(number, (float >= 0.0).then_some(float as u64), "{key}");
            }
        }
    }
    let models: Vec<_> = members.iter().filter(|m| m.key == b"model").map(|m| m.value.clone()).collect();
    assert_eq!(fields.model_all.as_slice(), models);
    check_edits(body, &fields);
}

/// A number that is whole and short: never refused.
fn is_whole(text: &[u8]) -> bool {
    serde_json::from_slice::<u64>(text).is_ok()
}

fn check_edits(body: &[u8], fields: &Fields) {
    let rename = rewrite_model(fields, NEW_MODEL);
    let ask = inject_usage(fields, body);
    assert!(rewrite_model(fields, &fields.model).is_empty());
    assert!(fields.usage == UsageAsk::NotAsked || ask.is_empty());
    let after = apply(&rename.merge(ask), body);
    // Lone surrogates and numbers out of range are more than serde_json can hold.
    let Ok(mut expect) = serde_json::from_slice::<Value>(body) else { return };
    expect["model"] = NEW_MODEL.into();
    let options = &mut expect["stream_options"];
    let asked = options.get("include_usage").cloned();
    let usage = match (&*options, asked) {
        (Value::Null, _) | (Value::Object(_), None | Some(Value::Null | Value::Bool(false))) => {
            UsageAsk::NotAsked
        }
        (Value::Object(_), Some(Value::Bool(true))) => UsageAsk::Asked,
        (options, _) => panic!("accepted: {options}"),
    };
    assert_eq!(fields.usage, usage);
    if usage == UsageAsk::NotAsked {
        options["include_usage"] = true.into();
    }
    let after: Value = serde_json::from_slice(&after).expect("an edited body is JSON");
    assert_eq!(after, expect);
}

fn apply(edits: &Edits, body: &[u8]) -> Vec<u8> {
    let mut after = Vec::new();
    for piece in edits.segments(body) {
        assert!(!piece.is_empty());
        after.extend_from_slice(piece);
    }
    assert_eq!(after.len(), edits.len_of(body.len()));
    after
}
