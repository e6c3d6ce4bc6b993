//! The event framer: nothing is lost, splits change nothing, and a reader of the pieces sees what a reader of the
//! stream sees.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmgw_dataplane::sse::{EventKind, Framer, Piece, parse_event};
use llmgw_fuzz::{every_byte, ranges, split_recipe};

#[derive(Debug, PartialEq, Eq)]
enum Got {
    Event(Vec<u8>),
    Raw(Vec<u8>),
}

fuzz_target!(|data: &[u8]| {
    let Some((input, cuts)) = split_recipe(data) else { return };
    let whole = frame(input, &[]);
    assert_eq!(frame(input, &cuts), whole);
    assert_eq!(frame(input, &every_byte(input)), whole);
    let (pieces, tail) = whole;
    let mut joined = Vec::new();
    let mut read = Vec::new();
    for piece in &pieces {
        match piece {
            Got::Raw(raw) => joined.extend_from_slice(raw),
            Got::Event(raw) => {
                joined.extend_from_slice(raw);
                read.push(raw.as_slice());
            }
        }
    }
    joined.extend_from_slice(&tail);
    assert_eq!(joined, input);
    if pieces.iter().all(|p| matches!(p, Got::Event(_))) {
        let from_pieces: Vec<Vec<u8>> = read.into_iter().filter_map(data_of).collect();
        assert_eq!(from_pieces, dispatched(input));
    }
});

fn data_of(raw: &[u8]) -> Option<Vec<u8>> {
    match parse_event(raw).kind {
        EventKind::Comment => None,
        EventKind::Done => Some(b"[DONE]".to_vec()),
        EventKind::Data(data) => Some(data.into_owned()),
    }
}

/// Pieces of the stream, ended after `input`, and what stays held.
fn frame(input: &[u8], cuts: &[usize]) -> (Vec<Got>, Vec<u8>) {
    let mut framer = Framer::new();
    let mut pieces: Vec<Got> = Vec::new();
    let mut collect = |piece: Piece<'_>| match (piece, pieces.last_mut()) {
        (Piece::Event(bytes), _) => pieces.push(Got::Event(bytes.to_vec())),
        (Piece::Raw(bytes), Some(Got::Raw(last))) => last.extend_from_slice(bytes),
        (Piece::Raw(bytes), _) => pieces.push(Got::Raw(bytes.to_vec())),
    };
    for range in ranges(cuts, input.len()) {
        framer.push(&input[range], &mut collect);
        assert_eq!(framer.incomplete(), framer.in_overflow() || !framer.held().is_empty());
    }
    framer.finish(&mut collect);
    let tail = framer.held().to_vec();
    (pieces, tail)
}

/// The data a reader by the HTML standard dispatches.
fn dispatched(input: &[u8]) -> Vec<Vec<u8>> {
    let (mut events, mut data, mut line, mut at) = (Vec::new(), None::<Vec<u8>>, Vec::new(), 0);
    while at < input.len() {
        let byte = input[at];
        at += if input[at..].starts_with(b"\r\n") { 2 } else { 1 };
        if byte != b'\r' && byte != b'\n' {
            line.push(byte);
            continue;
        }
        let line = std::mem::take(&mut line);
        if line.is_empty() {
            events.extend(data.take());
            continue;
        }
        let (name, value) = match line.iter().position(|&b| b == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (&line[..], &[][..]),
        };
        if name == b"data" {
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match &mut data {
                None => data = Some(value.to_vec()),
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
            }
        }
    }
    events
}
