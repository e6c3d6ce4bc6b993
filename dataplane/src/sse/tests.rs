//! Framing under every split, the meaning of events, and what the gateway writes.

use super::*;
use proptest::prelude::*;
use std::borrow::Cow;

/// An owned [`Piece`].
#[derive(Debug, Clone, PartialEq, Eq)]
enum Got {
    Event(Vec<u8>),
    Raw(Vec<u8>),
}

fn collect(into: &mut Vec<Got>, piece: Piece<'_>) {
    match (piece, into.last_mut()) {
        (Piece::Event(bytes), _) => into.push(Got::Event(bytes.to_vec())),
        // How the parts of a long event are cut is not part of the contract.
        (Piece::Raw(bytes), Some(Got::Raw(last))) => last.extend_from_slice(bytes),
        (Piece::Raw(bytes), _) => into.push(Got::Raw(bytes.to_vec())),
    }
}

/// Pieces, and the tail that is held after them, of `input` given in pieces that end at `cuts` (ascending).
fn frame(input: &[u8], cuts: &[usize], finish: bool) -> (Vec<Got>, Vec<u8>) {
    let mut framer = Framer::new();
    let mut pieces = Vec::new();
    let mut from = 0;
    for cut in cuts.iter().copied().chain([input.len()]) {
        framer.push(&input[from..cut], |piece| collect(&mut pieces, piece));
        from = cut;
        assert_eq!(framer.incomplete(), framer.in_overflow() || !framer.held().is_empty());
    }
    if finish {
        framer.finish(|piece| collect(&mut pieces, piece));
    }
    (pieces, framer.held().to_vec())
}

fn joined((pieces, tail): &(Vec<Got>, Vec<u8>)) -> Vec<u8> {
    let mut all = Vec::new();
    for piece in pieces {
        let (Got::Event(bytes) | Got::Raw(bytes)) = piece;
        all.extend_from_slice(bytes);
    }
    all.extend_from_slice(tail);
    all
}

fn every_byte(input: &[u8]) -> Vec<usize> {
    (1..input.len()).collect()
}

#[test]
fn events_are_cut_at_blank_lines() {
    // (input, events, held tail)
    let cases: &[(&str, &[&str], &str)] = &[
        ("", &[], ""),
        ("data: a", &[], "data: a"),
        ("data: a\n", &[], "data: a\n"),
        ("data: a\n\n", &["data: a\n\n"], ""),
        ("data: a\n\ndata: b\n\nda", &["data: a\n\n", "data: b\n\n"], "da"),
        ("data: a\r\n\r\ndata: b\r\n\r\n", &["data: a\r\n\r\n", "data: b\r\n\r\n"], ""),
        ("data: a\r\rdata: b\r\r", &["data: a\r\r", "data: b\r\r"], ""),
        ("data: a\r\n\ndata: b\n\r\n", &["data: a\r\n\n", "data: b\n\r\n"], ""),
        ("data: a\n\rdata: b\n\n", &["data: a\n\r", "data: b\n\n"], ""),
        // A CR that may become CRLF keeps its event waiting, unless the stream's lines end with CR.
        ("data: a\r\n\r", &[], "data: a\r\n\r"),
        ("data: a\r\r", &["data: a\r\r"], ""),
        ("data: a\r\r\n", &["data: a\r\r", "\n"], ""),
        ("\n\n: c\n\n", &["\n", "\n", ": c\n\n"], ""),
        ("\r\n\r\ndata: a\n\n", &["\r\n", "\r\n", "data: a\n\n"], ""),
        ("\u{feff}data: a\n\n", &["\u{feff}data: a\n\n"], ""),
        ("event: x\ndata: a\n\n", &["event: x\ndata: a\n\n"], ""),
        ("data: [DONE]\n\n", &["data: [DONE]\n\n"], ""),
    ];
    for (input, events, tail) in cases {
        let expect: Vec<_> = events.iter().map(|e| Got::Event(e.as_bytes().to_vec())).collect();
        let expect = (expect, tail.as_bytes().to_vec());
        assert_eq!(frame(input.as_bytes(), &[], false), expect, "{}", input.escape_debug());
        assert_eq!(
            frame(input.as_bytes(), &every_byte(input.as_bytes()), false),
            expect,
            "{}",
            input.escape_debug()
        );
    }
}

#[test]
fn whole_events_are_not_copied() {
    let input = b"data: a\n\ndata: b\n\n";
    let mut framer = Framer::new();
    let mut at = 0;
    framer.push(input, |piece| {
        let Piece::Event(bytes) = piece else { panic!("not an event") };
        assert_eq!(bytes.as_ptr(), input[at..].as_ptr());
        at += bytes.len();
    });
    assert_eq!(at, input.len());
}

#[test]
fn the_end_of_the_stream_settles_a_lone_cr() {
    let event = |bytes: &[u8]| vec![Got::Event(bytes.to_vec())];
    assert_eq!(frame(b"data: a\r\n\r", &[], true), (event(b"data: a\r\n\r"), vec![]));
    assert_eq!(frame(b"data: a\r\n\r", &[9], true), (event(b"data: a\r\n\r"), vec![]));
    assert_eq!(frame(b"data: a\r", &[], true), (vec![], b"data: a\r".to_vec()));
    assert_eq!(frame(b"data: a\n", &[], true), (vec![], b"data: a\n".to_vec()));
    assert_eq!(frame(b"data: a\n\n", &[], true), (event(b"data: a\n\n"), vec![]));
}

#[test]
fn long_events_stream_through() {
    let long = |bytes: usize| format!("{}\n\n", "x".repeat(bytes - 2)).into_bytes();
    let fits = long(MAX_EVENT_BYTES);
    assert_eq!(frame(&fits, &[], false).0, [Got::Event(fits.clone())]);
    assert_eq!(frame(&fits, &[10, 60_000], false).0, [Got::Event(fits.clone())]);
    let over = long(MAX_EVENT_BYTES + 1);
    let mut with_next = over.clone();
    with_next.extend_from_slice(b"data: a\n\n");
    let expect = [Got::Raw(over.clone()), Got::Event(b"data: a\n\n".to_vec())];
    for cuts in [&[][..], &[1], &[60_000], &[over.len() - 1], &[over.len()], &[20_000, 40_000, 65_536]] {
        assert_eq!(frame(&with_next, cuts, false).0, expect, "{cuts:?}");
    }
    let mut framer = Framer::new();
    framer.push(&over[..MAX_EVENT_BYTES], |_| panic!("held"));
    assert!(framer.incomplete() && !framer.in_overflow() && framer.held().len() == MAX_EVENT_BYTES);
    framer.push(&over[MAX_EVENT_BYTES..], |_| {});
    assert!(!framer.incomplete() && !framer.in_overflow() && framer.held().is_empty());
    framer.push(&vec![b'x'; MAX_EVENT_BYTES + 1], |_| {});
    assert!(framer.incomplete() && framer.in_overflow() && framer.held().is_empty());
}

fn data(text: &str) -> EventKind<'_> {
    EventKind::Data(Cow::Borrowed(text.as_bytes()))
}

#[test]
fn events_mean() {
    let cases: &[(&str, EventKind<'_>, Option<&str>)] = &[
        ("data: {\"a\":1}\n\n", data("{\"a\":1}"), None),
        ("data:{\"a\":1}\r\n\r\n", data("{\"a\":1}"), None),
        ("data:  two\r\r", data(" two"), None),
        ("data: a\ndata: b\n\n", data("a\nb"), None),
        ("data: a\r\ndata:b\r\ndata\r\n\r\n", data("a\nb\n"), None),
        ("data\n\n", data(""), None),
        ("data:\n\n", data(""), None),
        ("event: message_stop\ndata: {}\n\n", data("{}"), Some("message_stop")),
        ("data: {}\nevent: a\nevent:b\n\n", data("{}"), Some("b")),
        ("id: 7\nretry: 10\ndata: x\n: note\n\n", data("x"), None),
        // A mark that is not the stream's first bytes belongs to the line.
        ("\u{feff}data: x\n\n", EventKind::Comment, None),
        (": keep-alive\n\n", EventKind::Comment, None),
        ("event: ping\n\n", EventKind::Comment, Some("ping")),
        ("\n", EventKind::Comment, None),
        ("", EventKind::Comment, None),
        ("dataset: x\n\n", EventKind::Comment, None),
        (" data: x\n\n", EventKind::Comment, None),
        ("Data: x\n\n", EventKind::Comment, None),
        (":data: x\n\n", EventKind::Comment, None),
        // Only a whole data line ends a stream.
        ("data: [DONE]\n\n", EventKind::Done, None),
        ("data:[DONE]\r\n\r\n", EventKind::Done, None),
        ("event: e\ndata: [DONE]\n\n", EventKind::Done, Some("e")),
        ("data: [DONE] \n\n", data("[DONE] "), None),
        ("data:  [DONE]\n\n", data(" [DONE]"), None),
        ("data: \"[DONE]\"\n\n", data("\"[DONE]\""), None),
        ("data: a\ndata: [DONE]\n\n", data("a\n[DONE]"), None),
        ("data: [DONE]\ndata\n\n", data("[DONE]\n"), None),
        (": [DONE]\n\n", EventKind::Comment, None),
    ];
    for (raw, kind, event) in cases {
        let got = parse_event(raw.as_bytes());
        assert_eq!((&got.kind, got.event), (kind, *event), "{}", raw.escape_debug());
    }
}

#[test]
fn one_line_of_data_is_borrowed() {
    let kind = parse_event(b"event: x\ndata: {}\n\n").kind;
    assert!(matches!(kind, EventKind::Data(Cow::Borrowed(b"{}"))));
}

#[test]
fn what_the_gateway_writes_is_one_event() {
    for json in ["{\"error\":{}}", "{\n\"error\":{}\n}", ""] {
        let mut out = Vec::new();
        error_event(&mut out, json.as_bytes());
        assert_eq!(frame(&out, &[], false).0, [Got::Event(out.clone())]);
        assert_eq!(parse_event(&out).kind, data(json));
    }
    assert_eq!(frame(KEEP_ALIVE_COMMENT, &[], false).0, [Got::Event(KEEP_ALIVE_COMMENT.to_vec())]);
    assert_eq!(parse_event(KEEP_ALIVE_COMMENT).kind, EventKind::Comment);
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        3 => Just("\n"), 3 => Just("\r\n"), 3 => Just("\r"), 3 => Just("data: {}"), 1 => Just("data"), 1 => Just(": c"),
        1 => Just("é€😀"), 1 => Just("\u{feff}"), 1 => Just("x"),
    ];
    proptest::collection::vec(part, 0..24).prop_map(|parts| parts.concat().into_bytes())
}

/// The lines of `text` as the HTML standard splits them; the last one is what follows the last line end.
fn lines(text: &[u8]) -> Vec<Vec<u8>> {
    let text = text.to_vec();
    let (mut lines, mut line, mut at) = (Vec::new(), Vec::new(), 0);
    while at < text.len() {
        match text[at] {
            b'\r' | b'\n' => {
                at += usize::from(text[at..].starts_with(b"\r\n"));
                lines.push(std::mem::take(&mut line));
            }
            byte => line.push(byte),
        }
        at += 1;
    }
    lines.push(line);
    lines
}

proptest! {
    #[test]
    fn splits_change_nothing(
        input in stream(),
        mut cuts in proptest::collection::vec(0usize..200, 0..8),
        finish: bool,
    ) {
        let whole = frame(&input, &[], finish);
        prop_assert_eq!(&joined(&whole), &input);
        cuts.iter_mut().for_each(|c| *c = (*c).min(input.len()));
        cuts.sort_unstable();
        prop_assert_eq!(&frame(&input, &cuts, finish), &whole);
        prop_assert_eq!(&frame(&input, &every_byte(&input), finish), &whole);
    }

    /// A reader of the whole stream dispatches exactly the data that the pieces hold.
    #[test]
    fn the_meaning_survives(input in stream()) {
        let (pieces, _) = frame(&input, &[], true);
        let mut from_pieces = Vec::new();
        for piece in &pieces {
            let Got::Event(raw) = piece else { panic!("short events stay whole") };
            if let EventKind::Data(joined) = parse_event(raw).kind {
                from_pieces.push(joined.into_owned());
            }
        }
        let mut read: Vec<Vec<u8>> = Vec::new();
        let mut current: Option<Vec<u8>> = None;
        let mut all = lines(&input);
        all.pop();
        for line in all {
            match line.as_slice() {
                b"" => read.extend(current.take()),
                b"data" | b"data: {}" => {
                    let value = line.strip_prefix(b"data: ").unwrap_or_default();
                    match &mut current {
                        None => current = Some(value.to_vec()),
                        Some(data) => { data.push(b'\n'); data.extend_from_slice(value); }
                    }
                }
                other if other.starts_with(b"data:") => {
                    let value = &other[6..];
                    match &mut current {
                        None => current = Some(value.to_vec()),
                        Some(data) => { data.push(b'\n'); data.extend_from_slice(value); }
                    }
                }
                _ => {}
            }
        }
        prop_assert_eq!(from_pieces, read);
    }
}
