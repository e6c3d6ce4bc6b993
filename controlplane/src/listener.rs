//! Serving HTTP/1.1 to operators: the health and the admin listener alike.
//!
//! **Invariant:** a peer holds a bounded share of the process: connections are counted, a head must come in time, and a
//! connection has a longest life, whatever its peer reads or writes. At the bound new connections wait in the kernel.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

#[cfg(test)]
mod tests;

/// Bounds of a listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// From the end of an answer, or the connection's begin, to the last byte of the next head.
    pub header: Duration,
    /// Age at which a connection ends after the answer it is at.
    pub lifetime: Duration,
    /// What that last answer may take.
    pub grace: Duration,
    /// Bytes of a head, about: what the last read brought counts as one.
    pub head_bytes: usize,
}

/// Those of both listeners.
pub const LIMITS: Limits = Limits {
    connections: 256,
    header: Duration::from_secs(30),
    lifetime: Duration::from_secs(600),
    grace: Duration::from_secs(60),
    head_bytes: 64 * 1024,
};

/// Pause after the kernel had no descriptor to give.
const OUT_OF_FILES: Duration = Duration::from_millis(200);

/// Serves until `stop`; open connections end with the runtime.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, mut stop: watch::Receiver<bool>) {
    let room = Arc::new(Semaphore::new(limits.connections));
    let accepting = async {
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let router = router.clone();
                    tokio::spawn(async move {
                        connection(stream, router, limits).await;
                        drop(place);
                    });
                }
                Err(error) if is_of_peer(error.kind()) => {}
                Err(error) => {
                    tracing::warn!("a listener of the control plane cannot accept: {error}");
                    tokio::time::sleep(OUT_OF_FILES).await;
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// The peer was gone before its connection was taken.
fn is_of_peer(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused)
}

async fn connection(stream: TcpStream, router: Router, limits: Limits) {
    // Delayed bytes are no error.
    let _ = stream.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_buf_size(limits.head_bytes)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    // What ends a connection is between it and its peer: late heads, resets.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = tokio::time::sleep(limits.lifetime) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(limits.grace, connection).await;
}
