//! The scan against serde_json.
//!
//! Deliberate differences, all taken into account by the reference below: the top level must be an object; nesting is
//! bounded at `max_depth` rather than at serde_json's own limit; escapes of lone surrogates and numbers beyond a
//! double's range pass, as they do in the engines' parsers (serde_json's `IgnoredAny` agrees with that).

use super::super::RequestScan;
use super::scan_any_way;
use proptest::prelude::*;
use serde::de::IgnoredAny;
use serde_json::Value;

/// Whether a body is one that the scan should take, its fields aside.
fn well_formed(body: &[u8]) -> bool {
    std::str::from_utf8(body).is_ok_and(|text| {
        serde_json::from_str::<IgnoredAny>(text).is_ok()
            && text.trim_start_matches([' ', '\t', '\n', '\r']).starts_with('{')
    })
}

fn check(body: &[u8]) {
    let mut scan = RequestScan::new(1000);
    let accepted =
        scan.feed(body).is_ok() && scan.finish(body).map_or_else(|e| e.param().is_some(), |_| true);
    assert_eq!(accepted, well_formed(body), "{}", body.escape_ascii());
    let result = scan_any_way(body);
    // Where serde_json can read it, the values agree too; it keeps the last of duplicate keys as well.
    if let (Ok(fields), Ok(Value::Object(map))) = (result, serde_json::from_slice::<Value>(body)) {
        assert_eq!(map.get("model").and_then(Value::as_str), Some(&*fields.model));
        assert_eq!(map.get("stream").and_then(Value::as_bool).unwrap_or(false), fields.stream);
        for (name, number) in [("max_tokens", fields.max_tokens), ("n", fields.n)] {
            if let Some(whole) = map.get(name).and_then(Value::as_u64) {
                assert_eq!(number, Some(whole), "{name}");
            }
            assert!(number.is_none() || map.get(name).is_some_and(Value::is_number), "{name}");
        }
        for (name, range) in [
            ("messages", &fields.messages),
            ("prompt", &fields.prompt),
            ("input", &fields.input),
            ("user", &fields.user),
            ("seed", &fields.seed),
            ("logprobs", &fields.logprobs),
            ("stream_options", &fields.stream_options),
        ] {
            let found =
                range.clone().map(|range| serde_json::from_slice::<Value>(&body[range]).expect("a value"));
            assert_eq!(found.as_ref(), map.get(name).filter(|value| !value.is_null()), "{name}");
        }
    }
}

/// Pieces of which bodies are made: enough of the right ones that many bodies are valid.
fn piece() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "\\",
        " ",
        "\n",
        "\"model\":",
        "\"model\":\"m\"",
        "\"stream\":true",
        "\"stream\":",
        "\"n\":",
        "\"mod\\u0065l\":",
        "\"a\"",
        "\"\"",
        "\"é😀\"",
        "\"\\ud800\"",
        "\"\\n\\\"\"",
        "0",
        "-1",
        "12.5e-3",
        "1e999",
        "01",
        "true",
        "false",
        "null",
        "nul",
        "\u{1}",
        "€",
        "\\u",
        "\\",
        "\"user\":",
        "\"stream_options\":",
        "{\"include_usage\":false}",
        "\"messages\":[{\"role\":\"user\"}]",
    ])
}

/// A valid JSON value, as text, with all kinds of spelling.
fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|b| b.to_string()),
        any::<i32>().prop_map(|n| n.to_string()),
        (any::<i16>(), 0u8..100, -30i8..30).prop_map(|(a, b, e)| format!("{a}.{b}e{e}")),
        string(),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(|items| format!("[{}]", items.join(" , "))),
            prop::collection::vec((string(), inner), 0..5).prop_map(|members| object(&members)),
        ]
    })
}

fn string() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "a",
        "bcdefghijklmnopqrstuvwxyz0123456789 ABCDEFGHIJKLMNOP",
        "é",
        "€",
        "😀",
        "\\n",
        "\\\"",
        "\\\\",
        "\\/",
        "\\u0041",
        "\\ud83d\\ude00",
        "{",
        "}",
        "[",
        ",",
        ":",
        "\u{7f}",
    ]);
    prop::collection::vec(part, 0..6).prop_map(|parts| format!("\"{}\"", parts.concat()))
}

fn object(members: &[(String, String)]) -> String {
    let members: Vec<String> = members.iter().map(|(key, value)| format!("{key}\t:{value}")).collect();
    format!("{{ {}}}", members.join(","))
}

/// A valid body.
pub(super) fn body() -> impl Strategy<Value = String> {
    let key = prop_oneof![
        2 => prop::sample::select(vec![
            "model", "mod\\u0065l", "stream_options", "str\\u0065am_options", "max_tokens", "n", "messages", "prompt",
            "input", "user", "seed", "logprobs",
        ]).prop_map(|name| format!("\"{name}\"")),
        1 => string(),
    ];
    let options = prop::sample::select(vec![
        "null",
        "{}",
        "{ }",
        "{\"include_usage\":true}",
        "{\"include_usage\": false }",
        "{\"a\":1,\"include_usage\":null}",
        "{\"include_usage\":true,\"include_usage\":false}",
        "{\"x\":[{}]}",
    ]);
    let number = prop::sample::select(vec!["null", "0", "16", "16.0", "1.6e1", "-1"]);
    let member = (key, value(), options, number).prop_map(|(key, value, options, number)| {
        let value = match &*key {
            key if key.contains("options") => options.to_owned(),
            "\"max_tokens\"" | "\"n\"" => number.to_owned(),
            _ => value,
        };
        (key, value)
    });
    let model = string().prop_map(|name| ("\"model\"".to_owned(), name));
    (prop::collection::vec(member, 0..6), model, prop::sample::select(vec!["true", "false", "null"]))
        .prop_map(|(mut members, model, stream)| {
            members.insert(members.len() / 2, ("\"stream\"".to_owned(), stream.to_owned()));
            members.push(model);
            object(&members)
        })
}

proptest! {
    #[test]
    fn agrees_on_pieces(pieces in prop::collection::vec(piece(), 0..14)) {
        check(pieces.concat().as_bytes());
    }

    #[test]
    fn agrees_on_pieces_within_an_object(pieces in prop::collection::vec(piece(), 0..10)) {
        check(format!("{{{}}}", pieces.concat()).as_bytes());
    }

    #[test]
    fn agrees_on_valid_bodies(body in body()) {
        prop_assert!(well_formed(body.as_bytes()));
        check(body.as_bytes());
    }

    /// One byte of a valid body replaced, left out, or doubled.
    #[test]
    fn agrees_on_nearly_valid_bodies(
        body in body(), at in any::<prop::sample::Index>(), with in any::<u8>(), how in 0u8..3,
    ) {
        let mut bytes = body.into_bytes();
        let at = at.index(bytes.len());
        match how {
            0 => bytes[at] = with,
            1 => drop(bytes.remove(at)),
            _ => bytes.insert(at, bytes[at]),
        }
        check(&bytes);
    }

    #[test]
    fn agrees_on_noise(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        check(&bytes);
    }
}
