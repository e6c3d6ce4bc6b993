//! Everything but generation: health, models, tokenizer, metrics, and the `/sim/` calls.

use serde_json::{Value, json};

use super::api::{self, ApiError};
use super::http::{Head, response};
use super::hub::{Hub, error_answer, loading_error};
use super::metrics;
use crate::args::MetricsFormat;
use crate::fault::Fault;
use crate::tokenizer;

const JSON: &str = "application/json";

/// Answers a request.
pub async fn answer(hub: &Hub, head: &Head, body: &[u8]) -> Vec<u8> {
    let keep = head.keep_alive;
    let json = |value: &Value| response(200, JSON, "", value.to_string().as_bytes(), keep);
    let head_only = head.method == "HEAD";
    let method = if head_only { "GET" } else { head.method.as_str() };
    let mut whole = match (method, head.path.as_str()) {
        ("GET", "/health") if hub.loading() => error_answer(&loading_error(), keep),
        ("GET", "/health") if hub.config.metrics_format == MetricsFormat::Llamacpp => {
            json(&json!({ "status": "ok" }))
        }
        ("GET", "/health" | "/ping") => response(200, "", "", b"", keep),
        ("GET", "/version") => json(&json!({ "version": env!("CARGO_PKG_VERSION") })),
        ("GET", "/metrics") => {
            let text = metrics::render(hub);
            response(200, "text/plain; version=0.0.4; charset=utf-8", "", text.as_bytes(), keep)
        }
        ("GET", "/v1/models") if hub.loading() => error_answer(&loading_error(), keep),
        ("GET", "/v1/models") => json(&json!({ "object": "list", "data": [model_card(hub)] })),
        ("POST", "/tokenize" | "/v1/tokenize") => reply(tokenize(hub, body), keep),
        ("POST", "/detokenize" | "/v1/detokenize") => reply(detokenize(hub, body), keep),
        ("GET", "/sim/state") => json(&hub.state()),
        ("GET", "/sim/fault") => json(&hub.state()["faults"]),
        ("POST", "/sim/fault") => match fault(body) {
            Ok(fault) => {
                hub.set_fault(fault).await;
                json(&hub.state()["faults"])
            }
            Err(error) => error_answer(&error, keep),
        },
        ("DELETE", "/sim/fault") => {
            hub.clear_faults().await;
            json(&json!([]))
        }
        ("GET", "/sim/requests") => json(&hub.core.borrow().board.records.latest(100, &hub.clock)),
        (_, path) => other(hub, method, path, keep),
    };
    if head_only && let Some(end) = memchr::memmem::find(&whole, b"\r\n\r\n") {
        whole.truncate(end + 4);
    }
    whole
}

fn other(hub: &Hub, method: &str, path: &str, keep: bool) -> Vec<u8> {
    const POSTS: [&str; 7] = [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/tokenize",
        "/v1/tokenize",
        "/detokenize",
        "/v1/detokenize",
    ];
    const GETS: [&str; 7] =
        ["/health", "/ping", "/version", "/metrics", "/v1/models", "/sim/state", "/sim/requests"];
    if let Some(id) = path.strip_prefix("/sim/requests/")
        && method == "GET"
    {
        let found = hub.core.borrow().board.records.find(id, &hub.clock);
        return match found {
            Some(record) => response(200, JSON, "", record.to_string().as_bytes(), keep),
            None => response(404, JSON, "", br#"{"detail":"no such request"}"#, keep),
        };
    }
    if let Some(name) = path.strip_prefix("/v1/models/")
        && method == "GET"
        && name == hub.config.model
    {
        return response(200, JSON, "", model_card(hub).to_string().as_bytes(), keep);
    }
    let allow = if POSTS.contains(&path) { "POST" } else { "GET" };
    if POSTS.contains(&path) || GETS.contains(&path) {
        let extra = format!("allow: {allow}\r\n");
        return response(405, JSON, &extra, br#"{"detail":"Method Not Allowed"}"#, keep);
    }
    response(404, JSON, "", br#"{"detail":"Not Found"}"#, keep)
}

fn reply(result: Result<Value, ApiError>, keep: bool) -> Vec<u8> {
    match result {
        Ok(value) => response(200, JSON, "", value.to_string().as_bytes(), keep),
        Err(error) => error_answer(&error, keep),
    }
}

fn model_card(hub: &Hub) -> Value {
    let owner = match hub.config.metrics_format {
        MetricsFormat::Vllm => "vllm",
        MetricsFormat::Sglang => "sglang",
        MetricsFormat::Llamacpp => "llamacpp",
    };
    json!({
        "id": hub.config.model, "object": "model", "created": hub.clock.unix_s(0), "owned_by": owner,
        "root": hub.config.model, "parent": null, "max_model_len": hub.config.max_model_len,
    })
}

fn tokenize(hub: &Hub, body: &[u8]) -> Result<Value, ApiError> {
    let value = api::parse_body(body, hub.limits())?;
    let text = match value.get("prompt").or_else(|| value.get("content")).and_then(Value::as_str) {
        Some(text) => text.to_owned(),
        None => api::chat_prompt(&value)
            .map_err(|_| ApiError::bad("prompt", "prompt must be a string, or messages a list"))?,
    };
    let tokens = tokenizer::encode(text.as_bytes());
    Ok(json!({
        "count": tokens.len(), "max_model_len": hub.config.max_model_len, "tokens": tokens, "token_strs": null,
    }))
}

fn detokenize(hub: &Hub, body: &[u8]) -> Result<Value, ApiError> {
    let value = api::parse_body(body, hub.limits())?;
    let ids: Option<Vec<u32>> = value
        .get("tokens")
        .and_then(Value::as_array)
        .and_then(|list| list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect());
    let ids = ids.ok_or_else(|| ApiError::bad("tokens", "tokens must be a list of token ids"))?;
    Ok(json!({ "prompt": tokenizer::decode(&ids) }))
}

/// `{"fault": "NAME[=ARG]", "count": n | null, "probability": p | null}`
fn fault(body: &[u8]) -> Result<Fault, ApiError> {
    let value: Value =
        serde_json::from_slice(body).map_err(|error| ApiError::bad("body", error.to_string()))?;
    let text = value.get("fault").and_then(Value::as_str);
    let text =
        text.ok_or_else(|| ApiError::bad("fault", "fault must be a string such as \"reset-after=3\""))?;
    let mut fault = Fault::parse(text).map_err(|error| ApiError::bad("fault", error.to_string()))?;
    if let Some(count) = value.get("count").filter(|count| !count.is_null()) {
        let count = count.as_u64().filter(|count| *count > 0);
        fault.count =
            Some(count.ok_or_else(|| ApiError::bad("count", "count must be a positive integer or null"))?);
    }
    if let Some(p) = value.get("probability").filter(|p| !p.is_null()) {
        let p = p.as_f64().filter(|p| (0.0..=1.0).contains(p));
        fault.probability =
            p.ok_or_else(|| ApiError::bad("probability", "probability must be between 0 and 1"))?;
    }
    Ok(fault)
}
