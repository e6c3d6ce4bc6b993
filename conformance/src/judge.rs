//! What was seen, as a verdict, and whether a case allows it.
//!
//! A verdict is the statuses of the answers before the probe's, `cut` behind one that did not end, then `close` if the
//! connection ended without an answer to the probe, or `wait` if nothing more came: `200`, `100 200`, `400 close`.

use crate::case::{Case, PROBE_BODY, Side, refuses};
use crate::wire::{Answer, Seen, probe_answered};

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
    let expected = expected(case, &verdict);
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
    let first = seen.answers.iter().find(|answer| answer.status >= 200 || answer.status < 100);
    let refused = first.is_none_or(|answer| answer.status >= 400 || !answer.complete);
    let expected = if refused { Vec::new() } else { expected(case, &told) };
    let reached = case.side == Side::Response || engine_bodies(seen) == expected;
    let closes = |answer: &Answer| answer.headers.iter().any(|(n, v)| n == "connection" && v == "close");
    // Some announce the end and wait a little for the client's.
    let waits = told.ends_with("wait") && !seen.answers.last().is_some_and(closes);
    // Of an engine's garbage nothing may come through; a refusal in HTTP/0.9 is still one.
    let garbage = case.side == Side::Response && seen.answers.iter().any(|answer| answer.status == 0);
    let decided = if refused { case.allow.iter().any(|v| refuses(v)) } else { !case.refused() };
    let body = refused || case.answer.as_ref().is_none_or(|body| first.is_some_and(|f| f.body == *body));
    if decided && reached && body && !waits && !garbage { Ok(()) } else { Err(told) }
}

/// Bodies that a case wants at the engine; none for a refusal where a case allows either.
fn expected<'c>(case: &'c Case, verdict: &str) -> Vec<&'c [u8]> {
    let either = !case.refused() && case.allow.iter().any(|v| refuses(v));
    if either && refuses(verdict) && case.allow.iter().any(|v| v.starts_with("200")) {
        return Vec::new();
    }
    case.engine.iter().map(Vec::as_slice).collect()
}
