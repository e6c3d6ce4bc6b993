use super::*;

fn chunk(text: &str) -> String {
    serde_json::json!({"choices": [{"index": 0, "delta": {"content": text}}]}).to_string()
}

const LENGTH: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}"#;
const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;

/// Checks a stream of texts and raw events (those that begin with `{` or are `[DONE]`), 4 tokens asked for.
fn check(mode: TokenCheck, events: &[&str]) -> Verdict {
    let mut checker = Checker::new(mode, "me", false);
    for event in events {
        let raw = event.starts_with('{') || *event == "[DONE]";
        checker.event(if raw { (*event).to_owned() } else { chunk(event) }.as_bytes());
    }
    checker.finish(4)
}

#[rstest::rstest]
#[case::whole(&["me:0 ", "me:1 ", "me:2 ", "me:3 ", LENGTH, "[DONE]"], None)]
#[case::merged(&["me:0 me:1 me:2", " me:3 ", LENGTH, "[DONE]"], None)]
#[case::stopped_early(&["me:0 ", "me:1 ", STOP, "[DONE]"], None)]
#[case::lost_first(&["me:1 ", "me:2 ", "me:3 ", LENGTH, "[DONE]"], Some(Violation::Lost))]
#[case::lost(&["me:0 ", "me:2 ", "me:3 ", LENGTH, "[DONE]"], Some(Violation::Lost))]
#[case::lost_last(&["me:0 ", "me:1 ", "me:2 ", LENGTH, "[DONE]"], Some(Violation::Lost))]
#[case::lost_by_usage(
    &["me:0 ", STOP, r#"{"choices":[],"usage":{"completion_tokens":2}}"#, "[DONE]"], Some(Violation::Lost)
)]
#[case::cut_inside(&["me:0 ", "me:1", STOP, "[DONE]"], Some(Violation::Lost))]
#[case::repeated(&["me:0 ", "me:1 ", "me:1 ", "me:2 ", "me:3 ", LENGTH, "[DONE]"], Some(Violation::Repeated))]
#[case::reordered(&["me:0 ", "me:2 ", "me:1 ", "me:3 ", LENGTH, "[DONE]"], Some(Violation::Repeated))]
#[case::surplus(&["me:0 me:1 me:2 me:3 me:4 ", LENGTH, "[DONE]"], Some(Violation::Repeated))]
#[case::foreign(&["me:0 ", "you:1 ", "me:1 ", "me:2 ", "me:3 ", LENGTH, "[DONE]"], Some(Violation::Foreign))]
#[case::foreign_longer_tag(&["mer:0 ", STOP, "[DONE]"], Some(Violation::Foreign))]
#[case::foreign_choice(&["me/1:0 ", STOP, "[DONE]"], Some(Violation::Foreign))]
#[case::foreign_text(&["me:0 ", "hello ", STOP, "[DONE]"], Some(Violation::Foreign))]
#[case::no_done(&["me:0 ", "me:1 ", STOP], Some(Violation::MissingTerminator))]
#[case::after_done(&["me:0 ", STOP, "[DONE]", "me:1 "], Some(Violation::AfterTerminator))]
#[case::done_twice(&["me:0 ", STOP, "[DONE]", "[DONE]"], Some(Violation::AfterTerminator))]
#[case::bad_json(&["me:0 ", "{", STOP, "[DONE]"], Some(Violation::BadJson))]
#[case::done_is_a_whole_line(&["me:0 ", "{\"choices\":[{\"delta\":{\"content\":\"[DONE]\"}}]}", STOP],
    Some(Violation::MissingTerminator))]
fn streams_of_a_simulated_engine(#[case] events: &[&str], #[case] expected: Option<Violation>) {
    assert_eq!(check(TokenCheck::Auto, events).violation, expected);
}

#[rstest::rstest]
#[case::auto(TokenCheck::Auto, None)]
#[case::off(TokenCheck::Off, None)]
#[case::strict(TokenCheck::Strict, Some(Violation::Foreign))]
fn streams_of_a_real_engine(#[case] mode: TokenCheck, #[case] expected: Option<Violation>) {
    assert_eq!(check(mode, &["Hello, ", "world. ", STOP, "[DONE]"]).violation, expected);
}

#[test]
fn an_empty_strict_stream_has_lost_all() {
    assert_eq!(check(TokenCheck::Strict, &["[DONE]"]).violation, Some(Violation::Lost));
    assert_eq!(check(TokenCheck::Strict, &["[DONE]"]).counts.lost, 4);
}

#[test]
fn an_error_event_stands_for_the_terminator() {
    let verdict = check(TokenCheck::Auto, &["me:0 ", r#"{"error":{"message":"engine died"}}"#]);
    assert_eq!((verdict.violation, verdict.error_event), (None, true));
}

#[test]
fn counts_tell_how_many() {
    let counts = check(TokenCheck::Auto, &["me:0 ", "me:3 ", "me:3 ", "you:0 ", "x ", STOP, "[DONE]"]).counts;
    assert_eq!(counts, TokenCounts { numbered: 4, untagged: 1, lost: 2, repeated: 1, foreign: 1 });
}

#[test]
fn each_choice_has_its_own_numbers() {
    let mut checker = Checker::new(TokenCheck::Auto, "me", false);
    let chunks = [(0, "me:0 "), (1, "me/1:0 "), (1, "me/1:1 "), (0, "me:1 ")];
    for (index, text) in chunks {
        let event = serde_json::json!({"choices": [{"index": index, "text": text}]}).to_string();
        assert_eq!(checker.event(event.as_bytes()), EventKind::Content);
    }
    for index in 0..2 {
        let event = serde_json::json!({"choices": [{"index": index, "text": "", "finish_reason": "length"}]});
        assert_eq!(checker.event(event.to_string().as_bytes()), EventKind::Other);
    }
    checker.event(b"[DONE]");
    assert_eq!(checker.finish(2).violation, None);
}

#[test]
fn whole_bodies_and_kept_text() {
    let body = r#"{"choices":[{"message":{"content":"me:0 me:1 me:2 me:3 "},"finish_reason":"length"}],
                   "usage":{"completion_tokens":4}}"#;
    let mut checker = Checker::new(TokenCheck::Strict, "me", true);
    checker.body(body.as_bytes());
    let verdict = checker.finish(4);
    assert_eq!((verdict.violation, verdict.text.as_str()), (None, "me:0 me:1 me:2 me:3 "));
}
