//! Every error that the gateway itself answers with: status, OpenAI type and code, and text, in one place.
//!
//! No message names an internal address.

use llmgw_routing::Nanos;
use std::borrow::Cow;

/// Phases that an upstream timeout names in `param`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// TCP connect.
    Connect,
    /// Request sent to first body byte.
    FirstToken,
    /// Between body bytes.
    BetweenTokens,
    /// The whole request.
    Total,
}

impl Phase {
    /// `param` of the error body.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Connect => "connect",
            Phase::FirstToken => "first_token",
            Phase::BetweenTokens => "between_tokens",
            Phase::Total => "total",
        }
    }
}

/// An error answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// OpenAI's `code`.
    pub code: Option<&'static str>,
    /// OpenAI's `param`.
    pub param: Option<Cow<'static, str>>,
    /// What was wrong and what to do.
    pub message: Cow<'static, str>,
    /// `Retry-After` in seconds.
    pub retry_after_s: Option<u64>,
    /// `Allow` for 405.
    pub allow: Option<&'static str>,
}

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

impl ApiError {
    fn new(
        status: u16,
        kind: &'static str,
        code: Option<&'static str>,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        ApiError {
            status,
            kind,
            code,
            param: None,
            message: message.into(),
            retry_after_s: None,
            allow: None,
        }
    }

    /// 400 (or the status a parser names) for a malformed request.
    pub fn bad_request(status: u16, message: impl Into<Cow<'static, str>>) -> Self {
        let code = match status {
            408 => Some("request_timeout"),
            413 => Some("request_too_large"),
            414 | 431 => Some("headers_too_large"),
            _ => None,
        };
        Self::new(status, INVALID, code, message)
    }

    /// 400 for a body that is not what the API takes; `param` names the field if one is at fault.
    pub fn bad_body(message: impl Into<Cow<'static, str>>, param: Option<&'static str>) -> Self {
        ApiError { param: param.map(Cow::Borrowed), ..Self::new(400, INVALID, None, message) }
    }

    /// 404 for a path that is not served.
    pub fn unknown_path(path: &str) -> Self {
        Self::new(404, INVALID, Some("not_found"), format!("Unknown path {}", clip(path)))
    }

    /// 405.
    pub fn method_not_allowed(method: &str, allow: &'static str) -> Self {
        let message = format!("Method {} is not allowed here; use {allow}", clip(method));
        ApiError { allow: Some(allow), ..Self::new(405, INVALID, Some("method_not_allowed"), message) }
    }

    /// 404 for a model that nothing names.
    pub fn model_not_found(model: &str) -> Self {
        let message =
            format!("The model `{}` does not exist; GET /v1/models lists those that do", clip(model));
        ApiError { param: Some("model".into()), ..Self::new(404, INVALID, Some("model_not_found"), message) }
    }

    /// 413.
    pub fn too_large(limit: usize) -> Self {
        Self::bad_request(413, format!("The request body is larger than the limit of {limit} bytes"))
    }

    /// 503: nothing can take the request now.
    pub fn no_capacity(message: impl Into<Cow<'static, str>>, retry_after: Nanos) -> Self {
        let seconds = retry_after.div_ceil(llmgw_routing::SECOND).max(1);
        ApiError { retry_after_s: Some(seconds), ..Self::new(503, SERVER, Some("no_capacity"), message) }
    }

    /// 502: the engine's answer is not valid HTTP.
    pub fn bad_upstream() -> Self {
        Self::new(502, SERVER, Some("bad_upstream_response"), "The engine's answer was not valid HTTP")
    }

    /// 504 with the phase in `param`.
    pub fn upstream_timeout(phase: Phase) -> Self {
        let message = match phase {
            Phase::Connect => "No engine accepted a connection in time",
            Phase::FirstToken => "The engine did not begin its answer in time",
            Phase::BetweenTokens => "The engine stopped in the middle of its answer",
            Phase::Total => "The request took longer than is allowed in total",
        };
        let param = Some(Cow::Borrowed(phase.name()));
        ApiError { param, ..Self::new(504, SERVER, Some("upstream_timeout"), message) }
    }

    /// The engine failed in the middle of a stream; only ever an event, never a status.
    pub fn stream_broken() -> Self {
        Self::new(502, SERVER, Some("upstream_failed"), "The engine failed before it finished the answer")
    }

    /// The gateway is going away.
    pub fn shutting_down() -> Self {
        Self::no_capacity("The gateway is shutting down", llmgw_routing::SECOND)
    }

    /// The model is drained.
    pub fn drained() -> Self {
        Self::no_capacity("This model is being drained", llmgw_routing::SECOND)
    }

    /// 429 at the bound of connections an address may have.
    pub fn too_many_connections() -> Self {
        let message = "Too many connections from this address";
        ApiError {
            retry_after_s: Some(1),
            ..Self::new(429, "rate_limit_error", Some("rate_limit_exceeded"), message)
        }
    }

    /// `{"error":{...}}`.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"error\":{\"message\":");
        put_json_string(out, &self.message);
        out.extend_from_slice(b",\"type\":");
        put_json_string(out, self.kind);
        out.extend_from_slice(b",\"param\":");
        put_json_option(out, self.param.as_deref());
        out.extend_from_slice(b",\"code\":");
        put_json_option(out, self.code);
        out.extend_from_slice(b"}}");
    }
}

/// At most 200 bytes of what a client sent, cut at a character, so that an answer cannot be made large.
fn clip(text: &str) -> &str {
    let mut end = text.len().min(200);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn put_json_option(out: &mut Vec<u8>, value: Option<&str>) {
    match value {
        Some(text) => put_json_string(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

/// Appends a JSON string with its quotes.
pub fn put_json_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..0x20 | 0x7f => {
                let hex = b"0123456789abcdef";
                out.extend_from_slice(b"\\u00");
                out.push(hex[usize::from(byte >> 4)]);
                out.push(hex[usize::from(byte & 15)]);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

/// An engine's error body in OpenAI's shape, once, without internal addresses.
///
/// `secrets` are the texts that must not get out (the engine's `host:port`); each is replaced by `engine`.
pub fn normalize_engine_error(status: u16, body: &[u8], secrets: &[&str], out: &mut Vec<u8>) {
    use serde_json::Value;
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    // OpenAI: {"error":{...}}; older vLLM: the same fields at the top; FastAPI: {"detail":...}; llama.cpp: no param.
    let source = match &parsed {
        Some(Value::Object(map)) => match map.get("error") {
            Some(Value::Object(inner)) => Some(inner),
            _ => Some(map),
        },
        _ => None,
    };
    let field = |name: &str| source.and_then(|map| map.get(name)).filter(|value| !value.is_null());
    let text = match field("message").or_else(|| field("error")).or_else(|| field("detail")) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None if body.is_empty() || parsed.is_some() => format!("The engine answered with status {status}"),
        None => String::from_utf8_lossy(&body[..body.len().min(2048)]).into_owned(),
    };
    let kind = match field("type") {
        Some(Value::String(kind)) => kind.clone(),
        _ if status >= 500 => SERVER.to_owned(),
        _ => INVALID.to_owned(),
    };
    let secrets = || secrets.iter().filter(|secret| !secret.is_empty());
    let scrub = |text: String| secrets().fold(text, |text, secret| text.replace(secret, "engine"));
    let scrub_value = |value: Option<&Value>| match value {
        Some(Value::String(text)) => Value::String(scrub(text.clone())),
        Some(Value::Number(number)) => Value::Number(number.clone()),
        _ => Value::Null,
    };
    out.extend_from_slice(b"{\"error\":{\"message\":");
    put_json_string(out, &scrub(text));
    out.extend_from_slice(b",\"type\":");
    put_json_string(out, &scrub(kind));
    out.extend_from_slice(b",\"param\":");
    out.extend_from_slice(scrub_value(field("param")).to_string().as_bytes());
    out.extend_from_slice(b",\"code\":");
    out.extend_from_slice(scrub_value(field("code")).to_string().as_bytes());
    out.extend_from_slice(b"}}");
}

#[cfg(test)]
mod tests;
