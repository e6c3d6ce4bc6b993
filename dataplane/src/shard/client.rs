//! The client side of a connection: its bytes, its end, its deadlines, its output.

use super::{Client, ClientState, LINGER, Shard};
use crate::buffers::{HIGH_WATER, LOW_WATER};
use crate::driver::{Driver, Token};
use crate::error::{ApiError, Phase};
use crate::exchange::Reply;
use crate::record::Outcome;
use crate::sse::KEEP_ALIVE_COMMENT;
use crate::timer::NEVER;
use llmgw_routing::{Nanos, SECOND};
use std::io::IoSlice;
use std::sync::Arc;

impl Client {
    /// No further request can follow on this connection.
    pub(super) fn is_last(&self) -> bool {
        self.fin && self.input.is_empty()
    }

    /// What has arrived must wait: for memory, for its turn, or for the client to take its answers.
    pub(super) fn held_back(&self) -> bool {
        self.starved || self.yielded || !self.out.is_empty()
    }
}

impl<D: Driver> Shard<D> {
    pub(super) fn client_data(&mut self, token: Token, bytes: &[u8]) {
        let Some(client) = self.clients.get_mut(token) else { return };
        self.shared.seats[self.id].stats.bytes_in.add(bytes.len() as u64);
        match client.state {
            ClientState::Linger => {}
            ClientState::Answer => self.keep_input(token, bytes),
            _ if client.held_back() => self.keep_input(token, bytes),
            _ if client.input.is_empty() => {
                let used = self.consume(token, bytes);
                self.keep_input(token, &bytes[used..]);
            }
            _ => {
                client.input.extend_from_slice(bytes);
                self.resume_input(token);
            }
        }
    }

    /// Keeps bytes that cannot be looked at yet; reading stops when they are more than a head may be.
    fn keep_input(&mut self, token: Token, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let bound = self.settings().max_header;
        let Some(client) = self.clients.get_mut(token) else { return };
        if client.state == ClientState::Linger {
            return;
        }
        if crate::planted!(PipelineOrder) {
            client.input.splice(0..0, bytes.iter().copied());
        } else {
            client.input.extend_from_slice(bytes);
        }
        // A head in progress has its own bound; everything else stops the reading here.
        let waiting = client.state == ClientState::Answer || client.held_back();
        if waiting && client.input.len() >= bound && !client.paused {
            crate::mark!(client_input_paused);
            client.paused = true;
            self.driver.pause(token);
        }
    }

    /// Looks at kept input again: a response ended, memory came free, or output drained.
    pub(super) fn resume_input(&mut self, token: Token) {
        let Some(client) = self.clients.get_mut(token) else { return };
        if client.held_back() || matches!(client.state, ClientState::Answer | ClientState::Linger) {
            if client.state == ClientState::Linger {
                client.input = Vec::new();
            }
            return;
        }
        if !client.input.is_empty() {
            let buffer = std::mem::take(&mut client.input);
            let used = self.consume(token, &buffer);
            let Some(client) = self.clients.get_mut(token) else { return };
            if client.state == ClientState::Linger {
                return;
            }
            if used < buffer.len() {
                let mut buffer = buffer;
                buffer.drain(..used);
                client.input = buffer;
            }
        }
        let Some(client) = self.clients.get_mut(token) else { return };
        let waiting = client.state == ClientState::Answer || client.held_back();
        if client.paused && !waiting {
            client.paused = false;
            self.driver.resume(token);
        }
        if client.fin && !waiting {
            // Whatever the client had sent before its FIN was looked at: nothing more can come.
            self.client_fin(token);
        }
    }

    /// The client has sent FIN, behind bytes that were not read yet. If that does not abort its request, those bytes
    /// count, and the end is told once they were read.
    pub(super) fn client_hangup(&mut self, token: Token) {
        let Some(client) = self.clients.get(token) else { return };
        let settings = client.exchange.as_ref().map_or(&self.current, |ex| &ex.settings);
        if settings.half_close_abort && client.state != ClientState::Linger {
            crate::mark!(client_hangup_aborts);
            self.client_gone(token);
        }
    }

    /// The client sent FIN and all its bytes were delivered.
    pub(super) fn client_fin(&mut self, token: Token) {
        let Some(client) = self.clients.get_mut(token) else { return };
        client.fin = true;
        match client.state {
            ClientState::Idle | ClientState::Head | ClientState::Body if client.held_back() => {
                // Without an exchange there is still the end of the last answer to send.
                let settings = client.exchange.as_ref().map_or(&self.current, |ex| &ex.settings);
                let abort = settings.half_close_abort;
                if abort {
                    self.client_gone(token);
                }
            }
            ClientState::Idle | ClientState::Head | ClientState::Body => self.client_gone(token),
            ClientState::Answer => {
                let Some(exchange) = &client.exchange else { return };
                if exchange.settings.half_close_abort {
                    crate::mark!(client_fin_aborts);
                    self.client_gone(token);
                } else {
                    crate::mark!(client_fin_allowed);
                }
            }
            ClientState::Linger => {
                if client.out.is_empty() {
                    self.drop_client(token, true, false);
                }
            }
        }
    }

    /// The client is gone: its request is cancelled in whatever phase it is.
    pub(super) fn client_gone(&mut self, token: Token) {
        let Some(client) = self.clients.get_mut(token) else { return };
        // An answer that was cut must not look like one that ended, if anybody still reads it.
        let cut = !client.out.is_empty() || client.exchange.as_ref().is_some_and(|ex| ex.committed());
        if client.exchange.is_some() {
            if crate::planted!(LostCancel) {
                client.exchange.as_mut().and_then(|ex| ex.dispatch.as_mut()).map(|d| d.upstream.take());
            }
            self.detach_upstream(token, true);
            self.settle(token, Outcome::ClientGone, 499, None);
        }
        self.drop_client(token, true, cut);
    }

    pub(super) fn client_writable(&mut self, token: Token) {
        let now = self.now;
        let Some(client) = self.clients.get_mut(token) else { return };
        let Ok(sent) = client.out.flush(&mut self.driver, token) else {
            self.client_gone(token);
            return;
        };
        if sent > 0 {
            client.out_since = now;
        }
        let (left, state) = (client.out.len(), client.state);
        if left <= LOW_WATER && state == ClientState::Answer {
            self.resume_upstream(token);
        }
        if left == 0 {
            match state {
                ClientState::Linger => self.linger_now(token),
                ClientState::Answer => {}
                _ => self.ready.push(token),
            }
        }
    }

    /// Sends; unsent bytes stay with the connection. `false` when the client was lost on the way (and dropped).
    pub(super) fn send(&mut self, token: Token, bufs: &[IoSlice<'_>]) -> bool {
        let now = self.now;
        let Some(client) = self.clients.get_mut(token) else { return false };
        let was_empty = client.out.is_empty();
        let Ok(sent) = client.out.write(&mut self.driver, token, bufs) else {
            crate::mark!(client_send_failed);
            self.client_gone(token);
            return false;
        };
        if was_empty || sent > 0 {
            client.out_since = now;
        }
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        if let Some(exchange) = &mut client.exchange {
            exchange.bytes_out += total as u64;
            exchange.last_emit = now;
        }
        let stalled = client.out.len() > HIGH_WATER;
        let arm = was_empty && !client.out.is_empty();
        self.shared.seats[self.id].stats.bytes_out.add(total as u64);
        if arm {
            self.arm_client(token);
        }
        if stalled && !crate::planted!(PauseLost) {
            self.pause_upstream(token);
        }
        true
    }

    /// The answer is complete and settled: next request, or close.
    pub(super) fn response_done(&mut self, token: Token, keep_alive: bool) {
        let Some(client) = self.clients.get_mut(token) else { return };
        if keep_alive && !client.is_last() && self.stop == crate::shared::Stop::No {
            client.state = ClientState::Idle;
            client.since = self.now;
            if !client.input.is_empty() || client.paused {
                self.ready.push(token);
            }
            self.arm_client(token);
        } else {
            self.start_linger(token);
        }
    }

    /// Ends our side after what is unsent, and waits a little for the client to end its own, so that a reset does
    /// not overtake our last bytes (RFC 9112 section 9.6).
    pub(super) fn start_linger(&mut self, token: Token) {
        let Some(client) = self.clients.get_mut(token) else { return };
        client.state = ClientState::Linger;
        client.input = Vec::new();
        client.since = self.now;
        let (drained, paused) = (client.out.is_empty(), client.paused);
        client.paused = false;
        if paused {
            self.driver.resume(token);
        }
        if drained {
            self.linger_now(token);
        } else {
            self.arm_client(token);
        }
    }

    fn linger_now(&mut self, token: Token) {
        let now = self.now;
        let Some(client) = self.clients.get_mut(token) else { return };
        if client.fin {
            self.drop_client(token, true, false);
            return;
        }
        client.since = now;
        self.driver.shutdown_write(token);
        self.arm_client(token);
    }

    /// When this connection needs attention next.
    fn client_deadline(&self, client: &Client) -> Nanos {
        let defaults = &self.current;
        let settings = client.exchange.as_ref().map_or(defaults, |ex| &ex.settings);
        let stall = if client.out.is_empty() {
            NEVER
        } else {
            client.out_since.saturating_add(settings.timeout_body_idle)
        };
        let phase = match client.state {
            ClientState::Idle => client.since.saturating_add(settings.timeout_idle),
            ClientState::Head => client.since.saturating_add(settings.timeout_header),
            ClientState::Body => {
                // A byte now and then keeps it from being idle, not from taking too long.
                let began = client.exchange.as_ref().map_or(client.since, |ex| ex.started);
                let total = began.saturating_add(settings.timeout_total);
                client.since.saturating_add(settings.timeout_body_idle).min(total)
            }
            ClientState::Answer => {
                let paused = self.upstream_paused(client);
                client.exchange.as_ref().map_or(NEVER, |ex| ex.next_deadline(paused).min(self.cut_at(ex)))
            }
            // As long as output drains, however slowly, only a stall ends it.
            ClientState::Linger if !client.out.is_empty() => NEVER,
            ClientState::Linger => client.since.saturating_add(LINGER),
        };
        phase.min(stall)
    }

    pub(super) fn arm_client(&mut self, token: Token) {
        let Some(client) = self.clients.get(token) else { return };
        let at = self.client_deadline(client);
        if let Some(client) = self.clients.get_mut(token) {
            self.timers.arm(token, &mut client.armed, at);
        }
    }

    pub(super) fn client_timer(&mut self, token: Token) {
        let now = self.now;
        let Some(client) = self.clients.get(token) else { return };
        if self.client_deadline(client) > now {
            self.arm_client(token);
            return;
        }
        let defaults = Arc::clone(&self.current);
        let settings = client.exchange.as_ref().map_or(&defaults, |ex| &ex.settings);
        let stalled =
            !client.out.is_empty() && client.out_since.saturating_add(settings.timeout_body_idle) <= now;
        if stalled {
            crate::mark!(client_stalled);
            self.stats().timeout_client.add(1);
            self.client_gone(token);
            return;
        }
        match client.state {
            ClientState::Idle | ClientState::Linger => self.drop_client(token, true, false),
            ClientState::Head => {
                crate::mark!(header_timeout);
                self.stats().timeout_client.add(1);
                self.stats().bad_heads.add(1);
                let error = ApiError::bad_request(408, "The request head did not arrive in time");
                self.reject_unparsed(token, &error);
            }
            ClientState::Body => {
                self.stats().timeout_client.add(1);
                let error = if client.starved {
                    crate::mark!(starved_timeout);
                    ApiError::no_capacity("The gateway holds as many request bodies as it may", SECOND)
                } else {
                    crate::mark!(body_timeout);
                    ApiError::bad_request(408, "The request body did not arrive in time")
                };
                self.reject_close(token, &error);
            }
            ClientState::Answer => self.exchange_timer(token),
        }
    }

    fn exchange_timer(&mut self, token: Token) {
        let now = self.now;
        let Some(client) = self.clients.get(token) else { return };
        let paused = self.upstream_paused(client);
        let Some(ex) = &client.exchange else { return };
        let settings = &ex.settings;
        let due = |since: Nanos, timeout: Nanos| since.saturating_add(timeout) <= now;
        let Some(dispatch) = &ex.dispatch else { return };
        if due(ex.started, settings.timeout_total) {
            self.exchange_timeout(token, Phase::Total);
        } else if self.cut_at(ex) <= now {
            self.exchange_cut(token);
        } else if let Some(started) = dispatch.connecting
            && due(started, settings.timeout_connect)
        {
            self.connect_timed_out(token);
        } else if dispatch.connecting.is_none()
            && ex.first_byte.is_none()
            && due(dispatch.sent, settings.timeout_first_token)
        {
            self.exchange_timeout(token, Phase::FirstToken);
        } else if ex.first_byte.is_some() && !paused && due(ex.last_byte, settings.timeout_between_tokens) {
            self.exchange_timeout(token, Phase::BetweenTokens);
        } else {
            let comment = matches!(&ex.reply, Reply::Stream(stream) if stream.comments_allowed())
                && due(ex.last_emit, settings.keep_alive_comment);
            if comment {
                // A client that reads nothing gets no comments piled up on top.
                if client.out.is_empty() {
                    crate::mark!(keep_alive_comment);
                    self.stats().keep_alive_comments.add(1);
                    self.emit_stream(token, KEEP_ALIVE_COMMENT, false);
                } else if let Some(client) = self.clients.get_mut(token)
                    && let Some(ex) = &mut client.exchange
                {
                    ex.last_emit = now;
                }
            }
            self.arm_client(token);
        }
    }
}
