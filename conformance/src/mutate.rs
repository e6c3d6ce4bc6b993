//! Random changes of bytes, as an attacker's tool makes them. The same generator gives the same changes.

/// What parsers have stumbled over.
const MORSELS: &[&[u8]] = &[
    b"\r",
    b"\n",
    b"\r\n",
    b"\n\n",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b"\0",
    b"\x0b",
    b"\x0c",
    b"\x7f",
    b"\x85",
    b"\xa0",
    b"\xff",
    b":",
    b";",
    b",",
    b"\"",
    b"=",
    b"0",
    b"+",
    b"-",
    b"_",
    b"0x",
    b"0\r\n\r\n",
    b"ffffffffffffffff",
    b"%0d%0a",
    b"Content-Length: 0\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length:",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Host: b\r\n",
    b"Connection: close\r\n",
    b"Connection: content-length\r\n",
    b"Expect: 100-continue\r\n",
    b" HTTP/1.1\r\n",
    b" HTTP/1.0\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n",
    b";a=b",
    b";a=\"b\r\n\"",
    b"chunked",
    b", chunked",
    b"Trailer: a\r\n",
    b"X-A: b\r\n",
    b"http://a/",
    b"[::1]",
];

/// One to three changes of `base`; some take bytes from `other`.
pub fn mutate(rng: &mut fastrand::Rng, base: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = base.to_vec();
    for _ in 0..rng.usize(1..=3) {
        change(rng, &mut bytes, other);
    }
    bytes
}

fn change(rng: &mut fastrand::Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    if bytes.is_empty() {
        bytes.extend_from_slice(other);
        return;
    }
    let at = rng.usize(..bytes.len());
    let morsel = MORSELS[rng.usize(..MORSELS.len())];
    match rng.u8(..10) {
        0 => bytes[at] = rng.u8(..),
        1 => bytes[at] ^= 1 << rng.u8(..8),
        2 => drop(bytes.remove(at)),
        3 | 4 => drop(bytes.splice(at..at, morsel.iter().copied())),
        5 => {
            let end = (at + morsel.len()).min(bytes.len());
            bytes.splice(at..end, morsel.iter().copied());
        }
        6 => {
            // A line twice, or gone.
            let begin = bytes[..at].iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
            let end = bytes[at..].iter().position(|&b| b == b'\n').map_or(bytes.len(), |i| at + i + 1);
            let line = bytes[begin..end].to_vec();
            if rng.bool() {
                bytes.splice(begin..begin, line);
            } else {
                bytes.drain(begin..end);
            }
        }
        7 => {
            // A number one more or less.
            if let Some(digit) = bytes[at..].iter().position(u8::is_ascii_digit) {
                let digit = &mut bytes[at + digit];
                *digit = if rng.bool() { (*digit + 1).min(b'9') } else { (*digit - 1).max(b'0') };
            }
        }
        8 => {
            // A line break of another kind.
            if let Some(cr) = bytes[at..].windows(2).position(|window| window == b"\r\n") {
                bytes.remove(at + cr + usize::from(rng.bool()));
            }
        }
        _ => {
            let from = rng.usize(..=other.len());
            let piece = &other[from..(from + rng.usize(..40)).min(other.len())];
            bytes.splice(at..at, piece.iter().copied());
        }
    }
}
