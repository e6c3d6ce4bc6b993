//! The scan's short way: tokens that lie whole in a chunk and need no second look.
//!
//! **Invariant:** it goes over exactly what the states of [`super::request`] would go over, and leaves them where they
//! would be. At whatever is cut off, wrong or rare it stops, and the states judge it.

use super::fields::{Field, KEY_MAX};
use super::request::{Number, RequestScan, State, Step};
use super::text::skip_plain;

/// Levels whose kind fits into the word at hand.
const LEVELS: u16 = 64;

/// Where the containers stand, kept in registers.
struct Levels {
    depth: u16,
    /// Bit by level: an object.
    objects: u64,
}

impl Levels {
    fn in_object(&self) -> bool {
        self.objects >> ((self.depth - 1) & 63) & 1 == 1
    }

    fn open(&mut self, object: bool) {
        let bit = 1 << (self.depth & 63);
        self.objects = if object { self.objects | bit } else { self.objects & !bit };
        self.depth += 1;
    }
}

/// The states between tokens.
#[derive(Clone, Copy)]
enum Place {
    FirstKey,
    Key,
    Colon,
    Value,
    FirstElement,
    After,
}

impl Place {
    fn state(self) -> State {
        match self {
            Place::FirstKey => State::FirstKey,
            Place::Key => State::Key,
            Place::Colon => State::Colon,
            Place::Value => State::Value,
            Place::FirstElement => State::FirstElement,
            Place::After => State::After,
        }
    }
}

/// A string, as far as it was gone over.
enum Text {
    /// Its quote is before this place. Whether it holds an escape.
    Ended(usize, bool),
    /// At this place, inside the string, the states have to look.
    Open(usize),
}

impl RequestScan {
    /// Goes on from the beginning of a token at `at`; the place it came to.
    pub(super) fn tokens(&mut self, chunk: &[u8], mut at: usize) -> Step<usize> {
        let Some(&objects) = self.objects.first().filter(|_| (1..=LEVELS).contains(&self.depth)) else {
            return Ok(at);
        };
        let mut levels = Levels { depth: self.depth, objects };
        let mut place = match self.state {
            State::FirstKey => Place::FirstKey,
            State::Key => Place::Key,
            State::Colon => Place::Colon,
            State::Value => Place::Value,
            State::FirstElement => Place::FirstElement,
            State::After => Place::After,
            _ => return Ok(at),
        };
        let depth_max = self.max_depth.min(LEVELS);
        let state = loop {
            let Some(&byte) = chunk.get(at) else { break place.state() };
            if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                at += 1;
                continue;
            }
            match place {
                Place::After => match byte {
                    b',' => place = if levels.in_object() { Place::Key } else { Place::Value },
                    b'}' | b']' if (byte == b'}') == levels.in_object() => {
                        if self.leave(&mut levels, at)? {
                            at += 1;
                            break State::End;
                        }
                    }
                    _ => break place.state(),
                },
                Place::FirstKey | Place::Key if byte == b'"' => {
                    let Text::Ended(end, escaped) = string(chunk, at + 1) else { break place.state() };
                    if levels.depth == 1 {
                        self.field = field(&chunk[at + 1..end - 1], escaped).map(|field| (field, 0));
                    }
                    let colon = chunk.get(end) == Some(&b':');
                    at = end + usize::from(colon);
                    place = if colon { Place::Value } else { Place::Colon };
                    continue;
                }
                Place::Colon if byte == b':' => place = Place::Value,
                Place::Value if byte == b'"' => {
                    self.began(&levels, at);
                    match string(chunk, at + 1) {
                        Text::Ended(end, _) => at = end,
                        Text::Open(inside) => {
                            self.in_key = false;
                            at = inside;
                            break State::Text;
                        }
                    }
                    self.ended(&levels, at)?;
                    place = Place::After;
                    continue;
                }
                Place::FirstKey if byte == b'}' => {
                    if self.leave(&mut levels, at)? {
                        at += 1;
                        break State::End;
                    }
                    place = Place::After;
                }
                Place::FirstElement if byte == b']' => {
                    self.leave(&mut levels, at)?;
                    place = Place::After;
                }
                Place::FirstElement if byte == b'"' => {
                    place = Place::Value;
                    continue;
                }
                Place::Value | Place::FirstElement if matches!(byte, b'{' | b'[') => {
                    if levels.depth >= depth_max {
                        break place.state();
                    }
                    self.began(&levels, at);
                    levels.open(byte == b'{');
                    place = if byte == b'{' { Place::FirstKey } else { Place::FirstElement };
                }
                Place::Value | Place::FirstElement => {
                    self.began(&levels, at);
                    let Some(end) = scalar(chunk, at, byte) else { break place.state() };
                    self.ended(&levels, end)?;
                    at = end;
                    place = Place::After;
                    continue;
                }
                _ => break place.state(),
            }
            at += 1;
        };
        self.state = state;
        self.depth = levels.depth;
        if let Some(word) = self.objects.first_mut() {
            *word = levels.objects;
        }
        Ok(at)
    }

    /// A value begins at `at` of the chunk.
    #[inline]
    fn began(&mut self, levels: &Levels, at: usize) {
        if let (1, Some((_, start))) = (levels.depth, &mut self.field) {
            *start = self.offset + at;
        }
    }

    /// A value ended before `end`.
    #[inline]
    fn ended(&mut self, levels: &Levels, end: usize) -> Step<()> {
        if levels.depth == 1
            && let Some((field, start)) = self.field.take()
        {
            self.note(field, start, end)?;
        }
        Ok(())
    }

    /// A container ends with the byte at `at`; whether it was the body.
    #[inline]
    fn leave(&mut self, levels: &mut Levels, at: usize) -> Step<bool> {
        levels.depth -= 1;
        self.ended(levels, at + 1)?;
        Ok(levels.depth == 0)
    }
}

/// What a top-level key names.
fn field(key: &[u8], escaped: bool) -> Option<Field> {
    match escaped {
        true if key.len() > KEY_MAX => None,
        true => Field::from_raw(key),
        false => Field::from_plain(key),
    }
}

/// Goes over the string whose inside begins at `from`.
#[inline]
fn string(chunk: &[u8], from: usize) -> Text {
    let mut at = skip_plain(chunk, from);
    if chunk.get(at) == Some(&b'"') {
        return Text::Ended(at + 1, false);
    }
    let mut escaped = false;
    loop {
        match chunk.get(at..) {
            Some([b'"', ..]) => return Text::Ended(at + 1, escaped),
            Some([b'\\', kind, rest @ ..]) => {
                escaped = true;
                match kind {
                    b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => at += 2,
                    b'u' if matches!(rest, [a, b, c, d, ..] if [a, b, c, d].iter().all(|b| b.is_ascii_hexdigit())) =>
                    {
                        at += 6;
                    }
                    _ => return Text::Open(at),
                }
            }
            Some([byte, ..]) if !byte.is_ascii() => match super::request::characters(chunk, at) {
                (end, Some(State::Text)) => at = end,
                _ => return Text::Open(at),
            },
            _ => return Text::Open(at),
        }
        at = skip_plain(chunk, at);
    }
}

/// The end of the number or literal at `at`, if it is valid and something follows it.
#[inline]
fn scalar(chunk: &[u8], at: usize, byte: u8) -> Option<usize> {
    let literal: &[u8] = match byte {
        b't' => b"true",
        b'f' => b"false",
        b'n' => b"null",
        _ => return number(chunk, at, byte),
    };
    chunk[at..].starts_with(literal).then_some(at + literal.len())
}

fn number(chunk: &[u8], at: usize, byte: u8) -> Option<usize> {
    let mut number = match byte {
        b'-' => Number::Minus,
        b'0' => Number::Zero,
        b'1'..=b'9' => Number::Integer,
        _ => return None,
    };
    let mut end = at + 1;
    loop {
        let byte = *chunk.get(end)?;
        if !(byte.is_ascii_digit() && number.takes_digits()) {
            match number.step(byte) {
                Some(next) => number = next,
                None if number.wanted().is_none() => return Some(end),
                None => return None,
            }
        }
        end += 1;
    }
}
