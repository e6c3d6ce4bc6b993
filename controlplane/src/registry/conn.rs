//! Connections of workers: bounded in number, and ended when they say nothing for too long.

use crate::metrics::OwnStats;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, Sleep};
use tonic::transport::server::Connected;

#[cfg(test)]
mod tests;

/// Most connections at a time: every worker may have its own. One more is closed at once.
pub const CONNECTIONS_MAX: usize = 16_384;
/// A live peer answers the server's pings, so it is never silent for so long.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// After an error of accept, for example for want of descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// An accepted connection.
pub struct Conn {
    stream: TcpStream,
    heard: Instant,
    deadline: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
    own: Arc<OwnStats>,
}

/// Accepts until `stop`, at most so many at a time, and hands connections to `into`.
pub async fn accept(
    listener: TcpListener,
    most: usize,
    into: mpsc::Sender<io::Result<Conn>>,
    own: Arc<OwnStats>,
    mut stop: watch::Receiver<bool>,
) {
    let permits = Arc::new(Semaphore::new(most));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            own.registry_refused.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        // Without it answers are late, not wrong.
        let _ = stream.set_nodelay(true);
        own.registry_connections.fetch_add(1, Ordering::Relaxed);
        let heard = Instant::now();
        let deadline = Box::pin(tokio::time::sleep_until(heard + SILENCE_MAX));
        let conn = Conn { stream, heard, deadline, _permit: permit, own: Arc::clone(&own) };
        if into.send(Ok(conn)).await.is_err() {
            return;
        }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.own.registry_connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connected for Conn {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for Conn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, buf) {
            self.heard = Instant::now();
            return Poll::Ready(read);
        }
        loop {
            ready!(self.deadline.as_mut().poll(cx));
            // The timer is moved when it fires, not with every read.
            let until = self.heard + SILENCE_MAX;
            if until <= Instant::now() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.deadline.as_mut().reset(until);
        }
    }
}

impl AsyncWrite for Conn {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
