//! Workers, the effective configuration, reload, and the state of the process.

use super::dto::{ConfigView, Reloaded, Source, Status, Worker, Workers};
use super::{Admin, ApiError, ErrorBody, json, read};
use crate::fleet::WorkerView;
use crate::{config, health};
use axum::extract::{Request, State};
use axum::response::Response;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The engines: endpoints of the configuration and live self-registered workers.
#[utoipa::path(
    get,
    path = "/admin/v1/workers",
    tag = "workers",
    responses(
        (status = 200, body = Workers),
        (status = "4XX", body = ErrorBody, description = "Refused"),
        (status = "5XX", body = ErrorBody, description = "Failed"),
    )
)]
pub async fn workers(State(admin): State<Arc<Admin>>, request: Request) -> Result<Response, ApiError> {
    read::query(request.uri().query(), [])?;
    let data = admin.fleet.workers().into_iter().map(worker).collect();
    Ok(json(&Workers { data, route_epoch: admin.fleet.route_epoch() }))
}

fn worker(view: WorkerView) -> Worker {
    let word = |value: &dyn std::fmt::Debug| format!("{value:?}").to_ascii_lowercase();
    Worker {
        worker_id: view.worker_id.to_string(),
        role: view.role.to_owned(),
        model: view.model.to_string(),
        http_address: view.http_address,
        grpc_address: view.grpc_address,
        kv_address: view.kv_address,
        kv_format: view.kv_format,
        queue_depth: view.queue_depth,
        running: view.running,
        kv_free_blocks: view.kv_free_blocks,
        kv_total_blocks: view.kv_total_blocks,
        draining: view.draining,
        last_heartbeat_unix_ms: view.last_heartbeat_unix_ms,
        source: word(&view.source),
        pool: view.pool.to_string(),
        in_flight: view.in_flight,
        health: word(&view.health),
        routable: view.routable,
    }
}

/// The configuration in use, with secrets hidden.
///
/// The route table is at `/admin/v1/routes`: one that was set there stands over the configuration's.
#[utoipa::path(
    get,
    path = "/admin/v1/config",
    tag = "system",
    responses(
        (status = 200, body = ConfigView),
        (status = "4XX", body = ErrorBody, description = "Refused"),
        (status = "5XX", body = ErrorBody, description = "Failed"),
    )
)]
pub async fn config(State(admin): State<Arc<Admin>>, request: Request) -> Result<Response, ApiError> {
    read::query(request.uri().query(), [])?;
    let running = admin.fleet.config();
    let origins = running.origins.iter().map(|(key, origin)| (key.clone(), origin.to_string())).collect();
    Ok(json(&ConfigView { config: config::view(&running), origins }))
}

/// Reads the configuration file again, and takes it whole or not at all.
///
/// A route table that was set through this API stays; the file's counts again once that is reset.
#[utoipa::path(
    post,
    path = "/admin/v1/reload",
    tag = "system",
    responses(
        (status = 200, body = Reloaded),
        (status = 400, body = ErrorBody, description = "`reload_refused`: what is wrong with it; nothing has changed"),
        (status = "4XX", body = ErrorBody, description = "Refused"),
        (status = "5XX", body = ErrorBody, description = "Failed"),
    )
)]
pub async fn reload(State(admin): State<Arc<Admin>>, request: Request) -> Result<Response, ApiError> {
    read::query(request.uri().query(), [])?;
    read::no_body(request).await?;
    match admin.fleet.reload().await {
        Ok(version) => Ok(json(&Reloaded { version })),
        Err(error) => Err(ApiError::refused("reload_refused", error.to_string())),
    }
}

/// How the process is.
#[utoipa::path(
    get,
    path = "/admin/v1/status",
    tag = "system",
    responses(
        (status = 200, body = Status),
        (status = "4XX", body = ErrorBody, description = "Refused"),
        (status = "5XX", body = ErrorBody, description = "Failed"),
    )
)]
pub async fn status(State(admin): State<Arc<Admin>>, request: Request) -> Result<Response, ApiError> {
    read::query(request.uri().query(), [])?;
    let (plane, own) = (admin.fleet.plane(), &admin.own);
    let not_ready = health::readiness(&**plane, own, (admin.clock)()).err();
    let (routes, route_epoch, set) = admin.fleet.route_table();
    let snapshot = plane.snapshot();
    let in_flight =
        snapshot.endpoints.iter().map(|e| u64::from(plane.loads().inflight(e.slot.index()))).sum();
    Ok(json(&Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ready: not_ready.is_none(),
        not_ready: not_ready.map(|why| why.reason().to_owned()),
        draining: own.draining.load(Ordering::Relaxed),
        shards: plane.shards(),
        snapshot_version: snapshot.version,
        route_epoch,
        route_source: if set { Source::Api } else { Source::Config },
        routes: routes.len(),
        models: snapshot.models.len(),
        endpoints: snapshot.endpoints.len(),
        in_flight,
        drained: admin.fleet.drained().into_iter().map(|drained| drained.model).collect(),
        last_reload_ok: !own.last_reload_refused.load(Ordering::Relaxed),
        configured_at: own.configured_at.load(Ordering::Relaxed),
    }))
}
