//! `/admin/v1/routes`: the route table, changed whole and only by who has seen it.

use super::dto::{PutRoutes, Route, Routes, Source};
use super::stored::Stored;
use super::{Admin, ApiError, ErrorBody, etag, json, read, spec};
use crate::fleet::SetRoutesError;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use std::sync::{Arc, PoisonError};

/// The route table.
///
/// The answer's ETag names this table; a change of it is asked for with that tag in `If-Match`.
#[utoipa::path(
    get,
    path = "/admin/v1/routes",
    tag = "routes",
    responses(
        (status = 200, body = Routes, headers(("ETag" = String, description = "Names this table; strong"))),
        (status = "4XX", body = ErrorBody, description = "Refused"),
        (status = "5XX", body = ErrorBody, description = "Failed"),
    )
)]
pub async fn get(State(admin): State<Arc<Admin>>, request: Request) -> Result<Response, ApiError> {
    read::query(request.uri().query(), [])?;
    Ok(tagged(&admin.table()))
}

/// Replaces the whole route table.
///
/// Of concurrent changes with one tag exactly one is taken. The table is on disk when the answer comes, survives a
/// restart, and stands over the configuration's `routes` until it is reset.
#[utoipa::path(
    put,
    path = "/admin/v1/routes",
    tag = "routes",
    params(("If-Match" = String, Header, description = "The ETag that GET answered, a list of such, or `*`")),
    request_body = PutRoutes,
    responses(
        (status = 200, body = Routes, headers(("ETag" = String, description = "Names the new table; strong"))),
        (status = 400, body = ErrorBody, description = "Not a route table; `param` is the path of what is wrong"),
        (status = 412, body = ErrorBody, description = "`etag_mismatch`: the table has changed; read it again"),
        (status = 428, body = ErrorBody, description = "`if_match_required`"),
        (status = "4XX", body = ErrorBody, description = "Refused"),
        (status = "5XX", body = ErrorBody, description = "Failed; nothing has changed"),
    )
)]
pub async fn put(State(admin): State<Arc<Admin>>, request: Request) -> Result<Response, ApiError> {
    read::query(request.uri().query(), [])?;
    let headers = request.headers().clone();
    // Told before megabytes are sent; what counts is the look under the lock.
    admin.matches(&headers)?;
    let PutRoutes { routes, .. } = read::body(request, read::TABLE_BYTES).await?;
    spec::validate(&routes).map_err(|(param, message)| ApiError::invalid(param, message))?;
    admin.change(headers, Some(routes)).await
}

/// Goes back to the configuration's routes.
///
/// Forgets the table that was set through this API.
#[utoipa::path(
    delete,
    path = "/admin/v1/routes",
    tag = "routes",
    params(("If-Match" = String, Header, description = "The ETag that GET answered, a list of such, or `*`")),
    responses(
        (status = 200, body = Routes, headers(("ETag" = String, description = "Names the new table; strong"))),
        (status = 412, body = ErrorBody, description = "`etag_mismatch`: the table has changed; read it again"),
        (status = 428, body = ErrorBody, description = "`if_match_required`"),
        (status = "4XX", body = ErrorBody, description = "Refused"),
        (status = "5XX", body = ErrorBody, description = "Failed; nothing has changed"),
    )
)]
pub async fn reset(State(admin): State<Arc<Admin>>, request: Request) -> Result<Response, ApiError> {
    read::query(request.uri().query(), [])?;
    let headers = request.headers().clone();
    admin.matches(&headers)?;
    read::no_body(request).await?;
    admin.change(headers, None).await
}

fn tagged(table: &Routes) -> Response {
    let mut response = json(table);
    // A tag is digits and quotes.
    if let Ok(tag) = HeaderValue::from_str(&etag::of(&table.routes, table.route_epoch)) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

impl Admin {
    /// The table as it is.
    pub(super) fn table(&self) -> Routes {
        let (routes, route_epoch, set) = self.fleet.route_table();
        let routes = routes.iter().map(Route::from).collect();
        let source = if set { Source::Api } else { Source::Config };
        Routes { routes, route_epoch, source }
    }

    /// Holds `If-Match` against the table as it is.
    fn matches(&self, headers: &HeaderMap) -> Result<Routes, ApiError> {
        let table = self.table();
        let current = etag::of(&table.routes, table.route_epoch);
        etag::check(headers, &current).map(|()| table).map_err(|unmet| match unmet {
            etag::Unmet::Missing => ApiError::if_match_required(),
            etag::Unmet::Stale => ApiError::etag_mismatch(format!(
                "the route table is not the one that If-Match names; its ETag is {current}: read it again, and make \
                 the change in what it is now"
            )),
            etag::Unmet::Weak => ApiError::etag_mismatch("If-Match takes strong tags only, without `W/`"),
            etag::Unmet::Malformed => {
                ApiError::etag_mismatch("If-Match holds no list of tags; a tag stands in double quotes")
            }
        })
    }

    /// Changes the table, to the configuration's with none, under the precondition of `headers`. Once begun it is
    /// finished, also if the client leaves: disk and memory must not differ.
    async fn change(
        self: &Arc<Self>,
        headers: HeaderMap,
        routes: Option<Vec<Route>>,
    ) -> Result<Response, ApiError> {
        let admin = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || {
            let _turn = admin.edits.lock().unwrap_or_else(PoisonError::into_inner);
            admin.change_now(&headers, routes.as_deref())
        });
        let table =
            done.await.map_err(|error| ApiError::failed(format!("the change broke off: {error}")))??;
        Ok(tagged(&table))
    }

    fn change_now(&self, headers: &HeaderMap, routes: Option<&[Route]>) -> Result<Routes, ApiError> {
        loop {
            let before = self.matches(headers)?;
            let epoch = before.route_epoch;
            self.keep(routes, epoch + 1).inspect_err(|_| self.take_back(&before))?;
            let done = match routes {
                Some(routes) => {
                    let specs = routes.iter().cloned().map(Into::into).collect();
                    self.fleet.set_routes(specs, Some(epoch))
                }
                None => self.fleet.reset_routes(epoch),
            };
            match done {
                Ok(_) => {
                    let after = self.table();
                    let (count, source) = (after.routes.len(), after.source);
                    tracing::info!(epoch = after.route_epoch, routes = count, ?source, "route table changed");
                    return Ok(after);
                }
                Err(error) => {
                    self.take_back(&before);
                    // A reload came in between: look again.
                    if !matches!(error, SetRoutesError::Stale { .. }) {
                        return Err(ApiError::invalid("routes", error.to_string()));
                    }
                }
            }
        }
    }

    /// Puts on disk what is to be there after a change.
    fn keep(&self, routes: Option<&[Route]>, epoch: u64) -> Result<(), ApiError> {
        let Some(file) = &self.file else { return Ok(()) };
        let kept = match routes {
            Some(routes) => file.save(&Stored::new(routes.to_vec(), epoch)),
            None => file.remove().map(|_| ()),
        };
        kept.map_err(|error| ApiError::failed(format!("{error}; the route table stays as it was")))
    }

    /// Puts back on disk what was there before a change that failed.
    fn take_back(&self, before: &Routes) {
        let Some(file) = &self.file else { return };
        let kept = match before.source {
            Source::Api => file.save(&Stored::new(before.routes.clone(), before.route_epoch)),
            Source::Config => file.remove().map(|_| ()),
        };
        if let Err(error) = kept {
            tracing::error!("after a change that failed: {error}; a restart may find another route table");
        }
    }
}
