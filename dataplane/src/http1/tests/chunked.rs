//! The chunked decoder: tables, every split, and a naive reference.

use crate::http1::chunked::{MAX_EXTENSION_BYTES, MAX_EXTENSION_BYTES_TOTAL, MAX_TRAILER_BYTES};
use crate::http1::{Chunk, ChunkError, Decoder};
use proptest::prelude::*;

/// What a body decodes to: its data, and how much of the input belongs to it once complete.
type Outcome = Result<(Vec<u8>, Option<usize>), ChunkError>;

/// Decodes `input` given in pieces that end at `cuts` (ascending).
fn decode(input: &[u8], cuts: &[usize]) -> Outcome {
    let mut decoder = Decoder::new();
    let mut data = Vec::new();
    let mut from = 0;
    for cut in cuts.iter().copied().chain([input.len()]) {
        while from < cut {
            match decoder.decode(&input[from..cut])? {
                Chunk::Data { start, end, consumed } => {
                    assert!(start < end && end <= consumed);
                    data.extend_from_slice(&input[from + start..from + end]);
                    from += consumed;
                }
                Chunk::More { consumed } => {
                    assert_eq!(consumed, cut - from);
                    from = cut;
                }
                Chunk::End { consumed } => {
                    assert!(decoder.is_done());
                    assert_eq!(decoder.decode(b"0"), Err(ChunkError::Finished));
                    return Ok((data, Some(from + consumed)));
                }
            }
        }
    }
    Ok((data, None))
}

fn decode_at_every_byte(input: &[u8]) -> Outcome {
    decode(input, &(1..input.len()).collect::<Vec<_>>())
}

/// A whole-input decoder as plain as can be, without extensions and trailers.
fn reference(input: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut data, mut at) = (Vec::new(), 0);
    loop {
        let line_end = at + input[at..].windows(2).position(|w| w == b"\r\n")?;
        let digits = std::str::from_utf8(&input[at..line_end]).ok()?;
        if digits.is_empty() || digits.len() > 16 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let size = usize::try_from(i64::from_str_radix(digits, 16).ok()?).ok()?;
        at = line_end + 2;
        let end = at.checked_add(size)?;
        if input.get(end..end + 2)? != b"\r\n" {
            return None;
        }
        data.extend_from_slice(&input[at..end]);
        at = end + 2;
        if size == 0 {
            return Some((data, at));
        }
    }
}

#[test]
fn bodies_that_pass() {
    let cases: &[(&[u8], &[u8])] = &[
        (b"0\r\n\r\n", b""),
        (b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (b"5\r\nhel\r\n\r\n1\r\nx\r\n0\r\n\r\n", b"hel\r\nx"),
        (b"00a\r\n0123456789\r\n000\r\n\r\n", b"0123456789"),
        (b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
        (b"0000000000000001\r\nx\r\n0\r\n\r\n", b"x"),
        (b"1;a\r\nx\r\n0\r\n\r\n", b"x"),
        (b"1;a=b;c=\"d;\\\"\te\"\r\nx\r\n0;last\r\n\r\n", b"x"),
        (b"1; a = b ; c\r\nx\r\n0\r\n\r\n", b"x"),
        (b"1;a=\"\"\r\nx\r\n0\r\n\r\n", b"x"),
        (b"0\r\nA: b\r\nX-Sum:\r\n\r\n", b""),
    ];
    for (input, expect) in cases {
        let expect = Ok((expect.to_vec(), Some(input.len())));
        assert_eq!(decode(input, &[]), expect, "{}", input.escape_ascii());
        assert_eq!(decode_at_every_byte(input), expect, "{}", input.escape_ascii());
    }
}

#[test]
fn the_next_message_is_left_alone() {
    let input = b"1\r\nx\r\n0\r\n\r\nGET / HTTP/1.1\r\n";
    assert_eq!(decode(input, &[]), Ok((b"x".to_vec(), Some(11))));
}

#[test]
fn bodies_that_are_refused() {
    use ChunkError::{Extension, LineEnd, Size, SizeOverflow, Trailer};
    let cases: &[(&[u8], ChunkError)] = &[
        (b"\r\n", Size),
        (b"0x5\r\nhello\r\n", Size),
        (b" 5\r\nhello\r\n", Size),
        (b"5 \r\nhello\r\n", Size),
        (b"5 ;a\r\nhello\r\n", Size),
        (b"5\t\r\nhello\r\n", Size),
        (b"-5\r\nhello\r\n", Size),
        (b"+5\r\nhello\r\n", Size),
        (b"5_0\r\nhello\r\n", Size),
        (b"g\r\n", Size),
        (b"\xef\xbc\x95\r\nhello\r\n", Size),
        (b";a\r\n", Size),
        (b"5,5\r\nhello\r\n", Size),
        (b"5\nhello\r\n", LineEnd),
        (b"5\rhello\r\n", LineEnd),
        (b"5\r\nhello\n0\r\n\r\n", LineEnd),
        (b"5\r\nhello0\r\n\r\n", LineEnd),
        (b"5\r\nhello\rX", LineEnd),
        (b"5\r\nhelloworld\r\n", LineEnd),
        (b"00000000000000001\r\nx", SizeOverflow),
        (b"8000000000000000\r\n", SizeOverflow),
        (b"FFFFFFFFFFFFFFFF\r\n", SizeOverflow),
        (b"10000000000000000\r\n", SizeOverflow),
        (b"100000000000000005\r\nhello\r\n", SizeOverflow),
        (b"1;\r\nx\r\n", Extension),
        (b"1;;a\r\nx\r\n", Extension),
        (b"1;a=\r\nx\r\n", Extension),
        (b"1;a \r\nx\r\n", Extension),
        (b"1;a b\r\nx\r\n", Extension),
        (b"1;a\nx\r\n", Extension),
        (b"1;a\rx\r\n", LineEnd),
        (b"1;a\0\r\nx\r\n", Extension),
        (b"1;a=\"b\r\nx\r\n", Extension),
        (b"1;a=\"b\nc\"\r\nx\r\n", Extension),
        (b"1;a=\"b\\\n\"\r\nx\r\n", Extension),
        (b"1;a=\"b\x7f\"\r\nx\r\n", Extension),
        (b"1;=b\r\nx\r\n", Extension),
        (b"0\r\n\n", Trailer),
        (b"0\n\r\n", LineEnd),
        (b"0\r\n\rX", LineEnd),
        (b"0\r\nA : b\r\n\r\n", Trailer),
        (b"0\r\n A: b\r\n\r\n", Trailer),
        (b"0\r\n: b\r\n\r\n", Trailer),
        (b"0\r\nA\r\n\r\n", Trailer),
        (b"0\r\nA: b\n\r\n", Trailer),
        (b"0\r\nA: b\rC: d\r\n\r\n", LineEnd),
        (b"0\r\nA: b\0\r\n\r\n", Trailer),
        (b"0\r\nGET / HTTP/1.1\r\n\r\n", Trailer),
        (b"0\r\nA: b\r\n c\r\n\r\n", Trailer),
    ];
    for (input, expect) in cases {
        assert_eq!(decode(input, &[]), Err(*expect), "{}", input.escape_ascii());
        assert_eq!(decode_at_every_byte(input), Err(*expect), "{}", input.escape_ascii());
    }
}

#[test]
fn the_largest_size_only_asks_for_more() {
    let input = b"7fffffffffffffff\r\nx";
    assert_eq!(decode(input, &[]), Ok((b"x".to_vec(), None)));
}

#[test]
fn an_error_is_final() {
    let mut decoder = Decoder::new();
    assert_eq!(decoder.decode(b"x"), Err(ChunkError::Size));
    assert_eq!(decoder.decode(b"0\r\n\r\n"), Err(ChunkError::Finished));
    assert_eq!(decoder.decode(b""), Err(ChunkError::Finished));
}

#[test]
fn what_is_dropped_is_bounded() {
    let extension = |bytes: u32| format!("1;{}\r\nx\r\n", "a".repeat(bytes as usize - 1));
    let with_end = |body: String| decode(format!("{body}0\r\n\r\n").as_bytes(), &[]);
    assert!(with_end(extension(MAX_EXTENSION_BYTES)).is_ok());
    assert_eq!(with_end(extension(MAX_EXTENSION_BYTES + 1)), Err(ChunkError::ExtensionsTooLong));
    let chunks = (MAX_EXTENSION_BYTES_TOTAL / MAX_EXTENSION_BYTES) as usize;
    let full = extension(MAX_EXTENSION_BYTES).repeat(chunks);
    assert!(with_end(full.clone()).is_ok());
    assert_eq!(with_end(full + "1;a\r\nx\r\n"), Err(ChunkError::ExtensionsTooLong));
    let trailer =
        |bytes: u32| decode(format!("0\r\nA:{}\r\n\r\n", "b".repeat(bytes as usize - 5)).as_bytes(), &[]);
    assert!(trailer(MAX_TRAILER_BYTES).is_ok());
    assert_eq!(trailer(MAX_TRAILER_BYTES + 1), Err(ChunkError::TrailersTooLong));
}

fn encoded() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..6).prop_map(|chunks| {
        let mut wire = Vec::new();
        for chunk in &chunks {
            crate::http1::write::put_chunk_start(&mut wire, chunk.len());
            wire.extend_from_slice(chunk);
            wire.extend_from_slice(crate::http1::write::CHUNK_END);
        }
        wire.extend_from_slice(crate::http1::write::LAST_CHUNK);
        (chunks.concat(), wire)
    })
}

/// Near-valid bodies: framing bytes in any order.
fn mangled() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        4 => Just(&b"\r\n"[..]), 2 => Just(&b"1"[..]), 2 => Just(&b"2\r\n"[..]), 2 => Just(&b"0\r\n"[..]),
        1 => Just(&b"x"[..]), 1 => Just(&b"1\r\nx\r\n"[..]), 1 => Just(&b"\n"[..]), 1 => Just(&b"\r"[..]),
        1 => Just(&b";a"[..]), 1 => Just(&b"a: b"[..]), 1 => Just(&b" "[..]),
    ];
    proptest::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn what_is_written_is_read((data, wire) in encoded(), mut cuts in proptest::collection::vec(0usize..300, 0..8)) {
        cuts.iter_mut().for_each(|c| *c = (*c).min(wire.len()));
        cuts.sort_unstable();
        prop_assert_eq!(decode(&wire, &cuts), Ok((data, Some(wire.len()))));
    }

    #[test]
    fn splits_and_the_reference_agree(wire in mangled()) {
        let whole = decode(&wire, &[]);
        prop_assert_eq!(&decode_at_every_byte(&wire), &whole);
        let plain = !wire.iter().any(|b| b";:".contains(b));
        let complete = match whole { Ok((data, Some(end))) => Some((data, end)), _ => None };
        if plain {
            prop_assert_eq!(complete, reference(&wire));
        }
    }
}
