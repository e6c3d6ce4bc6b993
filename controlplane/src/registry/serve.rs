//! `tl.control.v1.WorkerRegistry` over gRPC.

use super::conn;
use super::status::Status;
use super::{Ack, HeartbeatError};
use crate::config::RegistryTls;
use crate::fleet::Fleet;
use crate::metrics::OwnStats;
use crate::publisher;
use llmgw_proto::MESSAGE_MAX;
use llmgw_proto::control::v1::worker_registry_server::{WorkerRegistry, WorkerRegistryServer};
use llmgw_proto::control::v1::{HeartbeatAck, WorkerStatus};
use llmgw_routing::{Nanos, SECOND};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response};
use tracing::Instrument;

/// Heartbeats under way on a connection, so that workers may share one.
const STREAMS_MAX: u32 = 256;
/// Between pings of a quiet connection, and how long an answer may take.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// A TLS handshake, and a heartbeat with its look-up, must end within this.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Metadata of a call, in bytes.
const METADATA_MAX: u32 = 16 << 10;
/// Names looked up at a time: each takes a thread while it waits.
const LOOKUPS: usize = 4;
/// Accepted connections that wait for their handshake to begin.
const WAITING: usize = 64;

/// The registry's listener and what it serves.
pub struct Listener {
    /// Bound.
    pub listener: TcpListener,
    /// Workers must show a certificate.
    pub tls: Option<ServerTlsConfig>,
    /// Who is told.
    pub fleet: Arc<Fleet>,
    /// Counts.
    pub own: Arc<OwnStats>,
    /// The shards' clock.
    pub clock: fn() -> Nanos,
}

impl Listener {
    /// Serves until `stop`.
    pub async fn serve(self, mut stop: watch::Receiver<bool>) {
        let (into, accepted) = mpsc::channel(WAITING);
        let accepting =
            conn::accept(self.listener, conn::CONNECTIONS_MAX, into, Arc::clone(&self.own), stop.clone());
        let service = Service {
            fleet: self.fleet,
            own: self.own,
            clock: self.clock,
            lookups: Semaphore::new(LOOKUPS),
            told: AtomicU64::new(0),
        };
        let service = WorkerRegistryServer::new(service)
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(MESSAGE_MAX);
        let mut server = Server::builder()
            .max_concurrent_streams(STREAMS_MAX)
            .http2_keepalive_interval(Some(PING_INTERVAL))
            .http2_keepalive_timeout(Some(PING_TIMEOUT))
            .http2_max_header_list_size(METADATA_MAX)
            .timeout(TIMEOUT);
        if let Some(tls) = self.tls {
            server = match server.tls_config(tls.timeout(TIMEOUT)) {
                Ok(server) => server,
                Err(error) => return tracing::error!("registry_tls: {error}"),
            };
        }
        let stopped = async move {
            let _ = stop.wait_for(|stop| *stop).await;
        };
        let serving = server.serve_with_incoming_shutdown(service, ReceiverStream::new(accepted), stopped);
        let ((), served) = tokio::join!(accepting, serving);
        if let Err(error) = served {
            tracing::error!("the registry ended: {error}");
        }
    }
}

struct Service {
    fleet: Arc<Fleet>,
    own: Arc<OwnStats>,
    clock: fn() -> Nanos,
    lookups: Semaphore,
    /// Second in which a refusal was last logged.
    told: AtomicU64,
}

#[tonic::async_trait]
impl WorkerRegistry for Service {
    async fn heartbeat(
        &self,
        request: Request<WorkerStatus>,
    ) -> Result<Response<HeartbeatAck>, tonic::Status> {
        let trace = trace_id(request.metadata());
        let status = Status::from(request.into_inner());
        let span = match &trace {
            Some(trace) => tracing::info_span!("heartbeat", trace_id = %trace),
            None => tracing::Span::none(),
        };
        let taken = match span.in_scope(|| self.fleet.heartbeat(&status, (self.clock)())) {
            Err(HeartbeatError::Unresolved { .. }) => {
                self.look_up_and_take(&status).instrument(span.clone()).await
            }
            taken => taken.map_err(refusal),
        };
        match taken {
            Ok(Ack { drain, route_epoch }) => {
                self.own.heartbeats.fetch_add(1, Ordering::Relaxed);
                Ok(Response::new(HeartbeatAck { drain, route_epoch }))
            }
            Err(refused) => {
                self.own.heartbeats_refused.fetch_add(1, Ordering::Relaxed);
                span.in_scope(|| self.tell(&refused));
                Err(refused)
            }
        }
    }
}

impl Service {
    /// A worker joins by a host name.
    async fn look_up_and_take(&self, status: &Status) -> Result<Ack, tonic::Status> {
        // Never closed, so never refused.
        let _turn = self.lookups.acquire().await;
        let found = publisher::lookup_authority(&status.http_address).await;
        match found.map(|found| found.first().copied()) {
            Ok(Some(address)) => self.fleet.heartbeat_from(status, address, (self.clock)()).map_err(refusal),
            Ok(None) => Err(tonic::Status::unavailable("http_address: its host has no address")),
            Err(reason) => {
                Err(tonic::Status::unavailable(format!("http_address: its host does not resolve: {reason}")))
            }
        }
    }

    /// At most one line a second: whoever sends nonsense sends a lot of it.
    fn tell(&self, refused: &tonic::Status) {
        let second = (self.clock)() / SECOND + 1;
        if self.told.swap(second, Ordering::Relaxed) != second {
            tracing::warn!(code = ?refused.code(), "heartbeat refused: {}", refused.message());
        }
    }
}

#[allow(clippy::needless_pass_by_value)] // handed to map_err
fn refusal(error: HeartbeatError) -> tonic::Status {
    let text = error.to_string();
    match error {
        HeartbeatError::Invalid(_) => tonic::Status::invalid_argument(text),
        HeartbeatError::Unresolved { .. } => tonic::Status::unavailable(text),
        HeartbeatError::TooManyWorkers | HeartbeatError::TooManyModels => {
            tonic::Status::resource_exhausted(text)
        }
    }
}

impl From<WorkerStatus> for Status {
    fn from(status: WorkerStatus) -> Status {
        Status {
            worker_id: status.worker_id,
            http_address: status.http_address,
            grpc_address: status.grpc_address,
            kv_address: status.kv_address,
            role: status.role,
            model: status.model,
            kv_format: status.kv_format,
            queue_depth: status.queue_depth,
            running: status.running,
            kv_free_blocks: status.kv_free_blocks,
            kv_total_blocks: status.kv_total_blocks,
            draining: status.draining,
        }
    }
}

/// The trace id of `traceparent`, if it is one: `00-<32 hex digits>-<16>-<2>`.
pub(super) fn trace_id(metadata: &MetadataMap) -> Option<Box<str>> {
    let text = metadata.get("traceparent")?.to_str().ok()?;
    let parts: Vec<&str> = text.split('-').collect();
    let [version, trace, parent, flags] = parts[..] else { return None };
    let hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let fits = hex(version, 2) && version != "ff" && hex(trace, 32) && hex(parent, 16) && hex(flags, 2);
    (fits && trace.bytes().any(|b| b != b'0')).then(|| trace.into())
}

/// Why `registry_tls` cannot be used.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum TlsError {
    /// A file cannot be read.
    Read { key: &'static str, path: PathBuf, error: std::io::Error },
    /// What the files hold makes no server.
    Unusable(tonic::transport::Error),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::Read { key, path, error } => {
                write!(f, "registry_tls.{key}: {} cannot be read: {error}", path.display())
            }
            TlsError::Unusable(error) => {
                let cause = std::error::Error::source(error).map_or(String::new(), |c| format!(": {c}"));
                write!(f, "registry_tls: ca, cert and key make no TLS server: {error}{cause}")
            }
        }
    }
}

impl std::error::Error for TlsError {}

/// Reads the files: workers must show a certificate that `ca` has signed.
pub fn tls(files: &RegistryTls) -> Result<ServerTlsConfig, TlsError> {
    let read = |key, path: &Path| {
        std::fs::read(path).map_err(|error| TlsError::Read { key, path: path.to_owned(), error })
    };
    let identity = Identity::from_pem(read("cert", &files.cert)?, read("key", &files.key)?);
    let ca = Certificate::from_pem(read("ca", &files.ca)?);
    let tls = ServerTlsConfig::new().identity(identity).client_ca_root(ca);
    // Tried here, so that a wrong file keeps the process from starting.
    Server::builder().tls_config(tls.clone()).map_err(TlsError::Unusable)?;
    Ok(tls)
}
