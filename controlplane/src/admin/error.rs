//! What the admin API answers when it says no: always OpenAI's error shape.

use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every error.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorDetail,
}

/// What went wrong.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// For people: what was wrong, and what to do.
    pub message: String,
    /// `invalid_request_error`, `permission_error` or `server_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Path of the field at fault, such as `routes[0].cascade[1].accept_if`; null if no field is.
    #[schema(required)]
    pub param: Option<String>,
    /// For programs; null where the type says it all.
    #[schema(required)]
    pub code: Option<String>,
}

/// An error on its way to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    message: String,
    param: Option<String>,
    field: Option<(&'static str, &'static str)>,
}

const INVALID: &str = "invalid_request_error";

impl ApiError {
    fn new(
        status: StatusCode,
        kind: &'static str,
        code: Option<&'static str>,
        message: impl Into<String>,
    ) -> Self {
        ApiError { status, kind, code, message: message.into(), param: None, field: None }
    }

    /// 400; `param` is the path of the field at fault, empty for the request as a whole.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::BAD_REQUEST, INVALID, None, message);
        error.param = Some(param.into()).filter(|param: &String| !param.is_empty());
        error
    }

    /// 400 with a code of its own: a reload that was refused.
    pub fn refused(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID, Some(code), message)
    }

    /// 401.
    pub fn unauthorized(message: &'static str) -> Self {
        let mut error = Self::new(StatusCode::UNAUTHORIZED, INVALID, Some("invalid_api_key"), message);
        error.field = Some(("www-authenticate", r#"Bearer realm="llmgw admin""#));
        error
    }

    /// 403 for a request that a web page of somebody else's made.
    pub fn foreign(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", Some(code), message)
    }

    /// 404 for a path that is none.
    pub fn no_such_path(path: &str) -> Self {
        let path = clipped(path);
        let message = format!("nothing is at {path}; GET /admin/v1/openapi.json lists what there is");
        Self::new(StatusCode::NOT_FOUND, INVALID, Some("not_found"), message)
    }

    /// 404 for a model that is not known.
    pub fn no_such_model(model: &str) -> Self {
        let message =
            format!("no endpoint, worker, route or catalog entry names the model `{}`", clipped(model));
        Self::new(StatusCode::NOT_FOUND, INVALID, Some("model_not_found"), message)
    }

    /// 405; the list of allowed methods is added by the router.
    pub fn method_not_allowed(method: &str, path: &str) -> Self {
        let message = format!("{} is not taken at {}", clipped(method), clipped(path));
        Self::new(StatusCode::METHOD_NOT_ALLOWED, INVALID, Some("method_not_allowed"), message)
    }

    /// 408 for a body that took too long.
    pub fn too_slow() -> Self {
        let message = "the request's body did not come in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, INVALID, Some("request_timeout"), message)
    }

    /// 412.
    pub fn etag_mismatch(message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::PRECONDITION_FAILED, INVALID, Some("etag_mismatch"), message);
        error.param = Some("If-Match".to_owned());
        error
    }

    /// 413.
    pub fn too_large(limit: usize) -> Self {
        let message = format!("the request's body is larger than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, Some("request_too_large"), message)
    }

    /// 415.
    pub fn not_json(found: &str) -> Self {
        let message = format!("the body must be application/json, not {}", clipped(found));
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, Some("unsupported_media_type"), message)
    }

    /// 428.
    pub fn if_match_required() -> Self {
        let message =
            "send If-Match with the ETag that GET /admin/v1/routes answered, so that nobody's edit is lost";
        let mut error =
            Self::new(StatusCode::PRECONDITION_REQUIRED, INVALID, Some("if_match_required"), message);
        error.param = Some("If-Match".to_owned());
        error
    }

    /// 500 for what the server could not do: a file that cannot be written.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", Some("internal_error"), message)
    }

    /// 503 for more requests at a time than are taken.
    pub fn busy() -> Self {
        let message = "too many admin requests at a time; try again";
        let mut error =
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("no_capacity"), message);
        error.field = Some(("retry-after", "1"));
        error
    }

    /// Its status.
    pub fn status(&self) -> StatusCode {
        self.status
    }
}

/// At most 200 characters of what a client sent, printable.
fn clipped(text: &str) -> String {
    let clean = text.escape_debug().to_string();
    match clean.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &clean[..end]),
        None => clean,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = ErrorBody {
            error: ErrorDetail {
                message: self.message,
                kind: self.kind.to_owned(),
                param: self.param,
                code: self.code.map(str::to_owned),
            },
        };
        let mut response = (self.status, super::json(&body)).into_response();
        if let Some((name, value)) = self.field {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}
