//! Scripted clients.

use crate::engine::min_some;
use crate::http::Reader;
use crate::plan::{Ask, ConnPlan, RequestPlan, When};
use llmgw_dataplane::driver::sim::{PeerId, PeerState, World};
use llmgw_routing::{Nanos, SECOND};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

pub const GATEWAY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The client was done and closed.
    Done,
    /// The client left on purpose, at this time.
    Cancelled(Nanos),
    /// The gateway ended it in order.
    Eof,
    /// The gateway reset it.
    Reset,
    /// It was never made.
    Refused,
}

/// A connection, alive or over.
pub struct Conn {
    pub plan: ConnPlan,
    pub peer: PeerId,
    pub reader: Reader,
    pub wire: Vec<u8>,
    /// Start, begin of the body and end of each request in `wire`.
    pub marks: Vec<(usize, usize, usize)>,
    pub sent: usize,
    pub received: usize,
    /// When the last byte of each request so far was handed to the network.
    pub sent_at: Vec<Nanos>,
    /// When its first byte was.
    pub begun_at: Vec<Nanos>,
    write_again: Nanos,
    read_again: Nanos,
    pub stalled_at: Option<Nanos>,
    /// The client has not read for long enough to be given up.
    pub stalled_long: bool,
    close_at: Option<Nanos>,
    started: Nanos,
    fin_sent: bool,
    /// Bytes still unsent when the client saw that the connection would close.
    pub end: Option<End>,
    pub ended_at: Nanos,
}

/// A client: its connections one after the other.
pub struct Client {
    pub ip: IpAddr,
    pub plans: std::vec::IntoIter<ConnPlan>,
    pub next_at: Option<(Nanos, ConnPlan)>,
    pub conn: Option<Conn>,
    pub over: Vec<Conn>,
}

impl Client {
    pub fn new(number: usize, plans: Vec<ConnPlan>, now: Nanos) -> Self {
        let mut client = Client {
            ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, if number.is_multiple_of(2) { 1 } else { 2 })),
            plans: plans.into_iter(),
            next_at: None,
            conn: None,
            over: Vec::new(),
        };
        client.plan_next(now);
        client
    }

    pub fn finished(&self) -> bool {
        self.conn.is_none() && self.next_at.is_none()
    }

    fn plan_next(&mut self, now: Nanos) {
        self.next_at = self.plans.next().map(|plan| (now + plan.start_after, plan));
    }

    /// Does what can be done now; answers when to look again. `Err` is a violation.
    pub fn step(&mut self, world: &World) -> Result<Option<Nanos>, String> {
        let now = world.now();
        if self.conn.is_none() {
            match self.next_at.take() {
                Some((at, plan)) if at <= now => self.conn = Some(Conn::open(world, self.ip, plan)),
                waiting => {
                    self.next_at = waiting;
                    return Ok(self.next_at.as_ref().map(|(at, _)| *at));
                }
            }
        }
        let Some(conn) = &mut self.conn else { return Ok(None) };
        let wake = conn.step(world)?;
        if conn.end.is_some() {
            conn.ended_at = now;
            self.over.extend(self.conn.take());
            self.plan_next(now);
            return Ok(self.next_at.as_ref().map(|(at, _)| (*at).max(now)));
        }
        Ok(wake)
    }
}

impl Conn {
    fn open(world: &World, ip: IpAddr, plan: ConnPlan) -> Self {
        let (mut wire, mut marks) = (Vec::new(), Vec::new());
        for request in &plan.requests {
            let start = wire.len();
            let body = write_request(&mut wire, request);
            marks.push((start, body, wire.len()));
        }
        let mut plan = plan;
        // The request is sent well within every timeout.
        let pieces = 7 * SECOND / plan.piece_gap.max(1);
        plan.piece = plan.piece.max(wire.len().div_ceil(usize::try_from(pieces).unwrap_or(usize::MAX)));
        Conn {
            peer: world.connect(ip, GATEWAY),
            plan,
            reader: Reader::default(),
            wire,
            marks,
            sent: 0,
            received: 0,
            sent_at: Vec::new(),
            begun_at: Vec::new(),
            write_again: 0,
            read_again: 0,
            stalled_at: None,
            stalled_long: false,
            close_at: None,
            started: world.now(),
            fin_sent: false,
            end: None,
            ended_at: 0,
        }
    }

    fn step(&mut self, world: &World) -> Result<Option<Nanos>, String> {
        let now = world.now();
        match world.state(self.peer) {
            PeerState::Connecting => {}
            PeerState::Failed(_) => {
                self.end = Some(End::Refused);
                return Ok(None);
            }
            _ => {}
        }
        let mut wake = self.read(world, now)?;
        if self.end.is_some() {
            return Ok(None);
        }
        wake = min_some(wake, self.cancel(world, now));
        if self.end.is_some() {
            return Ok(None);
        }
        if self.finished(world, now) {
            return Ok(None);
        }
        wake = min_some(wake, self.write(world, now));
        wake = min_some(wake, self.cancel(world, now));
        Ok(min_some(wake, self.close_at))
    }

    fn read(&mut self, world: &World, now: Nanos) -> Result<Option<Nanos>, String> {
        if let Some(stall) = self.plan.stall
            && self.received >= stall.after
        {
            let since = *self.stalled_at.get_or_insert(now);
            let until = stall.lasts.map(|lasts| since + lasts);
            if until.is_none_or(|until| now < until) {
                self.stalled_long |= now >= since + 5 * SECOND;
                if world.hung_up(self.peer) {
                    // Given up by the gateway: look at the rest.
                    self.stalled_long = true;
                    self.plan.stall = None;
                } else {
                    return Ok(until);
                }
            } else {
                self.stalled_long |= stall.lasts.is_some_and(|lasts| lasts >= 5 * SECOND);
                self.plan.stall = None;
            }
        }
        if self.read_again > now {
            return Ok(Some(self.read_again));
        }
        loop {
            let most =
                self.plan.stall.map_or(usize::MAX, |stall| stall.after.saturating_sub(self.received).max(1));
            let bytes = world.read(self.peer, self.plan.reads.min(most));
            if bytes.is_empty() {
                break;
            }
            self.received += bytes.len();
            let requests = &self.plan.requests;
            self.reader.push(&bytes, now, |i| requests.get(i).is_some_and(|r| r.ask == Ask::HeadModels))?;
            if self.plan.read_gap > 0 || self.plan.stall.is_some() {
                self.read_again = now + self.plan.read_gap;
                return if self.plan.read_gap > 0 {
                    Ok(Some(self.read_again))
                } else {
                    self.read(world, now)
                };
            }
        }
        if world.state(self.peer) == PeerState::Reset {
            self.end = Some(End::Reset);
        } else if world.at_end(self.peer) {
            self.reader.finish(now);
            self.end = Some(End::Eof);
            world.close(self.peer);
        }
        Ok(None)
    }

    fn cancel(&mut self, world: &World, now: Nanos) -> Option<Nanos> {
        let cancel = self.plan.cancel?;
        let due = match cancel.when {
            When::After(after) if now < self.started + after => return Some(self.started + after),
            When::After(_) => true,
            When::ResponseBytes(bytes) => self.received > bytes,
            When::RequestBytes(bytes) => self.sent >= bytes.min(self.wire.len()),
        };
        if due {
            self.end = Some(End::Cancelled(now));
            if cancel.by_reset { world.reset(self.peer) } else { world.close(self.peer) }
        }
        None
    }

    /// The client has all its answers, or was told that the connection ends.
    fn finished(&mut self, world: &World, now: Nanos) -> bool {
        let told = self.reader.done.last().is_some_and(|response| response.closes());
        let all = self.reader.done.len() >= self.plan.requests.len();
        if all && !told && self.close_at.is_none() {
            self.close_at = Some(now + self.plan.close_after);
        }
        if told || self.close_at.is_some_and(|at| at <= now) {
            self.end = Some(End::Done);
            world.close(self.peer);
            return true;
        }
        false
    }

    /// How much of the wire may be sent now.
    fn allowed(&self) -> usize {
        let answered = self.reader.done.len();
        let mut allowed = self.wire.len();
        if !self.plan.pipelined {
            let Some((_, body, end)) = self.marks.get(answered) else { return self.sent };
            let expects = self.plan.requests[answered].expect;
            let expected = self.plan.requests[..=answered].iter().filter(|r| r.expect).count();
            allowed = if expects && self.reader.continues < expected { *body } else { *end };
        }
        if let Some(cancel) = self.plan.cancel
            && let When::RequestBytes(bytes) = cancel.when
        {
            allowed = allowed.min(bytes);
        }
        allowed.max(self.sent)
    }

    fn write(&mut self, world: &World, now: Nanos) -> Option<Nanos> {
        while self.sent < self.allowed() {
            if self.write_again > now {
                return Some(self.write_again);
            }
            let to = self.allowed().min(self.sent.saturating_add(self.plan.piece));
            let n = world.write(self.peer, &self.wire[self.sent..to]);
            if n == 0 {
                return None;
            }
            self.sent += n;
            while let Some((start, ..)) = self.marks.get(self.begun_at.len())
                && *start < self.sent
            {
                self.begun_at.push(now);
            }
            while let Some((.., end)) = self.marks.get(self.sent_at.len())
                && *end <= self.sent
            {
                self.sent_at.push(now);
            }
            if self.plan.piece_gap > 0 && self.sent == to {
                self.write_again = now + self.plan.piece_gap;
            }
        }
        if self.sent == self.wire.len() && self.plan.half_closes && !self.fin_sent {
            self.fin_sent = true;
            world.shutdown(self.peer);
        }
        None
    }
}

/// Writes a request; answers where its body begins.
fn write_request(wire: &mut Vec<u8>, request: &RequestPlan) -> usize {
    let RequestPlan { id, ask, pad, .. } = request;
    let version = if request.http10 { "1.0" } else { "1.1" };
    let mut head = String::new();
    let mut line = |text: &str| {
        head.push_str(text);
        head.push_str("\r\n");
    };
    let (method, path) = match ask {
        Ask::Models => ("GET", "/v1/models"),
        Ask::HeadModels => ("HEAD", "/v1/models"),
        Ask::Preflight => ("OPTIONS", "/v1/chat/completions"),
        Ask::UnknownPath => ("GET", "/v1/nothing"),
        Ask::WrongMethod => ("DELETE", "/v1/chat/completions"),
        Ask::Embeddings => ("POST", "/v1/embeddings"),
        Ask::Plain => ("POST", "/v1/completions"),
        _ => ("POST", "/v1/chat/completions"),
    };
    line(&format!("{method} {path} HTTP/{version}"));
    line("Host: gateway");
    line(&format!("X-Request-Id: {id}"));
    line("Authorization: Bearer secret");
    if request.close {
        line("Connection: close");
    }
    match ask {
        Ask::Preflight => {
            line("Origin: http://page");
            line("Access-Control-Request-Method: POST");
        }
        Ask::Gzip => line("Content-Encoding: gzip"),
        Ask::MalformedHead => line("Content-Length : 3"),
        Ask::HugeHead => line(&format!("X-Huge: {}", "h".repeat(5000))),
        _ => {}
    }
    let posts = method == "POST" && !matches!(ask, Ask::MalformedHead | Ask::HugeHead);
    if !posts {
        wire.extend_from_slice(head.as_bytes());
        wire.extend_from_slice(b"\r\n");
        return wire.len();
    }
    let body = body_of(request);
    line("Content-Type: application/json");
    if request.expect {
        line("Expect: 100-continue");
    }
    if request.chunked {
        line("Transfer-Encoding: chunked");
    } else {
        line(&format!("Content-Length: {}", body.len()));
    }
    if *ask == Ask::HalfHead {
        wire.extend_from_slice(head.as_bytes());
        return wire.len();
    }
    wire.extend_from_slice(head.as_bytes());
    wire.extend_from_slice(b"\r\n");
    let begin = wire.len();
    let body = if *ask == Ask::HalfBody { &body[..body.len() / 2] } else { &body[..] };
    if !request.chunked {
        wire.extend_from_slice(body);
        return begin;
    }
    for part in body.chunks(pad % 700 + 50) {
        wire.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
        wire.extend_from_slice(part);
        wire.extend_from_slice(b"\r\n");
        if *ask == Ask::BadChunk {
            wire.extend_from_slice(b"nonsense\r\n");
            return begin;
        }
    }
    if *ask != Ask::HalfBody {
        wire.extend_from_slice(b"0\r\n\r\n");
    }
    begin
}

fn body_of(request: &RequestPlan) -> Vec<u8> {
    let RequestPlan { id, ask, pad, .. } = request;
    let text = match ask {
        Ask::TooLarge => "z".repeat(60_000),
        _ => "z".repeat(*pad),
    };
    let model = match ask {
        Ask::UnknownModel => "stranger",
        Ask::EmptyModel => "empty",
        _ => "m",
    };
    let more = match ask {
        Ask::Stream { usage: true } => ",\"stream\":true,\"stream_options\":{\"include_usage\":true}",
        Ask::Stream { usage: false } => ",\"stream\":true",
        Ask::BadJson => ",,",
        _ => "",
    };
    format!("{{\"model\":\"{model}\"{more},\"user\":\"{id}\",\"prompt\":\"{text}\",\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}").into_bytes()
}
