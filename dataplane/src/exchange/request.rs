//! The request side: the body as it arrives, what was decided, and what failed so far.

use crate::driver::Token;
use crate::error::{ApiError, Phase};
use crate::http1::chunked;
use llmgw_routing::load::LoadTable;
use llmgw_routing::scan::{Edits, Fields, RequestScan, ScanError};
use llmgw_routing::snapshot::{Endpoint, Model};
use llmgw_routing::{MILLISECOND, Nanos, SECOND};
use smallvec::SmallVec;
use std::sync::Arc;

/// How the client frames the body.
pub enum BodyFraming {
    /// `Content-Length`: bytes still to come.
    Sized(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked(Box<chunked::Decoder>),
    /// All of it has arrived.
    Complete,
}

/// A request body, held whole: it is needed for routing, and again for a retry.
pub struct Body {
    /// Decoded bytes so far.
    pub bytes: Vec<u8>,
    /// What is still to come.
    pub framing: BodyFraming,
    /// Levels of nesting that it may have.
    max_depth: u16,
    /// The scan, fed as bytes arrive. A body that arrives at once needs none until then.
    scan: Option<Box<RequestScan>>,
    /// The scan's complaint; reading goes on to the end of a body that is already here.
    pub error: Option<ScanError>,
    /// Bytes accounted against `limits.buffered_total`.
    pub reserved: usize,
    /// Decoded size of the whole body, kept after the bytes are released.
    pub size: u64,
}

impl Body {
    /// A body about to arrive.
    pub fn new(framing: BodyFraming, max_depth: u16) -> Self {
        Body { bytes: Vec::new(), framing, max_depth, scan: None, error: None, reserved: 0, size: 0 }
    }

    /// Takes decoded bytes; `whole` if they are all of it.
    pub fn push(&mut self, bytes: &[u8], whole: bool) {
        self.bytes.extend_from_slice(bytes);
        self.size += bytes.len() as u64;
        if whole || self.error.is_some() {
            return;
        }
        let scan = self.scan.get_or_insert_with(|| Box::new(RequestScan::new(self.max_depth)));
        self.error = scan.feed(bytes).err();
    }

    /// The body is complete: what it says.
    pub fn finish(&mut self) -> Result<Fields, ScanError> {
        if let Some(scan) = self.scan.take() {
            return scan.finish(&self.bytes);
        }
        let mut scan = RequestScan::new(self.max_depth);
        scan.feed(&self.bytes)?;
        scan.finish(&self.bytes)
    }
}

/// An in-flight count taken from an endpoint; given back exactly once, when dropped.
pub struct Lease {
    loads: Arc<LoadTable>,
    slot: u32,
}

impl Lease {
    /// Counts a request on `slot`.
    pub fn take(loads: &Arc<LoadTable>, slot: u32) -> Self {
        loads.acquire(slot);
        Lease { loads: Arc::clone(loads), slot }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Found: unwinding drops the other leases, whose counts are wrong by now.
        if crate::planted!(DoubleRelease) && std::thread::panicking() {
            return;
        }
        self.loads.release(self.slot);
        if crate::planted!(DoubleRelease) {
            self.loads.release(self.slot);
        }
    }
}

/// Where the request goes.
pub struct Dispatch {
    /// The public name asked for; of an alias, its route's.
    pub name: Arc<str>,
    /// The model that serves it.
    pub model: Arc<Model>,
    /// Priority toward engines.
    pub priority: i32,
    /// The client asked for a stream.
    pub stream: bool,
    /// Usage was injected, so its chunk is withheld.
    pub withhold_usage: bool,
    /// Splices into the body.
    pub edits: Edits,
    /// Those for endpoints that schedule by the body's `priority`; `None` if the model has none.
    pub edits_with_priority: Option<Box<Edits>>,
    /// Prefix key for affinity.
    pub prefix: SmallVec<[u8; 64]>,
    /// Endpoint of the attempt under way, or of the last.
    pub endpoint: Option<Arc<Endpoint>>,
    /// In-flight count of the attempt under way.
    pub lease: Option<Lease>,
    /// Connection of the attempt under way.
    pub upstream: Option<Token>,
    /// Why the endpoint was chosen.
    pub reason: Option<Arc<str>>,
    /// Slots tried without success.
    pub exclude: SmallVec<[u32; 4]>,
    /// Endpoints tried.
    pub attempts: u8,
    /// The last failure.
    pub failure: Option<Failure>,
    /// Largest Retry-After that a busy engine named.
    pub busy_for: Option<Nanos>,
    /// A connect began at this time and has not been answered.
    pub connecting: Option<Nanos>,
    /// The request was handed to a connection at this time.
    pub sent: Nanos,
}

impl Dispatch {
    /// Splices into the body for this endpoint.
    pub fn edits_for(&self, endpoint: &Endpoint) -> &Edits {
        match &self.edits_with_priority {
            Some(edits) if endpoint.priority_scheduling => edits,
            _ => &self.edits,
        }
    }
}

/// Why an attempt failed before the first byte went to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Nobody listens, or no way there.
    Refused,
    /// No answer to the connect in time.
    ConnectTimeout,
    /// This side is out of descriptors or ports; says nothing of the endpoint.
    Local,
    /// Reset or closed before the first body byte.
    Lost,
    /// The answer was not valid HTTP.
    Malformed,
    /// 429 or 503, and for how long.
    Busy(Nanos),
    /// Its endpoint's drain is over, and it had not answered.
    Drained,
}

impl Failure {
    /// The request cannot have reached an engine.
    pub fn never_sent(self) -> bool {
        matches!(self, Failure::Refused | Failure::ConnectTimeout | Failure::Local)
    }

    /// Short text for the log.
    pub fn name(self) -> &'static str {
        match self {
            Failure::Refused => "connection refused",
            Failure::ConnectTimeout => "connect timeout",
            Failure::Local => "out of local descriptors or ports",
            Failure::Lost => "connection lost before the answer",
            Failure::Malformed => "malformed answer",
            Failure::Busy(_) => "engine busy",
            Failure::Drained => "cut at the end of a drain",
        }
    }

    /// What the client is told when no try is left.
    pub fn answer(self, busy_for: Option<Nanos>) -> ApiError {
        match self {
            Failure::Malformed => ApiError::bad_upstream(),
            Failure::ConnectTimeout => ApiError::upstream_timeout(Phase::Connect),
            Failure::Busy(_) => {
                ApiError::no_capacity("Every engine of this model is busy", busy_for.unwrap_or(SECOND))
            }
            Failure::Drained => ApiError::drained(),
            Failure::Refused | Failure::Local | Failure::Lost => {
                let retry = busy_for.unwrap_or(1000 * MILLISECOND);
                ApiError::no_capacity("No engine of this model could take the request", retry)
            }
        }
    }
}
