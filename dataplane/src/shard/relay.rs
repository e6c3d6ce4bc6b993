//! The answer on its way from the engine to the client.

use super::Shard;
use super::answer::Answer;
use crate::driver::{Driver, Token};
use crate::error::{ApiError, normalize_engine_error};
use crate::exchange::{ClientFraming, ERROR_BODY_MAX, Exchange, Failure, PlainReply, Reply, StreamReply};
use crate::http1::write::{
    CHUNK_END, LAST_CHUNK, forward_response_header, put_chunk_start, put_header, put_header_u64,
    put_status_line,
};
use crate::http1::{ResponseBody, ResponseHead};
use crate::record::Outcome;
use crate::shared::Stop;
use crate::sse::error_event;
use llmgw_routing::scan::{UsageSkim, skim_answer};
use smallvec::SmallVec;
use std::io::IoSlice;

/// Bodies of up to this many bytes are copied behind their head and sent by one plain call: cheaper than a vector.
pub(super) const COPIED_MAX: usize = 4096;

impl<D: Driver> Shard<D> {
    /// An engine's final head: decide how its body goes on. The head toward the client is built now and held until
    /// the first byte of the body.
    pub(super) fn begin_reply(&mut self, token: Token, head: &ResponseHead<'_>, answer: &Answer) {
        if (300..400).contains(&head.status) {
            // A redirect leads to an address that is none of the client's business.
            crate::mark!(engine_redirects);
            self.try_failed(token, Failure::Malformed);
            return;
        }
        if head.status >= 400 {
            let Some(client) = self.clients.get_mut(token) else { return };
            let Some(ex) = &mut client.exchange else { return };
            let mut out = self.spares.take();
            put_passing_headers(&mut out, head, true);
            ex.reply = Reply::Error { status: head.status, headers: out, body: Vec::new() };
            return;
        }
        self.begin_answer(token, answer, |out| put_passing_headers(out, head, false));
    }

    /// An answer that goes on to the client: builds its head, with the engine's own lines that `put_lines` appends.
    pub(super) fn begin_answer(
        &mut self,
        token: Token,
        answer: &Answer,
        put_lines: impl FnOnce(&mut Vec<u8>),
    ) {
        let now = self.now;
        let stopping = self.stop != Stop::No;
        let Some(client) = self.clients.get_mut(token) else { return };
        let last = client.is_last();
        let Some(ex) = &mut client.exchange else { return };
        let mut out = self.spares.take();
        let streamed = answer.streamed;
        let open_ended = if ex.http11 { ClientFraming::Chunked } else { ClientFraming::Close };
        let framing = match answer.body {
            ResponseBody::None | ResponseBody::Sized(_) if !streamed => ClientFraming::Sized,
            _ => open_ended,
        };
        ex.keep_alive &= framing != ClientFraming::Close && !stopping && !last;
        put_status_line(&mut out, answer.status);
        put_lines(&mut out);
        match (framing, answer.body) {
            (ClientFraming::Chunked, _) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
            (ClientFraming::Sized, ResponseBody::Sized(size)) => {
                put_header_u64(&mut out, "content-length", size);
            }
            _ => {}
        }
        if streamed {
            // For whatever proxy stands before us: events are worth nothing late.
            if !answer.cache_control {
                out.extend_from_slice(b"cache-control: no-cache\r\n");
            }
            out.extend_from_slice(b"x-accel-buffering: no\r\n");
        }
        put_common_headers(&mut out, ex, ex.keep_alive);
        out.extend_from_slice(b"\r\n");
        ex.last_emit = now;
        ex.reply = if streamed {
            let withhold = ex.dispatch.as_ref().is_some_and(|dispatch| dispatch.withhold_usage);
            Reply::Stream(StreamReply::new(answer.status, out, framing, withhold))
        } else {
            let (status, json) = (answer.status, answer.json);
            Reply::Plain(PlainReply { status, head: Some(out), framing, json, skim: None })
        };
        self.arm_client(token);
    }

    /// Takes decoded body bytes. `false` when the exchange ended with them.
    pub(super) fn reply_bytes(&mut self, token: Token, payload: &[u8], last: bool) -> bool {
        let now = self.now;
        let Some(client) = self.clients.get_mut(token) else { return false };
        let Some(ex) = &mut client.exchange else { return false };
        let first = ex.first_byte.is_none();
        ex.first_byte.get_or_insert(now);
        ex.last_byte = now;
        let ex = &mut **ex;
        match &mut ex.reply {
            Reply::None => false,
            Reply::Error { body, .. } => {
                body.extend_from_slice(&payload[..payload.len().min(ERROR_BODY_MAX - body.len())]);
                true
            }
            Reply::Stream(stream) => {
                let endpoint = ex.dispatch.as_ref().and_then(|dispatch| dispatch.endpoint.as_deref());
                let secrets = [endpoint.map_or("", |endpoint| &endpoint.authority)];
                stream.push(payload, &secrets, &mut ex.seen, &mut self.scratch);
                if stream.done {
                    self.stream_done(token);
                    return false;
                }
                if first {
                    self.arm_client(token);
                }
                true
            }
            Reply::Plain(plain) => {
                if plain.json && first && last {
                    // The whole body at once, as small answers come: one walk tells it all.
                    let info = skim_answer(payload);
                    (ex.seen.usage, ex.seen.finish_reason) = (info.usage, info.finish_reason);
                } else if plain.json {
                    plain.skim.get_or_insert_with(|| Box::new(UsageSkim::new())).feed(payload);
                }
                if plain.framing == ClientFraming::Chunked {
                    self.scratch.extend_from_slice(payload);
                    if first {
                        self.arm_client(token);
                    }
                    return true;
                }
                let alive = self.emit(token, payload, last);
                if alive && first {
                    self.arm_client(token);
                }
                alive
            }
        }
    }

    /// Sends what was gathered in this pass. `false` when the client was lost on the way.
    pub(super) fn flush_reply(&mut self, token: Token, end: bool) -> bool {
        if self.scratch.is_empty() && !end {
            return true;
        }
        let mut payload = std::mem::take(&mut self.scratch);
        let alive = self.emit(token, &payload, end);
        payload.clear();
        // One large pass must not pin its size for good.
        if payload.capacity() <= 256 * 1024 {
            self.scratch = payload;
        }
        alive
    }

    pub(super) fn emit_stream(&mut self, token: Token, bytes: &[u8], end: bool) -> bool {
        self.emit(token, bytes, end)
    }

    /// Sends body bytes, with the head before them if it is still held, and the end of the framing after them if
    /// `end`. From the first call on the request is committed.
    fn emit(&mut self, token: Token, payload: &[u8], end: bool) -> bool {
        let Some(ex) = self.clients.get_mut(token).and_then(|client| client.exchange.as_mut()) else {
            return false;
        };
        if !ex.committed() {
            ex.status = ex.reply.status();
            self.release_body(token);
        }
        let Some(ex) = self.clients.get_mut(token).and_then(|client| client.exchange.as_mut()) else {
            return false;
        };
        let (framing, head) = ex.reply.take_head();
        let mut wire = head.unwrap_or_else(|| self.spares.take());
        let chunked = framing == ClientFraming::Chunked;
        if chunked && !payload.is_empty() {
            put_chunk_start(&mut wire, payload.len());
        }
        let mut after = SmallVec::<[u8; 8]>::new();
        if chunked && !payload.is_empty() {
            after.extend_from_slice(CHUNK_END);
        }
        if chunked && end {
            after.extend_from_slice(LAST_CHUNK);
        }
        let alive = if payload.len() <= COPIED_MAX {
            wire.extend_from_slice(payload);
            wire.extend_from_slice(&after);
            wire.is_empty() || self.send(token, &[IoSlice::new(&wire)])
        } else {
            self.send(token, &[IoSlice::new(&wire), IoSlice::new(payload), IoSlice::new(&after)])
        };
        self.spares.give(wire);
        alive
    }

    /// Nothing is retried any more: the body's memory is free, unless its end is still on its way to the engine.
    fn release_body(&mut self, token: Token) {
        let Some(ex) = self.clients.get_mut(token).and_then(|client| client.exchange.as_mut()) else {
            return;
        };
        let upstream = ex.dispatch.as_ref().and_then(|dispatch| dispatch.upstream);
        if let Some(up) = upstream.and_then(|up| self.ups.get_mut(up))
            && !up.request_sent()
        {
            crate::mark!(early_answer);
            // An answer before the end of the request: the rest is not sent, and the connection not used again.
            up.total = up.sent;
            up.keep_alive = false;
        }
        self.spares.give(std::mem::take(&mut ex.body.bytes));
        self.spares.give(std::mem::take(&mut ex.forward));
        self.quota.give(&self.shared.buffered, std::mem::take(&mut ex.body.reserved));
    }

    fn stream_done(&mut self, token: Token) {
        let failed = {
            let ex = self.clients.get(token).and_then(|client| client.exchange.as_ref());
            ex.is_some_and(|ex| matches!(&ex.reply, Reply::Stream(stream) if stream.failed))
        };
        if !self.flush_reply(token, true) {
            return;
        }
        self.release_upstream(token);
        let keep_alive =
            self.clients.get(token).and_then(|c| c.exchange.as_ref()).is_some_and(|ex| ex.keep_alive);
        if failed {
            self.settle(token, Outcome::Broken, 502, Some("the engine sent an error event"));
            self.response_done(token, false);
        } else {
            self.settle(token, Outcome::Completed, 200, None);
            self.response_done(token, keep_alive);
        }
    }

    /// The engine's body is complete.
    pub(super) fn reply_end(&mut self, token: Token) {
        let Some(ex) = self.clients.get_mut(token).and_then(|client| client.exchange.as_mut()) else {
            return;
        };
        let ex = &mut **ex;
        match &mut ex.reply {
            Reply::None => {}
            Reply::Error { .. } => self.answer_engine_error(token),
            Reply::Plain(plain) => {
                if let Some(skim) = plain.skim.take() {
                    ex.seen.finish_reason = skim.finish_reason();
                    ex.seen.usage = skim.finish();
                }
                if !self.flush_reply(token, true) {
                    return;
                }
                let keep_alive =
                    self.clients.get(token).and_then(|c| c.exchange.as_ref()).is_some_and(|ex| ex.keep_alive);
                self.release_upstream(token);
                self.settle(token, Outcome::Completed, 200, None);
                self.response_done(token, keep_alive);
            }
            Reply::Stream(stream) => {
                let endpoint = ex.dispatch.as_ref().and_then(|dispatch| dispatch.endpoint.as_deref());
                let secrets = [endpoint.map_or("", |endpoint| &endpoint.authority)];
                stream.finish(&secrets, &mut ex.seen, &mut self.scratch);
                if stream.done || stream.failed {
                    self.stream_done(token);
                } else {
                    crate::mark!(no_terminator);
                    self.flush_reply(token, false);
                    self.reply_broken(token, Failure::Lost);
                }
            }
        }
    }

    /// The engine failed inside its body.
    pub(super) fn reply_broken(&mut self, token: Token, failure: Failure) {
        let Some(ex) = self.clients.get_mut(token).and_then(|client| client.exchange.as_mut()) else {
            return;
        };
        match &ex.reply {
            Reply::Error { .. } => self.answer_engine_error(token),
            Reply::Stream(stream) if stream.failed => self.stream_done(token),
            _ if ex.committed() && !crate::planted!(RetryAfterCommit) => {
                self.stats().broken_streams.add(1);
                self.detach_upstream(token, false);
                self.break_stream(token, &ApiError::stream_broken(), Outcome::Broken);
            }
            _ => {
                crate::mark!(lost_before_first_byte);
                self.scratch.clear();
                self.try_failed(token, failure);
            }
        }
    }

    /// Ends an answer that cannot be completed: an error event where the protocol has room for one, else a cut that
    /// the client cannot take for an end. The upstream connection is detached already.
    pub(super) fn break_stream(&mut self, token: Token, error: &ApiError, outcome: Outcome) {
        self.scratch.clear();
        let Some(ex) = self.clients.get(token).and_then(|client| client.exchange.as_ref()) else { return };
        let room = matches!(&ex.reply, Reply::Stream(stream) if stream.comments_allowed());
        if !room {
            crate::mark!(cut_answer);
            self.settle(token, outcome, 502, Some("the answer was cut"));
            self.drop_client(token, true, true);
            return;
        }
        crate::mark!(error_event);
        let (mut json, mut event) = (Vec::with_capacity(192), Vec::with_capacity(208));
        error.write_json(&mut json);
        error_event(&mut event, &json);
        if self.emit(token, &event, true) {
            self.settle(token, outcome, 502, Some("ended by an error event"));
            self.response_done(token, false);
        }
    }

    /// An engine's error in OpenAI's shape, status kept.
    fn answer_engine_error(&mut self, token: Token) {
        let Some(ex) = self.clients.get_mut(token).and_then(|client| client.exchange.as_mut()) else {
            return;
        };
        let Reply::Error { status, headers, body } = std::mem::replace(&mut ex.reply, Reply::None) else {
            return;
        };
        crate::mark!(engine_error);
        let endpoint = ex.dispatch.as_ref().and_then(|dispatch| dispatch.endpoint.clone());
        let address = endpoint.as_ref().map(|endpoint| endpoint.address.to_string()).unwrap_or_default();
        let mut secrets: SmallVec<[&str; 2]> = endpoint.iter().map(|endpoint| &*endpoint.authority).collect();
        secrets.extend((!address.is_empty()).then_some(&*address));
        let mut json = Vec::with_capacity(body.len() + 96);
        normalize_engine_error(status, &body, &secrets, &mut json);
        self.release_upstream(token);
        self.answer(token, status, &headers, Some(&json), true, Outcome::EngineError);
    }
}

/// The engine's own header lines that go on to the client.
fn put_passing_headers(out: &mut Vec<u8>, head: &ResponseHead<'_>, error: bool) {
    for (name, value) in head.headers.iter() {
        let rewritten = error
            && (name.eq_ignore_ascii_case("content-type") || name.eq_ignore_ascii_case("content-encoding"));
        if forward_response_header(name) && !head.connection.contains(name) && !rewritten {
            put_header(out, name, value);
        }
    }
    if error {
        out.extend_from_slice(b"content-type: application/json\r\n");
    }
}

/// Header lines of every answer: who it is, who served it, how the connection goes on.
pub(super) fn put_common_headers(out: &mut Vec<u8>, ex: &Exchange, keep_alive: bool) {
    put_header(out, "x-request-id", ex.request_id.as_str().as_bytes());
    if let Some(dispatch) = &ex.dispatch {
        if let Some(endpoint) = &dispatch.endpoint {
            put_header(out, "x-llmgw-served-model", endpoint.served_model.as_bytes());
            if ex.settings.debug_headers {
                put_header(out, "x-tl-route", endpoint.id.as_bytes());
                put_header(out, "x-llmgw-replica", endpoint.id.as_bytes());
                put_header(out, "x-llmgw-pool", endpoint.pool.as_bytes());
            }
        }
        // Nothing waits for admission yet.
        put_header_u64(out, "x-llmgw-queue-ms", 0);
        if ex.settings.debug_headers {
            if let Some(reason) = &dispatch.reason {
                put_header(out, "x-llmgw-route-reason", reason.as_bytes());
            }
            put_header_u64(out, "x-llmgw-attempts", u64::from(dispatch.attempts));
        }
    }
    out.extend_from_slice(&ex.cors);
    if !keep_alive {
        out.extend_from_slice(b"connection: close\r\n");
    } else if !ex.http11 {
        out.extend_from_slice(b"connection: keep-alive\r\n");
    }
}
