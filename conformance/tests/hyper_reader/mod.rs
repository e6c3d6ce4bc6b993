//! Requests as hyper's server reads them.

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use llmgw_conformance::parsers::Reading;
use std::cell::RefCell;
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A runtime to read in.
pub struct HyperReader(tokio::runtime::Runtime);

/// What was read before the end, or before hyper refused.
pub struct Read {
    pub requests: Vec<(String, String, Vec<u8>)>,
    pub error: Option<String>,
}

impl Read {
    /// All of it, or why not.
    pub fn all(self) -> Reading {
        self.error.map_or(Ok(self.requests), Err)
    }
}

impl HyperReader {
    pub fn new() -> Self {
        HyperReader(tokio::runtime::Builder::new_current_thread().build().expect("a runtime"))
    }

    /// Reads a connection's bytes to their end.
    pub fn read(&self, bytes: &[u8]) -> Read {
        self.0.block_on(read(bytes))
    }
}

async fn read(bytes: &[u8]) -> Read {
    let (mut client, server) = tokio::io::duplex(bytes.len() + 256 * 1024);
    let requests = Rc::new(RefCell::new(Vec::new()));
    let into = Rc::clone(&requests);
    let service = service_fn(move |request: Request<Incoming>| {
        let into = Rc::clone(&into);
        async move {
            let (method, target) = (request.method().to_string(), request.uri().to_string());
            let body = request.into_body().collect().await?.to_bytes().to_vec();
            into.borrow_mut().push((method, target, body));
            Ok::<_, hyper::Error>(Response::new(Empty::<Bytes>::new()))
        }
    });
    client.write_all(bytes).await.expect("it fits in the pipe");
    client.shutdown().await.expect("a pipe ends");
    let served = http1::Builder::new().half_close(true).serve_connection(TokioIo::new(server), service).await;
    drop(client.read(&mut []).await);
    let requests = requests.borrow().clone();
    Read { requests, error: served.err().map(|error| error.to_string()) }
}
