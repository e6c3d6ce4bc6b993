//! The scan of a request body: strict JSON, as it arrives, in one pass.

use super::error::{ScanError, ScanErrorKind};
use super::fields::{Field, Fields, Found, KEY_MAX, OCCURRENCES_MAX, repeated};
use super::text::{Utf8, skip_plain};
use smallvec::SmallVec;

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The object that the body is.
    Body,
    /// A key or the end of an object.
    FirstKey,
    /// A key, after a comma.
    Key,
    Colon,
    Value,
    /// A value or the end of an array.
    FirstElement,
    /// A comma or the end of the container.
    After,
    /// Inside a string.
    Text,
    /// After a backslash.
    Escape,
    /// This many hexadecimal digits.
    Hex(u8),
    /// The rest of a multi-byte character.
    Utf8(Utf8),
    /// The rest of `true`, `false` or `null`.
    Literal(&'static [u8]),
    Number(Number),
    /// Whitespace, to the end.
    End,
}

/// What of a number has been seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    Minus,
    /// A leading zero: no digit may follow.
    Zero,
    Integer,
    Point,
    Fraction,
    E,
    ESign,
    Exponent,
}

impl Number {
    /// After one more byte; `None` if it is not part of the number.
    pub(super) fn step(self, byte: u8) -> Option<Number> {
        Some(match (self, byte) {
            (Number::Minus, b'0') => Number::Zero,
            (Number::Minus, b'1'..=b'9') | (Number::Integer, b'0'..=b'9') => Number::Integer,
            (Number::Zero | Number::Integer, b'.') => Number::Point,
            (Number::Zero | Number::Integer | Number::Fraction, b'e' | b'E') => Number::E,
            (Number::Point | Number::Fraction, b'0'..=b'9') => Number::Fraction,
            (Number::E, b'+' | b'-') => Number::ESign,
            (Number::E | Number::ESign | Number::Exponent, b'0'..=b'9') => Number::Exponent,
            _ => return None,
        })
    }

    /// Any number of digits may follow, and nothing changes by them.
    #[inline]
    pub(super) fn takes_digits(self) -> bool {
        matches!(self, Number::Integer | Number::Fraction | Number::Exponent)
    }

    /// What must follow; `None` if the number may end here.
    pub(super) fn wanted(self) -> Option<&'static str> {
        match self {
            Number::Zero | Number::Integer | Number::Fraction | Number::Exponent => None,
            Number::Minus | Number::Point | Number::ESign => Some("a digit"),
            Number::E => Some("a digit or a sign"),
        }
    }
}

/// The body was refused; why is noted in the scan. Without content, so that results stay in registers.
pub(super) struct Refused;

pub(super) type Step<T> = Result<T, Refused>;

/// Scans a request body that comes in chunks: validates it by RFC 8259 and notes where the fields lie that the gateway
/// looks at. Escapes of lone surrogates pass, as they do in the engines' parsers; numbers are not bounded in range.
///
/// Memory does not depend on the body, except for the offsets of `model`, `stream_options` and `priority`, of which at
/// most 64 each are taken.
#[derive(Debug, Clone)]
pub struct RequestScan {
    pub(super) state: State,
    /// Bytes of earlier chunks.
    pub(super) offset: usize,
    pub(super) max_depth: u16,
    pub(super) depth: u16,
    /// For each open container, by bits: whether it is an object.
    pub(super) objects: SmallVec<[u64; 2]>,
    /// The string under way is a key.
    pub(super) in_key: bool,
    /// The top-level key under way, as escaped.
    key: SmallVec<[u8; KEY_MAX]>,
    /// It is longer than any that matters.
    key_long: bool,
    /// The field whose value is under way, and where it began.
    pub(super) field: Option<(Field, usize)>,
    found: Found,
    error: Option<ScanError>,
}

impl RequestScan {
    /// For bodies nested at most `max_depth` levels deep, the top-level object being the first.
    pub fn new(max_depth: u16) -> Self {
        RequestScan {
            state: State::Body,
            offset: 0,
            max_depth,
            depth: 0,
            objects: SmallVec::new(),
            in_key: false,
            key: SmallVec::new(),
            key_long: false,
            field: None,
            found: Found::default(),
            error: None,
        }
    }

    /// Bytes taken so far.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Takes the next bytes. After an error, every call returns it again.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<(), ScanError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        // A refusal is always noted.
        let _ = self.chunk(chunk);
        self.offset += chunk.len();
        self.error.map_or(Ok(()), Err)
    }

    #[cold]
    fn refuse(&mut self, at: usize, kind: ScanErrorKind) -> Refused {
        self.error = Some(ScanError::new(self.offset + at, kind));
        Refused
    }

    #[cold]
    fn unexpected(&mut self, at: usize) -> Refused {
        self.refuse(at, ScanErrorKind::Expected(self.wanted()))
    }

    /// The body is complete: what it says. `body` must be the bytes that were fed.
    pub fn finish(self, body: &[u8]) -> Result<Fields, ScanError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if self.state != State::End || body.len() != self.offset {
            return Err(ScanError::new(self.offset, ScanErrorKind::Unfinished(self.wanted())));
        }
        self.found.read(body)
    }

    fn chunk(&mut self, chunk: &[u8]) -> Step<()> {
        let mut at = 0;
        while at < chunk.len() {
            at = match self.state {
                State::Text => self.text(chunk, at)?,
                State::Escape | State::Hex(_) | State::Utf8(_) => {
                    self.text_byte(chunk[at], at)?;
                    at + 1
                }
                State::Number(number) => self.number(number, chunk, at)?,
                State::Literal(rest) => {
                    if rest.first() != Some(&chunk[at]) {
                        return Err(self.unexpected(at));
                    }
                    self.state = State::Literal(&rest[1..]);
                    if rest.len() == 1 {
                        self.value_ended(at + 1)?;
                    }
                    at + 1
                }
                _ => match self.tokens(chunk, at)? {
                    further if further > at => further,
                    _ if matches!(chunk[at], b' ' | b'\t' | b'\n' | b'\r') => at + 1,
                    _ => self.structure(chunk[at], at)?,
                },
            };
        }
        Ok(())
    }

    /// What the present state waits for.
    fn wanted(&self) -> &'static str {
        match self.state {
            State::Body => "an object",
            State::FirstKey => "a key or `}`",
            State::Key => "a key",
            State::Colon => "`:`",
            State::Value => "a value",
            State::FirstElement => "a value or `]`",
            State::After if self.in_object() => "`,` or `}`",
            State::After => "`,` or `]`",
            State::Text | State::Utf8(_) => "the rest of a string",
            State::Escape => "one of \" \\ / b f n r t u after `\\`",
            State::Hex(_) => "a hexadecimal digit",
            State::Literal(_) => "`true`, `false` or `null`",
            State::Number(number) => number.wanted().unwrap_or("the rest of the object"),
            State::End => "nothing after the object",
        }
    }

    fn in_object(&self) -> bool {
        let level = usize::from(self.depth.saturating_sub(1));
        self.objects.get(level / 64).is_some_and(|word| word >> (level % 64) & 1 == 1)
    }

    /// A byte outside of strings, numbers and literals.
    fn structure(&mut self, byte: u8, at: usize) -> Step<usize> {
        match (self.state, byte) {
            (State::FirstKey | State::Key, b'"') => {
                self.state = State::Text;
                self.in_key = true;
                self.key.clear();
                self.key_long = false;
            }
            (State::FirstKey, b'}') | (State::FirstElement, b']') => self.close(at)?,
            (State::After, b'}') if self.in_object() => self.close(at)?,
            (State::After, b']') if !self.in_object() => self.close(at)?,
            (State::After, b',') => self.state = if self.in_object() { State::Key } else { State::Value },
            (State::Colon, b':') => self.state = State::Value,
            (State::Body, b'{') => {
                self.open(true, at)?;
                self.found.after_brace = self.offset + at + 1;
            }
            (State::Value | State::FirstElement, _) => {
                if let (1, Some((_, start))) = (self.depth, &mut self.field) {
                    *start = self.offset + at;
                }
                self.begin_value(byte, at)?;
            }
            _ => return Err(self.unexpected(at)),
        }
        Ok(at + 1)
    }

    fn begin_value(&mut self, byte: u8, at: usize) -> Step<()> {
        self.state = match byte {
            b'"' => State::Text,
            b'{' => return self.open(true, at),
            b'[' => return self.open(false, at),
            b't' => State::Literal(b"rue"),
            b'f' => State::Literal(b"alse"),
            b'n' => State::Literal(b"ull"),
            b'-' => State::Number(Number::Minus),
            b'0' => State::Number(Number::Zero),
            b'1'..=b'9' => State::Number(Number::Integer),
            _ => return Err(self.unexpected(at)),
        };
        Ok(())
    }

    fn open(&mut self, object: bool, at: usize) -> Step<()> {
        if self.depth >= self.max_depth {
            return Err(self.refuse(at, ScanErrorKind::Depth(self.max_depth)));
        }
        let level = usize::from(self.depth);
        if level / 64 == self.objects.len() {
            self.objects.push(0);
        }
        let word = &mut self.objects[level / 64];
        *word = *word & !(1 << (level % 64)) | u64::from(object) << (level % 64);
        self.depth += 1;
        self.state = if object { State::FirstKey } else { State::FirstElement };
        Ok(())
    }

    fn close(&mut self, at: usize) -> Step<()> {
        self.depth -= 1;
        self.value_ended(at + 1)
    }

    /// A value ended before place `end` of the chunk.
    fn value_ended(&mut self, end: usize) -> Step<()> {
        self.state = if self.depth == 0 { State::End } else { State::After };
        if self.depth == 1
            && let Some((field, start)) = self.field.take()
        {
            self.note(field, start, end)?;
        }
        Ok(())
    }

    /// The value of `field` lies from `start` of the body to `end` of the chunk.
    pub(super) fn note(&mut self, field: Field, start: usize, end: usize) -> Step<()> {
        let span = start..self.offset + end;
        let taken = match field {
            Field::Model => self.found.model_all.len(),
            Field::StreamOptions => self.found.stream_options_all.len(),
            Field::Priority => self.found.priority_all.len(),
            _ => 0,
        };
        if taken == OCCURRENCES_MAX {
            return Err(self.refuse(end, repeated(0, field.name()).kind));
        }
        match field {
            Field::Model => self.found.model_all.push(span.clone()),
            Field::StreamOptions => self.found.stream_options_all.push(span.clone()),
            Field::Priority => self.found.priority_all.push(span.clone()),
            _ => {}
        }
        self.found.last[field as usize] = span;
        Ok(())
    }

    fn number(&mut self, mut number: Number, chunk: &[u8], mut at: usize) -> Step<usize> {
        while let Some(byte) = chunk.get(at) {
            if byte.is_ascii_digit() && number.takes_digits() {
                at += 1;
                continue;
            }
            match number.step(*byte) {
                Some(next) => number = next,
                None => {
                    if let Some(wanted) = number.wanted() {
                        return Err(self.refuse(at, ScanErrorKind::Expected(wanted)));
                    }
                    self.value_ended(at)?;
                    return Ok(at);
                }
            }
            at += 1;
        }
        self.state = State::Number(number);
        Ok(at)
    }

    /// Text of a string, as far as it goes.
    fn text(&mut self, chunk: &[u8], from: usize) -> Step<usize> {
        let mut at = from;
        let keep = self.in_key && self.depth == 1;
        while at < chunk.len() {
            at = skip_plain(chunk, at);
            let Some(byte) = chunk.get(at).copied() else { break };
            match byte {
                b'"' if !self.in_key => {
                    self.value_ended(at + 1)?;
                    return Ok(at + 1);
                }
                b'"' => {
                    self.key_ended(&chunk[from..at]);
                    return Ok(at + 1);
                }
                b'\\' => {
                    self.state = State::Escape;
                    at += 1;
                    break;
                }
                0..0x20 => return Err(self.refuse(at, ScanErrorKind::Control(byte))),
                _ => {
                    let state;
                    (at, state) = characters(chunk, at);
                    match state {
                        Some(State::Text) => {}
                        Some(state) => {
                            self.state = state;
                            break;
                        }
                        None => return Err(self.refuse(at, ScanErrorKind::Utf8)),
                    }
                }
            }
        }
        if keep {
            self.keep_key(&chunk[from..at]);
        }
        Ok(at)
    }

    /// One byte of an escape, or of a character that is split between chunks.
    fn text_byte(&mut self, byte: u8, at: usize) -> Step<()> {
        let next = match (self.state, byte) {
            (State::Escape, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => State::Text,
            (State::Escape, b'u') => State::Hex(4),
            (State::Hex(1), _) if byte.is_ascii_hexdigit() => State::Text,
            (State::Hex(left), _) if byte.is_ascii_hexdigit() => State::Hex(left - 1),
            (State::Utf8(mut character), _) => {
                if !character.push(byte) {
                    return Err(self.refuse(at, ScanErrorKind::Utf8));
                }
                if character.left == 0 { State::Text } else { State::Utf8(character) }
            }
            _ => return Err(self.unexpected(at)),
        };
        if self.in_key && self.depth == 1 {
            self.keep_key(&[byte]);
        }
        self.state = next;
        Ok(())
    }

    fn keep_key(&mut self, bytes: &[u8]) {
        if self.key.len() + bytes.len() <= KEY_MAX {
            self.key.extend_from_slice(bytes);
        } else {
            self.key_long = true;
        }
    }

    /// A key ended; `rest` is what of it has not been kept.
    fn key_ended(&mut self, rest: &[u8]) {
        self.in_key = false;
        self.state = State::Colon;
        if self.depth != 1 {
            return;
        }
        let field = if self.key.is_empty() && !self.key_long {
            Field::from_raw(rest)
        } else {
            self.keep_key(rest);
            if self.key_long { None } else { Field::from_raw(&self.key) }
        };
        self.field = field.map(|field| (field, 0));
    }
}

/// Steps over the multi-byte characters that stand at `at`: where they end, and the state that leaves; no state if
/// they are not UTF-8.
pub(super) fn characters(chunk: &[u8], mut at: usize) -> (usize, Option<State>) {
    while let Some(byte) = chunk.get(at).copied()
        && byte >= 0x80
    {
        let Some(mut character) = Utf8::begin(byte) else {
            return (at, None);
        };
        at += 1;
        while character.left > 0 {
            let Some(byte) = chunk.get(at).copied() else {
                return (at, Some(State::Utf8(character)));
            };
            if !character.push(byte) {
                return (at, None);
            }
            at += 1;
        }
    }
    (at, Some(State::Text))
}
