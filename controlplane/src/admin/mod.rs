//! The admin API: `/admin/v1` on `admin_listen`.
//!
//! * [`guard`] lets requests in: a bearer token, or without one only what comes from this machine and no web page of
//!   somebody else's; it bounds how many there are at a time.
//! * [`routes`] is the route table under optimistic concurrency; [`stored`] keeps a table that was set here over a
//!   restart. [`models`] drains, [`system`] shows workers, configuration and state, [`explain`] says where a request
//!   would go.
//! * [`dto`] is what goes over the wire; the OpenAPI document ([`openapi`]) is made of it and checked in.
//!
//! **Invariants**
//!
//! * Every answer that says no has OpenAI's error shape, those of unknown paths and methods included.
//! * A route table that was acknowledged is on disk, and survives a crash of the machine.
//! * Nothing here waits on a request of a client, nor does one wait on this.

pub mod dto;
mod error;
mod etag;
mod explain;
mod guard;
mod models;
pub mod openapi;
mod read;
mod routes;
mod spec;
pub mod stored;
mod system;

pub use error::{ApiError, ErrorBody, ErrorDetail};
pub use guard::{Access, AccessError, access};

use crate::fleet::Fleet;
use crate::metrics::OwnStats;
use axum::Router;
use axum::extract::Request;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use llmgw_routing::Nanos;
use serde::Serialize;
use std::sync::{Arc, Mutex};
use stored::RouteFile;
use tokio::sync::Semaphore;

#[cfg(test)]
mod tests;

/// Requests at a time.
const REQUESTS: usize = 64;

/// What the handlers work on.
pub struct Admin {
    fleet: Arc<Fleet>,
    own: Arc<OwnStats>,
    clock: fn() -> Nanos,
    access: Access,
    file: Option<RouteFile>,
    /// Held from the look at the table to the end of its change: disk and memory change together.
    edits: Mutex<()>,
    places: Semaphore,
}

impl Admin {
    /// The API over a fleet. `file` keeps a route table that is set here.
    pub fn new(
        fleet: Arc<Fleet>,
        own: Arc<OwnStats>,
        clock: fn() -> Nanos,
        access: Access,
        file: Option<RouteFile>,
    ) -> Arc<Admin> {
        let places = Semaphore::new(REQUESTS);
        Arc::new(Admin { fleet, own, clock, access, file, edits: Mutex::default(), places })
    }
}

/// The listener's routes.
pub fn router(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/admin/v1/workers", get(system::workers))
        .route("/admin/v1/routes", get(routes::get).put(routes::put).delete(routes::reset))
        .route("/admin/v1/route-explain", get(explain::get))
        .route("/admin/v1/config", get(system::config))
        .route("/admin/v1/reload", post(system::reload))
        .route("/admin/v1/status", get(system::status))
        .route("/admin/v1/openapi.json", get(openapi::get))
        // Model names hold slashes, and the action stands behind a colon: taken apart by hand.
        .route("/admin/v1/models/{*action}", any(models::act))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&admin), guard::pass))
        .with_state(admin)
}

async fn nothing_here(request: Request) -> ApiError {
    ApiError::no_such_path(request.uri().path())
}

async fn wrong_method(request: Request) -> ApiError {
    ApiError::method_not_allowed(request.method().as_str(), request.uri().path())
}

/// A JSON answer.
fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => {
            ApiError::failed(format!("the answer cannot be written as JSON: {error}")).into_response()
        }
    }
}
