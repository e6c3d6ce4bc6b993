//! Walking over JSON that is known, or trusted, to be well-formed.
//!
//! **Invariant:** on text that is not JSON after all the walk returns something and ends; it never panics.

use super::text::{quote_or_backslash, word_at};
use memchr::memchr2;

/// What a byte outside of strings may mean, by bits.
static CLASS: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0u8;
    while byte < 128 {
        table[byte as usize] = match byte {
            b'"' | b'{' | b'[' | b'}' | b']' => STRUCTURE | ENDS_SCALAR | SEPARATED,
            b',' | b':' => ENDS_SCALAR | SEPARATED,
            b' ' | b'\t' | b'\n' | b'\r' => ENDS_SCALAR,
            _ => 0,
        };
        byte += 1;
    }
    table
};
/// Brackets, braces and quotes.
pub(crate) const STRUCTURE: u8 = 1;
/// What cannot be part of a number or literal.
const ENDS_SCALAR: u8 = 2;
/// Structure, comma and colon.
pub(crate) const SEPARATED: u8 = 4;

/// Place of the first byte at or after `at` that is of `class`; the length of `bytes` if there is none.
#[inline]
pub(crate) fn skip_until(bytes: &[u8], at: usize, class: u8) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(|byte| CLASS[usize::from(*byte)] & class != 0).unwrap_or(rest.len())
}

/// A place in a JSON text.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// At the beginning of `bytes`.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0 }
    }

    /// Offset of the next byte.
    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    /// The first byte of the next value.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    /// Steps over `byte` if it comes next.
    #[inline]
    pub(crate) fn take(&mut self, byte: u8) -> bool {
        let next = self.peek() == Some(byte);
        self.at += usize::from(next);
        next
    }

    /// Inside an object: the next key, still escaped, with the cursor left before its value. `None` steps over the end.
    #[inline]
    pub(crate) fn key(&mut self) -> Option<&'a [u8]> {
        loop {
            match self.bytes.get(self.at)? {
                b'"' => break,
                b',' | b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return None;
                }
                _ => return None,
            }
        }
        let start = self.at + 1;
        self.at = start;
        let end = string_end(self.bytes, start)?;
        self.at = end + 1;
        if self.bytes.get(self.at) == Some(&b':') {
            self.at += 1;
        } else {
            self.take(b':');
        }
        Some(&self.bytes[start..end])
    }

    /// Inside an array: whether another element comes, with the cursor left before it. `false` steps over the end.
    #[inline]
    pub(crate) fn element(&mut self) -> bool {
        loop {
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return false;
                }
                Some(_) => return true,
                None => return false,
            }
        }
    }

    /// Steps over a string; what stands between its quotes.
    #[inline]
    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        if !self.take(b'"') {
            return None;
        }
        let start = self.at;
        self.at = string_end(self.bytes, start)?;
        let inside = &self.bytes[start..self.at];
        self.at += 1;
        Some(inside)
    }

    /// Steps over a value; its text.
    pub(crate) fn value(&mut self) -> Option<&'a [u8]> {
        let first = self.peek()?;
        let start = self.at;
        match first {
            b'"' => {
                self.string()?;
            }
            b'{' | b'[' => self.container()?,
            _ => self.at = skip_until(self.bytes, start, ENDS_SCALAR),
        }
        // A stray delimiter is stepped over, so that a walk over nonsense ends.
        self.at += usize::from(self.at == start);
        Some(&self.bytes[start..self.at])
    }

    fn container(&mut self) -> Option<()> {
        let mut depth = 0usize;
        loop {
            self.at = skip_until(self.bytes, self.at, STRUCTURE);
            match self.bytes.get(self.at)? {
                b'"' => self.at = string_end(self.bytes, self.at + 1)?,
                b'{' | b'[' => depth += 1,
                b'}' | b']' => {
                    depth -= 1;
                    if depth == 0 {
                        self.at += 1;
                        return Some(());
                    }
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    /// Unescapes the string that comes next into `sink`, which says whether it wants more. Whether the string was
    /// taken to its end; `None` if no string comes.
    pub(crate) fn unescape(&mut self, sink: &mut impl FnMut(&[u8]) -> bool) -> Option<bool> {
        if !self.take(b'"') {
            return None;
        }
        let (used, finished) = unescape(&self.bytes[self.at..], sink);
        self.at += used;
        Some(finished)
    }
}

/// Place of the quote that ends the string whose inside begins at `from`.
#[inline]
pub(crate) fn string_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    // Most strings of an engine's answer are a few bytes long; a call of memchr costs more than they do.
    for _ in 0..3 {
        let Some(word) = word_at(bytes, at) else { break };
        let ends = quote_or_backslash(word);
        if ends == 0 {
            at += 8;
            continue;
        }
        at += ends.trailing_zeros() as usize / 8;
        if bytes[at] == b'"' {
            return Some(at);
        }
        at += 2;
        break;
    }
    string_end_far(bytes, at)
}

fn string_end_far(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

/// Unescapes `raw` up to a quote, its end, or until `sink` wants no more. Lone surrogates become U+FFFD, as they do
/// wherever UTF-8 is made of them. Returns the bytes used, and whether the quote or the end was reached.
pub(crate) fn unescape(raw: &[u8], sink: &mut impl FnMut(&[u8]) -> bool) -> (usize, bool) {
    /// Plain text is handed over in pieces, since a sink may want but the first few bytes of a long string.
    const PIECE: usize = 64;
    let mut at = 0;
    while at < raw.len() {
        let piece = &raw[at..raw.len().min(at + PIECE)];
        let plain = memchr2(b'"', b'\\', piece).unwrap_or(piece.len());
        if plain > 0 {
            at += plain;
            if !sink(&piece[..plain]) {
                return (at, false);
            }
            continue;
        }
        if piece[0] == b'"' {
            return (at + 1, true);
        }
        let Some(kind) = raw.get(at + 1) else {
            return (raw.len(), true);
        };
        at += 2;
        let simple = match kind {
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let (character, used) = unicode(&raw[at..]);
                at += used;
                let mut utf8 = [0; 4];
                if !sink(character.encode_utf8(&mut utf8).as_bytes()) {
                    return (at, false);
                }
                continue;
            }
            other => *other,
        };
        if !sink(&[simple]) {
            return (at, false);
        }
    }
    (raw.len(), true)
}

/// The character that the digits after `\u` stand for, with the second half of a pair if there is one.
fn unicode(digits: &[u8]) -> (char, usize) {
    let Some(first) = hex4(digits) else {
        return (char::REPLACEMENT_CHARACTER, 0);
    };
    if (0xD800..0xDC00).contains(&first)
        && let Some([b'\\', b'u', rest @ ..]) = digits.get(4..)
        && let Some(second) = hex4(rest)
        && (0xDC00..0xE000).contains(&second)
    {
        let point = 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00);
        return (char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER), 10);
    }
    (char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER), 4)
}

fn hex4(digits: &[u8]) -> Option<u32> {
    digits.get(..4)?.iter().try_fold(0, |value, digit| Some(value << 4 | char::from(*digit).to_digit(16)?))
}

/// Whether the escaped `raw` spells `name`.
#[inline]
pub(crate) fn spells(raw: &[u8], name: &[u8]) -> bool {
    if raw.len() == name.len() {
        // An escape is longer than what it stands for, so a backslash rules equality out by itself.
        return raw == name;
    }
    // The first byte tells most names apart.
    raw.len() > name.len()
        && (raw[0] == b'\\' || Some(&raw[0]) == name.first())
        && raw.contains(&b'\\')
        && spells_escaped(raw, name)
}

#[cold]
fn spells_escaped(raw: &[u8], name: &[u8]) -> bool {
    let mut rest = name;
    let mut same = true;
    unescape(raw, &mut |part| {
        same = rest.starts_with(part);
        if same {
            rest = &rest[part.len()..];
        }
        same
    });
    same && rest.is_empty()
}
