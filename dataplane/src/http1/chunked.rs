//! The chunked transfer coding, decoded without I/O and resumable at every byte.
//!
//! **Invariants.** Sizes are bare hexadecimal digits, lines end in CRLF and nothing else. Extensions and trailers are
//! checked by their grammar, bounded, and dropped. The decoder holds no input: it names ranges of what it was given.

use super::head::is_token_byte;
use std::fmt;

/// Most bytes of extensions on one chunk.
pub const MAX_EXTENSION_BYTES: u32 = 256;
/// Most bytes of extensions in one body.
pub const MAX_EXTENSION_BYTES_TOTAL: u32 = 4096;
/// Most bytes of the trailer section.
pub const MAX_TRAILER_BYTES: u32 = 8192;
/// Most hexadecimal digits of a chunk's size, leading zeros included.
const MAX_SIZE_DIGITS: u8 = 16;

/// What a call of [`Decoder::decode`] found. `consumed` counts the input bytes that are done with; the next call is
/// given what follows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunk {
    /// `input[start..end]` is body data; never empty.
    Data {
        /// First byte of data.
        start: usize,
        /// One past the last byte of data.
        end: usize,
        /// Bytes to drop before the next call.
        consumed: usize,
    },
    /// All input is used up and the body goes on.
    More {
        /// Always the input's length.
        consumed: usize,
    },
    /// The body is complete; what follows belongs to the next message.
    End {
        /// Bytes up to and with the body's last.
        consumed: usize,
    },
}

/// Why a chunked body is refused. Its framing is lost: the connection must close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkError {
    /// The size is not hexadecimal digits followed by CRLF or an extension.
    Size,
    /// The size has more than 16 digits or exceeds 2^63 - 1.
    SizeOverflow,
    /// A line or a chunk's data does not end with CRLF.
    LineEnd,
    /// A chunk extension violates its grammar.
    Extension,
    /// Chunk extensions exceed their bound.
    ExtensionsTooLong,
    /// A trailer field is malformed.
    Trailer,
    /// The trailer section exceeds its bound.
    TrailersTooLong,
    /// Called again after an error or the end.
    Finished,
}

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChunkError::Size => "a chunk's size is not a plain hexadecimal number",
            ChunkError::SizeOverflow => "a chunk's size is out of range",
            ChunkError::LineEnd => "a chunk or its size does not end with CRLF",
            ChunkError::Extension => "a chunk extension is malformed",
            ChunkError::ExtensionsTooLong => "chunk extensions are too long",
            ChunkError::Trailer => "a trailer field is malformed",
            ChunkError::TrailersTooLong => "the trailer section is too long",
            ChunkError::Finished => "the chunked body has already ended",
        })
    }
}

impl std::error::Error for ChunkError {}

/// Decodes one chunked body.
#[derive(Debug, Clone)]
pub struct Decoder {
    state: State,
    /// Size read so far, then the data bytes still to come.
    remaining: u64,
    digits: u8,
    extension_bytes: u32,
    extension_bytes_total: u32,
    trailer_bytes: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size,
    Extension(Extension),
    SizeLf,
    Data,
    DataCr,
    DataLf,
    Trailer(Trailer),
    End,
    Failed,
}

/// Place within ` ; name = value`; white space is allowed around `;` and `=` (RFC 9112, 7.1.1), but not directly
/// after the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extension {
    BeforeName,
    Name,
    AfterName,
    BeforeValue,
    Value,
    Quoted,
    Escaped,
    AfterValue,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trailer {
    LineStart,
    Name,
    Value,
    Lf,
    LastLf,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// At the start of a body.
    pub fn new() -> Self {
        Decoder {
            state: State::Size,
            remaining: 0,
            digits: 0,
            extension_bytes: 0,
            extension_bytes_total: 0,
            trailer_bytes: 0,
        }
    }

    /// `true` once [`Chunk::End`] was returned.
    pub fn is_done(&self) -> bool {
        self.state == State::End
    }

    /// Decodes up to the next piece of data, the body's end, or the input's. Called in a loop, each time with what the
    /// last call did not consume; after an error or the end it answers [`ChunkError::Finished`].
    pub fn decode(&mut self, input: &[u8]) -> Result<Chunk, ChunkError> {
        let mut at = 0;
        loop {
            if self.state == State::Data {
                if at == input.len() {
                    return Ok(Chunk::More { consumed: at });
                }
                return Ok(self.take_data(input, at));
            }
            let Some(&byte) = input.get(at) else {
                return if matches!(self.state, State::End | State::Failed) {
                    Err(ChunkError::Finished)
                } else {
                    Ok(Chunk::More { consumed: at })
                };
            };
            at += 1;
            match self.step(byte) {
                Ok(State::End) => {
                    self.state = State::End;
                    return Ok(Chunk::End { consumed: at });
                }
                Ok(next) => self.state = next,
                Err(error) => {
                    self.state = State::Failed;
                    return Err(error);
                }
            }
        }
    }

    fn take_data(&mut self, input: &[u8], start: usize) -> Chunk {
        let available = input.len() - start;
        let taken = usize::try_from(self.remaining).map_or(available, |r| r.min(available));
        self.remaining -= taken as u64;
        if self.remaining == 0 {
            self.state = State::DataCr;
        }
        Chunk::Data { start, end: start + taken, consumed: start + taken }
    }

    /// The state after one byte of framing.
    fn step(&mut self, byte: u8) -> Result<State, ChunkError> {
        match self.state {
            State::Size => self.step_size(byte),
            State::Extension(place) => self.step_extension(place, byte),
            State::SizeLf if byte == b'\n' => Ok(self.begin_chunk()),
            State::DataCr if byte == b'\r' => Ok(State::DataLf),
            State::DataLf if byte == b'\n' => {
                self.digits = 0;
                self.extension_bytes = 0;
                Ok(State::Size)
            }
            State::SizeLf | State::DataCr | State::DataLf => Err(ChunkError::LineEnd),
            State::Trailer(place) => self.step_trailer(place, byte),
            State::Data | State::End | State::Failed => Err(ChunkError::Finished),
        }
    }

    fn step_size(&mut self, byte: u8) -> Result<State, ChunkError> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ if self.digits == 0 => return Err(ChunkError::Size),
            b'\r' => return Ok(State::SizeLf),
            b';' => return self.count_extension().map(|()| State::Extension(Extension::BeforeName)),
            b'\n' => return Err(ChunkError::LineEnd),
            _ => return Err(ChunkError::Size),
        };
        // Others keep sizes in signed integers; what they would read as negative is refused.
        if self.digits == MAX_SIZE_DIGITS || self.remaining > u64::MAX >> 5 {
            return Err(ChunkError::SizeOverflow);
        }
        self.digits += 1;
        self.remaining = self.remaining << 4 | u64::from(digit);
        Ok(State::Size)
    }

    fn begin_chunk(&mut self) -> State {
        if self.remaining == 0 { State::Trailer(Trailer::LineStart) } else { State::Data }
    }

    fn count_extension(&mut self) -> Result<(), ChunkError> {
        self.extension_bytes += 1;
        self.extension_bytes_total += 1;
        if self.extension_bytes > MAX_EXTENSION_BYTES
            || self.extension_bytes_total > MAX_EXTENSION_BYTES_TOTAL
        {
            return Err(ChunkError::ExtensionsTooLong);
        }
        Ok(())
    }

    fn step_extension(&mut self, place: Extension, byte: u8) -> Result<State, ChunkError> {
        use Extension::{AfterName, AfterValue, BeforeName, BeforeValue, Escaped, Name, Quoted, Value};
        let complete = matches!(place, Name | Value | AfterValue);
        if byte == b'\r' && complete {
            return Ok(State::SizeLf);
        }
        self.count_extension()?;
        let blank = byte == b' ' || byte == b'\t';
        let text = blank || (byte > b' ' && byte != 0x7f);
        let next = match place {
            BeforeName if blank => BeforeName,
            BeforeName | Name if is_token_byte(byte) => Name,
            Name | AfterName if blank => AfterName,
            Name | AfterName if byte == b'=' => BeforeValue,
            Name | AfterName | Value | AfterValue if byte == b';' => BeforeName,
            BeforeValue if blank => BeforeValue,
            BeforeValue if byte == b'"' => Quoted,
            BeforeValue | Value if is_token_byte(byte) => Value,
            Quoted if byte == b'"' => AfterValue,
            Quoted if byte == b'\\' => Escaped,
            Quoted | Escaped if text => Quoted,
            Value | AfterValue if blank => AfterValue,
            _ => return Err(ChunkError::Extension),
        };
        Ok(State::Extension(next))
    }

    fn step_trailer(&mut self, place: Trailer, byte: u8) -> Result<State, ChunkError> {
        let next = match (place, byte) {
            (Trailer::LastLf, b'\n') => return Ok(State::End),
            (Trailer::LineStart, b'\r') => Trailer::LastLf,
            (Trailer::Lf, b'\n') => Trailer::LineStart,
            (Trailer::Lf | Trailer::LastLf, _) => return Err(ChunkError::LineEnd),
            (Trailer::LineStart | Trailer::Name, _) if is_token_byte(byte) => Trailer::Name,
            (Trailer::Name, b':') => Trailer::Value,
            (Trailer::Value, b'\r') => Trailer::Lf,
            (Trailer::Value, _) if byte == b'\t' || (byte >= b' ' && byte != 0x7f) => Trailer::Value,
            _ => return Err(ChunkError::Trailer),
        };
        self.trailer_bytes += 1;
        if self.trailer_bytes > MAX_TRAILER_BYTES {
            return Err(ChunkError::TrailersTooLong);
        }
        Ok(State::Trailer(next))
    }
}
