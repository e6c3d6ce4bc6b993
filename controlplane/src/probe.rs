//! Probes of endpoints that failed, so that they come back before their cooldown ends, and of new ones, so that an
//! engine that was never up costs no request.
//!
//! A probe connects and asks for the engine's health page. Any answer but a 5xx means that the endpoint is up. Only one
//! that cannot be reached is marked (again) as failed: an engine may well serve and have no good health page.

use crate::metrics::OwnStats;
use crate::plane::DataPlane;
use llmgw_routing::Nanos;
use llmgw_routing::load::Health;
use llmgw_routing::snapshot::{Endpoint, Engine};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

#[cfg(test)]
mod tests;

/// Between two probes of an endpoint.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Connect, send and answer together.
pub const TIMEOUT: Duration = Duration::from_secs(1);
/// Probes under way at a time.
const CONCURRENT: usize = 64;
/// A status line fits.
const ANSWER_MAX: usize = 1024;

/// What a probe found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// It answers.
    Up = 0,
    /// It takes connections, and answers 5xx, nonsense, or not in time.
    Unwell = 1,
    /// It takes no connection.
    Unreachable = 2,
}

/// Probes what needs it.
pub struct Prober {
    plane: Arc<dyn DataPlane>,
    own: Arc<OwnStats>,
    clock: fn() -> Nanos,
    /// Endpoints that were probed once, by id; another incarnation is new.
    seen: HashMap<Arc<str>, Weak<Endpoint>>,
}

impl Prober {
    /// `clock` is the shards' monotonic clock.
    pub fn new(plane: Arc<dyn DataPlane>, own: Arc<OwnStats>, clock: fn() -> Nanos) -> Self {
        Prober { plane, own, clock, seen: HashMap::new() }
    }

    /// Probes each second, and at once when `wake` says that there is a new snapshot; ends with `stop`.
    pub async fn run(mut self, wake: Arc<Notify>, mut stop: watch::Receiver<bool>) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = wake.notified() => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
            tokio::select! {
                () = self.pass() => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// One round: every endpoint that is new or failed, some at a time.
    pub async fn pass(&mut self) {
        self.plane.reap();
        let permits = Arc::new(Semaphore::new(CONCURRENT));
        let mut probes = JoinSet::new();
        for endpoint in self.due() {
            let permits = Arc::clone(&permits);
            probes.spawn(async move {
                // Never closed, so never refused.
                let _permit = permits.acquire_owned().await;
                let finding = probe(&endpoint).await;
                (endpoint, finding)
            });
        }
        while let Some(done) = probes.join_next().await {
            if let Ok((endpoint, finding)) = done {
                self.apply(&endpoint, finding);
            }
        }
    }

    fn due(&mut self) -> Vec<Arc<Endpoint>> {
        let snapshot = self.plane.snapshot();
        let now = (self.clock)();
        let mut due = Vec::new();
        let mut seen = HashMap::with_capacity(snapshot.endpoints.len());
        for endpoint in &snapshot.endpoints {
            let known =
                self.seen.get(&endpoint.id).is_some_and(|weak| weak.as_ptr() == Arc::as_ptr(endpoint));
            let failed =
                matches!(self.plane.loads().health(endpoint.slot.index(), now), Health::Failed { .. });
            // A worker that announced itself is up; but where traffic found it broken, a beat alone does not say
            // that it takes connections again.
            if failed || !(known || endpoint.announced) {
                due.push(Arc::clone(endpoint));
            }
            seen.insert(Arc::clone(&endpoint.id), Arc::downgrade(endpoint));
        }
        self.seen = seen;
        due
    }

    fn apply(&self, endpoint: &Endpoint, finding: Finding) {
        self.own.probes[finding as usize].fetch_add(1, Ordering::Relaxed);
        let (loads, slot, now) = (self.plane.loads(), endpoint.slot.index(), (self.clock)());
        let failed = matches!(loads.health(slot, now), Health::Failed { .. });
        match finding {
            Finding::Up if failed => {
                loads.clear(slot);
                tracing::info!(endpoint = %endpoint.id, "endpoint is back");
            }
            Finding::Unreachable => {
                if !failed {
                    tracing::warn!(endpoint = %endpoint.id, address = %endpoint.address, "endpoint cannot be reached");
                }
                loads.mark_failed(slot, now.saturating_add(self.plane.snapshot().settings.cooldown));
            }
            Finding::Up | Finding::Unwell => {}
        }
    }
}

/// Asks one endpoint.
pub async fn probe(endpoint: &Endpoint) -> Finding {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    let mut stream = match tokio::time::timeout_at(deadline, TcpStream::connect(endpoint.address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(_)) | Err(_) => return Finding::Unreachable,
    };
    match tokio::time::timeout_at(deadline, ask(&mut stream, endpoint)).await {
        Ok(Some(status)) if status < 500 => Finding::Up,
        _ => Finding::Unwell,
    }
}

/// The status of the health page; `None` if the answer has none.
async fn ask(stream: &mut TcpStream, endpoint: &Endpoint) -> Option<u16> {
    let page = if endpoint.engine == Engine::Openai { "/v1/models" } else { "/health" };
    let mut request = String::new();
    let _ = write!(
        request,
        "GET {}{page} HTTP/1.1\r\nhost: {}\r\nuser-agent: llmgw-probe\r\nconnection: close\r\n\r\n",
        endpoint.base_path, endpoint.authority
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::with_capacity(256);
    while answer.len() < ANSWER_MAX && !answer.contains(&b'\n') {
        if stream.read_buf(&mut answer).await.ok()? == 0 {
            break;
        }
    }
    status_of(&answer)
}

/// The status in `HTTP/1.x NNN ...`.
fn status_of(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|b| *b == b'\n').next()?;
    let rest = line.strip_prefix(b"HTTP/1.1 ").or_else(|| line.strip_prefix(b"HTTP/1.0 "))?;
    let digits = std::str::from_utf8(rest.get(..3)?).ok()?;
    let ends = matches!(rest.get(3), None | Some(b' ' | b'\r'));
    digits.parse().ok().filter(|status| ends && (100..600).contains(status))
}
