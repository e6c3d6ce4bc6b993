//! One connection: requests in, answers out, and the watch for a client that goes.
//!
//! The task reads whatever phase its request is in, so that a client's FIN or RST ends the request at once; bytes of a
//! next request wait in the buffer, at most [`AHEAD_MAX`] of them.

use std::io;
use std::rc::Rc;

use tokio::net::TcpStream;

use super::admin;
use super::api::Surface;
use super::http::{self, BadRequest, BodyFraming, ChunkStep, Head};
use super::hub::{Hub, Start};
use super::job::{End, Job};
use super::out::Out;

/// Bytes of pipelined requests read while one is being answered.
const AHEAD_MAX: usize = 256 * 1024;
const READ_SIZE: usize = 8 * 1024;

struct Conn {
    hub: Rc<Hub>,
    out: Rc<Out>,
    buf: Vec<u8>,
    /// It has made a `/sim/` call, or came by the admin listener: `refuse` leaves it alone.
    admin: bool,
}

/// Why a connection ends.
enum Stop {
    /// The client went, or a socket error.
    Gone,
    /// We close.
    Close,
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// Serves a connection to its end.
pub async fn serve(hub: Rc<Hub>, sock: TcpStream, admin: bool) {
    hub.connections.set(hub.connections.get() + 1);
    hub.open.set(hub.open.get() + 1);
    let mut conn = Conn { hub: Rc::clone(&hub), out: Rc::new(Out::new(sock)), buf: Vec::new(), admin };
    while conn.request().await.is_ok() {}
    hub.open.set(hub.open.get() - 1);
}

impl Conn {
    /// One request and its answer.
    async fn request(&mut self) -> Result<(), Stop> {
        let head = match self.head().await? {
            Ok(head) => head,
            Err(bad) => return self.refuse(bad).await,
        };
        if head.expect_continue {
            self.out.send(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        let body = match self.body(head.body).await? {
            Ok(body) => body,
            Err(bad) => return self.refuse(bad).await,
        };
        let surface = match (head.method.as_str(), head.path.as_str()) {
            ("POST", "/v1/chat/completions") => Some(Surface::Chat),
            ("POST", "/v1/completions") => Some(Surface::Completion),
            ("POST", "/v1/embeddings") => Some(Surface::Embedding),
            _ => None,
        };
        if let Some(surface) = surface {
            return self.generate(surface, &head, &body).await;
        }
        self.admin |= head.path.starts_with("/sim/");
        let answer = admin::answer(&self.hub, &head, &body).await;
        self.answer(&answer, head.keep_alive).await
    }

    async fn generate(&mut self, surface: Surface, head: &Head, body: &[u8]) -> Result<(), Stop> {
        match self.hub.generate(surface, head, body, &self.out) {
            Start::Answer(answer, keep_alive) => self.answer(&answer, keep_alive).await,
            Start::Raw(bytes) => self.answer(bytes, false).await,
            Start::Reset => {
                self.out.reset_on_close();
                Err(Stop::Close)
            }
            Start::Job(job) => {
                let end = self.watch(&job).await;
                match end {
                    End::KeepAlive => {
                        self.out.set_split(false);
                        self.refused_meanwhile()
                    }
                    End::Close => {
                        self.linger().await;
                        Err(Stop::Close)
                    }
                    End::Reset => {
                        self.out.reset_on_close();
                        Err(Stop::Close)
                    }
                    End::Aborted => Err(Stop::Gone),
                }
            }
        }
    }

    /// Waits until a job is over and written, flushing for it and watching the client.
    async fn watch(&mut self, job: &Rc<Job>) -> End {
        loop {
            if self.out.failed() {
                self.hub.abort(job);
                return End::Aborted;
            }
            if let Some(end) = job.end.get()
                && (end == End::Reset || !self.out.has_pending())
            {
                return end;
            }
            let mut gone = false;
            tokio::select! {
                biased;
                () = self.out.notify.notified() => {}
                ready = self.out.sock.readable(), if self.buf.len() < AHEAD_MAX => {
                    gone = ready.is_err() || self.read().is_err();
                }
                ready = self.out.sock.writable(), if self.out.has_pending() => {
                    gone = ready.is_err();
                    self.out.flush();
                }
            }
            if gone {
                self.hub.abort(job);
                return End::Aborted;
            }
        }
    }

    /// Takes what the socket has; an error when the client closed.
    fn read(&mut self) -> io::Result<()> {
        self.buf.reserve(READ_SIZE);
        match self.out.sock.try_read_buf(&mut self.buf) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn fill(&mut self) -> io::Result<()> {
        self.out.sock.readable().await?;
        self.read()
    }

    async fn head(&mut self) -> Result<Result<Head, BadRequest>, Stop> {
        let hub = Rc::clone(&self.hub);
        loop {
            // An empty line in front of a request is allowed and skipped by the parser.
            match http::parse_head(&self.buf) {
                Ok(Some((head, length))) => {
                    self.buf.drain(..length);
                    return Ok(Ok(head));
                }
                Ok(None) => {}
                Err(bad) => return Ok(Err(bad)),
            }
            if self.buf.is_empty() {
                self.buf = Vec::new();
                let patient = self.admin;
                tokio::select! {
                    result = self.fill() => result?,
                    () = hub.refused.notified(), if !patient => return Err(Stop::Close),
                }
            } else {
                self.fill().await?;
            }
        }
    }

    async fn body(&mut self, framing: BodyFraming) -> Result<Result<Vec<u8>, BadRequest>, Stop> {
        match framing {
            BodyFraming::Sized(size) => {
                while self.buf.len() < size {
                    self.fill().await?;
                }
                let rest = self.buf.split_off(size);
                Ok(Ok(std::mem::replace(&mut self.buf, rest)))
            }
            BodyFraming::Chunked => {
                let mut body = Vec::new();
                loop {
                    match http::parse_chunk(&self.buf) {
                        Err(bad) => return Ok(Err(bad)),
                        Ok(ChunkStep::Partial) => self.fill().await?,
                        Ok(ChunkStep::Data { range: (start, end), used }) => {
                            if body.len() + (end - start) > http::BODY_MAX {
                                return Ok(Err(BadRequest(413, "request body too large")));
                            }
                            body.extend_from_slice(&self.buf[start..end]);
                            self.buf.drain(..used);
                        }
                        Ok(ChunkStep::End(used)) => {
                            self.buf.drain(..used);
                            return Ok(Ok(body));
                        }
                    }
                }
            }
        }
    }

    async fn answer(&mut self, answer: &[u8], keep_alive: bool) -> Result<(), Stop> {
        self.out.send(answer);
        self.out.drain().await?;
        if keep_alive {
            self.refused_meanwhile()
        } else {
            self.linger().await;
            Err(Stop::Close)
        }
    }

    async fn refuse(&mut self, BadRequest(status, message): BadRequest) -> Result<(), Stop> {
        let answer = http::response(status, "text/plain; charset=utf-8", "", message.as_bytes(), false);
        self.answer(&answer, false).await
    }

    /// While the engine refuses connections, a connection ends with its request.
    fn refused_meanwhile(&self) -> Result<(), Stop> {
        if self.admin || self.hub.listening.get() { Ok(()) } else { Err(Stop::Close) }
    }

    /// Our side is closed; unread bytes would turn the close into an RST that eats the answer.
    async fn linger(&mut self) {
        let _ = rustix::net::shutdown(&self.out.sock, rustix::net::Shutdown::Write);
        let until = tokio::time::Duration::from_secs(1);
        let _ = tokio::time::timeout(until, async {
            loop {
                self.buf.clear();
                if self.fill().await.is_err() {
                    break;
                }
            }
        })
        .await;
    }
}
