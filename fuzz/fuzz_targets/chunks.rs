//! The chunked decoder against a naive reference that sees the whole input, and against itself under other splits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmgw_dataplane::http1::chunked::{MAX_EXTENSION_BYTES, MAX_EXTENSION_BYTES_TOTAL, MAX_TRAILER_BYTES};
use llmgw_dataplane::http1::{Chunk, ChunkError, Decoder};
use llmgw_fuzz::{every_byte, ranges, split_recipe};

/// Data, and the length of the body once it is complete.
type Outcome = Result<(Vec<u8>, Option<usize>), ChunkError>;

fuzz_target!(|data: &[u8]| {
    let Some((input, cuts)) = split_recipe(data) else { return };
    let whole = decode(input, &[]);
    assert_eq!(decode(input, &cuts), whole);
    assert_eq!(decode(input, &every_byte(input)), whole);
    let complete = match whole {
        Ok((data, Some(end))) => Some((data, end)),
        _ => None,
    };
    assert_eq!(complete, reference(input));
});

fn decode(input: &[u8], cuts: &[usize]) -> Outcome {
    let mut decoder = Decoder::new();
    let mut data = Vec::new();
    for range in ranges(cuts, input.len()) {
        let mut at = range.start;
        while at < range.end {
            match decoder.decode(&input[at..range.end])? {
                Chunk::Data { start, end, consumed } => {
                    assert!(start < end && end <= consumed);
                    data.extend_from_slice(&input[at + start..at + end]);
                    at += consumed;
                }
                Chunk::More { consumed } => {
                    assert_eq!(at + consumed, range.end);
                    at = range.end;
                }
                Chunk::End { consumed } => return Ok((data, Some(at + consumed))),
            }
        }
    }
    Ok((data, None))
}

/// The data and length of a complete, valid body at the start of `input`.
fn reference(input: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut data, mut at, mut extensions_total) = (Vec::new(), 0, 0);
    loop {
        let (line, after) = line_at(input, at)?;
        let digits = line.split(|&b| b == b';').next()?;
        let extensions = &line[digits.len()..];
        extensions_total += extensions.len();
        let bounded = extensions.len() <= MAX_EXTENSION_BYTES as usize
            && extensions_total <= MAX_EXTENSION_BYTES_TOTAL as usize;
        if digits.len() > 16
            || !digits.iter().all(u8::is_ascii_hexdigit)
            || !bounded
            || !valid_extensions(extensions)
        {
            return None;
        }
        let size = i64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        at = after;
        if size == 0 {
            break;
        }
        let end = at.checked_add(usize::try_from(size).ok()?)?;
        if input.get(end..end.checked_add(2)?)? != b"\r\n" {
            return None;
        }
        data.extend_from_slice(&input[at..end]);
        at = end + 2;
    }
    let trailers = at;
    loop {
        let (line, after) = line_at(input, at)?;
        at = after;
        if line.is_empty() {
            // The last LF completes the body and is not counted.
            return (at - trailers - 1 <= MAX_TRAILER_BYTES as usize).then_some((data, at));
        }
        let colon = line.iter().position(|&b| b == b':')?;
        if !is_token(&line[..colon]) || !line[colon..].iter().all(|&b| is_text(b)) {
            return None;
        }
    }
}

/// The line that starts at `at`, and what follows its CRLF. No CR or LF may stand alone in it.
fn line_at(input: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let line = &input[at..at + input[at..].windows(2).position(|w| w == b"\r\n")?];
    (!line.contains(&b'\n') && !line.contains(&b'\r')).then_some((line, at + line.len() + 2))
}

fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|b| b.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(b))
}

/// `*( ";" BWS name BWS [ "=" BWS value BWS ] )`, where white space may not end the line unless a value came before.
fn valid_extensions(mut rest: &[u8]) -> bool {
    while !rest.is_empty() {
        let Some(after) = rest.strip_prefix(b";") else { return false };
        let (name, after) = take_token(skip_blanks(after));
        let blanks = after.len() - skip_blanks(after).len();
        rest = skip_blanks(after);
        if name.is_empty() || (rest.is_empty() && blanks > 0) {
            return false;
        }
        if let Some(value) = rest.strip_prefix(b"=") {
            let Some(after) = take_value(skip_blanks(value)) else { return false };
            rest = skip_blanks(after);
        }
    }
    true
}

fn skip_blanks(bytes: &[u8]) -> &[u8] {
    &bytes[bytes.iter().take_while(|b| matches!(b, b' ' | b'\t')).count()..]
}

fn take_token(bytes: &[u8]) -> (&[u8], &[u8]) {
    bytes.split_at(bytes.iter().take_while(|&&b| is_token(&[b])).count())
}

/// What follows a token or a quoted string.
fn take_value(bytes: &[u8]) -> Option<&[u8]> {
    let Some(mut rest) = bytes.strip_prefix(b"\"") else {
        let (token, rest) = take_token(bytes);
        return (!token.is_empty()).then_some(rest);
    };
    loop {
        rest = match rest {
            [b'"', after @ ..] => return Some(after),
            [b'\\', escaped, after @ ..] if is_text(*escaped) => after,
            [byte, after @ ..] if is_text(*byte) && *byte != b'\\' => after,
            _ => return None,
        };
    }
}
