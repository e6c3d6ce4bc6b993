//! The answer side: how an engine's body is read and how it goes to the client.

use crate::error::normalize_engine_error;
use crate::http1::chunked;
use crate::sse::{EventKind, Framer, Piece, error_event, parse_event};
use llmgw_routing::scan::{EventSkim, FinishReason, Usage, UsageSkim};

/// What an engine's connection is expected to deliver next.
pub enum UpReader {
    /// A response head.
    Head,
    /// This many body bytes.
    Sized(u64),
    /// Chunks.
    Chunked(chunked::Decoder),
    /// A body that ends with the connection.
    UntilClose,
    /// Nothing: the response is complete.
    Done,
}

/// Framing toward the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientFraming {
    /// `Content-Length` was sent.
    Sized,
    /// `Transfer-Encoding: chunked` was sent.
    Chunked,
    /// The body ends with the connection.
    Close,
}

/// The answer under way.
pub enum Reply {
    /// No response head yet.
    None,
    /// A body that passes as it is.
    Plain(PlainReply),
    /// An event stream.
    Stream(StreamReply),
    /// An engine's error, gathered to be put into OpenAI's shape.
    Error {
        /// The engine's status.
        status: u16,
        /// `Retry-After` lines and the like that pass on, each line ended.
        headers: Vec<u8>,
        /// Its body so far, at most [`ERROR_BODY_MAX`] bytes.
        body: Vec<u8>,
    },
}

/// Bytes of an engine's error body that are looked at.
pub const ERROR_BODY_MAX: usize = 64 * 1024;

/// A byte order mark.
const MARK: &[u8] = b"\xEF\xBB\xBF";

/// A body relayed as it is.
pub struct PlainReply {
    /// Status of the held head.
    pub status: u16,
    /// The head, until the first body byte lets it go.
    pub head: Option<Vec<u8>>,
    /// Framing toward the client.
    pub framing: ClientFraming,
    /// It is JSON, and may hold a usage report.
    pub json: bool,
    /// Looks for that in a body that comes in pieces.
    pub skim: Option<Box<UsageSkim>>,
}

/// What a stream told on its way.
#[derive(Debug, Default)]
pub struct Seen {
    /// The last usage report.
    pub usage: Option<Usage>,
    /// Why generation ended.
    pub finish_reason: Option<FinishReason>,
    /// Data events.
    pub events: u32,
    /// Usage chunks withheld.
    pub withheld: u32,
}

/// An event stream.
pub struct StreamReply {
    /// Status of the held head.
    status: u16,
    /// The head, until the first event (or a keep-alive comment) lets it go.
    pub head: Option<Vec<u8>>,
    /// Framing toward the client.
    pub framing: ClientFraming,
    /// Cuts the body into events.
    framer: Framer,
    /// Looks into events.
    skim: EventSkim,
    /// Withhold the usage chunk that the gateway asked for.
    withhold: bool,
    /// The terminator went through: the stream is complete.
    pub done: bool,
    /// The engine sent an error event; its terminator is not passed on.
    pub failed: bool,
    /// Part of an event that is larger than is held went through: nothing may stand between now.
    raw: bool,
    /// Something went through: a byte order mark is none any more.
    begun: bool,
}

impl StreamReply {
    /// For a stream whose head is held.
    pub fn new(status: u16, head: Vec<u8>, framing: ClientFraming, withhold: bool) -> Self {
        StreamReply {
            status,
            head: Some(head),
            framing,
            framer: Framer::new(),
            skim: EventSkim::new(),
            withhold,
            done: false,
            failed: false,
            raw: false,
            begun: false,
        }
    }

    /// A comment or an error event may be put between what went out and what comes.
    pub fn comments_allowed(&self) -> bool {
        !self.raw && !self.done
    }

    /// Takes body bytes; what may go to the client is appended to `out`. Bytes after the terminator are dropped.
    pub fn push(&mut self, bytes: &[u8], secrets: &[&str], seen: &mut Seen, out: &mut Vec<u8>) {
        let mut framer = std::mem::take(&mut self.framer);
        framer.push(bytes, |piece| self.piece(piece, secrets, seen, out));
        self.raw = framer.in_overflow();
        self.framer = framer;
        if crate::planted!(TailDropped) && !self.framer.held().is_empty() {
            self.framer = Framer::new();
        }
    }

    /// The body ended: an event that only a held CR kept back is complete after all.
    pub fn finish(&mut self, secrets: &[&str], seen: &mut Seen, out: &mut Vec<u8>) {
        let mut framer = std::mem::take(&mut self.framer);
        framer.finish(|piece| self.piece(piece, secrets, seen, out));
        self.raw = framer.in_overflow();
        self.framer = framer;
    }

    fn piece(&mut self, piece: Piece<'_>, secrets: &[&str], seen: &mut Seen, out: &mut Vec<u8>) {
        if self.done {
            return;
        }
        // A byte order mark says nothing where comments may stand before it, and not all clients know it.
        let first = !std::mem::replace(&mut self.begun, true);
        let unmarked = |bytes| if first { without_mark(bytes) } else { bytes };
        match piece {
            Piece::Raw(part) => {
                crate::mark!(sse_overflow);
                self.raw = true;
                out.extend_from_slice(unmarked(part));
            }
            Piece::Event(event) => {
                self.raw = false;
                self.event(unmarked(event), secrets, seen, out);
            }
        }
    }

    fn event(&mut self, event: &[u8], secrets: &[&str], seen: &mut Seen, out: &mut Vec<u8>) {
        let json = match parse_event(event).kind {
            EventKind::Comment => return out.extend_from_slice(event),
            EventKind::Done => {
                self.done = true;
                if !self.failed {
                    out.extend_from_slice(event);
                }
                return;
            }
            EventKind::Data(json) => json,
        };
        let info = self.skim.skim(&json);
        seen.events += 1;
        seen.finish_reason = info.finish_reason.or(seen.finish_reason);
        seen.usage = info.usage.or(seen.usage);
        let usage_chunk = info.choices_empty == Some(true) && info.usage.is_some();
        if info.has_error {
            crate::mark!(engine_error_event);
            self.failed = true;
            let mut body = Vec::new();
            normalize_engine_error(502, &json, secrets, &mut body);
            error_event(out, &body);
        } else if self.withhold && usage_chunk && !crate::planted!(UsageLeak) {
            crate::mark!(usage_withheld);
            seen.withheld += 1;
        } else {
            out.extend_from_slice(event);
        }
    }
}

/// The beginning of a stream without its byte order mark. Of two, the second is part of the first line, and would be
/// taken for a mark if it came to stand first.
fn without_mark(bytes: &[u8]) -> &[u8] {
    match bytes.strip_prefix(MARK) {
        Some(rest) if !rest.starts_with(MARK) => rest,
        _ => bytes,
    }
}

impl Reply {
    /// Status that commits the request.
    pub fn status(&self) -> u16 {
        match self {
            Reply::Plain(plain) => plain.status,
            Reply::Stream(stream) => stream.status,
            Reply::Error { status, .. } => *status,
            Reply::None => 0,
        }
    }

    /// Framing toward the client, and the head if it still has to go out.
    pub fn take_head(&mut self) -> (ClientFraming, Option<Vec<u8>>) {
        match self {
            Reply::Plain(plain) => (plain.framing, plain.head.take()),
            Reply::Stream(stream) => (stream.framing, stream.head.take()),
            Reply::None | Reply::Error { .. } => (ClientFraming::Sized, None),
        }
    }
}
