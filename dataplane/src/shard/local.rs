//! Answers that no engine is asked for: the model list, preflights, unknown paths, errors.

use super::{ClientState, Shard};
use crate::driver::{Driver, Token};
use crate::error::{ApiError, put_json_string};
use crate::http1::write::{put_header, put_header_u64, put_status_line};
use crate::http1::{Method, RequestHead};
use crate::record::Outcome;
use llmgw_routing::snapshot::{Cors, Listed};
use std::borrow::Cow;
use std::io::IoSlice;
use std::sync::Arc;

const GENERATION_PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"];
const EXPOSED: &[u8] =
    b"x-request-id, x-llmgw-served-model, x-llmgw-queue-ms, x-llmgw-replica, x-llmgw-pool, \
      x-llmgw-route-reason, x-llmgw-attempts, retry-after";

impl<D: Driver> Shard<D> {
    /// Answers a request that needs no engine.
    pub(super) fn answer_local(&mut self, token: Token, head: &RequestHead<'_>) {
        let is_models = head.path == "/v1/models";
        let model_id = head.path.strip_prefix("/v1/models/").filter(|id| !id.is_empty());
        let allow = if is_models || model_id.is_some() {
            "GET, HEAD, OPTIONS"
        } else if GENERATION_PATHS.contains(&head.path) {
            "POST, OPTIONS"
        } else if head.method == Method::Options && head.path == "*" {
            "GET, HEAD, POST, OPTIONS"
        } else {
            self.reject_head_aware(token, head, &ApiError::unknown_path(head.path));
            return;
        };
        let readable = is_models || model_id.is_some();
        match head.method {
            Method::Options => self.answer_options(token, head, allow),
            Method::Get | Method::Head if readable => match model_id {
                None => self.answer_models(token, head),
                Some(id) => self.answer_model(token, head, id),
            },
            _ => self.reject_head_aware(token, head, &ApiError::method_not_allowed(head.method_str, allow)),
        }
    }

    fn answer_options(&mut self, token: Token, head: &RequestHead<'_>, allow: &'static str) {
        let preflight = head.headers.get("access-control-request-method").is_some();
        let mut extra = Vec::new();
        put_header(&mut extra, "allow", allow.as_bytes());
        if let Some(ex) = self.clients.get(token).and_then(|client| client.exchange.as_ref())
            && preflight
            && !ex.cors.is_empty()
        {
            crate::mark!(cors_preflight);
            put_header(&mut extra, "access-control-allow-methods", allow.as_bytes());
            // Whatever the page wants to send: what reaches an engine is decided elsewhere.
            if let Some(wanted) = head.headers.get("access-control-request-headers") {
                put_header(&mut extra, "access-control-allow-headers", wanted);
            }
            put_header_u64(&mut extra, "access-control-max-age", u64::from(ex.settings.cors.max_age_s));
        }
        self.answer(token, 204, &extra, None, true, Outcome::Completed);
    }

    fn answer_models(&mut self, token: Token, head: &RequestHead<'_>) {
        let listed = Arc::clone(&self.snapshot.load().listed);
        let mut body = b"{\"object\":\"list\",\"data\":[".to_vec();
        for (i, model) in listed.iter().enumerate() {
            if i > 0 {
                body.push(b',');
            }
            put_model(&mut body, model);
        }
        body.extend_from_slice(b"]}");
        self.answer_json(token, 200, &body, head.method == Method::Head);
    }

    /// Model ids may hold slashes, plain or as `%2F`.
    fn answer_model(&mut self, token: Token, head: &RequestHead<'_>, id: &str) {
        let decoded = percent_decode(id);
        let model = decoded.as_deref().and_then(|id| self.snapshot.load().listed(id).cloned());
        let Some(model) = model else {
            let error = ApiError::model_not_found(decoded.as_deref().unwrap_or(id));
            self.reject_head_aware(token, head, &error);
            return;
        };
        let mut body = Vec::new();
        put_model(&mut body, &model);
        self.answer_json(token, 200, &body, head.method == Method::Head);
    }

    fn answer_json(&mut self, token: Token, status: u16, body: &[u8], head_only: bool) {
        self.answer(
            token,
            status,
            b"content-type: application/json\r\n",
            Some(body),
            !head_only,
            Outcome::Completed,
        );
    }

    /// Rejects and keeps the connection if the client does.
    pub(super) fn reject(&mut self, token: Token, error: &ApiError) {
        self.answer_error(token, error, true, Outcome::Rejected);
    }

    fn reject_head_aware(&mut self, token: Token, head: &RequestHead<'_>, error: &ApiError) {
        self.answer_error(token, error, head.method != Method::Head, Outcome::Rejected);
    }

    /// Rejects and closes: what follows on the connection is not known to be a request.
    pub(super) fn reject_close(&mut self, token: Token, error: &ApiError) {
        if let Some(ex) = self.clients.get_mut(token).and_then(|client| client.exchange.as_mut()) {
            ex.keep_alive = false;
        }
        self.reject(token, error);
    }

    fn answer_error(&mut self, token: Token, error: &ApiError, with_body: bool, outcome: Outcome) {
        let mut body = Vec::with_capacity(192);
        error.write_json(&mut body);
        let mut extra = Vec::with_capacity(96);
        put_error_headers(&mut extra, error);
        self.answer(token, error.status, &extra, Some(&body), with_body, outcome);
    }

    /// Writes a whole answer for the current exchange, settles it and goes on with the connection. `body: None` is a
    /// status without a body (204); `with_body` false is the answer to HEAD.
    pub(super) fn answer(
        &mut self,
        token: Token,
        status: u16,
        headers: &[u8],
        body: Option<&[u8]>,
        with_body: bool,
        outcome: Outcome,
    ) {
        let stopping = self.stop != crate::shared::Stop::No;
        let Some(client) = self.clients.get_mut(token) else { return };
        client.state = ClientState::Answer;
        let last = client.is_last();
        if client.starved {
            client.starved = false;
            self.unstarve(token);
        }
        let Some(client) = self.clients.get_mut(token) else { return };
        let Some(ex) = &mut client.exchange else { return };
        let keep_alive = ex.keep_alive && !stopping && !last;
        ex.status = status;
        let mut head = std::mem::take(&mut self.scratch);
        put_status_line(&mut head, status);
        head.extend_from_slice(headers);
        if let Some(body) = body {
            put_header_u64(&mut head, "content-length", body.len() as u64);
        }
        super::relay::put_common_headers(&mut head, ex, keep_alive);
        head.extend_from_slice(b"\r\n");
        let body = if with_body { body.unwrap_or_default() } else { &[] };
        let alive = self.send(token, &[IoSlice::new(&head), IoSlice::new(body)]);
        head.clear();
        self.scratch = head;
        if alive {
            self.settle(token, outcome, status, None);
            self.response_done(token, keep_alive);
        }
    }

    /// Answers bytes that never became a request, and closes.
    pub(super) fn reject_unparsed(&mut self, token: Token, error: &ApiError) {
        if self.send_bare_error(token, error) {
            self.start_linger(token);
        }
    }

    /// Sends an error outside of any exchange. `false` when the client was lost on the way.
    pub(super) fn send_bare_error(&mut self, token: Token, error: &ApiError) -> bool {
        let mut body = Vec::with_capacity(192);
        error.write_json(&mut body);
        let mut head = Vec::with_capacity(192);
        put_status_line(&mut head, error.status);
        put_error_headers(&mut head, error);
        put_header_u64(&mut head, "content-length", body.len() as u64);
        head.extend_from_slice(b"connection: close\r\n\r\n");
        let alive = self.send(token, &[IoSlice::new(&head), IoSlice::new(&body)]);
        if alive {
            self.count_unparsed(error.status);
        }
        alive
    }
}

fn put_error_headers(out: &mut Vec<u8>, error: &ApiError) {
    out.extend_from_slice(b"content-type: application/json\r\n");
    if let Some(seconds) = error.retry_after_s {
        put_header_u64(out, "retry-after", seconds);
    }
    if let Some(allow) = error.allow {
        put_header(out, "allow", allow.as_bytes());
    }
}

fn put_model(out: &mut Vec<u8>, model: &Listed) {
    out.extend_from_slice(b"{\"id\":");
    put_json_string(out, &model.name);
    out.extend_from_slice(b",\"object\":\"model\",\"created\":");
    out.extend_from_slice(itoa::Buffer::new().format(model.created).as_bytes());
    out.extend_from_slice(b",\"owned_by\":\"llmgw\"}");
}

/// `None` for malformed escapes or text that is not UTF-8.
fn percent_decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(if byte == b'%' {
            let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16));
            let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
            u8::try_from(high << 4 | low).ok()?
        } else {
            byte
        });
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}

/// `Access-Control-*` lines for the answer to this request; empty unless it names an allowed origin.
pub(super) fn cors_headers(cors: &Cors, head: &RequestHead<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    if cors.allow_origins.is_empty() {
        return out;
    }
    let Some(origin) = head.headers.get("origin") else { return out };
    let any = cors.allow_origins.iter().any(|allowed| &**allowed == "*");
    if !any && !cors.allow_origins.iter().any(|allowed| allowed.as_bytes() == origin) {
        return out;
    }
    if any {
        put_header(&mut out, "access-control-allow-origin", b"*");
    } else {
        put_header(&mut out, "access-control-allow-origin", origin);
        put_header(&mut out, "vary", b"Origin");
    }
    put_header(&mut out, "access-control-expose-headers", EXPOSED);
    out
}
