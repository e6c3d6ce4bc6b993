//! Who may use the admin API.
//!
//! **Invariants**
//!
//! * With a token, a request without it gets 401 and learns nothing else. Tokens are compared in constant time.
//! * Without a token the listener is on a loopback address, and a web browser cannot be led here: `Host` must name this
//!   machine (DNS rebinding), and a request that a page made must come from a page of this very listener (CSRF).

use super::{Admin, ApiError};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// How requests prove that they may.
#[derive(Clone, PartialEq, Eq)]
pub enum Access {
    /// With this bearer token.
    Token(String),
    /// By coming from this machine.
    Loopback,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Token(_) => "Token(***)",
            Access::Loopback => "Loopback",
        })
    }
}

/// Why the admin API cannot be opened.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AccessError {
    /// No token on an address that others reach.
    Open { address: SocketAddr, variable: String },
    /// The variable holds nothing.
    Empty { variable: String },
    /// The variable holds what no header can.
    Unprintable { variable: String },
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccessError::Open { address, variable } => write!(
                f,
                "admin_listen is {address}, which others reach, and {variable} (admin.token_env) is not set: put the \
                 admin token into that variable, or keep admin_listen on a loopback address"
            ),
            AccessError::Empty { variable } => {
                write!(
                    f,
                    "{variable} (admin.token_env) is set and empty: put the admin token into it, or unset it"
                )
            }
            AccessError::Unprintable { variable } => write!(
                f,
                "the admin token in {variable} (admin.token_env) holds characters that no header can: use printable \
                 ASCII without spaces"
            ),
        }
    }
}

impl std::error::Error for AccessError {}

/// How the API on `address` is entered, with what the environment has in the variable called `variable`.
pub fn access(address: SocketAddr, variable: &str, value: Option<OsString>) -> Result<Access, AccessError> {
    let variable = variable.to_owned();
    let Some(value) = value else {
        return if address.ip().is_loopback() {
            Ok(Access::Loopback)
        } else {
            Err(AccessError::Open { address, variable })
        };
    };
    match value.into_string() {
        Ok(token) if token.is_empty() => Err(AccessError::Empty { variable }),
        Ok(token) if token.bytes().all(|b| b.is_ascii_graphic()) => Ok(Access::Token(token)),
        _ => Err(AccessError::Unprintable { variable }),
    }
}

/// Lets a request through to its handler, and counts it.
pub async fn pass(State(admin): State<Arc<Admin>>, request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>();
    let route = label(matched.map_or("", MatchedPath::as_str));
    let response = match judge(&admin.access, request.uri(), request.headers()) {
        Err(error) => error.into_response(),
        Ok(()) => match admin.places.try_acquire() {
            Ok(_place) => next.run(request).await,
            Err(_) => ApiError::busy().into_response(),
        },
    };
    admin.own.admin_requests.count(route, response.status().as_u16());
    response
}

/// A route as metrics know it: a fixed word.
fn label(matched: &str) -> &'static str {
    const KNOWN: [&str; 7] =
        ["workers", "routes", "route-explain", "config", "reload", "status", "openapi.json"];
    let name = matched.strip_prefix("/admin/v1/").unwrap_or_default();
    if name.starts_with("models/") {
        return "models";
    }
    KNOWN.into_iter().find(|known| *known == name).unwrap_or("other")
}

fn judge(access: &Access, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    match access {
        Access::Token(token) => bearer(token, headers),
        Access::Loopback => from_here(uri, headers),
    }
}

fn bearer(token: &str, headers: &HeaderMap) -> Result<(), ApiError> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else {
        return Err(ApiError::unauthorized("send the admin token: `Authorization: Bearer TOKEN`"));
    };
    let value = value.as_bytes();
    let split = value.iter().position(|b| *b == b' ').unwrap_or(value.len());
    let (scheme, rest) = value.split_at(split);
    if !scheme.eq_ignore_ascii_case(b"bearer") {
        return Err(ApiError::unauthorized("the admin API takes `Authorization: Bearer TOKEN` only"));
    }
    // Only the length of what was sent shows in the time this takes.
    if bool::from(rest.trim_ascii().ct_eq(token.as_bytes())) {
        Ok(())
    } else {
        Err(ApiError::unauthorized("this is not the admin token"))
    }
}

fn from_here(uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (host, more) = (hosts.next(), hosts.next());
    let host = host.and_then(|host| host.to_str().ok()).filter(|_| more.is_none());
    let Some(host) = host else { return Err(ApiError::invalid("", "the request needs one Host header")) };
    for authority in [Some(host), uri.authority().map(|authority| authority.as_str())].into_iter().flatten() {
        if !is_loopback(authority) {
            let message = format!(
                "without an admin token only requests to a loopback name are taken, and {} is none",
                authority.escape_debug()
            );
            return Err(ApiError::foreign("foreign_host", message));
        }
    }
    let foreign = || {
        let message = "without an admin token, requests made by web pages of other origins are refused";
        ApiError::foreign("foreign_origin", message)
    };
    for origin in headers.get_all(header::ORIGIN) {
        let own = origin.to_str().ok().and_then(|origin| origin.strip_prefix("http://"));
        if !own.is_some_and(|authority| authority.eq_ignore_ascii_case(host)) {
            return Err(foreign());
        }
    }
    for site in headers.get_all("sec-fetch-site") {
        // `none`: typed into the address bar.
        if !matches!(site.as_bytes(), b"same-origin" | b"none") {
            return Err(foreign());
        }
    }
    Ok(())
}

/// Whether an authority names this machine and no other, whatever the port.
fn is_loopback(authority: &str) -> bool {
    let port = |rest: &str| {
        rest.is_empty() || rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
    };
    if let Some(rest) = authority.strip_prefix('[') {
        let Some((address, rest)) = rest.split_once(']') else { return false };
        return port(rest) && address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    }
    let (host, rest) = authority.find(':').map_or((authority, ""), |colon| authority.split_at(colon));
    let here =
        host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    port(rest) && here
}
