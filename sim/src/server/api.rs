//! Requests of the OpenAI surface: read, checked, and brought into one shape.

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::tokenizer::Prompt;
use crate::tokens::take_markers;

/// Which surface a request came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completion,
    /// `/v1/embeddings`
    Embedding,
}

/// A request as the engine runs it.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Where it came by.
    pub surface: Surface,
    /// Tokenized prompts; chat has one.
    pub prompts: Vec<Prompt>,
    /// The prompts as text, kept where the answer needs them (`echo`).
    pub echo: Vec<String>,
    /// Hash of each prompt (and the seed): what embeddings and deterministic text come from.
    pub hashes: Vec<u64>,
    /// Choices of each prompt.
    pub n: u32,
    /// Stream the answer.
    pub stream: bool,
    /// Usage chunk at the end of the stream.
    pub include_usage: bool,
    /// Usage in every chunk.
    pub continuous_usage: bool,
    /// Tokens to generate at most, where the request says so.
    pub max_tokens: Option<u32>,
    /// Generate to the limit.
    pub ignore_eos: bool,
    /// Texts that end the generation.
    pub stop: Vec<String>,
    /// The text depends on prompt and seed alone.
    pub deterministic: bool,
    /// Tag given in the prompt.
    pub tag: Option<String>,
    /// Alternatives to report with each token; None without logprobs.
    pub logprobs: Option<u32>,
    /// Function to call instead of saying the text.
    pub tool: Option<String>,
    /// Embeddings: length of the vectors.
    pub dimensions: usize,
    /// Embeddings: vectors as base64.
    pub base64: bool,
}

/// An answer in OpenAI's error shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// What is wrong.
    pub message: String,
    /// The error's `type`.
    pub kind: &'static str,
    /// The offending parameter.
    pub param: Option<&'static str>,
}

impl ApiError {
    /// A request that is wrong in one parameter.
    pub fn bad(param: &'static str, message: impl Into<String>) -> Self {
        Self { status: 400, message: message.into(), kind: "BadRequestError", param: Some(param) }
    }

    /// The body.
    pub fn body(&self) -> Vec<u8> {
        let param = self.param.map_or(Value::Null, Value::from);
        let error = serde_json::json!({
            "message": self.message, "type": self.kind, "param": param, "code": self.status,
        });
        serde_json::json!({ "error": error }).to_string().into_bytes()
    }
}

/// What checking needs to know of the engine.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// The served model.
    pub model: &'a str,
    /// Longest prompt and output.
    pub max_model_len: u32,
    /// Tokens a block.
    pub block_size: u32,
}

/// Reads a body as JSON and checks its model.
pub fn parse_body(body: &[u8], limits: Limits<'_>) -> Result<Value, ApiError> {
    let value: Value = serde_json::from_slice(body).map_err(|error| ApiError {
        status: 400,
        message: format!(
            "1 validation error:\n  {{'type': 'json_invalid', 'msg': 'JSON decode error', \
             'ctx': {{'error': '{error}'}}}}"
        ),
        kind: "Bad Request",
        param: Some("body"),
    })?;
    if !value.is_object() {
        return Err(ApiError::bad("body", "the request body must be a JSON object"));
    }
    match value.get("model") {
        None | Some(Value::Null) => {}
        Some(Value::String(name)) if name == limits.model => {}
        Some(Value::String(name)) => {
            return Err(ApiError {
                status: 404,
                message: format!("The model `{name}` does not exist. Valid aliases: {}.", limits.model),
                kind: "NotFoundError",
                param: Some("model"),
            });
        }
        Some(_) => return Err(ApiError::bad("model", "model must be a string")),
    }
    Ok(value)
}

/// Reads and checks a generation request.
pub fn parse(surface: Surface, body: &[u8], limits: Limits<'_>) -> Result<Generation, ApiError> {
    let value = parse_body(body, limits)?;
    let inputs = match surface {
        Surface::Chat => vec![Input::Text(chat_prompt(&value)?)],
        Surface::Completion => inputs(&value, "prompt")?,
        Surface::Embedding => inputs(&value, "input")?,
    };
    let mut generation = common(surface, &value)?;
    let seed = value.get("seed").and_then(Value::as_i64);
    let zero_temperature = value.get("temperature").and_then(Value::as_f64) == Some(0.0);
    generation.deterministic = seed.is_some() || zero_temperature;
    let echo = flag(&value, "echo")?;
    for input in inputs {
        generation.add(input, seed, echo, limits.block_size);
    }
    if surface == Surface::Chat {
        generation.tool = tool(&value)?;
    }
    for prompt in &generation.prompts {
        check_length(prompt, &generation, limits)?;
    }
    Ok(generation)
}

enum Input {
    Text(String),
    Ids(Vec<u32>),
}

impl Generation {
    fn add(&mut self, input: Input, seed: Option<i64>, echo: bool, block_size: u32) {
        let seed = seed.map_or(0, i64::cast_unsigned);
        match input {
            Input::Text(mut text) => {
                if let Some(tag) = take_markers(&mut text) {
                    self.tag.get_or_insert(tag);
                }
                self.prompts.push(Prompt::from_text(text.as_bytes(), block_size));
                self.hashes.push(xxh3_64_with_seed(text.as_bytes(), seed));
                if echo {
                    self.echo.push(text);
                }
            }
            Input::Ids(ids) => {
                self.prompts.push(Prompt::from_ids(&ids, block_size));
                let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                self.hashes.push(xxh3_64_with_seed(&bytes, seed));
                if echo {
                    self.echo.push(crate::tokenizer::decode(&ids));
                }
            }
        }
    }
}

/// The parameters all surfaces share.
fn common(surface: Surface, value: &Value) -> Result<Generation, ApiError> {
    let options = value.get("stream_options");
    let option = |name| options.and_then(|o| o.get(name)).and_then(Value::as_bool).unwrap_or(false);
    let stream = flag(value, "stream")? && surface != Surface::Embedding;
    if options.is_some_and(|o| !o.is_null()) && !stream {
        return Err(ApiError::bad(
            "stream_options",
            "Stream options can only be defined when `stream=True`.",
        ));
    }
    if let Some(t) = value.get("temperature").and_then(Value::as_f64).filter(|t| *t < 0.0) {
        let message =
            format!("temperature must be non-negative, got {t}. (parameter=temperature, value={t})");
        return Err(ApiError::bad("temperature", message));
    }
    let max_tokens = match count(value, "max_completion_tokens")? {
        Some(max) => Some(max),
        None => count(value, "max_tokens")?,
    };
    let n = count(value, "n")?.unwrap_or(1);
    if !(1..=128).contains(&n) {
        return Err(ApiError::bad("n", format!("n must be between 1 and 128, got {n}.")));
    }
    let logprobs = match surface {
        Surface::Chat if flag(value, "logprobs")? => Some(count(value, "top_logprobs")?.unwrap_or(0)),
        Surface::Completion => count(value, "logprobs")?,
        _ => None,
    };
    if logprobs.is_some_and(|k| k > 20) {
        return Err(ApiError::bad("top_logprobs", "at most 20 logprobs can be reported for a token."));
    }
    Ok(Generation {
        surface,
        prompts: Vec::new(),
        echo: Vec::new(),
        hashes: Vec::new(),
        n: if surface == Surface::Embedding { 1 } else { n },
        stream,
        include_usage: option("include_usage"),
        continuous_usage: option("continuous_usage_stats"),
        max_tokens: if surface == Surface::Embedding { Some(0) } else { max_tokens },
        ignore_eos: flag(value, "ignore_eos")?,
        stop: stop(value)?,
        deterministic: false,
        tag: None,
        logprobs,
        tool: None,
        dimensions: usize::try_from(count(value, "dimensions")?.unwrap_or(64)).unwrap_or(64).clamp(1, 8192),
        base64: value.get("encoding_format").and_then(Value::as_str) == Some("base64"),
    })
}

fn check_length(prompt: &Prompt, generation: &Generation, limits: Limits<'_>) -> Result<(), ApiError> {
    let max = limits.max_model_len;
    if prompt.tokens == 0 && generation.surface != Surface::Embedding {
        return Err(ApiError::bad("prompt", "the prompt is empty."));
    }
    if prompt.tokens >= max {
        return Err(ApiError::bad(
            "input_tokens",
            format!(
                "This model's maximum context length is {max} tokens. However, your prompt contains {} input tokens. \
                 Please reduce the length of the input prompt. (parameter=input_tokens, value={})",
                prompt.tokens, prompt.tokens
            ),
        ));
    }
    match generation.max_tokens {
        Some(0) if generation.surface != Surface::Embedding => {
            Err(ApiError::bad("max_tokens", "max_tokens must be at least 1, got 0."))
        }
        Some(tokens) if tokens > max => Err(ApiError::bad(
            "max_tokens",
            format!(
                "max_tokens={tokens} cannot be greater than max_model_len={max}. Please request fewer output tokens. \
                 (parameter=max_tokens, value={tokens})"
            ),
        )),
        _ => Ok(()),
    }
}

/// The chat template: each message as `<|role|>` and its text; images and the like are named by their type.
pub fn chat_prompt(value: &Value) -> Result<String, ApiError> {
    let messages = value.get("messages").and_then(Value::as_array);
    let messages = messages.ok_or_else(|| ApiError::bad("messages", "'messages' is required"))?;
    if messages.is_empty() {
        return Err(ApiError::bad("messages", "'messages' must not be empty"));
    }
    let mut prompt = String::new();
    for message in messages {
        let role = message.get("role").and_then(Value::as_str);
        let role = role.ok_or_else(|| ApiError::bad("messages", "each message needs a role"))?;
        prompt.push_str("<|");
        prompt.push_str(role);
        prompt.push_str("|>");
        match message.get("content") {
            Some(Value::String(text)) => prompt.push_str(text),
            Some(Value::Array(parts)) => {
                for part in parts {
                    let text = part.get("text").and_then(Value::as_str);
                    let kind = part.get("type").and_then(Value::as_str);
                    prompt.push_str(text.or(kind).unwrap_or_default());
                }
            }
            None | Some(Value::Null) => {}
            Some(_) => return Err(ApiError::bad("messages", "content must be a string or a list of parts")),
        }
        if let Some(calls) = message.get("tool_calls") {
            prompt.push_str(&calls.to_string());
        }
    }
    prompt.push_str("<|assistant|>");
    Ok(prompt)
}

/// `prompt` or `input`: a text, token ids, or a list of either.
fn inputs(value: &Value, name: &'static str) -> Result<Vec<Input>, ApiError> {
    let bad = || ApiError::bad(name, format!("{name} must be a string, a list of strings, or token ids"));
    let ids = |list: &[Value]| -> Option<Vec<u32>> {
        list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
    };
    match value.get(name) {
        Some(Value::String(text)) => Ok(vec![Input::Text(text.clone())]),
        Some(Value::Array(list)) if list.is_empty() => Err(bad()),
        Some(Value::Array(list)) if list[0].is_number() => Ok(vec![Input::Ids(ids(list).ok_or_else(bad)?)]),
        Some(Value::Array(list)) if list.len() > 2048 => {
            Err(ApiError::bad(name, format!("{name} has more than 2048 entries")))
        }
        Some(Value::Array(list)) => list
            .iter()
            .map(|entry| match entry {
                Value::String(text) => Ok(Input::Text(text.clone())),
                Value::Array(list) => ids(list).map(Input::Ids).ok_or_else(bad),
                _ => Err(bad()),
            })
            .collect(),
        _ => Err(bad()),
    }
}

/// The function to call: forced by `tool_choice`, or asked for by [`TOOL_MARKER`] in a message.
fn tool(value: &Value) -> Result<Option<String>, ApiError> {
    let Some(tools) = value.get("tools").and_then(Value::as_array).filter(|tools| !tools.is_empty()) else {
        return Ok(None);
    };
    let name_of = |tool: &Value| tool.pointer("/function/name").and_then(Value::as_str).map(str::to_owned);
    let first = || name_of(&tools[0]).ok_or_else(|| ApiError::bad("tools", "each tool needs function.name"));
    match value.get("tool_choice") {
        Some(Value::String(choice)) if choice == "required" => first().map(Some),
        Some(Value::String(choice)) if choice == "none" => Ok(None),
        Some(choice @ Value::Object(_)) => name_of(choice)
            .map(Some)
            .ok_or_else(|| ApiError::bad("tool_choice", "tool_choice needs function.name")),
        _ => {
            let asked = value.get("messages").is_some_and(|m| m.to_string().contains(TOOL_MARKER));
            if asked { first().map(Some) } else { Ok(None) }
        }
    }
}

/// With `tools` and no forced choice, a message with this text makes the model call the first tool.
pub const TOOL_MARKER: &str = "<use-tool>";

fn stop(value: &Value) -> Result<Vec<String>, ApiError> {
    let bad = || ApiError::bad("stop", "stop must be a string or a list of strings");
    match value.get("stop") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text.clone()]),
        Some(Value::Array(list)) => {
            list.iter().map(|s| s.as_str().map(str::to_owned).ok_or_else(bad)).collect()
        }
        Some(_) => Err(bad()),
    }
}

fn flag(value: &Value, name: &'static str) -> Result<bool, ApiError> {
    match value.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(ApiError::bad(name, format!("{name} must be true or false"))),
    }
}

fn count(value: &Value, name: &'static str) -> Result<Option<u32>, ApiError> {
    match value.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(number) => number.as_u64().and_then(|n| u32::try_from(n).ok()).map(Some).ok_or_else(|| {
            ApiError::bad(name, format!("{name} must be a non-negative integer, got {number}"))
        }),
    }
}
