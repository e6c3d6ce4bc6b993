//! Streams recorded from real engines, through head, chunks and events, however they are split.

use crate::http1::{Chunk, Decoder, HeadLimits, ResponseBody, find_head_end, parse_response};
use crate::sse::{EventKind, Framer, Piece, parse_event};

const VLLM: &[u8] = include_bytes!("data/vllm-chat-stream-usage.rawhttp");
const VLLM_STOPPED: &[u8] = include_bytes!("data/vllm-stream-at-sigterm.rawhttp");
const LLAMACPP: &[u8] = include_bytes!("data/llamacpp-chat-stream-usage.rawhttp");
const LLAMACPP_MESSAGES: &[u8] = include_bytes!("data/llamacpp-messages-stream.rawhttp");

/// What a reader saw: data events, terminators, names; whether the body ended and whether an event is left incomplete.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    data: usize,
    done: usize,
    last_name: Option<String>,
    body_ended: bool,
    incomplete: bool,
}

/// Reads a recorded answer as if each read gave `step` bytes.
fn read(wire: &[u8], step: usize) -> Seen {
    let head_end = find_head_end(wire, 0).expect("a head");
    let head = parse_response(&wire[..head_end], &HeadLimits::default(), false).expect("a valid head");
    assert_eq!((head.status, head.body), (200, ResponseBody::Chunked));
    assert_eq!(head.headers.get_str("content-type").map(|t| t.starts_with("text/event-stream")), Some(true));
    let mut seen = Seen { data: 0, done: 0, last_name: None, body_ended: false, incomplete: false };
    let (mut decoder, mut framer) = (Decoder::new(), Framer::new());
    for mut input in wire[head_end..].chunks(step) {
        while !input.is_empty() {
            let consumed = match decoder.decode(input).expect("valid chunks") {
                Chunk::Data { start, end, consumed } => {
                    framer.push(&input[start..end], |piece| {
                        let Piece::Event(raw) = piece else { panic!("short events stay whole") };
                        let event = parse_event(raw);
                        match event.kind {
                            EventKind::Done => seen.done += 1,
                            EventKind::Data(json) => {
                                assert!(json.starts_with(b"{") && json.ends_with(b"}"));
                                seen.data += 1;
                            }
                            EventKind::Comment => panic!("no comments here"),
                        }
                        seen.last_name = event.event.map(str::to_owned);
                    });
                    consumed
                }
                Chunk::More { consumed } => consumed,
                Chunk::End { consumed } => {
                    seen.body_ended = true;
                    assert_eq!(consumed, input.len(), "nothing follows");
                    consumed
                }
            };
            input = &input[consumed..];
        }
    }
    seen.incomplete = framer.incomplete();
    seen
}

#[test]
fn recorded_streams() {
    let seen = |data, done, name: Option<&str>, body_ended| Seen {
        data,
        done,
        last_name: name.map(str::to_owned),
        body_ended,
        incomplete: false,
    };
    let cases = [
        (VLLM, seen(10, 1, None, true)),
        (VLLM_STOPPED, seen(6, 0, None, false)),
        (LLAMACPP, seen(10, 1, None, true)),
        (LLAMACPP_MESSAGES, seen(13, 0, Some("message_stop"), true)),
    ];
    for (wire, expect) in cases {
        for step in [wire.len(), 1, 2, 7, 100] {
            assert_eq!(read(wire, step), expect, "{step} bytes a read");
        }
    }
}
