//! HTTP/1.1 answers out of any split of the byte stream: head, then sized, chunked or close-delimited body.
//!
//! Nothing is buffered but an unfinished head or chunk-size line, both bounded; body bytes are lent on as they came.

use std::fmt;

/// Longest head and chunk-size line accepted, in bytes.
const HEAD_MAX: usize = 64 << 10;
const CHUNK_LINE_MAX: usize = 4 << 10;
const FIELDS_MAX: usize = 100;

/// What an answer's head said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Status code; informational answers are skipped.
    pub status: u16,
    /// The body is `text/event-stream`.
    pub event_stream: bool,
    /// The connection may carry another request after this answer.
    pub keep_alive: bool,
    /// `content-length`, where that frames the body.
    pub length: Option<u64>,
}

/// The peer broke HTTP; the text says how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the answer is not valid HTTP/1.1: {}", self.0)
    }
}

#[derive(Debug)]
enum State {
    Head,
    Sized(u64),
    ChunkSize,
    ChunkData(u64),
    /// CR and LF still due after a chunk's data.
    ChunkEnd(u8),
    Trailer,
    UntilClose,
    Done,
}

/// Decoder of one answer.
#[derive(Debug)]
pub struct Decoder {
    state: State,
    partial: Vec<u8>,
    head: Head,
    seen_any: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder { state: State::Head, partial: Vec::new(), head: Head::default(), seen_any: false }
    }
}

/// What of the answer a call to [`Decoder::feed`] brought to light.
pub enum Part<'a> {
    /// The final head.
    Head(&'a Head),
    /// Bytes of the body.
    Body(&'a [u8]),
}

impl Decoder {
    /// Takes bytes as they arrived and hands out parts. Bytes beyond the answer's end are an error: nothing was asked.
    pub fn feed(&mut self, mut bytes: &[u8], mut on_part: impl FnMut(Part<'_>)) -> Result<(), Malformed> {
        self.seen_any |= !bytes.is_empty();
        while !bytes.is_empty() {
            match &mut self.state {
                State::Head => match self.take_head(bytes)? {
                    Some(rest) => {
                        bytes = rest;
                        if !matches!(self.state, State::Head) {
                            on_part(Part::Head(&self.head));
                        }
                    }
                    None => return Ok(()),
                },
                State::Sized(left) | State::ChunkData(left) => {
                    let take = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    on_part(Part::Body(&bytes[..take]));
                    bytes = &bytes[take..];
                    *left -= u64::try_from(take).unwrap_or(u64::MAX);
                    if *left == 0 {
                        self.state = if matches!(self.state, State::Sized(_)) {
                            State::Done
                        } else {
                            State::ChunkEnd(b'\r')
                        };
                    }
                }
                State::ChunkEnd(due) => {
                    if bytes[0] != *due {
                        return Err(Malformed("a chunk is longer than its size says"));
                    }
                    bytes = &bytes[1..];
                    self.state = if *due == b'\r' { State::ChunkEnd(b'\n') } else { State::ChunkSize };
                }
                State::ChunkSize => match self.take_line(bytes)? {
                    Some((size_line, rest)) => {
                        bytes = rest;
                        let size = chunk_size(&size_line)?;
                        self.state = if size == 0 { State::Trailer } else { State::ChunkData(size) };
                    }
                    None => return Ok(()),
                },
                State::Trailer => match self.take_line(bytes)? {
                    Some((line, rest)) => {
                        bytes = rest;
                        if line.is_empty() {
                            self.state = State::Done;
                        }
                    }
                    None => return Ok(()),
                },
                State::UntilClose => {
                    on_part(Part::Body(bytes));
                    return Ok(());
                }
                State::Done => return Err(Malformed("bytes after the end of the answer")),
            }
        }
        Ok(())
    }

    /// The answer is complete.
    pub fn done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// The peer closed: whether the answer is complete by that.
    pub fn complete_at_close(&self) -> bool {
        matches!(self.state, State::Done | State::UntilClose)
    }

    /// Any byte has come.
    pub fn seen_any(&self) -> bool {
        self.seen_any
    }

    /// The head, once it has come.
    pub fn head(&self) -> Option<&Head> {
        if matches!(self.state, State::Head) { None } else { Some(&self.head) }
    }

    /// Returns the rest after a complete head, `None` if more is needed.
    fn take_head<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
        if self.partial.is_empty()
            && let Some(used) = self.parse_head(bytes)?
        {
            return Ok(Some(&bytes[used..]));
        }
        // A head in pieces: gather up to its end only, so that body bytes are never copied.
        let before = self.partial.len();
        self.partial.extend_from_slice(&bytes[..bytes.len().min(HEAD_MAX + 1 - before.min(HEAD_MAX))]);
        let head = std::mem::take(&mut self.partial);
        match self.parse_head(&head)? {
            Some(used) => Ok(Some(&bytes[used - before..])),
            None if head.len() > HEAD_MAX => Err(Malformed("the head is too long")),
            None => {
                self.partial = head;
                Ok(None)
            }
        }
    }

    fn parse_head(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let used = match response.parse(bytes) {
            Ok(httparse::Status::Complete(used)) => used,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(Malformed("unreadable head")),
        };
        let status = response.code.unwrap_or(0);
        if (100..200).contains(&status) && status != 101 {
            return Ok(Some(used)); // informational: the final head follows
        }
        let mut head = Head { status, keep_alive: response.version == Some(1), ..Head::default() };
        let mut chunked = false;
        for field in response.headers.iter() {
            if field.name.eq_ignore_ascii_case("content-length") {
                let text = std::str::from_utf8(field.value).unwrap_or("").trim();
                let length = text.parse().map_err(|_| Malformed("unreadable content-length"))?;
                if head.length.is_some_and(|other| other != length) {
                    return Err(Malformed("two content-lengths"));
                }
                head.length = Some(length);
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                if !field.value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Malformed("a transfer-encoding other than chunked"));
                }
                chunked = true;
            } else if field.name.eq_ignore_ascii_case("content-type") {
                let kind = b"text/event-stream";
                head.event_stream =
                    field.value.len() >= kind.len() && field.value[..kind.len()].eq_ignore_ascii_case(kind);
            } else if field.name.eq_ignore_ascii_case("connection") {
                head.keep_alive = connection_keeps(field.value, head.keep_alive);
            }
        }
        self.state = match (chunked, head.length) {
            (true, Some(_)) => return Err(Malformed("both content-length and transfer-encoding")),
            (true, None) => State::ChunkSize,
            _ if status == 204 || status == 304 => State::Done,
            (false, Some(0)) => State::Done,
            (false, Some(length)) => State::Sized(length),
            (false, None) => {
                head.keep_alive = false;
                State::UntilClose
            }
        };
        self.head = head;
        Ok(Some(used))
    }

    fn take_line<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<LineAndRest<'a>>, Malformed> {
        let end = memchr::memchr(b'\n', bytes);
        let (now, rest) = end.map_or((bytes, &bytes[..0]), |end| (&bytes[..end], &bytes[end + 1..]));
        if self.partial.len() + now.len() > CHUNK_LINE_MAX {
            return Err(Malformed("a chunk-size or trailer line is too long"));
        }
        self.partial.extend_from_slice(now);
        if end.is_none() {
            return Ok(None);
        }
        let mut line = std::mem::take(&mut self.partial);
        if line.pop() != Some(b'\r') {
            return Err(Malformed("a chunk-size or trailer line ends without CR LF"));
        }
        Ok(Some((line, rest)))
    }
}

type LineAndRest<'a> = (Vec<u8>, &'a [u8]);

fn connection_keeps(value: &[u8], default: bool) -> bool {
    let mut keeps = default;
    for token in value.split(|&b| b == b',').map(<[u8]>::trim_ascii) {
        if token.eq_ignore_ascii_case(b"close") {
            return false;
        }
        keeps |= token.eq_ignore_ascii_case(b"keep-alive");
    }
    keeps
}

fn chunk_size(line: &[u8]) -> Result<u64, Malformed> {
    let digits = line.split(|&b| b == b';').next().unwrap_or_default().trim_ascii_end();
    let text = std::str::from_utf8(digits).unwrap_or("");
    if text.is_empty() || text.len() > 15 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(Malformed("unreadable chunk size"));
    }
    u64::from_str_radix(text, 16).map_err(|_| Malformed("unreadable chunk size"))
}

#[cfg(test)]
mod tests;
