//! What must hold, whatever the network, the engines and the clients do.

use crate::client::{Conn, End};
use crate::engine::{Act, Attempt};
use crate::http::Response;
use crate::plan::{Ask, Plan, RequestPlan};
use llmgw_dataplane::driver::sim::Door;
use llmgw_dataplane::sse::KEEP_ALIVE_COMMENT;
use llmgw_routing::{Nanos, SECOND};

/// What is known when a seed is over.
pub struct Facts<'a> {
    pub plan: &'a Plan,
    pub attempts: &'a [Attempt],
    /// A shutdown or a drain may have ended it.
    pub stopped: bool,
}

impl Facts<'_> {
    fn attempts_of(&self, id: &str) -> impl Iterator<Item = (usize, &Attempt)> {
        self.attempts.iter().enumerate().filter(move |(_, a)| a.request == id)
    }

    fn any_act(&self, id: &str, acts: &[Act]) -> bool {
        self.attempts_of(id).any(|(_, a)| acts.contains(&a.act))
    }

    /// For whoever reads a failure.
    fn story(&self, conn: &Conn) -> String {
        let ids: Vec<&str> = conn.plan.requests.iter().map(|r| &*r.id).collect();
        let mut out = format!(
            "\n  {:?}\n  stalled at {:?}, ended {:?} at {}",
            conn.plan,
            conn.stalled_at.map(ms),
            conn.end,
            ms(conn.ended_at)
        );
        for (number, a) in self.attempts.iter().enumerate().filter(|(_, a)| ids.contains(&&*a.request)) {
            let pieces: usize = a.pieces.iter().map(|(bytes, _)| bytes.len()).sum();
            out += &format!(
                "\n  attempt {number} of {}: {:?}, stream {}, at {}, {pieces} bytes",
                a.request,
                a.act,
                a.stream,
                ms(a.arrived_at)
            );
        }
        for r in conn.reader.done.iter().chain(conn.reader.partial()) {
            out += &format!(
                "\n  answer: {} at {} to {}, {} bytes, {:?}",
                r.status,
                ms(r.first_at),
                ms(r.done_at),
                r.body.len(),
                r.headers
            );
        }
        out
    }

    /// Every request of a connection got what it must, in order.
    pub fn conn(&self, conn: &Conn) -> Result<(), String> {
        self.requests(conn).map_err(|why| why + &self.story(conn))
    }

    fn requests(&self, conn: &Conn) -> Result<(), String> {
        let cancelled = matches!(conn.end, Some(End::Cancelled(_)));
        let mut closing = false;
        for (i, request) in conn.plan.requests.iter().enumerate() {
            let id = &request.id;
            if let Some(response) = conn.reader.done.get(i) {
                if closing {
                    return Err(format!("{id}: answered after an answer that closes"));
                }
                self.complete(conn, i, request, response).map_err(|e| format!("{id}: {e}"))?;
                // A stream that broke ends its connection, whatever its head had said.
                closing = response.closes() || broken_stream(response);
                continue;
            }
            if let Some(partial) = conn.reader.partial().filter(|_| i == conn.reader.done.len()) {
                self.partial(conn, i, request, partial, cancelled).map_err(|e| format!("{id}: {e}"))?;
                return Ok(());
            }
            let excused = cancelled
                || closing
                || self.stopped
                || conn.end == Some(End::Refused)
                || self.plan.few_connections;
            if excused
                || self.may_be_cut(conn, request)
                || matches!(request.ask, Ask::HalfHead | Ask::HalfBody)
            {
                return Ok(());
            }
            if conn.reader.done.last().is_some_and(|r| {
                r.header("content-length").is_none()
                    && r.status == 200
                    && r.header("transfer-encoding").is_none()
            }) {
                return Ok(()); // the last body ended with the connection
            }
            return Err(format!("{id}: no answer, connection ended by {:?}", conn.end));
        }
        // A connection refused for its number is not looked at: its HEAD gets a body too.
        if self.plan.few_connections {
            return Ok(());
        }
        if conn.reader.done.len() > conn.plan.requests.len()
            || conn.reader.leftover() > 0
                && conn.reader.partial().is_none()
                && conn.reader.done.len() == conn.plan.requests.len()
        {
            return Err(format!("bytes after the last answer of {}", conn.plan.requests[0].id));
        }
        Ok(())
    }

    /// Something else than a bug can have cut this answer.
    fn may_be_cut(&self, conn: &Conn, request: &RequestPlan) -> bool {
        let broken = [
            Act::ResetAfter,
            Act::EndEarly,
            Act::BadChunk,
            Act::Stall,
            Act::HugeEvent,
            Act::ErrorEvent,
            Act::Early,
        ];
        self.stopped || conn.stalled_long || self.any_act(&request.id, &broken)
    }

    fn partial(
        &self,
        conn: &Conn,
        i: usize,
        request: &RequestPlan,
        partial: &Response,
        cancelled: bool,
    ) -> Result<(), String> {
        if partial.status == 200 && request.ask.sound() {
            self.prefix(request, partial)?;
        }
        // The reset that cuts a later answer may destroy the end of this one.
        let cut = conn.plan.requests[i..].iter().any(|request| self.may_be_cut(conn, request));
        let excused = cancelled || cut || self.plan.few_connections && i == 0;
        if excused {
            Ok(())
        } else {
            Err(format!("the answer was cut ({:?}, status {})", conn.end, partial.status))
        }
    }

    fn complete(
        &self,
        conn: &Conn,
        i: usize,
        request: &RequestPlan,
        response: &Response,
    ) -> Result<(), String> {
        let status = response.status;
        if let Some(id) = response.header("x-request-id")
            && id != request.id
        {
            return Err(format!("got the answer of {id}"));
        }
        if status >= 400 && request.ask != Ask::HeadModels {
            error_shape(response)?;
        }
        self.topology(response)?;
        if self.refused(i, response) || self.stopped && status == 503 {
            return Ok(());
        }
        let expected: &[u16] = match request.ask {
            Ask::Models | Ask::HeadModels => &[200],
            Ask::Preflight => &[204],
            Ask::UnknownPath | Ask::UnknownModel => &[404],
            Ask::WrongMethod => &[405],
            Ask::EmptyModel => &[503],
            Ask::BadJson | Ask::BadChunk | Ask::MalformedHead => &[400],
            Ask::TooLarge => &[413],
            Ask::Gzip => &[415],
            Ask::HugeHead => &[431],
            Ask::HalfHead | Ask::HalfBody => &[408],
            Ask::Stream { .. } | Ask::Plain | Ask::Embeddings => {
                return self.sound(conn, i, request, response);
            }
        };
        // A body may also have to wait for memory in vain.
        let starved = self.plan.settings.buffered_total < 1 << 20 && status == 503;
        let unread = request.ask == Ask::BadChunk && status == 413;
        if expected.contains(&status) || starved || unread {
            return self.punctual(conn, i, request, response);
        }
        Err(format!("{:?} was answered with {status}, not {expected:?}", request.ask))
    }

    /// Who served a request is told to those who may know, and to nobody else.
    fn topology(&self, response: &Response) -> Result<(), String> {
        let told = response.header("x-tl-route");
        if !self.plan.settings.debug_headers {
            let inner = ["x-tl-route", "x-llmgw-replica", "x-llmgw-pool", "x-llmgw-route-reason"];
            let leaked =
                inner.iter().chain(&["x-llmgw-attempts"]).find(|name| response.header(name).is_some());
            return leaked.map_or(Ok(()), |name| Err(format!("{name} reached a client that may not see it")));
        }
        let served = response.header("x-llmgw-served-model").is_some();
        if served == told.is_some() && told == response.header("x-llmgw-replica") {
            return Ok(());
        }
        Err(format!("served by {told:?}, told otherwise: {:?}", response.headers))
    }

    /// The connection was refused for the number of connections.
    fn refused(&self, i: usize, response: &Response) -> bool {
        self.plan.few_connections
            && i == 0
            && matches!(response.status, 429 | 503)
            && response.header("x-request-id").is_none()
    }

    /// Timeouts come when they are due.
    fn punctual(
        &self,
        conn: &Conn,
        i: usize,
        request: &RequestPlan,
        response: &Response,
    ) -> Result<(), String> {
        let settings = &self.plan.settings;
        let small = settings.buffered_total < 1 << 20;
        if response.status != 408
            || small
            || conn.stalled_at.is_some()
            || conn.plan.read_gap > 0
            || conn.plan.pipelined
        {
            return Ok(());
        }
        let since = if request.ask == Ask::HalfHead { conn.begun_at.get(i) } else { conn.sent_at.get(i) };
        let limit =
            if request.ask == Ask::HalfHead { settings.timeout_header } else { settings.timeout_body_idle };
        match since {
            Some(at) if response.first_at > at + limit + 2 * SECOND => Err(format!(
                "timed out after {} ms instead of {} ms",
                (response.first_at - at) / 1_000_000,
                limit / 1_000_000
            )),
            _ => Ok(()),
        }
    }

    fn sound(&self, conn: &Conn, i: usize, request: &RequestPlan, response: &Response) -> Result<(), String> {
        let status = response.status;
        // Nobody can tell bytes too many on a connection from the answer to the next request.
        let misled = self.attempts.iter().any(|a| a.act == Act::Excess) && response.body.is_empty();
        if status == 200 && misled {
            return Ok(());
        }
        if status == 200 {
            return match request.ask {
                // An engine that answered early had not read that a stream was wanted.
                Ask::Stream { .. } if self.plain(request, response).is_err() => {
                    self.stream(request, response)
                }
                Ask::Stream { .. } => Ok(()),
                _ => self.plain(request, response),
            };
        }
        // Who does not read does not see the 100 that the body waits for.
        if status == 408 && request.expect && conn.stalled_at.is_some() {
            return Ok(());
        }
        // A body may trickle in for longer than the whole request may take.
        let total = self.plan.settings.timeout_total;
        if status == 408 && conn.begun_at.get(i).is_some_and(|at| response.first_at >= at + total) {
            return Ok(());
        }
        if self.plan.fair {
            return Err(format!("status {status} though no engine ever failed"));
        }
        let doors = |door: fn(&Door) -> bool| self.plan.engines.iter().any(|e| door(&e.door));
        let any_fault = self.plan.engines.iter().any(|e| e.faults > 0 || e.door != Door::Open);
        let allowed = match status {
            503 => any_fault || self.plan.settings.buffered_total < 1 << 20 || self.plan.reload.is_some(),
            504 => match param(response).as_deref() {
                Some("connect") => doors(|d| *d == Door::Silent),
                Some("first_token") => {
                    self.first_token_punctual(conn, i, request, response)?;
                    self.any_act(&request.id, &[Act::Hang, Act::Stall])
                }
                // A body may wait long for memory.
                Some("total") => self.plan.settings.buffered_total < 1 << 20,
                Some("between_tokens") => self.any_act(&request.id, &[Act::Stall]),
                _ => false,
            },
            502 => {
                self.any_act(
                    &request.id,
                    &[Act::MalformedHead, Act::HugeHead, Act::Redirect, Act::BadChunk, Act::Excess],
                ) || self.attempts.iter().any(|a| a.act == Act::Excess)
            }
            _ => self.attempts_of(&request.id).any(|(_, a)| a.act == Act::Error && a.status == status),
        };
        if allowed {
            Ok(())
        } else {
            Err(format!("status {status}, which no engine gave cause for: {}", text(&response.body)))
        }
    }

    fn first_token_punctual(
        &self,
        conn: &Conn,
        _i: usize,
        request: &RequestPlan,
        response: &Response,
    ) -> Result<(), String> {
        let last =
            self.attempts_of(&request.id).map(|(_, a)| a.arrived_at).max().unwrap_or(response.first_at);
        let limit = self.plan.settings.timeout_first_token;
        if conn.stalled_at.is_none() && conn.plan.read_gap == 0 && response.first_at > last + limit + SECOND {
            let took = (response.first_at - last) / 1_000_000;
            return Err(format!("the first-token timeout came after {took} ms"));
        }
        Ok(())
    }

    fn plain(&self, request: &RequestPlan, response: &Response) -> Result<(), String> {
        let whole = |(_, a): (usize, &Attempt)| {
            !a.stream && a.pieces.first().is_some_and(|(json, _)| *json == response.body)
        };
        if self.attempts_of(&request.id).any(whole) {
            Ok(())
        } else {
            Err(format!("a body that no engine sent for it: {}", text(&response.body)))
        }
    }

    fn stream(&self, request: &RequestPlan, response: &Response) -> Result<(), String> {
        let body = &response.body[..];
        let mut why = "no attempt reached an engine".to_owned();
        for (number, attempt) in self.attempts_of(&request.id).filter(|(_, a)| a.stream) {
            match follow(self.plan, request, attempt, body) {
                Followed::Whole => return Ok(()),
                Followed::Until(at) => {
                    let breaking = self.stopped
                        || matches!(
                            attempt.act,
                            Act::ResetAfter
                                | Act::EndEarly
                                | Act::BadChunk
                                | Act::Stall
                                | Act::ErrorEvent
                                | Act::HugeEvent
                                | Act::Early
                        );
                    let rest = &body[at..];
                    if breaking
                        && rest.starts_with(b"data: {\"error\":")
                        && rest.ends_with(b"\n\n")
                        && rest.windows(2).filter(|w| *w == b"\n\n").count() == 1
                    {
                        if !response.closes() && response.header("connection").is_some() {
                            return Err("an error event on a connection that goes on".to_owned());
                        }
                        return Ok(());
                    }
                    why = format!(
                        "attempt {number} ({:?}) is followed up to byte {at} of {}, then: {}",
                        attempt.act,
                        body.len(),
                        text(rest)
                    );
                }
            }
        }
        Err(why)
    }

    /// What arrived of an answer that was cut came from one engine, in order.
    fn prefix(&self, request: &RequestPlan, partial: &Response) -> Result<(), String> {
        let body = &partial.body[..];
        let mut why = "no attempt reached an engine".to_owned();
        for (number, attempt) in self.attempts_of(&request.id) {
            if !attempt.stream {
                if attempt.pieces.first().is_some_and(|(json, _)| json.starts_with(body)) {
                    return Ok(());
                }
                why = format!("attempt {number} sent something else");
                continue;
            }
            match follow(self.plan, request, attempt, body) {
                Followed::Whole => return Ok(()),
                Followed::Until(at) => {
                    let rest = &body[at..];
                    let next_piece = next_after(self.plan, request, attempt, body);
                    let cut = next_piece.is_some_and(|piece| piece.starts_with(rest))
                        || KEEP_ALIVE_COMMENT.starts_with(rest)
                        || rest.starts_with(b"data: {\"error\":");
                    if cut || rest.is_empty() {
                        return Ok(());
                    }
                    why =
                        format!("attempt {number} ({:?}) up to byte {at}, then {}", attempt.act, text(rest));
                }
            }
        }
        Err(format!("foreign bytes: {why}"))
    }
}

enum Followed {
    Whole,
    /// The bytes up to here are whole events of the attempt, in order.
    Until(usize),
}

fn expected<'a>(plan: &Plan, request: &RequestPlan, attempt: &'a Attempt) -> impl Iterator<Item = &'a [u8]> {
    let asked = request.ask == Ask::Stream { usage: true };
    let withheld = !asked && plan.settings.inject_usage;
    attempt.pieces.iter().filter(move |(_, usage)| !(*usage && withheld)).map(|(bytes, _)| &bytes[..])
}

/// Compares with what the engine sent, less the withheld usage, plus keep-alive comments between events.
fn follow(plan: &Plan, request: &RequestPlan, attempt: &Attempt, body: &[u8]) -> Followed {
    let mut at = 0;
    let skip = |at: &mut usize| {
        while body[*at..].starts_with(KEEP_ALIVE_COMMENT) {
            *at += KEEP_ALIVE_COMMENT.len();
        }
    };
    for piece in expected(plan, request, attempt) {
        skip(&mut at);
        if !body[at..].starts_with(piece) {
            return Followed::Until(at);
        }
        at += piece.len();
    }
    if at == body.len() { Followed::Whole } else { Followed::Until(at) }
}

fn next_after<'a>(plan: &Plan, request: &RequestPlan, attempt: &'a Attempt, body: &[u8]) -> Option<&'a [u8]> {
    let mut at = 0;
    for piece in expected(plan, request, attempt) {
        while body[at..].starts_with(KEEP_ALIVE_COMMENT) {
            at += KEEP_ALIVE_COMMENT.len();
        }
        if !body[at..].starts_with(piece) {
            return Some(piece);
        }
        at += piece.len();
    }
    None
}

fn broken_stream(response: &Response) -> bool {
    let last = response.body.windows(15).rposition(|w| w == b"data: {\"error\":");
    response.status == 200 && last.is_some_and(|at| !response.body[at..].ends_with(b"[DONE]\n\n"))
}

fn error_shape(response: &Response) -> Result<(), String> {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(&response.body).ok();
    let ok = parsed.as_ref().and_then(|v| v.get("error")).is_some_and(|e| {
        ["message", "type", "param", "code"].iter().all(|field| e.get(field).is_some())
            && e["message"].is_string()
    });
    if ok { Ok(()) } else { Err(format!("an error that is not in shape: {}", text(&response.body))) }
}

fn param(response: &Response) -> Option<String> {
    let parsed: serde_json::Value = serde_json::from_slice(&response.body).ok()?;
    Some(parsed["error"]["param"].as_str()?.to_owned())
}

/// As traces show it.
fn ms(at: Nanos) -> String {
    format!("{} ms", at.saturating_sub(1000 * SECOND) / 1_000_000)
}

fn text(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(100)].escape_ascii().to_string()
}
