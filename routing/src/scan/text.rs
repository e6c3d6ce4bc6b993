//! The inside of strings: skipping plain text, checking UTF-8.

/// Bytes that may stand in a string without a second look: printable ASCII without quote and backslash, and DEL.
const fn plain(byte: u8) -> bool {
    byte >= 0x20 && byte < 0x80 && byte != b'"' && byte != b'\\'
}

static PLAIN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0u8;
    while byte < 0x80 {
        table[byte as usize] = plain(byte);
        byte += 1;
    }
    table
};

/// Place of the first byte at or after `from` that is not plain; the length of `bytes` if all are.
#[inline]
pub(super) fn skip_plain(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    // Short strings end within the first block: keys, roles, small values.
    let near = bytes.len().min(from + 16);
    while at < near {
        if !PLAIN[usize::from(bytes[at])] {
            return at;
        }
        at += 1;
    }
    let (blocks, _) = bytes[at..].as_chunks::<32>();
    for block in blocks {
        // Without a branch inside, so that the compiler makes it a few vector instructions.
        let odd = block.iter().fold(false, |odd, byte| odd | !plain(*byte));
        if odd {
            break;
        }
        at += 32;
    }
    while at < bytes.len() && PLAIN[usize::from(bytes[at])] {
        at += 1;
    }
    at
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
