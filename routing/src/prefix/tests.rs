use super::*;
use crate::scan::RequestScan;
use proptest::prelude::*;
use serde_json::json;

fn key(body: &str) -> String {
    let mut scan = RequestScan::new(64);
    scan.feed(body.as_bytes()).expect("valid");
    let fields = scan.finish(body.as_bytes()).expect("has a model");
    let mut out = SmallVec::from_slice(b"left over");
    prefix_key(&fields, body.as_bytes(), &mut out);
    assert!(out.len() <= PREFIX_KEY_LEN && !out.spilled());
    String::from_utf8_lossy(&out).into_owned()
}

/// The contract's example, and 64 bytes of whatever is longer.
#[test]
fn prefix_key_is_the_rendered_chat_cut_at_64_bytes() {
    let chat = r#""messages":[{"role":"system","content":"S"},{"role":"user","content":"U"}]"#;
    assert_eq!(key(&format!(r#"{{"model":"m",{chat}}}"#)), "system\nS\nuser\nU\n");
    let parts =
        r#""messages":[{"role":"system","content":[{"type":"text","text":"S"},{"type":"text","text":"T"}]}]"#;
    assert_eq!(key(&format!(r#"{{"model":"m",{parts}}}"#)), "system\nST\n", "parts in order");
    let long = "0123456789".repeat(9);
    assert_eq!(key(&format!(r#"{{"model":"m","prompt":"{long}"}}"#)), long[..64]);
}

#[test]
fn rendered_prompts() {
    for (members, expected) in [
        (
            r#""messages":[{"role":"system","content":"S"},{"role":"user","content":"U"}]"#,
            "system\nS\nuser\nU\n",
        ),
        (r#""messages":[{"content":"S","role":"system"}]"#, "system\nS\n"),
        (
            r#""messages":[ { "x" : {"role":"no"}, "role" : "user" , "content" : "a\n\"\u00e9" } ]"#,
            "user\na\n\"é\n",
        ),
        (
            r#""messages":[{"role":"user","content":[{"type":"text","text":"a"},
                {"type":"image_url","image_url":{"url":"u"}},{"text":"b","type":"text"}]}]"#,
            "user\nab\n",
        ),
        (
            r#""messages":[{"role":"user","content":["a","b"]},{"role":"user","content":[]}]"#,
            "user\nab\nuser\n\n",
        ),
        (
            r#""messages":[{"role":"assistant","content":null,"tool_calls":[{}]},{"role":"tool","content":"t"}]"#,
            "assistant\n\ntool\nt\n",
        ),
        (r#""messages":[1,"x",{"content":"a"}]"#, "\na\n"),
        (r#""messages":[]"#, ""),
        (r#""messages":"a""#, ""),
        (r#""messages":null,"prompt":"p""#, "p"),
        (r#""prompt":"Once upon\ta time""#, "Once upon\ta time"),
        (r#""prompt":["first","second"]"#, "first"),
        (r#""prompt":[ 12, 345,6 ]"#, "12 345 6 "),
        (r#""prompt":[[1,2],[3]]"#, "1 2 "),
        (r#""prompt":[]"#, ""),
        (r#""prompt":[{}]"#, ""),
        (r#""prompt":7"#, ""),
        (r#""input":["a","b"]"#, "a"),
        (r#""x":1"#, ""),
    ] {
        assert_eq!(key(&format!(r#"{{"model":"m",{members}}}"#)), expected, "{members}");
    }
}

#[test]
fn a_key_is_64_bytes_long_at_most() {
    let long = "0123456789".repeat(10);
    for members in [
        format!(r#""prompt":"{long}""#),
        format!(r#""prompt":"{}""#, "\\u0061".repeat(100)),
        format!(r#""messages":[{{"role":"user","content":"{long}"}},{{"role":"user","content":"more"}}]"#),
        format!(r#""messages":[{{"content":"{long}","role":"user"}}]"#),
        format!(
            r#""messages":[{{"role":"user","content":[{{"type":"text","text":"{long}"}},{{"text":"more"}}]}}]"#
        ),
        format!(r#""messages":[{{"role":"{long}","content":"c"}}]"#),
        format!(r#""prompt":[{}]"#, vec!["1"; 100].join(",")),
    ] {
        assert_eq!(key(&format!(r#"{{{members},"model":"m"}}"#)).len(), PREFIX_KEY_LEN, "{members}");
    }
}

#[test]
fn the_look_into_a_prompt_is_bounded() {
    let image = |len: usize| {
        let url = "A".repeat(len);
        key(&format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":[{{"image_url":"{url}"}},{{"text":"look"}}]}}]}}"#
        ))
    };
    assert_eq!(image(100_000), "user\nlook\n");
    assert_eq!(image(2 << 20), "user\n\n");
}

proptest! {
    /// The key is the beginning of the whole rendering.
    #[test]
    fn is_the_beginning_of_the_prompt(
        messages in prop::collection::vec(("[a-z]{0,6}", "[a-zé😀\"\\\\\n ]{0,40}", any::<bool>()), 0..5),
    ) {
        let rendered: String = messages.iter().map(|(role, content, _)| format!("{role}\n{content}\n")).collect();
        let body = json!({
            "messages": messages.iter().map(|(role, content, parts)| {
                let half = content.chars().count() / 2;
                let (a, b): (String, String) =
                    (content.chars().take(half).collect(), content.chars().skip(half).collect());
                if *parts {
                    json!({"role": role, "content": [{"type": "text", "text": a}, {"type": "text", "text": b}]})
                } else {
                    json!({"role": role, "content": content})
                }
            }).collect::<Vec<_>>(),
            "model": "m",
        });
        let start = &rendered.as_bytes()[..rendered.len().min(PREFIX_KEY_LEN)];
        prop_assert_eq!(key(&body.to_string()), String::from_utf8_lossy(start));
    }
}
