//! What the scan accepts, refuses, and finds.

use super::super::{RequestScan, UsageAsk};
use super::{scan, scan_any_way};

/// The complaint about `body`; it must be the same however the body is cut.
fn complaint(body: impl AsRef<[u8]>) -> String {
    scan_any_way(body.as_ref())
        .map_or_else(|error| error.to_string(), |fields| format!("accepted: {fields:?}"))
}

#[test]
fn a_chat_request() {
    let body = br#" {"model": "smol", "messages": [{"role": "user", "content": "hi"}], "stream": true,
        "stream_options": {"include_usage": false}, "max_tokens": 12, "max_completion_tokens": 13, "n": 2,
        "user": "u", "seed": null, "logprobs": true, "x": {"model": "not this", "a": [1, -0.5e+7, []]}} "#;
    let fields = scan_any_way(body).expect("valid");
    let text = |range: &Option<std::ops::Range<usize>>| {
        range.clone().map(|range| std::str::from_utf8(&body[range]).expect("UTF-8"))
    };
    assert_eq!((&*fields.model, fields.stream, fields.usage), ("smol", true, UsageAsk::NotAsked));
    assert_eq!((fields.max_tokens, fields.max_completion_tokens, fields.n), (Some(12), Some(13), Some(2)));
    assert_eq!(text(&fields.messages), Some(r#"[{"role": "user", "content": "hi"}]"#));
    assert_eq!(text(&fields.stream_options), Some(r#"{"include_usage": false}"#));
    assert_eq!(text(&fields.user), Some(r#""u""#));
    assert_eq!(text(&fields.logprobs), Some("true"));
    assert_eq!((text(&fields.seed), text(&fields.prompt), text(&fields.input)), (None, None, None));
    assert_eq!((fields.model_all.len(), fields.stream_options_all.len()), (1, 1));
    assert_eq!(body[fields.after_brace - 1], b'{');
}

#[test]
fn keys_are_compared_unescaped_and_the_last_wins() {
    for (body, model) in [
        (r#"{"mod\u0065l":"a"}"#, "a"),
        (r#"{"\u006d\u006F\u0064\u0065\u006c":"a"}"#, "a"),
        (r#"{"model":"a","model":"b"}"#, "b"),
        (r#"{"model":"a","mod\u0065l":"b"}"#, "b"),
        (r#"{"model":1,"model":"b"}"#, "b"),
        (r#"{"model":"b","models":"c","mode":"d","Model":"e","model\u0000":"f"}"#, "b"),
        (r#"{"model":"b","a":{"model":"c"},"d":["model"]}"#, "b"),
        (r#"{"a":"model","model":"b"}"#, "b"),
        (r#"{"model":"a\/b\n\u00e9\ud83d\ude00\\"}"#, "a/b\né😀\\"),
        (r#"{"model":""}"#, ""),
    ] {
        let fields = scan_any_way(body.as_bytes()).map(|fields| fields.model);
        assert_eq!(fields.as_deref(), Ok(model), "{body}");
    }
}

#[test]
fn a_long_key_is_no_field() {
    let body = format!(r#"{{"{}model":"a","model":"b"}}"#, "\\u006d".repeat(1000));
    assert_eq!(scan(body.as_bytes()).map(|f| f.model).as_deref(), Ok("b"));
}

#[test]
fn stream_is_a_bool_or_nothing() {
    for (value, expected) in [("true", true), ("false", false), ("null", false)] {
        let body = format!(r#"{{"model":"m","stream":{value}}}"#);
        assert_eq!(scan_any_way(body.as_bytes()).map(|f| f.stream), Ok(expected), "{value}");
    }
    for value in ["1", "0", r#""true""#, "[]", "{}"] {
        let body = format!(r#"{{"model":"m","stream":{value}}}"#);
        assert_eq!(complaint(body), "`stream` at byte 22 must be true, false or null", "{value}");
    }
}

#[test]
fn the_model_is_a_string() {
    assert_eq!(complaint("{}"), "`model` is missing");
    assert_eq!(complaint(r#"{"a":{"model":"b"}}"#), "`model` is missing");
    for value in ["1", "null", "true", "[]", "{}"] {
        assert_eq!(
            complaint(format!(r#"{{"model": {value}}}"#)),
            "`model` at byte 10 must be a string",
            "{value}"
        );
    }
    assert_eq!(scan(b"{}").map_err(|error| error.param()).err(), Some(Some("model")));
}

#[test]
fn the_model_is_not_a_novel() {
    let body = |len: usize| format!(r#"{{"model":"{}"}}"#, "m".repeat(len));
    assert_eq!(scan(body(4094).as_bytes()).map(|f| f.model.len()), Ok(4094));
    let error = scan(body(4095).as_bytes()).expect_err("too long");
    assert_eq!(error.to_string(), "`model` at byte 9 is longer than 4096 bytes");
}

#[test]
fn what_stream_options_asks() {
    use UsageAsk::{Asked, NotAsked};
    for (members, expected) in [
        ("", NotAsked),
        (r#","stream_options":null"#, NotAsked),
        (r#","stream_options":{}"#, NotAsked),
        (r#","stream_options":{"include_usage":false}"#, NotAsked),
        (r#","stream_options":{"include_usage":null}"#, NotAsked),
        (r#","stream_options":{"include_usage":true}"#, Asked),
        (r#","stream_options":{"include_us\u0061ge":true}"#, Asked),
        (r#","stream_options":{"a":{"include_usage":true}}"#, NotAsked),
        (r#","stream_options":{"include_usage":true,"include_usage":false}"#, NotAsked),
        (r#","stream_options":{"include_usage":true},"stream_options":null"#, NotAsked),
        (r#","stream_options":null,"stream_options":{"include_usage":true}"#, Asked),
    ] {
        let body = format!(r#"{{"model":"m"{members}}}"#);
        assert_eq!(scan_any_way(body.as_bytes()).map(|f| f.usage), Ok(expected), "{members}");
    }
}

#[test]
fn numbers_that_count() {
    for (value, expected) in [
        ("0", Some(0)),
        ("18446744073709551615", Some(u64::MAX)),
        ("18446744073709551616", Some(u64::MAX)),
        ("-1", None),
        ("-0", Some(0)),
        ("16.0", Some(16)),
        ("1e3", Some(1000)),
        ("1.50e1", Some(15)),
        ("160.0e-1", Some(16)),
        ("0.0e-5", Some(0)),
        ("-0.0", Some(0)),
        ("-1.0", None),
        ("1e30", Some(u64::MAX)),
        ("null", None),
    ] {
        let body = format!(r#"{{"max_tokens":{value},"model":"m"}}"#);
        assert_eq!(scan_any_way(body.as_bytes()).map(|f| f.max_tokens), Ok(expected), "{value}");
    }
}

/// Parsers differ in what they make of these, so that an engine could read another value than the gateway.
#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let long = format!("1{}", "0".repeat(64));
    let number = "must be a whole number or null";
    let text = "must be a string without lone surrogates and U+FFFD";
    let options = "must be null, or an object whose `include_usage` is true, false or null";
    for (member, expected) in [
        (r#""max_tokens":"7""#, number),
        (r#""max_tokens":true"#, number),
        (r#""max_tokens":7.5"#, number),
        // Whole as a double, but not as it stands.
        (r#""max_tokens":441687440737095516.5"#, number),
        (r#""max_tokens":15e-1"#, number),
        (r#""max_tokens":1e400"#, number),
        (r#""max_completion_tokens":[7]"#, number),
        (r#""n":{}"#, number),
        (&format!(r#""n":{long}"#), number),
        (r#""model":"x\ud83d""#, text),
        (r#""model":"\ude00\ud83d""#, text),
        ("\"model\":\"\u{fffd}\"", text),
        (r#""stream_options":{"include_usage":1}"#, options),
        (r#""stream_options":{"include_usage":"true"}"#, options),
        (r#""stream_options":[]"#, options),
        (r#""stream_options":true"#, options),
    ] {
        let error = scan_any_way(format!(r#"{{"model":"m",{member}}}"#).as_bytes()).expect_err(member);
        assert!(error.to_string().ends_with(expected), "{member}: {error}");
        assert_eq!(error.param(), member.split('"').nth(1));
    }
}

#[test]
fn malformed_bodies_are_refused_at_their_place() {
    for (body, expected) in [
        ("", "malformed JSON: the body ended at byte 0 where an object was expected"),
        ("  ", "malformed JSON: the body ended at byte 2 where an object was expected"),
        ("[]", "malformed JSON at byte 0: expected an object"),
        (r#""a""#, "malformed JSON at byte 0: expected an object"),
        ("1", "malformed JSON at byte 0: expected an object"),
        ("{", "malformed JSON: the body ended at byte 1 where a key or `}` was expected"),
        ("{,}", "malformed JSON at byte 1: expected a key or `}`"),
        ("{a:1}", "malformed JSON at byte 1: expected a key or `}`"),
        (r#"{"a"}"#, "malformed JSON at byte 4: expected `:`"),
        (r#"{"a":}"#, "malformed JSON at byte 5: expected a value"),
        (r#"{"a":1,}"#, "malformed JSON at byte 7: expected a key"),
        (r#"{"a":1 2}"#, "malformed JSON at byte 7: expected `,` or `}`"),
        (r#"{"a":1]"#, "malformed JSON at byte 6: expected `,` or `}`"),
        (r#"{"a":[1}"#, "malformed JSON at byte 7: expected `,` or `]`"),
        (r#"{"a":[1,]}"#, "malformed JSON at byte 8: expected a value"),
        (r#"{"a":[,]}"#, "malformed JSON at byte 6: expected a value or `]`"),
        (r#"{"a":1}x"#, "malformed JSON at byte 7: expected nothing after the object"),
        (r#"{"a":1}{}"#, "malformed JSON at byte 7: expected nothing after the object"),
        (r#"{"a":tru}"#, "malformed JSON at byte 8: expected `true`, `false` or `null`"),
        (r#"{"a":True}"#, "malformed JSON at byte 5: expected a value"),
        (r#"{"a":NaN}"#, "malformed JSON at byte 5: expected a value"),
        (r#"{"a":'b'}"#, "malformed JSON at byte 5: expected a value"),
        (r#"{"a":01}"#, "malformed JSON at byte 6: expected `,` or `}`"),
        (r#"{"a":-}"#, "malformed JSON at byte 6: expected a digit"),
        (r#"{"a":+1}"#, "malformed JSON at byte 5: expected a value"),
        (r#"{"a":.5}"#, "malformed JSON at byte 5: expected a value"),
        (r#"{"a":1.}"#, "malformed JSON at byte 7: expected a digit"),
        (r#"{"a":1e}"#, "malformed JSON at byte 7: expected a digit or a sign"),
        (r#"{"a":1e+}"#, "malformed JSON at byte 8: expected a digit"),
        (r#"{"a":"\x"}"#, "malformed JSON at byte 7: expected one of \" \\ / b f n r t u after `\\`"),
        (r#"{"a":"\u12g4"}"#, "malformed JSON at byte 10: expected a hexadecimal digit"),
        ("{\"a\":\"b\nc\"}", "malformed JSON at byte 7: control character 0x0a in a string must be escaped"),
        ("{\"a\0\":1}", "malformed JSON at byte 3: control character 0x00 in a string must be escaped"),
        (r#"{"a":"b"#, "malformed JSON: the body ended at byte 7 where the rest of a string was expected"),
        (r#"{"model":"m""#, "malformed JSON: the body ended at byte 12 where `,` or `}` was expected"),
        ("\u{feff}{}", "malformed JSON at byte 0: expected an object"),
        (r#"{"a":1}//"#, "malformed JSON at byte 7: expected nothing after the object"),
    ] {
        assert_eq!(complaint(body), expected, "{body}");
    }
}

#[test]
fn utf8_is_checked() {
    for text in
        ["é", "€", "😀", "\u{7f}", "\u{80}", "\u{7ff}", "\u{800}", "\u{ffff}", "\u{10000}", "\u{10ffff}"]
    {
        let body = format!(r#"{{"model":"{text}","{text}":"{text}{text}a{text}"}}"#);
        assert_eq!(scan_any_way(body.as_bytes()).map(|f| f.model).as_deref(), Ok(text));
    }
    let bad: &[(&[u8], usize)] = &[
        (b"\x80", 0),
        (b"\xc0\x80", 0),
        (b"\xc1\xbf", 0),
        (b"\xe0\x80\x80", 1),
        (b"\xe0\x9f\xbf", 1),
        (b"\xed\xa0\x80", 1),
        (b"\xf0\x8f\xbf\xbf", 1),
        (b"\xf4\x90\x80\x80", 1),
        (b"\xf5\x80\x80\x80", 0),
        (b"\xff", 0),
        (b"\xc3(", 1),
        (b"\xe2\x82(", 2),
        (b"\xf0\x9f\x98\"", 3),
    ];
    for (bytes, place) in bad {
        let mut body = br#"{"model":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"#.to_vec();
        let offset = body.len() + place;
        body.extend_from_slice(bytes);
        body.extend_from_slice(br#""}"#);
        assert_eq!(complaint(&body), format!("malformed JSON at byte {offset}: invalid UTF-8"));
    }
    // Outside of strings nothing but ASCII stands.
    assert_eq!(complaint(b"{\xc3\xa9}"), "malformed JSON at byte 1: expected a key or `}`");
}

#[test]
fn nesting_is_bounded() {
    let nested = |levels: usize| {
        let mut body = br#"{"model":"m","a":"#.to_vec();
        body.extend((1..levels).flat_map(|level| if level % 3 == 0 { &b"{\"k\":"[..] } else { &b"["[..] }));
        body.push(b'1');
        body.extend((1..levels).rev().map(|level| if level % 3 == 0 { b'}' } else { b']' }));
        body.push(b'}');
        body
    };
    assert!(scan_any_way(&nested(64)).is_ok());
    assert!(complaint(nested(65)).ends_with("is nested more than 64 levels deep"));
    for levels in [1, 2, 63, 64, 65, 129, 1000] {
        let body = nested(levels);
        let depth = u16::try_from(levels).expect("small");
        let run = |max| {
            let mut scan = RequestScan::new(max);
            scan.feed(&body).and_then(|()| scan.finish(&body)).map(|f| f.model)
        };
        assert_eq!(run(depth).as_deref(), Ok("m"), "{levels}");
        assert!(run(depth - 1).is_err(), "{levels}");
    }
}

#[test]
fn repetition_of_what_is_rewritten_is_bounded() {
    let body = |times: usize| format!("{{{}}}", vec![r#""model":"m""#; times].join(","));
    assert_eq!(scan(body(64).as_bytes()).map(|f| f.model_all.len()), Ok(64));
    assert!(complaint(body(65)).ends_with("is repeated more than 64 times"));
    let options = |times: usize| {
        format!(
            r#"{{"model":"m","stream_options":{{{}}}}}"#,
            vec![r#""include_usage":false"#; times].join(",")
        )
    };
    assert!(scan(options(64).as_bytes()).is_ok());
    assert!(complaint(options(65)).ends_with("is repeated more than 64 times"));
    // Other keys are not counted.
    let others = format!(r#"{{{},"model":"m"}}"#, vec![r#""user":"u""#; 1000].join(","));
    assert!(scan(others.as_bytes()).is_ok());
}

#[test]
fn an_error_stays() {
    let mut scan = RequestScan::new(8);
    let error = scan.feed(b"{]").expect_err("malformed");
    assert_eq!(scan.feed(b"\"a\":1}"), Err(error));
    assert_eq!(scan.finish(b"{]\"a\":1}"), Err(error));
}

#[test]
fn another_body_than_the_one_that_was_fed_is_noticed() {
    let mut scan = RequestScan::new(8);
    scan.feed(br#"{"model":"m"}"#).expect("valid");
    assert!(scan.finish(b"{}").is_err());
}

#[test]
fn long_strings_of_every_alignment() {
    for len in 0..140 {
        for special in ["", "\\n", "é", "😀"] {
            let model = format!("{}{special}{}", "a".repeat(len), "b".repeat(140 - len));
            let body = format!(r#"{{"model":"{model}"}}"#);
            let expected = model.replace("\\n", "\n");
            assert_eq!(scan(body.as_bytes()).map(|f| f.model).as_deref(), Ok(&*expected));
        }
        let body = format!("{{\"model\":\"{}\u{1}\"}}", "a".repeat(len));
        assert_eq!(scan(body.as_bytes()).map_err(|e| e.offset), Err(10 + len));
    }
}
