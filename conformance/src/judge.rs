//! What was seen, as a verdict, and whether a case allows it.
//!
//! A verdict is the statuses of the answers before the probe's, `cut` behind one that did not end, then `close` if the
//! connection ended without an answer to the probe, or `wait` if nothing more came: `200`, `100 200`, `400 close`.

use crate::case::{Case, PROBE_BODY, Side};
use crate::wire::{Seen, probe_answered};

/// The verdict on one run.
pub fn verdict(seen: &Seen) -> String {
    let probed = probe_answered(&seen.answers);
    let answers = &seen.answers[..seen.answers.len() - usize::from(probed)];
    let mut words: Vec<String> = Vec::new();
    for answer in answers {
        words.push(answer.status.to_string());
        if !answer.complete {
            words.push("cut".to_owned());
        }
    }
    if !probed {
        words.push(if seen.closed { "close" } else { "wait" }.to_owned());
    }
    words.join(" ")
}

/// Bodies at the engine without the probe's.
fn engine_bodies(seen: &Seen) -> Vec<&[u8]> {
    let mut bodies: Vec<&[u8]> = seen.engine.iter().map(|message| message.body.as_slice()).collect();
    if bodies.last() == Some(&PROBE_BODY.as_bytes()) {
        bodies.pop();
    }
    bodies
}

/// The gateway's run of a case; `Err` says what is not as the case asks.
pub fn check(case: &Case, seen: &Seen) -> Result<(), String> {
    let verdict = verdict(seen);
    if !case.allow.contains(&verdict) {
        return Err(format!("{verdict:?} is none of {:?}", case.allow));
    }
    if let Some(error) = &seen.engine_error {
        return Err(format!("the engine could not read what it got: {error}"));
    }
    let expected: Vec<&[u8]> = case.engine.iter().map(Vec::as_slice).collect();
    let bodies = engine_bodies(seen);
    if bodies != expected {
        let show = |bodies: &[&[u8]]| bodies.iter().map(|b| b.escape_ascii().to_string()).collect::<Vec<_>>();
        return Err(format!("the engine got {:?}, not {:?}", show(&bodies), show(&expected)));
    }
    if let Some(first) = seen.engine.first() {
        let line = |wanted: &String| first.headers.iter().any(|(n, v)| format!("{n}: {v}") == *wanted);
        if let Some(missing) = case.engine_has.iter().find(|wanted| !line(wanted)) {
            return Err(format!("the engine did not get {missing:?}, but {:?}", first.headers));
        }
        let name = |name: &&String| first.headers.iter().any(|(n, _)| n == *name);
        if let Some(leaked) = case.engine_lacks.iter().find(name) {
            return Err(format!("the engine got {leaked:?}"));
        }
    }
    let first = seen.answers.iter().find(|answer| answer.status >= 200);
    match (&case.answer, first) {
        (Some(body), Some(first)) if first.body != *body => {
            Err(format!("the client got {:?}", first.body.escape_ascii().to_string()))
        }
        (_, Some(first))
            if verdict.starts_with("502") && !crate::wire::holds(&first.body, b"bad_upstream") =>
        {
            Err(format!("not bad_upstream_response: {:?}", first.body.escape_ascii().to_string()))
        }
        _ => Ok(()),
    }
}

/// Another proxy's run: the same decision, whatever the status; nothing smuggled past it.
pub fn check_peer(case: &Case, seen: &Seen) -> Result<(), String> {
    let told = verdict(seen);
    let expected: Vec<&[u8]> = case.engine.iter().map(Vec::as_slice).collect();
    let bodies = engine_bodies(seen);
    let last = seen.answers.iter().find(|answer| answer.status >= 200);
    let error = last.is_none_or(|answer| answer.status >= 400 || answer.status < 100 || !answer.complete);
    if case.refused() {
        let reached = case.side == Side::Request && !bodies.is_empty();
        return if error && !reached && !told.ends_with("wait") { Ok(()) } else { Err(told) };
    }
    if error || told.contains("wait") || case.side == Side::Request && bodies != expected {
        return Err(told);
    }
    match (&case.answer, last) {
        (Some(body), Some(last)) if last.body != *body => Err(format!("{told}, another body")),
        _ => Ok(()),
    }
}
