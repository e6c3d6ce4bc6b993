//! A small HTTP client: one connection a request, JSON in and out.

use crate::Failure;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use llmgw_controlplane::admin::ErrorBody;
use llmgw_controlplane::config::parse_url;
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::net::TcpStream;

/// Where a gateway's admin API is unless told otherwise.
pub const DEFAULT: &str = "http://127.0.0.1:9090";
/// What connecting may take.
const CONNECT: Duration = Duration::from_secs(5);
/// What a request may take; a reload looks names up.
const TOTAL: Duration = Duration::from_secs(60);
/// Largest answer.
const ANSWER_BYTES: usize = 64 << 20;

/// Talks to one admin API.
pub struct Client {
    authority: String,
    base: String,
    token: Option<String>,
}

/// An answer.
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: Vec<u8>,
    etag: Option<String>,
    url: String,
}

impl Client {
    /// For the API at `url`: `http://host:port`.
    pub fn new(url: &str, token: Option<String>) -> Result<Client, Failure> {
        let parsed = parse_url(url).map_err(|error| {
            let hint =
                if url.starts_with("https:") { "; put a tunnel or a proxy in front of it" } else { "" };
            Failure::usage(format!(
                "--admin (or LLMGW_ADMIN): {}{hint}",
                error.replace("engines are", "the admin API is")
            ))
        })?;
        let token = token.filter(|token| !token.is_empty());
        if token.as_ref().is_some_and(|token| !token.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(Failure::usage("--token (or LLMGW_TOKEN) holds characters that no token has"));
        }
        let base = parsed.base_path.trim_end_matches("/admin").to_owned();
        Ok(Client { authority: parsed.authority(), base, token })
    }

    /// A GET of a path under `/admin/v1/`.
    pub async fn get(&self, path: &str) -> Result<Reply, Failure> {
        self.send("GET", path, &[], None).await
    }

    /// A request to a path under `/admin/v1/`, with further headers and a body of JSON.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: Option<String>,
    ) -> Result<Reply, Failure> {
        let url = format!("http://{}{}/admin/v1/{path}", self.authority, self.base);
        match tokio::time::timeout(TOTAL, self.exchange(&url, method, fields, body)).await {
            Ok(result) => result,
            Err(_) => Err(Failure::run(format!("{url} did not answer within {} s", TOTAL.as_secs()))),
        }
    }

    async fn exchange(
        &self,
        url: &str,
        method: &str,
        fields: &[(&str, &str)],
        body: Option<String>,
    ) -> Result<Reply, Failure> {
        let target = url.strip_prefix("http://").and_then(|rest| rest.find('/').map(|slash| &rest[slash..]));
        let mut request = Request::builder()
            .method(method)
            .uri(target.unwrap_or("/"))
            .header(header::HOST, &self.authority)
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, concat!("llmgw-ctl/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request =
            request.body(Full::new(Bytes::from(body.unwrap_or_default()))).map_err(Failure::usage)?;

        let broken = |error: &dyn std::fmt::Display| Failure::run(format!("{url}: {error}"));
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(self.connect().await?)).await.map_err(|error| broken(&error))?;
        // It ends with the answer; what ends it early shows there.
        tokio::spawn(connection);
        let answer = sender.send_request(request).await.map_err(|error| broken(&error))?;
        let status = answer.status().as_u16();
        let etag = answer.headers().get(header::ETAG).and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| broken(&error))?.to_bytes().into();
        Ok(Reply { status, body, etag, url: url.to_owned() })
    }

    async fn connect(&self) -> Result<TcpStream, Failure> {
        let told = |why: String| {
            let at = &self.authority;
            Failure::run(format!(
                "no admin API at http://{at}: {why}; is the gateway running there? --admin URL or LLMGW_ADMIN says \
                 where"
            ))
        };
        match tokio::time::timeout(CONNECT, TcpStream::connect(&self.authority)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(told(error.to_string())),
            Err(_) => Err(told(format!("no connection within {} s", CONNECT.as_secs()))),
        }
    }
}

impl Reply {
    /// The answer, if it says yes; otherwise what it says.
    pub fn ok(self) -> Result<Reply, Failure> {
        if (200..300).contains(&self.status) { Ok(self) } else { Err(self.failure()) }
    }

    /// What an answer that says no says.
    pub fn failure(&self) -> Failure {
        let status = self.status;
        let Ok(body) = serde_json::from_slice::<ErrorBody>(&self.body) else {
            return Failure::run(format!("{} answered {status}, and is no admin API of llmgw", self.url));
        };
        let error = body.error;
        let code = error.code.map_or(String::new(), |code| format!(" {code}"));
        let param = error.param.map_or(String::new(), |param| format!("{param}: "));
        let hint = if status == 401 { "; --token T or LLMGW_TOKEN gives it" } else { "" };
        Failure::run(format!("{param}{}{hint} ({status}{code})", error.message))
    }

    /// Its body, read.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.body).map_err(|error| {
            Failure::run(format!("{} answered what this version does not understand: {error}", self.url))
        })
    }

    /// Its ETag.
    pub fn etag(&self) -> Result<String, Failure> {
        self.etag.clone().ok_or_else(|| Failure::run(format!("{} answered without an ETag", self.url)))
    }
}
