//! Splices into bodies.

use super::super::{Edits, Fields, UsageAsk, inject_usage, rewrite_model};
use super::reference;
use super::scan;
use proptest::prelude::*;
use serde_json::{Value, json};

fn spliced(edits: &Edits, body: &str) -> String {
    let whole: Vec<u8> = edits.segments(body.as_bytes()).flatten().copied().collect();
    assert_eq!(whole.len(), edits.len_of(body.len()));
    assert!(edits.segments(body.as_bytes()).all(|piece| !piece.is_empty()));
    String::from_utf8(whole).expect("UTF-8")
}

fn fields(body: &str) -> Fields {
    scan(body.as_bytes()).expect("valid")
}

fn injected(body: &str) -> String {
    spliced(&inject_usage(&fields(body), body.as_bytes()), body)
}

#[test]
fn usage_is_asked_for() {
    for (members, expected) in [
        ("", r#""stream_options":{"include_usage":true},"#),
        (r#""stream_options":null,"#, r#""stream_options":{"include_usage":true},"#),
        (r#""stream_options": {},"#, r#""stream_options": {"include_usage":true},"#),
        (r#""stream_options":{ },"#, r#""stream_options":{"include_usage":true },"#),
        (r#""stream_options":{"a":[1]},"#, r#""stream_options":{"include_usage":true,"a":[1]},"#),
        (r#""stream_options":{"include_usage":false},"#, r#""stream_options":{"include_usage":true},"#),
        (r#""stream_options":{"include_usage" : null },"#, r#""stream_options":{"include_usage" : true },"#),
        (
            r#""stream_options":null,"stream_options":{"include_usage":false},"#,
            r#""stream_options":{"include_usage":true},"stream_options":{"include_usage":true},"#,
        ),
        (
            r#""stream_options":{"include_usage":true},"stream_options":null,"#,
            r#""stream_options":{"include_usage":true},"stream_options":{"include_usage":true},"#,
        ),
        (
            r#""stream_options":7,"stream_options":{"include_usage":true,"include_usage":false},"#,
            r#""stream_options":7,"stream_options":{"include_usage":true,"include_usage":true},"#,
        ),
    ] {
        let body = format!(r#"{{{members}"model":"m"}}"#);
        let expected = format!(r#"{{{expected}"model":"m"}}"#);
        assert_eq!(injected(&body), expected);
        assert_eq!(fields(&expected).usage, UsageAsk::Asked);
    }
}

#[test]
fn what_the_client_said_itself_is_left() {
    for options in ["{\"include_usage\":true}", "{\"include_usage\": true, \"a\":1}"] {
        let body = format!(r#"{{"model":"m","stream_options":{options}}}"#);
        assert!(inject_usage(&fields(&body), body.as_bytes()).is_empty(), "{options}");
        assert_eq!(injected(&body), body);
    }
}

#[test]
fn the_model_is_rewritten_everywhere() {
    let body = r#"{"model":"a", "x":{"model":"a"},"mod\u0065l" : "b"}"#;
    let edits = rewrite_model(&fields(body), "org/na\"me\\\n");
    let name = r#""org/na\"me\\\u000a""#;
    assert_eq!(
        spliced(&edits, body),
        format!(r#"{{"model":{name}, "x":{{"model":"a"}},"mod\u0065l" : {name}}}"#)
    );
    // The last one is the model's name already: the body passes as sent, the other occurrence included.
    assert!(rewrite_model(&fields(body), "b").is_empty());
}

#[test]
fn edits_merge_in_order() {
    let body = r#"{"model":"a","stream_options":null,"n":1}"#;
    let (usage, model) = (inject_usage(&fields(body), body.as_bytes()), rewrite_model(&fields(body), "bb"));
    let expected = r#"{"model":"bb","stream_options":{"include_usage":true},"n":1}"#;
    assert_eq!(spliced(&usage.clone().merge(model.clone()), body), expected);
    assert_eq!(spliced(&model.merge(usage), body), expected);
    assert_eq!(spliced(&Edits::default(), body), body);
}

proptest! {
    /// The spliced body differs from the original in the edited field alone, as a parser sees it.
    #[test]
    fn nothing_else_changes(body in reference::body(), name in "[a-z\"\\\\é\n/]{0,8}") {
        let fields = fields(&body);
        let mut expected: Value = serde_json::from_str(&body).expect("valid");
        let usage = inject_usage(&fields, body.as_bytes());
        prop_assert_eq!(usage.is_empty(), fields.usage != UsageAsk::NotAsked);
        if !usage.is_empty() {
            let options = &mut expected["stream_options"];
            if !options.is_object() {
                *options = json!({});
            }
            options["include_usage"] = json!(true);
        }
        let after: Value = serde_json::from_str(&spliced(&usage, &body)).expect("still valid");
        prop_assert_eq!(&after, &expected);
        expected["model"] = json!(name);
        let both = usage.merge(rewrite_model(&fields, &name));
        let after: Value = serde_json::from_str(&spliced(&both, &body)).expect("still valid");
        prop_assert_eq!(after, expected);
    }
}
