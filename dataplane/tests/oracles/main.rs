//! Event streams before and after the gateway, as readers by others understand them.
//!
//! Each case of the corpus goes through the gateway's framing and look into events, whole and split at every byte. What
//! a reader makes of what comes out must be what it makes of what went in, less what the gateway leaves out on purpose:
//! the usage chunk it asked for itself, and everything behind the terminator. The readers are a plain one written from
//! the HTML standard's text (`reader.rs`), and, where the set-up installed them, `httpx-sse`, the official `openai` and
//! `anthropic` clients and `eventsource-parser`.

mod corpus;
mod outside;
mod reader;

use corpus::{Case, corpus};
use llmgw_dataplane::exchange::{ClientFraming, Seen, StreamReply};
use llmgw_dataplane::sse::KEEP_ALIVE_COMMENT;
use outside::Reader;
use serde_json::Value;

/// Name and data.
type Event = (String, String);

/// What the gateway makes of a stream that ends after `input`, given in pieces that end at `cuts`; with a keep-alive
/// comment wherever one may stand, if wanted.
fn through(case: &Case, cuts: &[usize], comments: bool) -> Vec<u8> {
    let mut reply = StreamReply::new(200, Vec::new(), ClientFraming::Chunked, case.withhold);
    let (mut seen, mut out, mut from) = (Seen::default(), Vec::new(), 0);
    for cut in cuts.iter().copied().chain([case.input.len()]) {
        if comments && reply.comments_allowed() {
            out.extend_from_slice(KEEP_ALIVE_COMMENT);
        }
        reply.push(&case.input[from..cut], &[], &mut seen, &mut out);
        from = cut;
    }
    reply.finish(&[], &mut seen, &mut out);
    out
}

/// Every way to deliver a case: whole, byte by byte, and cut in two anywhere; with and without comments between.
fn every_way(case: &Case) -> Vec<(String, Vec<u8>)> {
    let len = case.input.len();
    let whole = through(case, &[], false);
    let mut ways = Vec::new();
    let every_byte: Vec<usize> = (1..len).collect();
    assert_eq!(through(case, &every_byte, false), whole, "{}: byte by byte", case.name);
    for cut in 1..len {
        assert_eq!(through(case, &[cut], false), whole, "{}: cut at {cut}", case.name);
        ways.push((format!("cut at {cut}, comments between"), through(case, &[cut], true)));
    }
    ways.push(("byte by byte, comments between".to_owned(), through(case, &every_byte, true)));
    ways.push(("whole".to_owned(), whole));
    ways
}

/// What is left of a stream's events by the gateway's own rules.
fn expected(case: &Case, events: Vec<Event>) -> Vec<Event> {
    let mut left = Vec::new();
    let mut failed = false;
    for (name, data) in events {
        let json: Option<Value> = serde_json::from_str(&data).ok();
        let is =
            |key: &str, what: fn(&Value) -> bool| json.as_ref().and_then(|j| j.get(key)).is_some_and(what);
        if data == "[DONE]" {
            if !failed {
                left.push((name, data));
            }
            break;
        }
        if is("error", Value::is_object) {
            failed = true;
            // Put into OpenAI's shape; the message stays.
            left.push(("message".to_owned(), message(&data)));
        } else if !(case.withhold
            && is("usage", Value::is_object)
            && is("choices", |c| c.as_array().is_some_and(Vec::is_empty)))
        {
            left.push((name, data));
        }
    }
    left
}

/// An error's message alone, of any other event its data.
fn message(data: &str) -> String {
    let json: Option<Value> = serde_json::from_str(data).ok();
    match json.as_ref().and_then(|json| json.get("error")).filter(|error| error.is_object()) {
        Some(error) => format!("error: {}", error["message"].as_str().unwrap_or_default()),
        None => data.to_owned(),
    }
}

fn messages(events: Vec<Event>) -> Vec<Event> {
    events.into_iter().map(|(name, data)| (name, message(&data))).collect()
}

/// Compares before and after for every case, as one of the readers outside sees them.
#[allow(clippy::print_stdout)] // how much was compared
fn agree(mut reader: Reader) {
    let mut compared = 0usize;
    for case in corpus() {
        let before = reader.read(&case.input);
        // A reader that starts anew for each stream is slow: the ways that differ in bytes are few.
        let mut after: Vec<_> = every_way(&case);
        after.sort_by(|a, b| a.1.cmp(&b.1));
        after.dedup_by(|a, b| a.1 == b.1);
        // Comments at a handful of places say what comments at every place say.
        let step = after.len().div_ceil(6).max(1);
        for (way, bytes) in after.into_iter().step_by(step) {
            for ((name, before), (same, after)) in before.iter().zip(reader.read(&bytes)) {
                assert_eq!(*name, same);
                if case.differs.contains(&name.as_str()) {
                    continue;
                }
                let want = expected(&case, before.clone());
                assert_eq!(messages(after), messages(want), "{name}, {}, {way}", case.name);
                compared += 1;
            }
        }
    }
    println!("{compared} comparisons");
}

#[test]
fn the_corpus_is_large_and_its_names_are_unique() {
    let cases = corpus();
    let mut names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), cases.len());
    assert!(cases.len() >= 120, "{}", cases.len());
}

#[test]
fn events_pass_as_the_standard_reads_them() {
    for case in corpus() {
        let want = messages(expected(&case, reader::events(&case.input)));
        for (way, bytes) in every_way(&case) {
            assert_eq!(messages(reader::events(&bytes)), want, "{}, {way}", case.name);
        }
    }
}

#[test]
fn oracle_python_reads_the_same_events() {
    if let Some(reader) = Reader::python() {
        agree(reader);
    }
}

#[test]
fn oracle_node_reads_the_same_events() {
    if let Some(reader) = Reader::node() {
        agree(reader);
    }
}
