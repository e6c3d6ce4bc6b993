//! Requests out of bytes: heads, bodies, and what is done once one is complete.

use super::{ClientState, Shard};
use crate::driver::{Driver, Token};
use crate::error::ApiError;
use crate::exchange::{Body, BodyFraming, Exchange, Reply};
use crate::http1::memo::{self, Varying};
use crate::http1::write::{forward_request_header, put_header};
use crate::http1::{
    Chunk, HeadLimits, Method, RequestBody, RequestHead, find_head_end, head_over_limit, parse_request,
};
use crate::record::{RequestId, Surface};
use llmgw_routing::snapshot::Settings;
use std::io::IoSlice;
use std::sync::Arc;

/// Requests of one connection that are answered at once before other connections get their turn.
const BURST: usize = 4;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A `traceparent` that may be one, for the record: of the standard's length, or a later version's somewhat longer one,
/// and nothing that could end a line of a log.
fn trace_context(value: &[u8]) -> Option<&str> {
    let plausible = (55..=128).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic);
    std::str::from_utf8(value).ok().filter(|_| plausible)
}

/// A media type that names no charset, or UTF-8 or its part ASCII. An engine that believed another one would read other
/// JSON than the gateway did.
fn says_utf8(media_type: &[u8]) -> bool {
    media_type.split(|byte| *byte == b';').skip(1).all(|parameter| {
        let Some(at) = parameter.iter().position(|byte| *byte == b'=') else { return true };
        let (name, value) = (parameter[..at].trim_ascii(), parameter[at + 1..].trim_ascii());
        let value = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value);
        let known = [&b"utf-8"[..], b"utf8", b"us-ascii"];
        !name.eq_ignore_ascii_case(b"charset") || known.iter().any(|known| value.eq_ignore_ascii_case(known))
    })
}

impl<D: Driver> Shard<D> {
    /// Consumes what it can of `bytes`: as many whole requests as are answered at once, up to one whose answer has to
    /// be awaited. Returns bytes used; the caller keeps the rest.
    pub(super) fn consume(&mut self, token: Token, bytes: &[u8]) -> usize {
        let (mut used, mut heads) = (0, 0);
        loop {
            let Some(client) = self.clients.get_mut(token) else { return bytes.len() };
            let rest = &bytes[used..];
            let before = (client.state, used);
            match client.state {
                ClientState::Idle | ClientState::Head => {
                    // A client that does not read its answers gets no further ones made.
                    if rest.is_empty() || !client.out.is_empty() {
                        return used;
                    }
                    if client.state == ClientState::Idle {
                        if heads == BURST {
                            client.yielded = true;
                            self.later.push(token);
                            return used;
                        }
                        heads += 1;
                        client.state = ClientState::Head;
                        client.since = self.now;
                        client.scanned = 0;
                        self.arm_client(token);
                    }
                    used += self.consume_head(token, rest);
                }
                ClientState::Body => {
                    if client.starved {
                        return used;
                    }
                    used += self.consume_body(token, rest);
                }
                ClientState::Answer => return used,
                ClientState::Linger => return bytes.len(),
            }
            let Some(client) = self.clients.get(token) else { return bytes.len() };
            if (client.state, used) == before || (used == bytes.len() && client.state == ClientState::Body) {
                return used;
            }
        }
    }

    fn consume_head(&mut self, token: Token, bytes: &[u8]) -> usize {
        if let Some(used) = self.begin_known(token, bytes) {
            return used;
        }
        let settings = Arc::clone(self.settings());
        let Some(client) = self.clients.get_mut(token) else { return 0 };
        let end = match find_head_end(bytes, client.scanned) {
            Some(end) if end <= settings.max_header => end,
            None if bytes.len() <= settings.max_header => {
                client.scanned = bytes.len();
                return 0;
            }
            _ => {
                crate::mark!(head_too_large);
                let error = head_over_limit(&bytes[..settings.max_header]);
                let message = format!("{error}: the limit is {} bytes", settings.max_header);
                self.reject_head(token, &ApiError::bad_request(error.status(), message));
                return bytes.len();
            }
        };
        client.scanned = 0;
        let limits = HeadLimits { max_headers: settings.max_headers };
        match parse_request(&bytes[..end], &limits) {
            Ok(head) => {
                self.remember(token, &bytes[..end], &head, &settings);
                self.begin(token, &head, &settings);
            }
            Err(error) => {
                crate::mark!(bad_head);
                self.reject_head(token, &ApiError::bad_request(error.status(), error.to_string()));
                return bytes.len();
            }
        }
        end
    }

    fn reject_head(&mut self, token: Token, error: &ApiError) {
        self.stats().bad_heads.add(1);
        self.reject_unparsed(token, error);
    }

    /// A valid head: start the exchange, or answer at once what needs no body.
    fn begin(&mut self, token: Token, head: &RequestHead<'_>, settings: &Arc<Settings>) {
        let surface = surface_of(head.path);
        let mut forward = self.spares.take();
        forwarded(head, false, &mut forward);
        self.open(
            token,
            settings,
            Opening {
                request_id: head.headers.get("x-request-id"),
                traceparent: head.headers.get("traceparent"),
                surface,
                http11: head.http11,
                keep_alive: head.keep_alive,
                body: head.body,
                forward,
                cors: super::local::cors_headers(&settings.cors, head),
            },
        );
        let keep_alive = head.keep_alive;
        let Some(client) = self.clients.get_mut(token) else { return };
        if surface == Surface::Local || head.method != Method::Post {
            // A body that nobody asked for is not read: the connection ends after the answer.
            let close = !head.body.is_empty();
            if let Some(ex) = &mut client.exchange {
                ex.keep_alive = keep_alive && !close;
            }
            client.state = ClientState::Answer;
            self.answer_local(token, head);
            return;
        }
        if self.too_large(token, head.body, settings.max_body) {
            return;
        }
        if let Some(coding) = head.headers.get("content-encoding")
            && !coding.eq_ignore_ascii_case(b"identity")
        {
            let message = "Content-Encoding is not supported on requests; send the JSON as it is";
            self.reject_close(token, &ApiError::bad_request(415, message));
            return;
        }
        if head.headers.get("content-type").is_some_and(|value| !says_utf8(value)) {
            let message = "JSON is UTF-8: leave the charset out of Content-Type";
            self.reject_close(token, &ApiError::bad_request(415, message));
            return;
        }
        if head.expect_continue && !head.body.is_empty() {
            crate::mark!(expect_continue);
            if !self.send(token, &[IoSlice::new(CONTINUE)]) {
                return;
            }
        }
        self.await_body(token, head.body);
    }

    fn await_body(&mut self, token: Token, body: RequestBody) {
        let Some(client) = self.clients.get_mut(token) else { return };
        client.state = ClientState::Body;
        client.since = self.now;
        if body.is_empty() {
            self.body_complete(token);
        } else {
            self.arm_client(token);
        }
    }

    fn too_large(&mut self, token: Token, body: RequestBody, limit: usize) -> bool {
        let too_large = matches!(body, RequestBody::Sized(size) if size > limit as u64);
        if too_large {
            crate::mark!(body_too_large);
            self.reject_close(token, &ApiError::too_large(limit));
        }
        too_large
    }

    /// A head that was met before: starts the exchange without parsing it. Returns bytes used.
    fn begin_known(&mut self, token: Token, bytes: &[u8]) -> Option<usize> {
        let client = self.clients.get_mut(token)?;
        let hit = self.requests.find(&mut client.place, bytes)?;
        if hit.end > self.current.max_header {
            return None;
        }
        crate::mark!(known_request);
        client.scanned = 0;
        let known = hit.facts;
        let mut opening = Opening {
            request_id: None,
            traceparent: None,
            surface: known.surface,
            http11: known.http11,
            keep_alive: known.keep_alive,
            body: hit.length().map_or(known.body, RequestBody::Sized),
            forward: self.spares.take(),
            cors: known.cors.to_vec(),
        };
        opening.forward.extend_from_slice(&known.forward);
        for (varying, value) in &hit.values {
            match *varying {
                Varying::RequestId => opening.request_id = Some(value),
                Varying::Passing(name) => {
                    if name == "traceparent" {
                        opening.traceparent = Some(value);
                    }
                    put_header(&mut opening.forward, name, value);
                }
                Varying::Length | Varying::Ignored => {}
            }
        }
        let (end, body) = (hit.end, opening.body);
        let settings = Arc::clone(&self.current);
        self.open(token, &settings, opening);
        if !self.too_large(token, body, settings.max_body) {
            self.await_body(token, body);
        }
        Some(end)
    }

    /// Remembers the head of a request for an engine, if nothing about it is out of the ordinary.
    fn remember(&mut self, token: Token, bytes: &[u8], head: &RequestHead<'_>, settings: &Settings) {
        let Some(client) = self.clients.get_mut(token) else { return };
        let surface = surface_of(head.path);
        let ordinary = surface != Surface::Local
            && head.method == Method::Post
            && head.connection.is_empty()
            && ["expect", "content-encoding"].iter().all(|name| head.headers.get(name).is_none())
            && head.headers.get("content-type").is_none_or(says_utf8);
        // Of an odd form: not cut out, and so not passed on from there.
        let odd =
            |(name, value): (&str, &[u8])| passing(name).is_some() && !memo::plain(Varying::Ignored, value);
        let odd = head.headers.iter().any(odd);
        if !ordinary || odd {
            return;
        }
        let (mut forward, cors) = (Vec::new(), super::local::cors_headers(&settings.cors, head));
        forwarded(head, true, &mut forward);
        let known = KnownRequest {
            surface,
            http11: head.http11,
            keep_alive: head.keep_alive,
            body: head.body,
            forward: forward.into(),
            cors: cors.into(),
        };
        self.requests.put(&mut client.place, bytes, &head.headers, memo::REQUEST, known);
    }

    /// Starts the exchange.
    fn open(&mut self, token: Token, settings: &Arc<Settings>, opening: Opening<'_>) {
        let (started, started_wall) = (self.now, self.driver.wall());
        let request_id = opening
            .request_id
            .and_then(RequestId::from_client)
            .unwrap_or_else(|| RequestId::make(self.rng.u64(..), self.rng.u64(..)));
        let traceparent = opening.traceparent.and_then(trace_context);
        let framing = match opening.body {
            RequestBody::None => BodyFraming::Complete,
            RequestBody::Sized(size) => BodyFraming::Sized(size),
            RequestBody::Chunked => BodyFraming::Chunked(Box::default()),
        };
        let exchange = Exchange {
            request_id,
            traceparent: traceparent.map(Into::into),
            settings: Arc::clone(settings),
            started,
            started_wall,
            surface: opening.surface,
            http11: opening.http11,
            keep_alive: opening.keep_alive,
            forward: opening.forward,
            cors: opening.cors,
            body: Body::new(framing, settings.max_json_depth),
            dispatch: None,
            reply: Reply::None,
            seen: crate::exchange::Seen::default(),
            status: 0,
            bytes_out: 0,
            first_byte: None,
            last_byte: started,
            last_emit: started,
        };
        let exchange = match self.exchanges.pop() {
            Some(mut spare) => {
                *spare = exchange;
                spare
            }
            None => Box::new(exchange),
        };
        if let Some(client) = self.clients.get_mut(token) {
            client.exchange = Some(exchange);
        }
    }

    fn consume_body(&mut self, token: Token, bytes: &[u8]) -> usize {
        let mut used = 0;
        loop {
            let Some(client) = self.clients.get_mut(token) else { return bytes.len() };
            let Some(ex) = &mut client.exchange else { return bytes.len() };
            let rest = &bytes[used..];
            let (start, end, consumed, complete) = match &mut ex.body.framing {
                BodyFraming::Complete => (0, 0, 0, true),
                BodyFraming::Sized(left) => {
                    let n = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    (0, n, n, n as u64 == *left)
                }
                BodyFraming::Chunked(decoder) => match decoder.decode(rest) {
                    Ok(Chunk::Data { start, end, consumed }) => (start, end, consumed, false),
                    Ok(Chunk::More { consumed }) => return used + consumed,
                    Ok(Chunk::End { consumed }) => (0, 0, consumed, true),
                    Err(error) => {
                        crate::mark!(bad_request_chunk);
                        self.reject_close(token, &ApiError::bad_request(400, error.to_string()));
                        return bytes.len();
                    }
                },
            };
            let size = end - start;
            if size > 0 {
                match self.take_body(token, &rest[start..end]) {
                    Taken::Yes => {}
                    // The decoder has gone past these bytes already: they are remembered in the body's own debt.
                    Taken::Starved => return used + consumed,
                    Taken::Rejected => return bytes.len(),
                }
            } else if !complete {
                return used + consumed;
            }
            used += consumed;
            if complete {
                self.body_complete(token);
                return used;
            }
        }
    }

    /// Adds decoded bytes to the body, within its limit and the process's memory.
    fn take_body(&mut self, token: Token, data: &[u8]) -> Taken {
        let now = self.now;
        let Some(client) = self.clients.get_mut(token) else { return Taken::Rejected };
        let Some(ex) = &mut client.exchange else { return Taken::Rejected };
        if ex.body.bytes.len() + data.len() > ex.settings.max_body {
            crate::mark!(body_too_large);
            let limit = ex.settings.max_body;
            self.reject_close(token, &ApiError::too_large(limit));
            return Taken::Rejected;
        }
        client.since = now;
        let first = ex.body.bytes.is_empty();
        if first {
            ex.body.bytes = self.spares.take();
        }
        let mut whole = false;
        if let BodyFraming::Sized(left) = &mut ex.body.framing {
            if first {
                // What has been announced, but not more than has any chance of arriving soon.
                ex.body.bytes.reserve(usize::try_from(*left).unwrap_or(0).min(64 * 1024));
            }
            *left -= data.len() as u64;
            whole = first && *left == 0;
        }
        ex.body.push(data, whole);
        // At most one read buffer beyond the limit is ever held per connection: bytes in hand are kept, and it is
        // the reading that stops.
        let (limit, owed) = (ex.settings.buffered_total, ex.body.bytes.len() - ex.body.reserved);
        if self.quota.take(&self.shared.buffered, limit, owed) {
            ex.body.reserved += owed;
        } else {
            self.starve(token);
            return Taken::Starved;
        }
        if let Some(client) = self.clients.get_mut(token)
            && let Some(ex) = &client.exchange
            && ex.body.error.is_some()
        {
            // No need to wait for the rest of a body that is already wrong.
            let complete = matches!(ex.body.framing, BodyFraming::Sized(0));
            if !complete {
                self.reject_bad_json(token, false);
                return Taken::Rejected;
            }
        }
        Taken::Yes
    }

    /// Stops reading this body until there is memory for what arrived.
    fn starve(&mut self, token: Token) {
        let Some(client) = self.clients.get_mut(token) else { return };
        crate::mark!(starved);
        if !client.starved {
            client.starved = true;
            self.starved.push(token);
            self.shared.starved.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            for seat in &self.shared.seats {
                if let Some(bell) = seat.bell.get() {
                    bell.ring();
                }
            }
            self.stats().body_waits.add(1);
        }
        let Some(client) = self.clients.get_mut(token) else { return };
        if !client.paused {
            client.paused = true;
            self.driver.pause(token);
        }
        self.arm_client(token);
    }

    pub(super) fn unstarve(&mut self, token: Token) {
        self.starved.retain(|t| *t != token);
        self.shared.starved.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Tries again for bodies that wait for memory, oldest first.
    pub(super) fn retry_starved(&mut self) {
        if self.starved.is_empty() {
            return;
        }
        for token in self.starved.clone() {
            let Some(client) = self.clients.get_mut(token) else { continue };
            let Some(ex) = &mut client.exchange else { continue };
            let (limit, owed) = (ex.settings.buffered_total, ex.body.bytes.len() - ex.body.reserved);
            if !self.quota.take(&self.shared.buffered, limit, owed) {
                break;
            }
            crate::mark!(unstarved);
            ex.body.reserved += owed;
            client.starved = false;
            client.since = self.now;
            let complete = matches!(ex.body.framing, BodyFraming::Sized(0));
            let bad = ex.body.error.is_some();
            self.unstarve(token);
            if bad {
                self.reject_bad_json(token, false);
            } else if complete {
                self.body_complete(token);
            }
            self.ready.push(token);
        }
    }

    fn reject_bad_json(&mut self, token: Token, keep_alive: bool) {
        let Some(client) = self.clients.get(token) else { return };
        let Some(error) = client.exchange.as_ref().and_then(|ex| ex.body.error.as_ref()) else { return };
        crate::mark!(bad_json);
        let error = ApiError::bad_body(error.to_string(), error.param());
        if keep_alive { self.reject(token, &error) } else { self.reject_close(token, &error) }
    }

    fn body_complete(&mut self, token: Token) {
        let Some(client) = self.clients.get_mut(token) else { return };
        let Some(ex) = &mut client.exchange else { return };
        ex.body.framing = BodyFraming::Complete;
        client.state = ClientState::Answer;
        if ex.body.error.is_some() {
            self.reject_bad_json(token, true);
            return;
        }
        match ex.body.finish() {
            Ok(fields) => self.resolve(token, &fields),
            Err(error) => {
                ex.body.error = Some(error);
                self.reject_bad_json(token, true);
            }
        }
    }
}

/// What became of body bytes.
enum Taken {
    Yes,
    Starved,
    Rejected,
}

/// What a request's head says, as an exchange needs it.
struct Opening<'a> {
    request_id: Option<&'a [u8]>,
    traceparent: Option<&'a [u8]>,
    surface: Surface,
    http11: bool,
    keep_alive: bool,
    body: RequestBody,
    forward: Vec<u8>,
    cors: Vec<u8>,
}

/// The same, as far as it does not vary.
pub(super) struct KnownRequest {
    surface: Surface,
    http11: bool,
    keep_alive: bool,
    body: RequestBody,
    forward: Box<[u8]>,
    cors: Box<[u8]>,
}

/// The name of a field that varies and passes on.
fn passing(name: &str) -> Option<&'static str> {
    memo::REQUEST.iter().find_map(|(lower, varying)| match varying {
        Varying::Passing(as_sent) if name.eq_ignore_ascii_case(lower) => Some(*as_sent),
        _ => None,
    })
}

fn surface_of(path: &str) -> Surface {
    match path {
        "/v1/chat/completions" => Surface::Chat,
        "/v1/completions" => Surface::Completions,
        "/v1/embeddings" => Surface::Embeddings,
        _ => Surface::Local,
    }
}

/// Appends the header lines that go on to the engine, each ended; `fixed`: without those that vary.
fn forwarded(head: &RequestHead<'_>, fixed: bool, out: &mut Vec<u8>) {
    let (mut content_type, mut user_agent) = (false, false);
    for (name, value) in head.headers.iter() {
        if fixed && passing(name).is_some() {
            continue;
        }
        if forward_request_header(name) && !head.connection.contains(name) {
            // Some servers refuse a second one.
            if name.eq_ignore_ascii_case("user-agent") && std::mem::replace(&mut user_agent, true) {
                continue;
            }
            content_type |= name.eq_ignore_ascii_case("content-type");
            put_header(out, name, value);
        }
    }
    if !content_type {
        out.extend_from_slice(b"content-type: application/json\r\n");
    }
}
