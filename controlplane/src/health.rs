//! The health listener: `/healthz`, `/readyz`, `/metrics`.

use crate::expo;
use crate::metrics::{self, OwnStats};
use crate::plane::DataPlane;
use crate::process::Readings;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use llmgw_dataplane::shared::Stop;
use llmgw_routing::Nanos;
use llmgw_routing::load::Health;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[cfg(test)]
mod tests;

/// What the handlers look at.
#[derive(Clone)]
pub struct Surface {
    /// The data plane.
    pub plane: Arc<dyn DataPlane>,
    /// The control plane's counters.
    pub own: Arc<OwnStats>,
    /// The monotonic clock of the shards.
    pub clock: fn() -> Nanos,
}

/// Why the process should get no traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReady {
    /// Shutting down.
    Draining,
    /// Some shards are not running yet.
    ShardsNotStarted {
        /// Running.
        started: usize,
        /// Of these.
        shards: usize,
    },
    /// Nothing can take a request.
    NoRoutableEndpoint {
        /// Endpoints configured.
        endpoints: usize,
    },
}

impl NotReady {
    /// In a word.
    pub fn reason(self) -> &'static str {
        match self {
            NotReady::Draining => "draining",
            NotReady::ShardsNotStarted { .. } => "shards_not_started",
            NotReady::NoRoutableEndpoint { .. } => "no_routable_endpoint",
        }
    }

    /// The JSON that `/readyz` answers.
    pub fn json(self) -> String {
        match self {
            NotReady::Draining => r#"{"ready":false,"reason":"draining"}"#.to_owned(),
            NotReady::ShardsNotStarted { started, shards } => {
                format!(
                    r#"{{"ready":false,"reason":"shards_not_started","started":{started},"shards":{shards}}}"#
                )
            }
            NotReady::NoRoutableEndpoint { endpoints } => {
                format!(r#"{{"ready":false,"reason":"no_routable_endpoint","endpoints":{endpoints}}}"#)
            }
        }
    }
}

/// Whether the process should get traffic. A busy endpoint counts: it is alive, and full for a moment.
pub fn readiness(plane: &dyn DataPlane, own: &OwnStats, now: Nanos) -> Result<(), NotReady> {
    if own.draining.load(Ordering::Relaxed) || plane.stopping() > Stop::No {
        return Err(NotReady::Draining);
    }
    let shards = plane.shards();
    let started = (0..shards).filter(|shard| plane.started(*shard)).count();
    if started < shards {
        return Err(NotReady::ShardsNotStarted { started, shards });
    }
    let snapshot = plane.snapshot();
    let alive = |slot: u32| matches!(plane.loads().health(slot, now), Health::Ready | Health::Busy { .. });
    let routable = snapshot.models.values().any(|m| m.endpoints.iter().any(|e| alive(e.slot.index())));
    if routable { Ok(()) } else { Err(NotReady::NoRoutableEndpoint { endpoints: snapshot.endpoints.len() }) }
}

/// The listener's routes.
pub fn router(surface: Surface) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(surface)
}

async fn readyz(State(surface): State<Surface>) -> Response {
    let (status, body) = match readiness(&*surface.plane, &surface.own, (surface.clock)()) {
        Ok(()) => (StatusCode::OK, r#"{"ready":true}"#.to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why.json()),
    };
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

async fn metrics(State(surface): State<Surface>) -> Response {
    let text = metrics::render(&*surface.plane, &surface.own, &Readings::take(), (surface.clock)());
    ([(header::CONTENT_TYPE, expo::CONTENT_TYPE)], text).into_response()
}
