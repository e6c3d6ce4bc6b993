//! Answers of the OpenAI surface as bytes, in the engines' key order.
//!
//! Streams are rendered from a template made once a choice ([`Template`]): per token only the number is written. What
//! varies more (logprobs, tool calls, usage in each chunk, clipped text) takes the slow path, [`chunk`].

use std::fmt::Write as _;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::api::{Generation, Surface};
use crate::tokens;

/// Token counts of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, each prompt once.
    pub prompt: u32,
    /// Of them, tokens the prefix cache held.
    pub cached: u32,
    /// Generated tokens.
    pub completion: u32,
}

/// What all chunks of an answer share.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The answer's id.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The served model.
    pub model: String,
}

/// One choice of an answer.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Its index in the answer.
    pub index: u32,
    /// The tag of its tokens.
    pub tag: String,
    /// Tokens it will have.
    pub length: u32,
    /// Why it ends.
    pub finish: &'static str,
    /// The stop text that ended it.
    pub stop: Option<String>,
    /// Bytes of text that show, where a stop text cuts the rest.
    pub visible: Option<usize>,
    /// What its embedding comes from.
    pub hash: u64,
    /// Text in front of the first token (`echo`).
    pub echo: Option<String>,
}

/// The bytes around the number of a token's event.
#[derive(Clone, Debug)]
pub struct Template {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Template {
    /// The template of one choice.
    pub fn new(identity: &Identity, surface: Surface, choice: &Choice) -> Self {
        let mark = "\u{0}";
        let event = chunk(identity, surface, choice, &Delta::Text(mark), None, None);
        let (head, tail) = event.split_once("\\u0000").unwrap_or((&event, ""));
        let mut head = format!("data: {head}").into_bytes();
        head.extend_from_slice(choice.tag.as_bytes());
        head.push(b':');
        Self { head, tail: format!(" {tail}\n\n").into_bytes() }
    }

    /// Appends the event of token `index`.
    pub fn event(&self, out: &mut Vec<u8>, index: u32) {
        out.extend_from_slice(&self.head);
        tokens::write_decimal(out, index);
        out.extend_from_slice(&self.tail);
    }
}

/// What a chunk adds.
#[derive(Clone, Copy, Debug)]
pub enum Delta<'a> {
    /// The first chunk of a chat.
    Role,
    /// Text.
    Text(&'a str),
    /// The call begins: its id and function.
    ToolBegin(&'a str, &'a str),
    /// A piece of the call's arguments.
    ToolArguments(&'a str),
    /// The choice is over.
    Finish,
}

/// One streamed chunk, without `data: `.
pub fn chunk(
    identity: &Identity,
    surface: Surface,
    choice: &Choice,
    delta: &Delta<'_>,
    logprobs: Option<&str>,
    usage: Option<Usage>,
) -> String {
    let mut out =
        head(identity, if surface == Surface::Chat { "chat.completion.chunk" } else { "text_completion" });
    let _ = write!(out, "\"choices\":[{{\"index\":{},", choice.index);
    if surface == Surface::Chat {
        let delta = match delta {
            Delta::Role => r#"{"role":"assistant","content":""}"#.to_owned(),
            Delta::Text(text) => format!(r#"{{"content":{}}}"#, quote(text)),
            Delta::ToolBegin(id, name) => format!(
                r#"{{"tool_calls":[{{"index":0,"id":{},"type":"function","function":{{"name":{},"arguments":""}}}}]}}"#,
                quote(id),
                quote(name)
            ),
            Delta::ToolArguments(text) => {
                format!(r#"{{"tool_calls":[{{"index":0,"function":{{"arguments":{}}}}}]}}"#, quote(text))
            }
            Delta::Finish => r#"{"content":""}"#.to_owned(),
        };
        let _ = write!(out, "\"delta\":{delta},");
    } else {
        let text = if let Delta::Text(text) = delta { *text } else { "" };
        let _ = write!(out, "\"text\":{},", quote(text));
    }
    let _ = write!(out, "\"logprobs\":{},", logprobs.unwrap_or("null"));
    if matches!(delta, Delta::Finish) {
        let stop = choice.stop.as_deref().map_or("null".to_owned(), quote);
        let _ = write!(out, "\"finish_reason\":\"{}\",\"stop_reason\":{stop}}}]", choice.finish);
    } else {
        out.push_str("\"finish_reason\":null}]");
    }
    if let Some(usage) = usage {
        let _ = write!(out, ",\"usage\":{}", usage_json(usage));
    }
    out.push('}');
    out
}

/// The chunk that carries only the usage.
pub fn usage_chunk(identity: &Identity, surface: Surface, usage: Usage) -> String {
    let object = if surface == Surface::Chat { "chat.completion.chunk" } else { "text_completion" };
    format!("{}\"choices\":[],\"usage\":{}}}", head(identity, object), usage_json(usage))
}

/// A whole answer.
pub fn whole(identity: &Identity, generation: &Generation, choices: &[Choice], usage: Usage) -> String {
    if generation.surface == Surface::Embedding {
        return embeddings(identity, generation, choices, usage);
    }
    let chat = generation.surface == Surface::Chat;
    let mut out = head(identity, if chat { "chat.completion" } else { "text_completion" });
    out.push_str("\"choices\":[");
    for (i, choice) in choices.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        let text = text(choice);
        let _ = write!(out, "{{\"index\":{},", choice.index);
        if let Some(tool) = &generation.tool {
            out.push_str(r#""message":{"role":"assistant","content":null,"refusal":null,"tool_calls":["#);
            let _ = write!(
                out,
                r#"{{"id":{},"type":"function","function":{{"name":{},"arguments":{}}}}}]}},"#,
                quote(&call_id(choice)),
                quote(tool),
                quote(&format!("{TOOL_OPEN}{text}{TOOL_CLOSE}"))
            );
        } else if chat {
            let _ = write!(
                out,
                r#""message":{{"role":"assistant","content":{},"refusal":null,"tool_calls":[]}},"#,
                quote(&text)
            );
        } else {
            let echo = choice.echo.as_deref().unwrap_or_default();
            let _ = write!(out, "\"text\":{},", quote(&format!("{echo}{text}")));
        }
        let logprobs = generation.logprobs.map(|k| logprobs(generation.surface, choice, 0..choice.length, k));
        let stop = choice.stop.as_deref().map_or("null".to_owned(), quote);
        let _ = write!(
            out,
            "\"logprobs\":{},\"finish_reason\":\"{}\",\"stop_reason\":{stop}}}",
            logprobs.as_deref().unwrap_or("null"),
            choice.finish
        );
    }
    let _ = write!(out, "],\"usage\":{}}}", usage_json(usage));
    out
}

/// How a tool call's arguments begin.
pub const TOOL_OPEN: &str = "{\"tokens\":\"";
/// How a tool call's arguments end.
pub const TOOL_CLOSE: &str = "\"}";

/// The id of a choice's tool call.
pub fn call_id(choice: &Choice) -> String {
    format!("call_{}", choice.tag)
}

/// All the text of a choice that shows.
pub fn text(choice: &Choice) -> String {
    let mut out = Vec::new();
    for index in 0..choice.length {
        tokens::write_token(&mut out, choice.tag.as_bytes(), index);
    }
    out.truncate(choice.visible.unwrap_or(out.len()));
    String::from_utf8(out).unwrap_or_default()
}

/// Logprobs of some tokens of a choice, in the surface's format. Values are made up, but the same for the same token.
pub fn logprobs(surface: Surface, choice: &Choice, range: std::ops::Range<u32>, alternatives: u32) -> String {
    let entries: Vec<(String, Vec<(String, f64)>)> = range
        .clone()
        .map(|index| {
            let token = tokens::token(&choice.tag, index);
            let list = (0..alternatives.max(1))
                .map(|k| {
                    let text = if k == 0 { token.clone() } else { format!("alt{k} ") };
                    (text, -logprob(&token, k))
                })
                .collect();
            (token, list)
        })
        .collect();
    let value = if surface == Surface::Chat {
        let one = |text: &str, logprob: f64| {
            let bytes = text.as_bytes();
            serde_json::json!({ "token": text, "logprob": logprob, "bytes": bytes })
        };
        let content: Vec<_> = entries
            .iter()
            .map(|(token, list)| {
                let shown = if alternatives == 0 { 0 } else { list.len() };
                let mut entry = one(token, list[0].1);
                entry["top_logprobs"] = list[..shown].iter().map(|(text, value)| one(text, *value)).collect();
                entry
            })
            .collect();
        serde_json::json!({ "content": content })
    } else {
        let mut offset: usize = (0..range.start).map(|index| tokens::token(&choice.tag, index).len()).sum();
        offset += choice.echo.as_ref().map_or(0, String::len);
        let offsets: Vec<usize> = entries
            .iter()
            .map(|(token, _)| {
                let at = offset;
                offset += token.len();
                at
            })
            .collect();
        let top = |list: &[(String, f64)]| -> serde_json::Map<String, serde_json::Value> {
            list.iter().map(|(text, value)| (text.clone(), (*value).into())).collect()
        };
        serde_json::json!({
            "text_offset": offsets,
            "token_logprobs": entries.iter().map(|(_, list)| list[0].1).collect::<Vec<_>>(),
            "tokens": entries.iter().map(|(token, _)| token).collect::<Vec<_>>(),
            "top_logprobs": entries.iter().map(|(_, list)| top(list)).collect::<Vec<_>>(),
        })
    };
    value.to_string()
}

fn logprob(token: &str, rank: u32) -> f64 {
    let hash = u16::try_from(xxh3_64_with_seed(token.as_bytes(), 0) % 1000).unwrap_or(0);
    f64::from(hash) / 1000.0 + f64::from(rank) + 0.001
}

fn embeddings(identity: &Identity, generation: &Generation, choices: &[Choice], usage: Usage) -> String {
    let data: Vec<_> = choices
        .iter()
        .map(|choice| {
            let vector = vector(choice.hash, generation.dimensions);
            let embedding = if generation.base64 {
                let bytes: Vec<u8> = vector.iter().flat_map(|v| v.to_le_bytes()).collect();
                serde_json::Value::from(base64(&bytes))
            } else {
                serde_json::Value::from(vector)
            };
            serde_json::json!({ "object": "embedding", "index": choice.index, "embedding": embedding })
        })
        .collect();
    serde_json::json!({
        "id": identity.id, "object": "list", "created": identity.created, "model": identity.model, "data": data,
        "usage": { "prompt_tokens": usage.prompt, "total_tokens": usage.prompt, "completion_tokens": 0 },
    })
    .to_string()
}

/// A unit vector that the text alone decides.
fn vector(hash: u64, dimensions: usize) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(hash);
    let raw: Vec<f32> = (0..dimensions).map(|_| rng.f32() - 0.5).collect();
    let norm = raw.iter().map(|v| v * v).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
    raw.iter().map(|v| v / norm).collect()
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut padded = [0; 3];
        padded[..group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes([0, padded[0], padded[1], padded[2]]);
        for place in 0..4 {
            if place <= group.len() {
                let sextet = usize::try_from((bits >> (18 - 6 * place)) & 63).unwrap_or(0);
                out.push(char::from(ALPHABET[sextet]));
            } else {
                out.push('=');
            }
        }
    }
    out
}

fn head(identity: &Identity, object: &str) -> String {
    format!(
        "{{\"id\":{},\"object\":\"{object}\",\"created\":{},\"model\":{},",
        quote(&identity.id),
        identity.created,
        quote(&identity.model)
    )
}

fn usage_json(usage: Usage) -> String {
    let Usage { prompt, cached, completion } = usage;
    format!(
        "{{\"prompt_tokens\":{prompt},\"total_tokens\":{},\"completion_tokens\":{completion},\
         \"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}",
        prompt + completion
    )
}

/// A JSON string.
pub fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
