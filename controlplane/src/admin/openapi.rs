//! The OpenAPI document, made of the handlers and their types.

use super::{Admin, ApiError, ErrorBody, read};
use super::{explain, models, routes, system};
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::sync::{Arc, OnceLock};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

/// Everything that is served.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "llmgw admin API",
        description = "Workers, the route table, drains, configuration and state of a gateway. Errors always have the \
                       shape of OpenAI's.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(
        system::workers,
        routes::get,
        routes::put,
        routes::reset,
        explain::get,
        models::drain_model,
        models::undrain_model,
        system::config,
        system::reload,
        system::status,
        get,
    ),
    components(schemas(explain::PromptKind)),
    security((), ("token" = [])),
    modifiers(&Token),
)]
struct Document;

/// The bearer token, which is optional on a loopback address.
struct Token;

impl Modify for Token {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_with(Default::default);
        components.add_security_scheme("token", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    }
}

/// The document as text, as it is checked in.
pub fn document() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        // The document is a tree of structs, which serialise.
        let mut text = Document::openapi().to_pretty_json().unwrap_or_default();
        text.push('\n');
        text
    })
}

/// This document.
#[utoipa::path(
    get,
    path = "/admin/v1/openapi.json",
    operation_id = "openapi",
    tag = "system",
    responses(
        (status = 200, body = serde_json::Value, description = "OpenAPI"),
        (status = "4XX", body = ErrorBody, description = "Refused"),
        (status = "5XX", body = ErrorBody, description = "Failed"),
    )
)]
pub async fn get(State(_): State<Arc<Admin>>, request: Request) -> Result<Response, ApiError> {
    read::query(request.uri().query(), [])?;
    Ok(([(header::CONTENT_TYPE, "application/json")], document()).into_response())
}
