//! What is asked: lengths, prompts, and the bytes of a request's body.
//!
//! A token is taken to be four bytes of text. All text is a function of the seed, so a run can be repeated.

use std::fmt::Write as _;
use std::str::FromStr;

/// Bytes of text a token stands for.
pub const BYTES_PER_TOKEN: usize = 4;

/// How long something is, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    /// Always the same.
    Fixed(u32),
    /// Evenly between two bounds, both included.
    Uniform(u32, u32),
    /// Log-normal by its median and sigma, cut at a greatest length.
    LogNormal {
        /// Half of the lengths are below this.
        median: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// Longer ones are cut to this.
        max: u32,
    },
}

impl Lengths {
    /// Draws one length.
    pub fn draw(&self, rng: &mut fastrand::Rng) -> u32 {
        match *self {
            Lengths::Fixed(tokens) => tokens,
            Lengths::Uniform(low, high) => rng.u32(low..=high),
            Lengths::LogNormal { median, sigma, max } => {
                // Box-Muller; 1 - u is never 0.
                let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
                let normal = radius * (std::f64::consts::TAU * rng.f64()).cos();
                let tokens = (median * (sigma * normal).exp()).round().clamp(1.0, f64::from(max));
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // clamped to 1..=max
                let tokens = tokens as u32;
                tokens
            }
        }
    }
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}`: write N, uniform:MIN:MAX or lognormal:MEDIAN:SIGMA[:MAX]");
        let int = |s: &str| s.parse::<u32>().map_err(|_| wrong());
        let float = |s: &str| s.parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0).ok_or_else(wrong);
        let parts: Vec<&str> = text.split(':').collect();
        match parts.as_slice() {
            [tokens] | ["fixed", tokens] => Ok(Lengths::Fixed(int(tokens)?)),
            ["uniform", low, high] => {
                let (low, high) = (int(low)?, int(high)?);
                if low > high {
                    return Err(format!("`{text}`: the lower bound is above the upper"));
                }
                Ok(Lengths::Uniform(low, high))
            }
            ["lognormal", median, sigma] => {
                Ok(Lengths::LogNormal { median: float(median)?, sigma: float(sigma)?, max: 131_072 })
            }
            ["lognormal", median, sigma, max] => {
                let max = int(max)?.max(1);
                Ok(Lengths::LogNormal { median: float(median)?, sigma: float(sigma)?, max })
            }
            _ => Err(wrong()),
        }
    }
}

/// Which OpenAI call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/embeddings`
    Embeddings,
}

impl Api {
    /// The request target.
    pub fn path(self) -> &'static str {
        match self {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
            Api::Embeddings => "/v1/embeddings",
        }
    }
}

impl FromStr for Api {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "chat" => Ok(Api::Chat),
            "completions" => Ok(Api::Completions),
            "embeddings" => Ok(Api::Embeddings),
            _ => Err(format!("`{text}` is no API: use chat, completions or embeddings")),
        }
    }
}

/// One turn of a conversation already had.
#[derive(Clone, Debug)]
pub struct Turn {
    /// What the user wrote.
    pub user: String,
    /// What the model answered.
    pub assistant: String,
}

/// Fields of a body beside the prompt.
#[derive(Clone, Copy, Debug)]
pub struct BodySpec<'a> {
    /// The call.
    pub api: Api,
    /// The model asked for.
    pub model: &'a str,
    /// Ask for a stream.
    pub stream: bool,
    /// Ask for the usage chunk of a stream.
    pub include_usage: bool,
    /// `max_tokens`.
    pub max_tokens: u32,
}

/// Writes a request body. `history` is for chat alone.
pub fn write_body(spec: BodySpec<'_>, history: &[Turn], prompt: &str) -> String {
    let mut body = String::with_capacity(prompt.len() + 200);
    body.push_str("{\"model\":");
    push_json(&mut body, spec.model);
    match spec.api {
        Api::Chat => {
            body.push_str(",\"messages\":[");
            for turn in history {
                body.push_str("{\"role\":\"user\",\"content\":");
                push_json(&mut body, &turn.user);
                body.push_str("},{\"role\":\"assistant\",\"content\":");
                push_json(&mut body, &turn.assistant);
                body.push_str("},");
            }
            body.push_str("{\"role\":\"user\",\"content\":");
            push_json(&mut body, prompt);
            body.push_str("}]");
        }
        Api::Completions => {
            body.push_str(",\"prompt\":");
            push_json(&mut body, prompt);
        }
        Api::Embeddings => {
            body.push_str(",\"input\":");
            push_json(&mut body, prompt);
            body.push('}');
            return body;
        }
    }
    let _ = write!(body, ",\"max_tokens\":{}", spec.max_tokens);
    if spec.stream {
        body.push_str(",\"stream\":true");
        if spec.include_usage {
            body.push_str(",\"stream_options\":{\"include_usage\":true}");
        }
    }
    body.push('}');
    body
}

fn push_json(out: &mut String, text: &str) {
    out.push('"');
    if text.bytes().all(|b| b >= b' ' && b != b'"' && b != b'\\') {
        out.push_str(text);
        out.push('"');
        return;
    }
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Appends `tokens` tokens of text drawn from `rng`.
pub fn push_text(out: &mut String, tokens: u32, rng: &mut fastrand::Rng) {
    for _ in 0..tokens {
        // Three letters and a space: a word a token, as tokenizers about have it.
        let draw = rng.u32(..);
        for shift in [0, 8, 16] {
            out.push(letter(draw >> shift));
        }
        out.push(' ');
    }
}

fn letter(bits: u32) -> char {
    // 26 letters from 8 bits: slightly uneven, which no engine minds.
    char::from(b'a' + u8::try_from((bits & 0xff) % 26).unwrap_or(0))
}

#[cfg(test)]
mod tests;
