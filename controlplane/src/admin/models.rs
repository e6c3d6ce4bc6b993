//! `/admin/v1/models/{model}:drain` and `:undrain`.

use super::dto::{Drain, Drained};
use super::{Admin, ApiError, ErrorBody, json, read};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use std::sync::Arc;
use std::time::Duration;

/// Longest time that requests in flight may be given.
const DEADLINE_MAX_S: u64 = 3600;

/// What the paths under `models/` do: the path is taken apart here, for a model's name may hold slashes, plain or
/// escaped.
pub async fn act(State(admin): State<Arc<Admin>>, request: Request) -> Result<Response, ApiError> {
    let path = request.uri().path().to_owned();
    let Some((model, drain)) = target(&path) else { return Err(ApiError::no_such_path(&path)) };
    if request.method() != Method::POST {
        let mut response = ApiError::method_not_allowed(request.method().as_str(), &path).into_response();
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return Ok(response);
    }
    read::query(request.uri().query(), [])?;
    let drained = if drain {
        drain_model(&admin, model, request).await?
    } else {
        undrain_model(&admin, model, request).await?
    };
    let mut response = json(&drained);
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

/// The model of a path, and whether to drain it.
fn target(path: &str) -> Option<(String, bool)> {
    let rest = path.strip_prefix("/admin/v1/models/")?;
    let (model, drain) = match rest.strip_suffix(":drain") {
        Some(model) => (model, true),
        None => (rest.strip_suffix(":undrain")?, false),
    };
    let model = percent_decode_str(model).decode_utf8().ok()?;
    (!model.is_empty()).then(|| (model.into_owned(), drain))
}

/// Drains a model.
///
/// It gets no new work at once, in this and every later snapshot; what is in flight may finish until the deadline, and
/// is then cut. Its workers are asked to drain with their next heartbeat. A name may hold slashes, plain or as `%2F`.
#[utoipa::path(
    post,
    path = "/admin/v1/models/{model}:drain",
    operation_id = "drain_model",
    tag = "models",
    params(("model" = String, Path, description = "The model that engines serve")),
    request_body = Drain,
    responses(
        (status = 202, body = Drained, description = "It drains"),
        (status = 404, body = ErrorBody, description = "`model_not_found`"),
        (status = "4XX", body = ErrorBody, description = "Refused"),
        (status = "5XX", body = ErrorBody, description = "Failed"),
    )
)]
async fn drain_model(admin: &Admin, model: String, request: Request) -> Result<Drained, ApiError> {
    let Drain { deadline_s } = read::body(request, read::SMALL_BYTES).await?;
    if deadline_s > DEADLINE_MAX_S {
        let message = format!("must be a whole number from 0 to {DEADLINE_MAX_S}, not {deadline_s}");
        return Err(ApiError::invalid("deadline_s", message));
    }
    let workers = admin.fleet.drain(&model, Some(Duration::from_secs(deadline_s)));
    let workers = workers.ok_or_else(|| ApiError::no_such_model(&model))?;
    tracing::info!(model, workers, deadline_s, "draining");
    Ok(Drained { model, workers })
}

/// Takes a drain back.
///
/// The model gets new work again. A model that is not drained stays as it is.
#[utoipa::path(
    post,
    path = "/admin/v1/models/{model}:undrain",
    operation_id = "undrain_model",
    tag = "models",
    params(("model" = String, Path, description = "The model that engines serve")),
    responses(
        (status = 202, body = Drained, description = "It takes work"),
        (status = 404, body = ErrorBody, description = "`model_not_found`"),
        (status = "4XX", body = ErrorBody, description = "Refused"),
        (status = "5XX", body = ErrorBody, description = "Failed"),
    )
)]
async fn undrain_model(admin: &Admin, model: String, request: Request) -> Result<Drained, ApiError> {
    read::no_body(request).await?;
    let workers = admin.fleet.undrain(&model).ok_or_else(|| ApiError::no_such_model(&model))?;
    tracing::info!(model, workers, "drain taken back");
    Ok(Drained { model, workers })
}

#[cfg(test)]
mod tests {
    use super::target;

    #[test]
    fn names_hold_slashes_and_colons() {
        let drain = |path: &str| target(&format!("/admin/v1/models/{path}"));
        assert_eq!(drain("m:drain"), Some(("m".into(), true)));
        assert_eq!(drain("org/m:undrain"), Some(("org/m".into(), false)));
        assert_eq!(drain("org%2Fm:drain"), Some(("org/m".into(), true)));
        assert_eq!(drain("m:7b:drain"), Some(("m:7b".into(), true)));
        assert_eq!(drain("m%3Adrain"), None, "an escaped colon is part of a name");
        for none in ["m", ":drain", "m:", "m:drain/", "%FF:drain", "m:redrain"] {
            assert_eq!(drain(none), None, "{none}");
        }
    }
}
