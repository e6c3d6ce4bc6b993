//! One client that leaves before its answer is complete: opens a request, goes some way into its life, and is gone.

use std::cell::RefCell;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use crate::checker::{Checker, EventKind, TokenCheck};
use crate::client::Connection;
use crate::http::{Decoder, Malformed, Part};
use crate::sse::SseParser;
use crate::stats::Failure;
use crate::units::unix_ns;

/// Where in a request's life the client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Connected, the head not or only partly sent.
    BeforeHead,
    /// The head and a part of the body sent.
    DuringBody,
    /// All sent, nothing answered yet.
    WaitingHead,
    /// Tokens are coming.
    MidStream,
    /// Tokens came, and none comes now.
    QuietStream,
}

impl Phase {
    /// All, in order of a request's life.
    pub const ALL: [Phase; 5] =
        [Phase::BeforeHead, Phase::DuringBody, Phase::WaitingHead, Phase::MidStream, Phase::QuietStream];

    /// The engine cannot but know the request: it has answered.
    pub fn has_arrived(self) -> bool {
        matches!(self, Phase::MidStream | Phase::QuietStream)
    }

    /// The whole request was sent, so the engine should come to know it.
    pub fn is_sent(self) -> bool {
        self >= Phase::WaitingHead
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::BeforeHead => "before_head",
            Phase::DuringBody => "during_body",
            Phase::WaitingHead => "waiting_head",
            Phase::MidStream => "mid_stream",
            Phase::QuietStream => "quiet_stream",
        })
    }
}

/// How the client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Leave {
    /// By a FIN; the socket stays open for reading, so that no RST follows.
    Fin,
    /// By a RST.
    Rst,
}

/// All of one attempt.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The request's id, by which engines are asked.
    pub id: String,
    /// Where it leaves.
    pub phase: Phase,
    /// How it leaves.
    pub leave: Leave,
    /// The whole request.
    pub request: Vec<u8>,
    /// How much of it is sent.
    pub sent_bytes: usize,
    /// Time from then to leaving; in a quiet stream, time without a byte.
    pub wait: Duration,
    /// Events with text after which it leaves, for [`Phase::MidStream`].
    pub events: u32,
    /// Longest time the phase may take to be reached.
    pub timeout: Duration,
}

/// What came of an attempt.
#[derive(Debug)]
pub enum Left {
    /// The client left at this time, in nanoseconds since the Unix epoch.
    Gone {
        /// When.
        at_unix_ns: u64,
        /// The half-closed socket, to be kept until engines were asked.
        kept: Option<TcpStream>,
    },
    /// The answer was complete before that.
    Completed,
    /// The phase was never reached.
    Failed(Failure),
}

impl Attempt {
    /// Opens, waits, leaves.
    pub async fn run(&self, address: SocketAddr, scratch: Rc<RefCell<Box<[u8]>>>) -> Left {
        let Ok(mut connection) = Connection::open(address).await else {
            return Left::Failed(Failure::Connect);
        };
        let sent = &self.request[..self.sent_bytes.min(self.request.len())];
        if connection.stream.write_all(sent).await.is_err() {
            return Left::Failed(Failure::ClosedBeforeHead);
        }
        let mut answer = Watched::new();
        loop {
            let now = clock();
            let leave_at = match self.phase {
                Phase::MidStream if answer.events >= self.events => break,
                Phase::MidStream => answer.started + self.timeout,
                Phase::QuietStream if answer.events > 0 => answer.last_read + self.wait,
                Phase::QuietStream => answer.started + self.timeout,
                _ => answer.started + self.wait,
            };
            if now >= leave_at {
                break;
            }
            tokio::select! {
                biased;
                ended = answer.read(&mut connection, &scratch) => {
                    if let Some(ended) = ended {
                        return ended;
                    }
                }
                () = sleep_until(leave_at) => {}
            }
        }
        let reached = match self.phase {
            Phase::MidStream => answer.events >= self.events,
            Phase::QuietStream => answer.events > 0,
            _ => true,
        };
        if !reached {
            return Left::Failed(Failure::Timeout);
        }
        self.leave(connection.stream).await
    }

    async fn leave(&self, mut stream: TcpStream) -> Left {
        let at_unix_ns = unix_ns();
        match self.leave {
            Leave::Fin => match stream.shutdown().await {
                Ok(()) => Left::Gone { at_unix_ns, kept: Some(stream) },
                Err(_) => Left::Failed(Failure::ClosedInBody),
            },
            Leave::Rst => match stream.set_zero_linger() {
                Ok(()) => {
                    drop(stream);
                    Left::Gone { at_unix_ns, kept: None }
                }
                Err(_) => Left::Failed(Failure::Connect),
            },
        }
    }
}

fn clock() -> Instant {
    Instant::from_std(crate::units::now())
}

/// The answer as far as it has come.
struct Watched {
    decoder: Decoder,
    sse: SseParser,
    checker: Checker,
    status: u16,
    events: u32,
    started: Instant,
    last_read: Instant,
}

impl Watched {
    fn new() -> Watched {
        let started = clock();
        Watched {
            decoder: Decoder::default(),
            sse: SseParser::default(),
            checker: Checker::new(TokenCheck::Off, "", false),
            status: 0,
            events: 0,
            started,
            last_read: started,
        }
    }

    /// Reads once; returns what ended the attempt early, if anything did.
    async fn read(&mut self, connection: &mut Connection, scratch: &RefCell<Box<[u8]>>) -> Option<Left> {
        let read = connection.read(scratch, |bytes, at| {
            self.last_read = Instant::from_std(at);
            (bytes.is_empty(), self.take(bytes))
        });
        match read.await {
            Ok((_, Err(_))) => Some(Left::Failed(Failure::Malformed)),
            Ok(_) if self.status != 0 && !(200..300).contains(&self.status) => {
                Some(Left::Failed(Failure::Status(self.status)))
            }
            Ok(_) if self.decoder.done() => Some(Left::Completed),
            Ok((false, Ok(()))) => None,
            Ok((true, _)) if self.decoder.complete_at_close() => Some(Left::Completed),
            Ok((true, _)) | Err(_) if self.decoder.head().is_some() => {
                Some(Left::Failed(Failure::ClosedInBody))
            }
            Ok((true, _)) | Err(_) => Some(Left::Failed(Failure::ClosedBeforeHead)),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let Watched { decoder, sse, checker, status, events, .. } = self;
        let mut too_long = false;
        decoder.feed(bytes, |part| match part {
            Part::Head(head) => *status = head.status,
            Part::Body(bytes) => {
                let fed =
                    sse.feed(bytes, |data| *events += u32::from(checker.event(data) == EventKind::Content));
                too_long |= fed.is_err();
            }
        })?;
        if too_long { Err(Malformed("an event is too long")) } else { Ok(()) }
    }
}
