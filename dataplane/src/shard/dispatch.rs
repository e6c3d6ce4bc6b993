//! Where a request goes: the model, the endpoint, the connection, and what happens when a try fails.
//!
//! **Invariant:** a request is sent to another endpoint only while nothing of an answer went to the client.

use super::Shard;
use super::relay::COPIED_MAX;
use crate::driver::{ConnError, Driver, Token};
use crate::error::{ApiError, Phase};
use crate::exchange::{Dispatch, Exchange, Failure, Lease, Reply, UpReader};
use crate::http1::write::{put_header, put_header_u64};
use crate::record::{Outcome, Surface};
use crate::timer::NEVER;
use crate::upstream::{Up, UpState};
use llmgw_routing::pipeline::{NoEndpoint, Request, decide};
use llmgw_routing::prefix::prefix_key;
use llmgw_routing::scan::{Edits, Fields, UsageAsk, inject_usage, rewrite_model, set_priority};
use llmgw_routing::snapshot::Endpoint;
use llmgw_routing::{Nanos, SECOND};
use smallvec::SmallVec;
use std::io::IoSlice;
use std::sync::Arc;

/// Body pieces sent in one call: the body cut by a few splices.
const PIECES: usize = 16;

impl<D: Driver> Shard<D> {
    /// The body is complete and valid: find the model, decide what to splice, and make the first try.
    pub(super) fn resolve(&mut self, token: Token, fields: &Fields) {
        let now = self.now;
        let Some(ex) = self.clients.get_mut(token).and_then(|client| client.exchange.as_mut()) else {
            return;
        };
        let Some(found) = self.snapshot.load().resolve(&fields.model, ex.request_id.as_str()) else {
            crate::mark!(model_not_found);
            self.reject(token, &ApiError::model_not_found(&fields.model));
            return;
        };
        let (name, model, priority) = (Arc::clone(found.name), Arc::clone(found.model), found.priority);
        let generation = matches!(ex.surface, Surface::Chat | Surface::Completions);
        let inject =
            generation && fields.stream && ex.settings.inject_usage && fields.usage == UsageAsk::NotAsked;
        let mut edits = if inject { inject_usage(fields, &ex.body.bytes) } else { Edits::default() };
        let withhold_usage = inject && !edits.is_empty();
        if *fields.model != *model.name {
            edits = edits.merge(rewrite_model(fields, &model.name));
        }
        let edits_with_priority =
            model.any_priority.then(|| Box::new(edits.clone().merge(set_priority(fields, priority))));
        let mut prefix = SmallVec::new();
        if model.endpoints.len() > 1 && model.profile.needs_prefix() {
            prefix_key(fields, &ex.body.bytes, &mut prefix);
        }
        ex.dispatch = Some(Dispatch {
            name,
            model,
            priority,
            stream: fields.stream,
            withhold_usage,
            edits,
            edits_with_priority,
            prefix,
            endpoint: None,
            lease: None,
            upstream: None,
            reason: None,
            exclude: SmallVec::new(),
            attempts: 0,
            failure: None,
            busy_for: None,
            connecting: None,
            sent: now,
        });
        self.shared.budget.record_request();
        self.attempt(token);
    }

    /// Chooses an endpoint and starts a try; answers the client when there is none left.
    fn attempt(&mut self, token: Token) {
        let Some(client) = self.clients.get_mut(token) else { return };
        let Some(ex) = &mut client.exchange else { return };
        let id = ex.request_id.as_str();
        let Some(dispatch) = &mut ex.dispatch else { return };
        let request = Request { request_id: id, prefix_key: &dispatch.prefix, exclude: &dispatch.exclude };
        match decide(&dispatch.model, &request, &self.shared.loads, self.now, &mut self.picks) {
            Ok(decision) => {
                let endpoint = decision.endpoint;
                dispatch.reason = Some(decision.reason);
                dispatch.lease = Some(Lease::take(&self.shared.loads, endpoint.slot.index()));
                dispatch.endpoint = Some(Arc::clone(&endpoint));
                dispatch.attempts += 1;
                self.start_try(token, endpoint, true);
            }
            Err(none) => {
                let error = match dispatch.failure {
                    Some(failure) => failure.answer(dispatch.busy_for),
                    None => {
                        crate::mark!(no_endpoint);
                        unavailable(none, self.now)
                    }
                };
                self.reject(token, &error);
            }
        }
    }

    /// Puts the request on a connection: a pooled one if allowed, else a new one.
    fn start_try(&mut self, token: Token, endpoint: Arc<Endpoint>, pooled: bool) {
        let slot = endpoint.slot.index();
        let now = self.now;
        if pooled && let Some(up_token) = self.pool.take(slot) {
            let Some(up) = self.ups.get_mut(up_token) else { return };
            up.reuse(token);
            self.stats().reused.add(1);
            self.attach(token, up_token, None);
            self.send_head(token, up_token);
            return;
        }
        let Some(ex) = self.clients.get(token).and_then(|client| client.exchange.as_ref()) else { return };
        let idle_for = ex.settings.timeout_upstream_idle;
        let address = endpoint.address;
        let up_token = self.ups.insert(Box::new(Up::new(endpoint, self.seen_version, token, idle_for)));
        self.attach(token, up_token, Some(now));
        self.stats().connects.add(1);
        self.driver.connect(up_token, address);
        self.arm_client(token);
    }

    fn attach(&mut self, token: Token, up: Token, connecting: Option<Nanos>) {
        let now = self.now;
        let Some(ex) = self.clients.get_mut(token).and_then(|client| client.exchange.as_mut()) else {
            return;
        };
        ex.reply = Reply::None;
        ex.first_byte = None;
        let Some(dispatch) = &mut ex.dispatch else { return };
        dispatch.upstream = Some(up);
        dispatch.connecting = connecting;
        dispatch.sent = now;
    }

    pub(super) fn up_connected(&mut self, up_token: Token) {
        let now = self.now;
        let Some(up) = self.ups.get_mut(up_token) else { return };
        let Some(token) = up.client else { return };
        up.state = UpState::Busy;
        let Some(ex) = self.clients.get_mut(token).and_then(|client| client.exchange.as_mut()) else {
            return;
        };
        let Some(dispatch) = &mut ex.dispatch else { return };
        dispatch.connecting = None;
        dispatch.sent = now;
        self.send_head(token, up_token);
    }

    /// Writes the request head for this endpoint and sends as much as the socket takes.
    fn send_head(&mut self, token: Token, up_token: Token) {
        let Some(up) = self.ups.get_mut(up_token) else { return };
        let Some(ex) = self.clients.get(token).and_then(|client| client.exchange.as_ref()) else { return };
        let Some(dispatch) = &ex.dispatch else { return };
        let edits = dispatch.edits_for(&up.endpoint);
        let length = edits.len_of(ex.body.bytes.len());
        let mut head = self.spares.take();
        head.extend_from_slice(b"POST ");
        head.extend_from_slice(up.endpoint.base_path.as_bytes());
        head.extend_from_slice(ex.surface.path().as_bytes());
        head.extend_from_slice(b" HTTP/1.1\r\n");
        put_header(&mut head, "host", up.endpoint.authority.as_bytes());
        head.extend_from_slice(&ex.forward);
        put_header(&mut head, "x-request-id", ex.request_id.as_str().as_bytes());
        put_header(&mut head, "x-tl-priority", itoa::Buffer::new().format(dispatch.priority).as_bytes());
        put_header_u64(&mut head, "content-length", length as u64);
        head.extend_from_slice(b"\r\n");
        up.total = head.len() + length;
        up.sent = 0;
        if length <= COPIED_MAX {
            edits.segments(&ex.body.bytes).for_each(|segment| head.extend_from_slice(segment));
        }
        up.request = head;
        self.send_request(token, up_token);
        self.arm_client(token);
    }

    /// Sends what is left of the request.
    pub(super) fn send_request(&mut self, token: Token, up_token: Token) {
        loop {
            let Some(up) = self.ups.get_mut(up_token) else { return };
            if up.sent == up.total {
                self.spares.give(std::mem::take(&mut up.request));
                return;
            }
            let Some(ex) = self.clients.get(token).and_then(|client| client.exchange.as_ref()) else {
                return;
            };
            let Some(dispatch) = &ex.dispatch else { return };
            let mut skip = up.sent;
            let mut pieces: SmallVec<[IoSlice<'_>; PIECES]> = SmallVec::new();
            let mut offered = 0;
            // A small body was copied behind the head.
            let apart = (up.request.len() < up.total)
                .then(|| dispatch.edits_for(&up.endpoint).segments(&ex.body.bytes));
            let segments = std::iter::once(&up.request[..]).chain(apart.into_iter().flatten());
            for segment in segments {
                if skip >= segment.len() {
                    skip -= segment.len();
                    continue;
                }
                if pieces.len() == PIECES {
                    break;
                }
                offered += segment.len() - skip;
                pieces.push(IoSlice::new(&segment[skip..]));
                skip = 0;
            }
            let result = self.driver.send(up_token, &pieces);
            drop(pieces);
            match result {
                Ok(sent) => {
                    up.sent += sent;
                    if sent < offered {
                        crate::mark!(upstream_short_write);
                        return;
                    }
                }
                Err(_) => {
                    crate::mark!(upstream_send_failed);
                    // An early answer may be waiting behind the failed write: the read side, which is told of the
                    // end as well, decides.
                    return;
                }
            }
        }
    }

    pub(super) fn up_connect_failed(&mut self, up_token: Token, error: ConnError) {
        let Some(up) = self.ups.get(up_token) else { return };
        let Some(token) = up.client else { return };
        crate::mark!(connect_refused);
        let failure = if error == ConnError::Local { Failure::Local } else { Failure::Refused };
        self.try_failed(token, failure);
    }

    pub(super) fn connect_timed_out(&mut self, token: Token) {
        crate::mark!(connect_timeout);
        self.stats().timeout_connect.add(1);
        self.try_failed(token, Failure::ConnectTimeout);
    }

    /// The connection of a try died before an answer. A pooled one that was closed by its engine in the meantime is
    /// replaced by a fresh one, once, without counting: the engine never refused anything.
    pub(super) fn try_lost(&mut self, token: Token, up_token: Token) {
        let Some(up) = self.ups.get(up_token) else { return };
        if up.reused && !up.answered {
            crate::mark!(stale_reuse);
            self.stats().stale_reuse.add(1);
            let endpoint = Arc::clone(&up.endpoint);
            self.unlink(token);
            self.close_up(up_token, false);
            self.start_try(token, endpoint, false);
            return;
        }
        self.try_failed(token, Failure::Lost);
    }

    /// A try failed before anything went to the client: note it at the endpoint, and try another if that is allowed.
    pub(super) fn try_failed(&mut self, token: Token, failure: Failure) {
        self.detach_upstream(token, false);
        let (now, loads) = (self.now, Arc::clone(&self.shared.loads));
        let Some(ex) = self.clients.get_mut(token).and_then(|client| client.exchange.as_mut()) else {
            return;
        };
        ex.reply = Reply::None;
        let settings = Arc::clone(&ex.settings);
        let Some(dispatch) = &mut ex.dispatch else { return };
        dispatch.failure = Some(failure);
        if let Some(endpoint) = &dispatch.endpoint {
            let slot = endpoint.slot.index();
            dispatch.exclude.push(slot);
            match failure {
                Failure::Busy(wait) => {
                    dispatch.busy_for = Some(dispatch.busy_for.unwrap_or(0).max(wait));
                    loads.mark_busy(slot, now.saturating_add(wait), now);
                }
                // Neither says anything of the endpoint's health.
                Failure::Local | Failure::Drained => {}
                _ => loads.mark_failed(slot, now.saturating_add(settings.cooldown)),
            }
        }
        let mut allowed = dispatch.attempts <= settings.retries;
        let busy_for = dispatch.busy_for;
        if let (true, Failure::Busy(_)) = (allowed, failure) {
            allowed = self.shared.budget.try_withdraw(now);
            if !allowed {
                crate::mark!(retry_budget_exhausted);
                self.stats().retry_budget_exhausted.add(1);
            }
        }
        if !allowed {
            crate::mark!(tries_exhausted);
            self.reject(token, &failure.answer(busy_for));
            return;
        }
        let stats = self.stats();
        match failure {
            Failure::Busy(_) => stats.retries_busy.add(1),
            _ if failure.never_sent() => stats.retries_never_sent.add(1),
            _ => stats.retries_sent.add(1),
        }
        self.attempt(token);
    }

    /// An upstream deadline passed: 504 before the first byte, an error event in a stream, a cut otherwise. Never
    /// retried: the engine is at work on it.
    pub(super) fn exchange_timeout(&mut self, token: Token, phase: Phase) {
        crate::mark!(exchange_timeout);
        let stats = self.stats();
        match phase {
            Phase::Connect => stats.timeout_connect.add(1),
            Phase::FirstToken => stats.timeout_first_token.add(1),
            Phase::BetweenTokens => stats.timeout_between_tokens.add(1),
            Phase::Total => stats.timeout_total.add(1),
        }
        self.detach_upstream(token, false);
        let Some(ex) = self.clients.get(token).and_then(|client| client.exchange.as_ref()) else { return };
        let error = ApiError::upstream_timeout(phase);
        if ex.committed() {
            self.break_stream(token, &error, Outcome::Broken);
        } else {
            self.reject(token, &error);
        }
    }

    /// What ran when its endpoint's drain was over: its connection is closed, so that the engine may go. A stream
    /// gets an error event; what had not begun may be taken elsewhere.
    pub(super) fn exchange_cut(&mut self, token: Token) {
        crate::mark!(drain_cut);
        let Some(ex) = self.clients.get(token).and_then(|client| client.exchange.as_ref()) else { return };
        if ex.committed() {
            self.detach_upstream(token, false);
            self.break_stream(token, &ApiError::drained(), Outcome::Broken);
        } else {
            self.try_failed(token, Failure::Drained);
        }
    }

    /// When the request's endpoint is cut off; [`NEVER`] if it is not drained.
    pub(super) fn cut_at(&self, ex: &Exchange) -> Nanos {
        match &ex.dispatch {
            Some(Dispatch { lease: Some(_), endpoint: Some(endpoint), .. }) if self.seen_cuts != 0 => {
                self.shared.loads.cut_at(endpoint.slot.index())
            }
            _ => NEVER,
        }
    }

    /// Takes the upstream connection off the exchange, giving its in-flight count back.
    fn unlink(&mut self, token: Token) -> Option<Token> {
        let ex = self.clients.get_mut(token)?.exchange.as_mut()?;
        let dispatch = ex.dispatch.as_mut()?;
        dispatch.connecting = None;
        dispatch.upstream.take()
    }

    /// Ends a try: the in-flight count is given back and the connection closed, so that the engine stops working.
    pub(super) fn detach_upstream(&mut self, token: Token, cancelled: bool) {
        let up = self.unlink(token);
        if let Some(dispatch) =
            self.clients.get_mut(token).and_then(|c| c.exchange.as_mut()).and_then(|ex| ex.dispatch.as_mut())
        {
            dispatch.lease = None;
        }
        let Some(up) = up else { return };
        if cancelled {
            self.stats().cancelled.add(1);
        }
        self.close_up(up, true);
    }

    /// The response was read to its end: keep the connection if it can carry another request.
    pub(super) fn release_upstream(&mut self, token: Token) {
        let up_token = self.unlink(token);
        if let Some(dispatch) =
            self.clients.get_mut(token).and_then(|c| c.exchange.as_mut()).and_then(|ex| ex.dispatch.as_mut())
        {
            dispatch.lease = None;
        }
        let Some(up_token) = up_token else { return };
        let now = self.now;
        let Some(up) = self.ups.get_mut(up_token) else { return };
        up.client = None;
        let sendable = up.keep_alive && up.request_sent();
        if sendable
            && matches!(up.reader, UpReader::Sized(_) | UpReader::Chunked(_))
            && !crate::planted!(EarlyReuse)
        {
            // The client has its answer; the end of the framing is worth a moment's wait.
            crate::mark!(upstream_tail);
            up.state = UpState::Tail;
            up.deadline = now.saturating_add(super::TAIL);
            let (deadline, paused) = (up.deadline, std::mem::take(&mut up.paused));
            self.timers.arm(up_token, &mut up.armed, deadline);
            if paused {
                self.driver.resume(up_token);
            }
            return;
        }
        self.pool_or_close(up_token, sendable);
    }

    pub(super) fn pool_or_close(&mut self, up_token: Token, reusable: bool) {
        let now = self.now;
        let Some(up) = self.ups.get_mut(up_token) else { return };
        let finished = matches!(up.reader, UpReader::Done) || crate::planted!(EarlyReuse);
        let serving = self.stop == crate::shared::Stop::No;
        let slot = up.endpoint.slot.index();
        let mut kept = true;
        if up.version != self.seen_version {
            up.version = self.seen_version;
            // A reload since: nobody will ask this endpoint again if it was removed.
            kept = self.snapshot.load().endpoints.iter().any(|endpoint| endpoint.slot.index() == slot);
        }
        let reusable = reusable && finished && kept && serving && up.idle_for > 0;
        if !(reusable && self.pool.put(slot, up_token)) {
            self.close_up(up_token, false);
            return;
        }
        up.state = UpState::Idle;
        up.client = None;
        up.input = Vec::new();
        up.deadline = now.saturating_add(up.idle_for);
        let (deadline, paused) = (up.deadline, std::mem::take(&mut up.paused));
        self.timers.arm(up_token, &mut up.armed, deadline);
        if paused {
            self.driver.resume(up_token);
        }
    }

    /// Closes a connection to an engine, wherever it is.
    pub(super) fn close_up(&mut self, up_token: Token, abort: bool) {
        let Some(up) = self.ups.remove(up_token) else { return };
        if up.state == UpState::Idle {
            self.pool.forget(up.endpoint.slot.index(), up_token);
        }
        // A reset only where the engine may still be at work for nobody.
        let abort = abort && up.total > 0;
        self.driver.close(up_token, abort);
    }
}

fn unavailable(none: NoEndpoint, now: Nanos) -> ApiError {
    match none {
        NoEndpoint::Unavailable { retry_at, busy } => {
            let message =
                if busy { "Every engine of this model is busy" } else { "No engine of this model is up" };
            ApiError::no_capacity(message, retry_at.saturating_sub(now))
        }
        NoEndpoint::Draining => ApiError::drained(),
        NoEndpoint::Unserved => ApiError::no_capacity("No engine serves this model now", SECOND),
        NoEndpoint::AllExcluded => {
            ApiError::no_capacity("No engine of this model could take the request", SECOND)
        }
    }
}
