//! The inside of strings: skipping plain text, checking UTF-8.

use memchr::memchr2;

const ONES: u64 = u64::MAX / 255;
const HIGHS: u64 = ONES << 7;

/// For each byte of `word` its highest bit: set if the byte is a quote, a backslash, a control character or not ASCII.
/// Exact up to and with the lowest set bit; above it a borrow may set more.
#[inline]
fn odd_bits(word: u64) -> u64 {
    let quote = (word ^ (ONES * 0x22)).wrapping_sub(ONES);
    let backslash = (word ^ (ONES * 0x5c)).wrapping_sub(ONES);
    let control = word.wrapping_sub(ONES * 0x20);
    (quote | backslash | control | word) & HIGHS
}

/// The same for quotes and backslashes alone, exact up to the lowest as well.
#[inline]
pub(super) fn quote_or_backslash(word: u64) -> u64 {
    let quote = word ^ (ONES * 0x22);
    let backslash = word ^ (ONES * 0x5c);
    (quote.wrapping_sub(ONES) & !quote | backslash.wrapping_sub(ONES) & !backslash) & HIGHS
}

/// The eight bytes from `at`, the first lowest.
#[inline]
pub(super) fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?))
}

/// Place of the first byte at or after `from` that may not stand in a string without a second look: a quote, a
/// backslash, a control character, or one of a multi-byte character. The length of `bytes` if there is none.
#[inline]
pub(super) fn skip_plain(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    // Short strings end within the first words: keys, roles, small values.
    for _ in 0..4 {
        let Some(word) = word_at(bytes, at) else { return skip_tail(bytes, at) };
        let odd = odd_bits(word);
        if odd != 0 {
            return at + odd.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    skip_long(bytes, at)
}

/// How far ahead the end of a long string is looked for at once: what is found must not be looked for again too often.
const WINDOW: usize = 1024;

fn skip_long(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        let window = &bytes[at..bytes.len().min(at + WINDOW)];
        let end = memchr2(b'"', b'\\', window).unwrap_or(window.len());
        let (blocks, _) = window[..end].as_chunks::<64>();
        let plain = blocks.iter().take_while(|block| is_text(block)).count() * 64;
        at += plain;
        if plain < WINDOW {
            break;
        }
    }
    while let Some(word) = word_at(bytes, at) {
        let odd = odd_bits(word);
        if odd != 0 {
            return at + odd.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    skip_tail(bytes, at)
}

/// Whether all are ASCII and none is a control character. Without a branch inside, so that the compiler makes it a few
/// vector instructions.
#[inline]
fn is_text(block: &[u8; 64]) -> bool {
    block.iter().fold(0, |most: u8, byte| most.max(byte.wrapping_sub(0x20))) < 0x60
}

fn skip_tail(bytes: &[u8], from: usize) -> usize {
    let plain = |byte: &u8| matches!(byte, 0x20..0x80) && *byte != b'"' && *byte != b'\\';
    from + bytes[from..].iter().position(|byte| !plain(byte)).unwrap_or(bytes.len() - from)
}

/// A multi-byte character under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Utf8 {
    /// Continuation bytes still to come.
    pub(super) left: u8,
    /// Bounds of the next one.
    low: u8,
    high: u8,
}

impl Utf8 {
    /// What a first byte at or above 0x80 begins; `None` if nothing begins with it.
    #[inline]
    pub(super) fn begin(byte: u8) -> Option<Self> {
        let (left, low, high) = match byte {
            0xC2..=0xDF => (1, 0x80, 0xBF),
            // No overlong forms, no surrogates, nothing above U+10FFFF.
            0xE0 => (2, 0xA0, 0xBF),
            0xED => (2, 0x80, 0x9F),
            0xE1..=0xEF => (2, 0x80, 0xBF),
            0xF0 => (3, 0x90, 0xBF),
            0xF1..=0xF3 => (3, 0x80, 0xBF),
            0xF4 => (3, 0x80, 0x8F),
            _ => return None,
        };
        Some(Utf8 { left, low, high })
    }

    /// Takes a continuation byte; `false` if it is none.
    #[inline]
    pub(super) fn push(&mut self, byte: u8) -> bool {
        let fits = byte >= self.low && byte <= self.high;
        *self = Utf8 { left: self.left - u8::from(fits), low: 0x80, high: 0xBF };
        fits
    }
}
