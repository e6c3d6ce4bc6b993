use super::stored::{RouteFile, Stored, StoredError};
use super::{Access, AccessError, Admin, access, router};
use crate::fixture;
use crate::fleet::Fleet;
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tower::ServiceExt;

mod guard;
mod table;

const FLEET: &str = "endpoints: [{ id: e1, model: org/m, url: 'http://127.0.0.1:9' }]\n\
                     routes: [{ model: pub, aliases: [p], backends: [{ served_model: org/m, weight: 1 }] }]\n";

/// A directory that goes with its value.
pub struct Dir(pub PathBuf);

impl Dir {
    fn new() -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("llmgw-admin-{}-{n}", std::process::id()));
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An API over a fleet of [`FLEET`].
struct Api {
    router: Router,
    fleet: Arc<Fleet>,
    _plane: Arc<llmgw_dataplane::shared::Shared<()>>,
}

/// What it answered.
struct Answer {
    status: StatusCode,
    headers: axum::http::HeaderMap,
    body: Value,
}

impl Answer {
    fn header(&self, name: header::HeaderName) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Status, `code` and `param` of an error of the one shape there is.
    fn error(&self) -> (u16, &str, &str) {
        let error = self.body["error"].as_object().expect("an error");
        let mut keys: Vec<&str> = error.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["code", "message", "param", "type"], "{}", self.body);
        let text = |key: &str| error[key].as_str().unwrap_or("");
        assert!(!text("message").is_empty() && !text("type").is_empty());
        (self.status.as_u16(), text("code"), text("param"))
    }

    fn message(&self) -> &str {
        self.body["error"]["message"].as_str().unwrap_or_default()
    }
}

impl Api {
    fn new(access: Access, file: Option<RouteFile>) -> Api {
        let (fleet, plane) = fixture::fleet(fixture::config(FLEET));
        let admin = Admin::new(Arc::clone(&fleet), Arc::default(), || 0, access, file);
        Api { router: router(admin), fleet, _plane: plane }
    }

    fn open() -> Api {
        Api::new(Access::Loopback, None)
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let (head, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Answer { status: head.status, headers: head.headers, body }
    }

    /// `fields` are `name: value`, a line each.
    async fn ask(&self, line: &str, fields: &str, body: impl Into<Body>) -> Answer {
        let (method, path) = line.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(path);
        if !fields.contains("host:") {
            request = request.header("host", "127.0.0.1:9090");
        }
        for (name, value) in fields.lines().filter_map(|line| line.split_once(": ")) {
            request = request.header(name, value);
        }
        self.send(request.body(body.into()).unwrap()).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask(&format!("GET /admin/v1/{path}"), "", Body::empty()).await
    }

    async fn put(&self, tag: &str, table: &Value) -> Answer {
        self.ask("PUT /admin/v1/routes", &format!("if-match: {tag}"), table.to_string()).await
    }
}

fn one(model: &str) -> Value {
    json!({ "routes": [{ "model": model, "backends": [{ "served_model": "org/m", "weight": 1 }] }] })
}

#[tokio::test]
async fn admin_routes_workers_drain() {
    let api = Api::open();
    let workers = api.get("workers").await;
    assert_eq!(workers.body["route_epoch"], 1, "the first table's");
    let worker = &workers.body["data"][0];
    assert_eq!(
        (&worker["worker_id"], &worker["model"], &worker["routable"]),
        (&json!("e1"), &json!("org/m"), &json!(true))
    );
    for field in [
        "role",
        "http_address",
        "grpc_address",
        "kv_address",
        "kv_format",
        "queue_depth",
        "running",
        "kv_free_blocks",
        "kv_total_blocks",
        "draining",
        "last_heartbeat_unix_ms",
    ] {
        assert!(worker.get(field).is_some(), "{field}");
    }

    let routes = api.get("routes").await;
    assert_eq!(routes.body["routes"][0]["model"], "pub");
    assert_eq!(routes.body["routes"][0]["targets"], json!(["unified"]));
    let tag = routes.header(header::ETAG).to_owned();
    assert!(tag.starts_with('"') && tag.ends_with('"'), "strong and quoted: {tag}");
    let put = |fields: &'static str| api.ask("PUT /admin/v1/routes", fields, one("x").to_string());
    assert_eq!(put("").await.error(), (428, "if_match_required", "If-Match"));
    assert_eq!(put("if-match: \"1-0\"").await.error(), (412, "etag_mismatch", "If-Match"));
    let bad = json!({ "routes": [{ "model": "c", "cascade": [
        { "model": "a", "accept_if": "mean_logprob > -1" }, { "model": "b", "accept_if": "confident" }] }] });
    assert_eq!(api.put(&tag, &bad).await.error(), (400, "", "routes[0].cascade[1].accept_if"));
    assert_eq!(api.get("routes").await.header(header::ETAG), tag, "nothing has changed so far");
    let done = api.put(&tag, &one("x")).await;
    assert_eq!(
        (done.status, &done.body["route_epoch"], &done.body["source"]),
        (StatusCode::OK, &json!(2), &json!("api"))
    );
    assert_ne!(done.header(header::ETAG), tag);
    assert_eq!(api.get("workers").await.body["route_epoch"], 2);
    assert_eq!(api.put(&tag, &one("y")).await.error().1, "etag_mismatch", "the old tag is stale");

    let drain = |model: &str| {
        api.ask("POST /admin/v1/models/none:drain".replace("none", model).leak(), "", r#"{"deadline_s":5}"#)
    };
    assert_eq!(drain("nobody").await.error(), (404, "model_not_found", ""));
    for (n, model) in ["org/m", "org%2Fm"].into_iter().enumerate() {
        let drained = drain(model).await;
        assert_eq!(drained.status, StatusCode::ACCEPTED);
        assert_eq!(drained.body, json!({ "model": "org/m", "workers": 1 }));
        let workers = api.get("workers").await;
        assert_eq!(workers.body["data"][0]["routable"], false, "{n}");
        assert_eq!(api.get("status").await.body["drained"], json!(["org/m"]));
        let undrained = api.ask(&format!("POST /admin/v1/models/{model}:undrain"), "", Body::empty()).await;
        assert_eq!((undrained.status, &undrained.body["workers"]), (StatusCode::ACCEPTED, &json!(1)));
        assert_eq!(api.get("workers").await.body["data"][0]["routable"], true);
    }
    for deadline in ["3601", "-1", "1.5", "\"5\"", "null"] {
        let body = format!(r#"{{"deadline_s":{deadline}}}"#);
        let answer = api.ask("POST /admin/v1/models/org/m:drain", "", body).await;
        assert_eq!(answer.error(), (400, "", "deadline_s"), "{deadline}: {}", answer.body);
    }
}

#[tokio::test]
async fn every_no_has_one_shape() {
    let api = Api::open();
    let cases = [
        ("GET /", "", "", 404),
        ("GET /admin/v1", "", "", 404),
        ("GET /admin/v1/workers/", "", "", 404),
        ("GET /admin/v2/workers", "", "", 404),
        ("POST /admin/v1/models/m", "", "", 404),
        ("DELETE /admin/v1/workers", "", "", 405),
        ("PATCH /admin/v1/routes", "", "", 405),
        ("GET /admin/v1/reload", "", "", 405),
        ("GET /admin/v1/models/m:drain", "", "", 405),
        ("POST /admin/v1/models/org/m:drain", "", "", 400),
        ("POST /admin/v1/models/org/m:drain", "content-type: text/plain", r#"{"deadline_s":1}"#, 415),
        ("POST /admin/v1/models/org/m:drain", "", r#"{"deadline_s":1,"force":true}"#, 400),
        ("POST /admin/v1/models/org/m:undrain", "", r#"{"deadline_s":1}"#, 400),
        ("POST /admin/v1/reload", "", "now", 400),
        ("POST /admin/v1/reload", "", "", 400),
        ("GET /admin/v1/workers?model=m", "", "", 400),
    ];
    for (line, fields, body, status) in cases {
        let answer = api.ask(line, fields, body).await;
        assert_eq!(answer.error().0, status, "{line}: {}", answer.body);
        assert_eq!(answer.header(header::CONTENT_TYPE), "application/json", "{line}");
        assert_eq!(answer.headers.contains_key(header::ALLOW), status == 405, "{line}");
    }
    let allowed = api.ask("PATCH /admin/v1/routes", "", "").await;
    let mut allowed: Vec<&str> = allowed.header(header::ALLOW).split(',').map(str::trim).collect();
    allowed.sort_unstable();
    assert_eq!(allowed, ["DELETE", "GET", "HEAD", "PUT"]);
    let answer = api.ask("POST /admin/v1/models/org/m:drain", "", "x".repeat((1 << 20) + 1)).await;
    assert_eq!(answer.error(), (413, "request_too_large", ""));
    let answer = api.ask("PUT /admin/v1/routes", "if-match: *", "{\n  \"routes\": [,]}").await;
    assert!(answer.message().contains("line 2 column 14"), "{}", answer.message());
}

#[tokio::test]
async fn secrets_are_masked() {
    let config =
        fixture::config("store: { postgres: 'postgres://u:hunter2@db/x' }\nlimits: { max_body: 1MiB }");
    let (fleet, _plane) = fixture::fleet(config);
    let token = "s3cret-token";
    let admin = Admin::new(fleet, Arc::default(), || 0, Access::Token(token.to_owned()), None);
    assert!(!format!("{:?}", admin.access).contains(token));
    let api = Api { router: router(admin), ..Api::open() };
    let answer =
        api.ask("GET /admin/v1/config", &format!("authorization: Bearer {token}"), Body::empty()).await;
    let text = answer.body.to_string();
    assert!(!text.contains("hunter2") && !text.contains(token), "{text}");
    assert_eq!(answer.body["config"]["store"]["postgres"], "***");
    assert_eq!(answer.body["config"]["admin"]["token_env"], "LLMGW_ADMIN_TOKEN");
    assert_eq!(answer.body["config"]["limits"]["max_body"], "1MiB");
    assert_eq!(answer.body["config"]["timeouts"]["first_token"], "5m");
    assert_eq!(answer.body["origins"]["limits.max_body"], "line 3, column 21");
    assert!(answer.body["origins"].get("timeouts.first_token").is_none(), "a default");
}

#[tokio::test]
async fn too_many_requests_at_a_time_are_told() {
    let (fleet, _plane) = fixture::fleet(fixture::config(FLEET));
    let admin = Admin::new(fleet, Arc::default(), || 0, Access::Loopback, None);
    let _all = admin.places.try_acquire_many(u32::try_from(super::REQUESTS).unwrap()).unwrap();
    let own = Arc::clone(&admin.own);
    let api = Api { router: router(Arc::clone(&admin)), ..Api::open() };
    let answer = api.get("status").await;
    assert_eq!((answer.error(), answer.header(header::RETRY_AFTER)), ((503, "no_capacity", ""), "1"));
    let page = crate::metrics::render(&*api._plane, &own, &crate::process::Readings::default(), 0);
    assert!(page.contains(r#"llmgw_admin_requests_total{route="status",status="503"} 1"#), "{page}");
}

#[test]
fn what_is_on_disk_is_a_table_or_refused_by_name() {
    let dir = Dir::new();
    let file = RouteFile::within(&dir.0);
    assert!(file.load().unwrap().is_none() && !file.remove().unwrap());
    let routes = serde_json::from_value(one("m")["routes"].clone()).unwrap();
    let stored = Stored::new(routes, 7);
    file.save(&stored).unwrap();
    assert_eq!(file.load().unwrap(), Some(stored));
    assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 1, "nothing is left beside it");
    for text in [
        "",
        "{",
        "{}",
        r#"{"version":2,"route_epoch":1,"routes":[]}"#,
        r#"{"version":1,"route_epoch":1,"routes":[{"model":"a"},{"model":"a"}]}"#,
    ] {
        std::fs::write(file.path(), text).unwrap();
        let error = file.load().unwrap_err();
        assert!(matches!(error, StoredError::Corrupt { .. }));
        let told = error.to_string();
        assert!(told.contains("routes.json") && told.contains("move it away"), "{told}");
    }
    assert!(file.remove().unwrap() && file.load().unwrap().is_none());
}

#[test]
fn how_the_api_is_entered() {
    let (here, there) = ("127.0.0.1:1".parse().unwrap(), "0.0.0.0:1".parse().unwrap());
    let get = |address, value: Option<&str>| access(address, "TOKEN", value.map(Into::into));
    assert_eq!(get(here, None), Ok(Access::Loopback));
    assert_eq!(get(there, Some("t")), Ok(Access::Token("t".into())));
    let open = get(there, None).unwrap_err();
    assert!(matches!(open, AccessError::Open { .. }) && open.to_string().contains("TOKEN (admin.token_env)"));
    assert!(matches!(get(here, Some("")), Err(AccessError::Empty { .. })));
    assert!(matches!(get(here, Some("a b")), Err(AccessError::Unprintable { .. })));
}
