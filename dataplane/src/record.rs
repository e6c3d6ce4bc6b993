//! The settlement record: the one outcome of a request, made once, from which its metrics, its log line and (later)
//! its span and usage come.

use llmgw_routing::Nanos;
use llmgw_routing::scan::{FinishReason, Usage};
use llmgw_routing::snapshot::Endpoint;
use smallvec::SmallVec;
use std::net::IpAddr;
use std::sync::Arc;

/// A request id: visible ASCII, at most [`RequestId::MAX`] bytes; made ones fit inline.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestId(SmallVec<[u8; 32]>);

/// The two digits of each byte.
const HEX: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut table = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    table
};

impl RequestId {
    /// Longest id taken from a client.
    pub const MAX: usize = 128;

    /// Takes a client's id if it is 1 to [`RequestId::MAX`] visible ASCII characters.
    pub fn from_client(bytes: &[u8]) -> Option<Self> {
        let fits = !bytes.is_empty() && bytes.len() <= Self::MAX && bytes.iter().all(u8::is_ascii_graphic);
        fits.then(|| RequestId(SmallVec::from_slice(bytes)))
    }

    /// Makes one from two random halves.
    pub fn make(high: u64, low: u64) -> Self {
        let mut id = *b"req-000000000000000000000000";
        let random = u128::from(high) << 64 | u128::from(low);
        for (digits, byte) in id[4..].chunks_exact_mut(2).zip(random.to_be_bytes()) {
            digits.copy_from_slice(&HEX[usize::from(byte)]);
        }
        RequestId(SmallVec::from_slice(&id))
    }

    /// The id's text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// API surface of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surface {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/embeddings`.
    Embeddings,
    /// Answered by the gateway itself (models, preflight, unknown paths).
    Local,
}

impl Surface {
    /// Path sent to engines.
    pub fn path(self) -> &'static str {
        match self {
            Surface::Chat => "/v1/chat/completions",
            Surface::Completions => "/v1/completions",
            Surface::Embeddings => "/v1/embeddings",
            Surface::Local => "/",
        }
    }

    /// Short name for logs.
    pub fn name(self) -> &'static str {
        match self {
            Surface::Chat => "chat",
            Surface::Completions => "completions",
            Surface::Embeddings => "embeddings",
            Surface::Local => "local",
        }
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The whole answer of an engine (or of the gateway itself) was handed to the client's socket.
    Completed,
    /// An engine's error answer was passed on in OpenAI's shape.
    EngineError,
    /// The gateway answered with an error of its own.
    Rejected,
    /// The client left, or stopped reading for too long.
    ClientGone,
    /// The engine failed after the first byte had gone to the client.
    Broken,
    /// The gateway shut down before the request finished.
    Shutdown,
}

impl Outcome {
    /// Name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Completed => "completed",
            Outcome::EngineError => "engine_error",
            Outcome::Rejected => "rejected",
            Outcome::ClientGone => "client_gone",
            Outcome::Broken => "broken",
            Outcome::Shutdown => "shutdown",
        }
    }
}

/// Everything known of a settled request. Durations in nanoseconds since its first byte.
#[derive(Debug, Clone)]
pub struct Record {
    /// Given or made.
    pub request_id: RequestId,
    /// `traceparent` as the client sent it, if it looks like one.
    pub traceparent: Option<Box<str>>,
    /// Unix time of its first byte, nanoseconds.
    pub started_wall_ns: u64,
    /// The client's address.
    pub peer: IpAddr,
    /// API surface.
    pub surface: Surface,
    /// The model that was asked for, if it is a known one; of an alias, its route's public name.
    pub model: Option<Arc<str>>,
    /// The endpoint of the last attempt.
    pub endpoint: Option<Arc<Endpoint>>,
    /// Why that endpoint was chosen.
    pub reason: Option<Arc<str>>,
    /// Status sent (or that would have been: 499 when the client left before one).
    pub status: u16,
    /// How it ended.
    pub outcome: Outcome,
    /// The client asked for a stream.
    pub stream: bool,
    /// Endpoints tried.
    pub attempts: u8,
    /// Request body bytes.
    pub bytes_in: u64,
    /// Response bytes handed over, heads and framing included.
    pub bytes_out: u64,
    /// The engine's report of tokens, if it made one.
    pub usage: Option<Usage>,
    /// Data events seen in a stream (an estimate of tokens when there is no report).
    pub events: u32,
    /// Why generation ended.
    pub finish_reason: Option<FinishReason>,
    /// Time to the first body byte (stream: event) from the engine.
    pub ttft: Option<Nanos>,
    /// Whole life.
    pub duration: Nanos,
    /// Short text of the failure that a client's answer does not name, for the log.
    pub detail: Option<&'static str>,
}
