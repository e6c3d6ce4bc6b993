//! Announcing the engine to a gateway's registry, as engines of `tl.control.v1` do.

use crate::server::{Engine, Load};
use llmgw_proto::control::v1::WorkerStatus;
use llmgw_proto::control::v1::worker_registry_client::WorkerRegistryClient;
use std::net::SocketAddr;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// How long a heartbeat may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// After the first heartbeat that fails; each further one doubles it, up to the interval.
const BACKOFF: Duration = Duration::from_millis(100);

/// What an engine announces itself as.
#[derive(Clone, Debug)]
pub struct Announcement {
    /// The registry.
    pub registry: SocketAddr,
    /// Id of this engine.
    pub worker_id: String,
    /// `unified`, `prefill` or `decode`.
    pub role: &'static str,
    /// `host:port` at which the gateway reaches it.
    pub http_address: String,
    /// The served model.
    pub model: String,
    /// Between two heartbeats.
    pub interval: Duration,
}

impl Announcement {
    /// Beats for ever; whatever fails is tried again. Drain requests reach the engine.
    pub async fn beat(&self, engine: &Engine) {
        let mut client = self.client();
        let (mut backoff, mut draining) = (BACKOFF, false);
        loop {
            match client.heartbeat(self.status(&engine.load(), draining)).await {
                Ok(ack) => {
                    backoff = BACKOFF;
                    let drain = ack.into_inner().drain;
                    if drain != draining {
                        draining = drain;
                        engine.set_draining(drain);
                        // The registry learns at once that its wish is granted.
                        continue;
                    }
                    tokio::time::sleep(self.interval).await;
                }
                Err(_) => {
                    tokio::time::sleep(backoff.min(self.interval)).await;
                    backoff = (backoff * 2).min(self.interval);
                }
            }
        }
    }

    /// Says once that it is leaving.
    pub async fn leave(&self, engine: &Engine) {
        engine.set_draining(true);
        // Nobody to tell is no reason to stay.
        let _ = self.client().heartbeat(self.status(&engine.load(), true)).await;
    }

    fn client(&self) -> WorkerRegistryClient<Channel> {
        // An address always makes a URL.
        let endpoint = Endpoint::from_shared(format!("http://{}", self.registry))
            .unwrap_or_else(|_| Endpoint::from_static("http://127.0.0.1"));
        let channel = endpoint.connect_timeout(TIMEOUT).timeout(TIMEOUT).connect_lazy();
        WorkerRegistryClient::new(channel)
    }

    fn status(&self, load: &Load, draining: bool) -> WorkerStatus {
        let signed = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        WorkerStatus {
            worker_id: self.worker_id.clone(),
            http_address: self.http_address.clone(),
            role: self.role.to_owned(),
            model: self.model.clone(),
            queue_depth: signed(load.waiting),
            running: signed(load.running),
            kv_free_blocks: signed(load.free_blocks),
            kv_total_blocks: signed(load.blocks),
            draining,
            ..WorkerStatus::default()
        }
    }
}
