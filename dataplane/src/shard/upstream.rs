//! The engine side of a connection: its bytes, its end, its deadlines.

use super::Shard;
use super::answer::{Answer, KnownAnswer};
use crate::driver::{Driver, Token};
use crate::exchange::{Failure, UpReader};
use crate::http1::memo;
use crate::http1::{Chunk, HeadLimits, ResponseBody, ResponseHead, find_head_end, parse_response};
use crate::upstream::UpState;
use llmgw_routing::{Nanos, SECOND};

/// Engines' heads are held to the same count of fields as clients', and to this many bytes.
const HEAD_MAX: usize = 64 * 1024;
const HEAD_LIMITS: HeadLimits = HeadLimits { max_headers: 200 };
/// A busy engine's Retry-After is believed up to this.
const RETRY_AFTER_MAX: Nanos = 3600 * SECOND;

impl<D: Driver> Shard<D> {
    pub(super) fn up_data(&mut self, up_token: Token, bytes: &[u8]) {
        let Some(up) = self.ups.get_mut(up_token) else { return };
        match up.state {
            UpState::Busy => {}
            UpState::Tail => return self.tail_data(up_token, bytes),
            // An answer to nothing: whatever it is, the next response on this connection could be mistaken for it.
            UpState::Idle | UpState::Connecting => {
                crate::mark!(unexpected_upstream_bytes);
                return self.close_up(up_token, false);
            }
        }
        let Some(token) = up.client else { return };
        up.answered = true;
        if !matches!(up.reader, UpReader::Head) {
            self.body_bytes(token, up_token, bytes);
            return;
        }
        if up.input.is_empty() {
            let used = self.head_bytes(token, up_token, bytes);
            self.after_head(token, up_token, bytes, used);
        } else {
            up.input.extend_from_slice(bytes);
            let buffer = std::mem::take(&mut up.input);
            let used = self.head_bytes(token, up_token, &buffer);
            self.after_head(token, up_token, &buffer, used);
        }
    }

    /// What follows a head in the same bytes: its body, or an incomplete head to keep.
    fn after_head(&mut self, token: Token, up_token: Token, bytes: &[u8], used: Option<usize>) {
        let Some(up) = self.ups.get_mut(up_token) else { return };
        if up.client != Some(token) {
            return;
        }
        match used {
            Some(used) if used < bytes.len() || !matches!(up.reader, UpReader::Head) => {
                self.body_bytes(token, up_token, &bytes[used..]);
            }
            Some(_) => {}
            None => up.input = bytes.to_vec(),
        }
    }

    /// Parses heads, interim ones included. Returns bytes used once the final head was taken; `None` while it is
    /// incomplete (nothing is used then).
    fn head_bytes(&mut self, token: Token, up_token: Token, bytes: &[u8]) -> Option<usize> {
        if let Some(used) = self.known_answer(token, up_token, bytes) {
            return Some(used);
        }
        let mut used = 0;
        loop {
            let up = self.ups.get_mut(up_token)?;
            let rest = &bytes[used..];
            let end = match find_head_end(rest, up.scanned) {
                Some(end) if end <= HEAD_MAX => end,
                None if rest.len() <= HEAD_MAX => {
                    up.scanned = rest.len();
                    if used > 0 {
                        up.input = rest.to_vec();
                        return Some(bytes.len());
                    }
                    return None;
                }
                // Also one that is complete: the bound must not depend on how the bytes were split.
                _ => {
                    crate::mark!(upstream_head_too_large);
                    self.try_failed(token, Failure::Malformed);
                    return Some(bytes.len());
                }
            };
            up.scanned = 0;
            let Ok(head) = parse_response(&rest[..end], &HEAD_LIMITS, false) else {
                crate::mark!(malformed_head);
                self.try_failed(token, Failure::Malformed);
                return Some(bytes.len());
            };
            used += end;
            if head.interim() {
                crate::mark!(interim_head);
                continue;
            }
            if let Some(up) = self.ups.get_mut(up_token)
                && let Some(known) = KnownAnswer::of(&head)
            {
                let bytes = &bytes[used - end..used];
                self.responses.put(&mut up.place, bytes, &head.headers, memo::RESPONSE, known);
            }
            self.response_head(token, up_token, &head);
            return Some(used);
        }
    }

    /// A head that was met before: goes on without parsing it. Returns bytes used.
    fn known_answer(&mut self, token: Token, up_token: Token, bytes: &[u8]) -> Option<usize> {
        let up = self.ups.get_mut(up_token)?;
        // Not borrowed, so that the rest of the shard can be.
        let known = std::mem::take(&mut self.responses);
        let hit = known.find(&mut up.place, bytes);
        if hit.is_some() {
            crate::mark!(known_answer);
            up.scanned = 0;
        }
        let used = hit.map(|hit| {
            let answer = hit.facts.answer(hit.length());
            self.answer_begins(up_token, &answer);
            self.begin_answer(token, &answer, |out| hit.facts.put_lines(&hit.values, out));
            hit.end
        });
        self.responses = known;
        used
    }

    fn response_head(&mut self, token: Token, up_token: Token, head: &ResponseHead<'_>) {
        let busy_default = SECOND;
        if matches!(head.status, 429 | 503) {
            crate::mark!(busy_engine);
            let wait = retry_after(head).unwrap_or(busy_default).min(RETRY_AFTER_MAX);
            self.try_failed(token, Failure::Busy(wait));
            return;
        }
        let answer = Answer::of(head);
        self.answer_begins(up_token, &answer);
        self.begin_reply(token, head, &answer);
    }

    /// What an answer's head says of its connection.
    fn answer_begins(&mut self, up_token: Token, answer: &Answer) {
        let Some(up) = self.ups.get_mut(up_token) else { return };
        up.keep_alive = answer.keep_alive;
        if let Some(seconds) = answer.keep_alive_timeout_s {
            // A second of margin, so that a request never meets the engine's own close.
            up.idle_for = up.idle_for.min(seconds.saturating_sub(1).saturating_mul(SECOND));
        }
        up.reader = match answer.body {
            ResponseBody::None | ResponseBody::Sized(0) => UpReader::Done,
            ResponseBody::Sized(size) => UpReader::Sized(size),
            ResponseBody::Chunked => UpReader::Chunked(Default::default()),
            ResponseBody::UntilClose => UpReader::UntilClose,
        };
    }

    /// Body bytes, framing included: decoded and relayed piece by piece.
    fn body_bytes(&mut self, token: Token, up_token: Token, bytes: &[u8]) {
        let mut used = 0;
        loop {
            let Some(up) = self.ups.get_mut(up_token) else { return };
            if up.client != Some(token) {
                // The answer was complete before its framing was; what is left goes to the tail.
                let rest = &bytes[used..];
                if up.state == UpState::Tail {
                    self.tail_data(up_token, rest);
                } else if up.state == UpState::Idle && !rest.is_empty() {
                    self.close_up(up_token, false);
                }
                return;
            }
            let rest = &bytes[used..];
            let (start, end, consumed) = match &mut up.reader {
                UpReader::Head => return,
                UpReader::Done => {
                    if !rest.is_empty() {
                        crate::mark!(bytes_after_response);
                        up.keep_alive = false;
                    }
                    self.reply_end(token);
                    return;
                }
                UpReader::UntilClose => (0, rest.len(), rest.len()),
                UpReader::Sized(left) => {
                    let n = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    *left -= n as u64;
                    if *left == 0 {
                        up.reader = UpReader::Done;
                    }
                    (0, n, n)
                }
                UpReader::Chunked(decoder) => match decoder.decode(rest) {
                    Ok(Chunk::Data { start, end, consumed }) => (start, end, consumed),
                    Ok(Chunk::More { consumed }) => (0, 0, consumed),
                    Ok(Chunk::End { consumed }) => {
                        up.reader = UpReader::Done;
                        used += consumed;
                        continue;
                    }
                    Err(_) => {
                        crate::mark!(bad_upstream_chunk);
                        self.flush_reply(token, false);
                        self.reply_broken(token, Failure::Malformed);
                        return;
                    }
                },
            };
            let payload = &rest[start..end];
            used += consumed;
            let last = matches!(up.reader, UpReader::Done);
            if !payload.is_empty() && !self.reply_bytes(token, payload, last) {
                // The exchange ended; the loop's head sees to what is left.
                continue;
            }
            if last {
                continue;
            }
            if used >= bytes.len() {
                self.flush_reply(token, false);
                return;
            }
        }
    }

    /// The end of the framing of an answer that is already relayed.
    fn tail_data(&mut self, up_token: Token, bytes: &[u8]) {
        let mut used = 0;
        loop {
            let Some(up) = self.ups.get_mut(up_token) else { return };
            let rest = &bytes[used..];
            let verdict = match &mut up.reader {
                UpReader::Done => Some(rest.is_empty()),
                UpReader::Chunked(decoder) => match decoder.decode(rest) {
                    Ok(Chunk::End { consumed }) => {
                        used += consumed;
                        up.reader = UpReader::Done;
                        None
                    }
                    Ok(Chunk::More { .. }) => return,
                    Ok(Chunk::Data { consumed, .. }) => {
                        // Blank lines and the like after the terminator.
                        used += consumed;
                        None
                    }
                    Err(_) => Some(false),
                },
                UpReader::Sized(left) => {
                    let n = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    *left -= n as u64;
                    used += n;
                    if *left > 0 {
                        return;
                    }
                    up.reader = UpReader::Done;
                    None
                }
                UpReader::Head | UpReader::UntilClose => Some(false),
            };
            match verdict {
                None => {}
                Some(true) => {
                    crate::mark!(tail_ended_well);
                    return self.pool_or_close(up_token, true);
                }
                Some(false) => return self.close_up(up_token, false),
            }
        }
    }

    pub(super) fn up_writable(&mut self, up_token: Token) {
        let Some(up) = self.ups.get(up_token) else { return };
        if let (UpState::Busy, Some(token)) = (up.state, up.client) {
            self.send_request(token, up_token);
        }
    }

    pub(super) fn up_eof(&mut self, up_token: Token) {
        let Some(up) = self.ups.get_mut(up_token) else { return };
        let (UpState::Busy, Some(token)) = (up.state, up.client) else {
            crate::mark!(idle_upstream_closed);
            return self.close_up(up_token, false);
        };
        up.keep_alive = false;
        match up.reader {
            UpReader::Head => self.try_lost(token, up_token),
            UpReader::UntilClose => {
                up.reader = UpReader::Done;
                self.reply_end(token);
            }
            UpReader::Sized(_) | UpReader::Chunked(_) => self.reply_broken(token, Failure::Lost),
            UpReader::Done => self.reply_end(token),
        }
    }

    pub(super) fn up_reset(&mut self, up_token: Token) {
        let Some(up) = self.ups.get_mut(up_token) else { return };
        let (UpState::Busy, Some(token)) = (up.state, up.client) else {
            return self.close_up(up_token, false);
        };
        if matches!(up.reader, UpReader::Head) {
            self.try_lost(token, up_token);
        } else {
            self.reply_broken(token, Failure::Lost);
        }
    }

    pub(super) fn up_timer(&mut self, up_token: Token) {
        let now = self.now;
        let Some(up) = self.ups.get_mut(up_token) else { return };
        if !matches!(up.state, UpState::Idle | UpState::Tail) {
            return;
        }
        if up.deadline <= now {
            crate::mark!(upstream_idle_timeout);
            self.close_up(up_token, false);
        } else {
            let deadline = up.deadline;
            self.timers.arm(up_token, &mut up.armed, deadline);
        }
    }

    /// The client is slow: stop reading from its engine.
    pub(super) fn pause_upstream(&mut self, token: Token) {
        let Some(up_token) = self.upstream_of(token) else { return };
        let Some(up) = self.ups.get_mut(up_token) else { return };
        if !up.paused {
            crate::mark!(upstream_paused);
            up.paused = true;
            self.driver.pause(up_token);
            self.stats().backpressure_pauses.add(1);
        }
    }

    /// The client caught up: read on.
    pub(super) fn resume_upstream(&mut self, token: Token) {
        let now = self.now;
        let Some(up_token) = self.upstream_of(token) else { return };
        let Some(up) = self.ups.get_mut(up_token) else { return };
        if !up.paused || crate::planted!(ResumeLost) {
            return;
        }
        crate::mark!(upstream_resumed);
        up.paused = false;
        self.driver.resume(up_token);
        if let Some(ex) = self.clients.get_mut(token).and_then(|client| client.exchange.as_mut()) {
            // The engine was not silent; we did not listen.
            ex.last_byte = now;
        }
        self.arm_client(token);
    }

    fn upstream_of(&self, token: Token) -> Option<Token> {
        self.clients.get(token)?.exchange.as_ref()?.dispatch.as_ref()?.upstream
    }

    pub(super) fn upstream_paused(&self, client: &super::Client) -> bool {
        let upstream = client.exchange.as_ref().and_then(|ex| ex.dispatch.as_ref()).and_then(|d| d.upstream);
        upstream.and_then(|up| self.ups.get(up)).is_some_and(|up| up.paused)
    }
}

/// `Retry-After` in seconds; its date form is not worth a calendar here and counts as absent.
fn retry_after(head: &ResponseHead<'_>) -> Option<Nanos> {
    let seconds: u64 = head.headers.get_str("retry-after")?.trim().parse().ok()?;
    Some(seconds.saturating_mul(SECOND))
}
