//! One request's life: what is known of it, and how its answer is relayed. Bytes in, bytes out; who moves them, and
//! when to try another endpoint, is the shard's business.

mod reply;
mod request;

pub use reply::{ClientFraming, ERROR_BODY_MAX, PlainReply, Reply, Seen, StreamReply, UpReader};
pub use request::{Body, BodyFraming, Dispatch, Failure, Lease};

use crate::record::{RequestId, Surface};
use crate::timer::NEVER;
use llmgw_routing::Nanos;
use llmgw_routing::snapshot::Settings;
use std::sync::Arc;

/// A request and its answer.
// Laid out by hand: what every event of a stream touches comes first, in as few cache lines as may be.
#[repr(C, align(64))]
pub struct Exchange {
    /// The answer under way.
    pub reply: Reply,
    /// First body byte from the engine.
    pub first_byte: Option<Nanos>,
    /// Last body byte from the engine.
    pub last_byte: Nanos,
    /// Last bytes handed to the client, for keep-alive comments.
    pub last_emit: Nanos,
    /// Bytes of the answer handed over, framing included.
    pub bytes_out: u64,
    /// Status sent to the client; 0 until the head went out.
    pub status: u16,
    /// API surface.
    pub surface: Surface,
    /// HTTP/1.1 (chunked framing allowed toward the client).
    pub http11: bool,
    /// The client's connection may carry another request afterwards.
    pub keep_alive: bool,
    /// The settings in force when it began; a reload does not disturb it.
    pub settings: Arc<Settings>,
    /// What the answer told on its way.
    pub seen: Seen,
    /// Given or made.
    pub request_id: RequestId,
    /// As sent by the client, for the record.
    pub traceparent: Option<Box<str>>,
    /// First byte seen, monotonic.
    pub started: Nanos,
    /// First byte seen, Unix nanoseconds.
    pub started_wall: u64,
    /// Headers that pass on to engines, each line ended.
    pub forward: Vec<u8>,
    /// `Access-Control-*` lines for the answer, each line ended; empty without an allowed origin.
    pub cors: Vec<u8>,
    /// The request body and its scan.
    pub body: Body,
    /// Set once the body is complete and the model known.
    pub dispatch: Option<Dispatch>,
}

impl Exchange {
    /// The head went out: nothing is retried from here on.
    pub fn committed(&self) -> bool {
        self.status != 0
    }

    /// When something is due next, given that an engine read is not paused.
    pub fn next_deadline(&self, paused: bool) -> Nanos {
        let settings = &self.settings;
        let total = self.started.saturating_add(settings.timeout_total);
        let Some(dispatch) = &self.dispatch else {
            return total;
        };
        let phase = if let Some(started) = dispatch.connecting {
            started.saturating_add(settings.timeout_connect)
        } else if self.first_byte.is_none() {
            dispatch.sent.saturating_add(settings.timeout_first_token)
        } else if paused {
            NEVER
        } else {
            self.last_byte.saturating_add(settings.timeout_between_tokens)
        };
        let comment = match &self.reply {
            Reply::Stream(stream) if stream.comments_allowed() => {
                self.last_emit.saturating_add(settings.keep_alive_comment)
            }
            _ => NEVER,
        };
        total.min(phase).min(comment)
    }
}
