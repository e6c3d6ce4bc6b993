//! A lean HTTP/1.1 client: one connection, one request at a time, times taken right at the read.
//!
//! Connections hold no read buffer; all connections of a thread read into one scratch buffer, so ten thousand idle
//! streams cost their sockets and little more. Everything here runs on one thread.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::rc::Rc;
use std::task::ready;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use crate::http::{Decoder, Part};
use crate::stats::Failure;
use crate::units::now;

/// Bytes taken from a socket at once.
const SCRATCH_BYTES: usize = 64 << 10;
/// Idle connections kept by a pool.
const IDLE_MAX: usize = 20_000;

/// Where requests go: `http://host:port[/prefix]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Resolved address.
    pub address: SocketAddr,
    /// `host:port` as the user wrote it, for the Host field.
    pub authority: String,
    /// Path before `/v1/...`, without the last slash.
    pub prefix: String,
}

/// A URL that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadUrl(String);

impl fmt::Display for BadUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadUrl {}

impl Target {
    /// Parses and resolves. A path that ends in `/v1`, as OpenAI clients are given it, is understood.
    pub fn parse(url: &str) -> Result<Target, BadUrl> {
        let rest = url
            .strip_prefix("http://")
            .ok_or_else(|| BadUrl(format!("`{url}`: write http://HOST:PORT (only plain http is spoken)")))?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let with_port = if authority.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok()) {
            authority.to_owned()
        } else {
            format!("{authority}:80")
        };
        let address = with_port
            .to_socket_addrs()
            .map_err(|e| BadUrl(format!("`{url}`: cannot resolve {authority}: {e}")))?
            .next()
            .ok_or_else(|| BadUrl(format!("`{url}`: {authority} has no address")))?;
        if path.contains(['?', '#', ' ']) {
            return Err(BadUrl(format!("`{url}`: give the base of the API, without query or fragment")));
        }
        let path = path.trim_end_matches('/');
        let path = path.strip_suffix("v1").map_or(path, |p| p.trim_end_matches('/'));
        let prefix = if path.is_empty() { String::new() } else { format!("/{path}") };
        Ok(Target { address, authority: authority.to_owned(), prefix })
    }
}

/// The fields of every request's head that do not change.
#[derive(Clone, Debug)]
pub struct HeadTemplate(String);

impl HeadTemplate {
    /// A POST of JSON to `path`; `fields` are extra `name: value` lines.
    pub fn post(target: &Target, path: &str, fields: &[String]) -> HeadTemplate {
        let mut head = format!(
            "POST {}{path} HTTP/1.1\r\nhost: {}\r\nuser-agent: loadgen\r\ncontent-type: application/json\r\n",
            target.prefix, target.authority
        );
        for field in fields {
            head.push_str(field);
            head.push_str("\r\n");
        }
        HeadTemplate(head)
    }

    /// The whole request.
    pub fn request(&self, id: &str, session: Option<&str>, body: &str) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.0.len() + body.len() + 128);
        bytes.extend_from_slice(self.0.as_bytes());
        let mut field = |name: &str, value: &str| {
            for part in [name, ": ", value, "\r\n"] {
                bytes.extend_from_slice(part.as_bytes());
            }
        };
        field("x-request-id", id);
        if let Some(session) = session {
            field("x-session-id", session);
        }
        field("content-length", &body.len().to_string());
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(body.as_bytes());
        bytes
    }
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    /// The socket.
    pub stream: TcpStream,
    /// It has carried an answer before, so it may have gone stale.
    pub reused: bool,
}

impl Connection {
    /// Connects.
    pub async fn open(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, reused: false })
    }

    /// Reads once and lends the bytes, with the time of the read; empty at the end of the stream.
    pub async fn read<R>(
        &mut self,
        scratch: &RefCell<Box<[u8]>>,
        mut take: impl FnMut(&[u8], Instant) -> R,
    ) -> io::Result<R> {
        poll_fn(|cx| {
            let mut scratch = scratch.borrow_mut();
            let mut buffer = ReadBuf::new(&mut scratch);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
            let at = now();
            std::task::Poll::Ready(Ok(take(buffer.filled(), at)))
        })
        .await
    }
}

/// Longest time a small document may take.
const GET_TIMEOUT: Duration = Duration::from_secs(10);

/// A small document that could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetError(pub Failure);

impl fmt::Display for GetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no answer ({})", self.0)
    }
}

impl std::error::Error for GetError {}

/// Idle connections to one address, newest first, and the scratch buffer of the thread.
#[derive(Debug)]
pub struct Pool {
    address: SocketAddr,
    idle: RefCell<Vec<Connection>>,
    scratch: Rc<RefCell<Box<[u8]>>>,
}

/// The scratch buffer that all pools of a thread share.
pub fn scratch() -> Rc<RefCell<Box<[u8]>>> {
    Rc::new(RefCell::new(vec![0; SCRATCH_BYTES].into_boxed_slice()))
}

/// Takes what an answer consists of, as it comes.
pub trait Sink {
    /// A part came at this time.
    fn part(&mut self, part: Part<'_>, at: Instant);
}

/// A whole answer in memory, for small ones.
#[derive(Debug, Default)]
pub struct Collected {
    /// The body so far.
    pub body: Vec<u8>,
    /// More came than [`COLLECTED_MAX`].
    pub too_long: bool,
}

/// Longest answer that [`Collected`] keeps, in bytes.
pub const COLLECTED_MAX: usize = 16 << 20;

impl Sink for Collected {
    fn part(&mut self, part: Part<'_>, _: Instant) {
        if let Part::Body(bytes) = part {
            if self.body.len() + bytes.len() > COLLECTED_MAX {
                self.too_long = true;
            } else {
                self.body.extend_from_slice(bytes);
            }
        }
    }
}

/// How an exchange ended.
#[derive(Debug)]
pub struct Exchanged {
    /// The status, 0 if no head came.
    pub status: u16,
    /// Transport failure, if any.
    pub failure: Option<Failure>,
    /// When the request was handed to the kernel.
    pub sent_at: Instant,
    /// When the last byte came, or the failure was seen.
    pub ended_at: Instant,
    /// A stale connection was replaced.
    pub retried_stale: bool,
}

impl Pool {
    /// An empty pool.
    pub fn new(address: SocketAddr, scratch: Rc<RefCell<Box<[u8]>>>) -> Pool {
        Pool { address, idle: RefCell::new(Vec::new()), scratch }
    }

    /// GETs a small JSON document.
    pub async fn get_json(&self, target: &Target, path: &str) -> Result<(u16, serde_json::Value), GetError> {
        self.send_json(target, "GET", path, "").await
    }

    /// Sends a small JSON document and reads another; the status and the answer, null where that is no JSON.
    pub async fn send_json(
        &self,
        target: &Target,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<(u16, serde_json::Value), GetError> {
        let Target { authority, prefix, .. } = target;
        let mut request =
            format!("{method} {prefix}{path} HTTP/1.1\r\nhost: {authority}\r\nuser-agent: loadgen\r\n");
        if !body.is_empty() {
            request
                .push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
        }
        request.push_str("\r\n");
        request.push_str(body);
        let mut answer = Collected::default();
        let exchange = self.exchange(request.into_bytes(), &mut answer);
        let exchanged =
            tokio::time::timeout(GET_TIMEOUT, exchange).await.map_err(|_| GetError(Failure::Timeout))?;
        if let Some(failure) = exchanged.failure {
            return Err(GetError(failure));
        }
        Ok((exchanged.status, serde_json::from_slice(&answer.body).unwrap_or_default()))
    }

    /// Sends a request and feeds the answer to `sink`. A reused connection that dies before any byte of the answer is
    /// replaced once by a fresh one: the server may close idle connections at any time.
    pub async fn exchange(&self, mut request: Vec<u8>, sink: &mut impl Sink) -> Exchanged {
        let started = now();
        let idle = self.idle.borrow_mut().pop();
        if let Some(connection) = idle {
            let (ended, stale) = self.exchange_on(connection, &mut request, sink).await;
            if !stale {
                return ended;
            }
            return Exchanged {
                retried_stale: true,
                ..self.exchange_fresh(&mut request, sink, started).await
            };
        }
        self.exchange_fresh(&mut request, sink, started).await
    }

    async fn exchange_fresh(
        &self,
        request: &mut Vec<u8>,
        sink: &mut impl Sink,
        started: Instant,
    ) -> Exchanged {
        match Connection::open(self.address).await {
            Ok(connection) => self.exchange_on(connection, request, sink).await.0,
            Err(_) => Exchanged {
                status: 0,
                failure: Some(Failure::Connect),
                sent_at: started,
                ended_at: now(),
                retried_stale: false,
            },
        }
    }

    /// The outcome, and whether it is that a reused connection had gone stale.
    async fn exchange_on(
        &self,
        mut connection: Connection,
        request: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) -> (Exchanged, bool) {
        let sent_at = now();
        let mut decoder = Decoder::default();
        // A server may answer and close before it read everything: an answer counts even if the write failed.
        let written = connection.stream.write_all(request).await;
        let mut failure = None;
        let mut ended_at = sent_at;
        while !decoder.done() {
            let read = connection.read(&self.scratch, |bytes, at| {
                ended_at = at;
                if bytes.is_empty() {
                    return Some(!decoder.complete_at_close());
                }
                if !decoder.seen_any() {
                    *request = Vec::new(); // never needed again: a long stream must not hold its prompt
                }
                match decoder.feed(bytes, |part| sink.part(part, at)) {
                    Ok(()) => None,
                    Err(_) => {
                        failure = Some(Failure::Malformed);
                        Some(false)
                    }
                }
            });
            match read.await {
                Ok(None) => {}
                Ok(Some(false)) => break,
                Ok(Some(true)) | Err(_) => {
                    ended_at = now();
                    failure = Some(match decoder.head() {
                        Some(_) => Failure::ClosedInBody,
                        None => Failure::ClosedBeforeHead,
                    });
                    break;
                }
            }
        }
        let status = decoder.head().map_or(0, |head| head.status);
        let stale = failure == Some(Failure::ClosedBeforeHead) && connection.reused && !decoder.seen_any();
        let keep = decoder.done() && failure.is_none() && written.is_ok();
        if keep && decoder.head().is_some_and(|head| head.keep_alive) {
            connection.reused = true;
            let mut idle = self.idle.borrow_mut();
            if idle.len() < IDLE_MAX {
                idle.push(connection);
            }
        }
        (Exchanged { status, failure, sent_at, ended_at, retried_stale: false }, stale)
    }
}

#[cfg(test)]
mod tests;
