//! The top-level fields of a request that the gateway looks at.

use super::edits::include_usage;
use super::error::{ScanError, ScanErrorKind};
use super::usage::whole_number;
use super::walk::{Cursor, spells};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt;
use std::ops::{Deref, Range};

/// Most occurrences of one key that has to be rewritten everywhere.
pub(super) const OCCURRENCES_MAX: usize = 64;

/// Longest name of a model, bytes as it is spelt in the body.
pub(super) const MODEL_MAX: usize = 4096;

/// Longest number that is read, bytes.
const NUMBER_MAX: usize = 64;

/// Byte ranges of all occurrences of a value.
pub type Spans = SmallVec<[Range<usize>; 1]>;

/// Whether the client asked for the usage report of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageAsk {
    /// It did, and gets the report.
    Asked,
    /// It did not: nothing, `null` or `false` is there.
    NotAsked,
}

/// Fields by number; see [`Field::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Model,
    Stream,
    StreamOptions,
    MaxTokens,
    MaxCompletionTokens,
    N,
    Messages,
    Prompt,
    Input,
    User,
    Seed,
    Logprobs,
    Priority,
}

impl Field {
    pub(super) const ALL: [Field; 13] = [
        Field::Model,
        Field::Stream,
        Field::StreamOptions,
        Field::MaxTokens,
        Field::MaxCompletionTokens,
        Field::N,
        Field::Messages,
        Field::Prompt,
        Field::Input,
        Field::User,
        Field::Seed,
        Field::Logprobs,
        Field::Priority,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Field::Model => "model",
            Field::Stream => "stream",
            Field::StreamOptions => "stream_options",
            Field::MaxTokens => "max_tokens",
            Field::MaxCompletionTokens => "max_completion_tokens",
            Field::N => "n",
            Field::Messages => "messages",
            Field::Prompt => "prompt",
            Field::Input => "input",
            Field::User => "user",
            Field::Seed => "seed",
            Field::Logprobs => "logprobs",
            Field::Priority => "priority",
        }
    }

    /// By a key as it stands between its quotes.
    pub(super) fn from_raw(key: &[u8]) -> Option<Field> {
        if key.contains(&b'\\') {
            return Self::ALL.into_iter().find(|field| spells(key, field.name().as_bytes()));
        }
        Self::from_plain(key)
    }

    /// By a key without escapes.
    #[inline]
    pub(super) fn from_plain(key: &[u8]) -> Option<Field> {
        Some(match key {
            b"model" => Field::Model,
            b"stream" => Field::Stream,
            b"stream_options" => Field::StreamOptions,
            b"max_tokens" => Field::MaxTokens,
            b"max_completion_tokens" => Field::MaxCompletionTokens,
            b"n" => Field::N,
            b"messages" => Field::Messages,
            b"prompt" => Field::Prompt,
            b"input" => Field::Input,
            b"user" => Field::User,
            b"seed" => Field::Seed,
            b"logprobs" => Field::Logprobs,
            b"priority" => Field::Priority,
            _ => return None,
        })
    }
}

/// Longest key, as escaped, that can spell a field's name.
pub(super) const KEY_MAX: usize = 6 * "max_completion_tokens".len();

/// Where values lie, as the scan noted them.
#[derive(Debug, Clone, Default)]
pub(super) struct Found {
    /// Of the last occurrence of each field; an empty range for none.
    pub(super) last: [Range<usize>; Field::ALL.len()],
    pub(super) model_all: Spans,
    pub(super) stream_options_all: Spans,
    pub(super) priority_all: Vec<Range<usize>>,
    /// Offset after the opening brace.
    pub(super) after_brace: usize,
}

/// A model's name as a body gives it; most are held without an allocation.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Name(SmallVec<[u8; 64]>);

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Name(SmallVec::from_slice(text.as_bytes()))
    }
}

impl Deref for Name {
    type Target = str;
    fn deref(&self) -> &str {
        // Made from text.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The fields of a request that the gateway looks at. Of a key that is repeated, the last occurrence counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields {
    /// `model`, unescaped.
    pub model: Name,
    /// `stream`; absent and `null` are `false`.
    pub stream: bool,
    /// What `stream_options` says of the usage report.
    pub usage: UsageAsk,
    /// `max_tokens`; `None` if it is absent, `null` or negative (which engines refuse or take for no bound at all).
    pub max_tokens: Option<u64>,
    /// `max_completion_tokens`, likewise.
    pub max_completion_tokens: Option<u64>,
    /// `n`, likewise.
    pub n: Option<u64>,
    /// Where `messages` lies. As with all ranges here, `None` if it is absent or `null`.
    pub messages: Option<Range<usize>>,
    /// Where `prompt` lies.
    pub prompt: Option<Range<usize>>,
    /// Where `input` lies.
    pub input: Option<Range<usize>>,
    /// Where `user` lies.
    pub user: Option<Range<usize>>,
    /// Where `seed` lies.
    pub seed: Option<Range<usize>>,
    /// Where `logprobs` lies.
    pub logprobs: Option<Range<usize>>,
    /// Where `stream_options` lies.
    pub stream_options: Option<Range<usize>>,
    /// Every occurrence of `model`.
    pub model_all: Spans,
    /// Every occurrence of `stream_options`.
    pub stream_options_all: Spans,
    /// Every occurrence of `priority`, whatever its value.
    pub priority_all: Vec<Range<usize>>,
    /// Offset after the opening brace, where members can be inserted.
    pub after_brace: usize,
}

impl Found {
    /// Reads the values out of the body that was scanned.
    pub(super) fn read(self, body: &[u8]) -> Result<Fields, ScanError> {
        let range = |field: Field| {
            let range = self.last[field as usize].clone();
            (!range.is_empty() && (range.len() != 4 || body[range.clone()] != *b"null")).then_some(range)
        };
        let number = |field: Field| match range(field) {
            None => Ok(None),
            Some(range) => count(&body[range.clone()])
                .ok_or_else(|| wrong_type(range.start, field.name(), "a whole number or null")),
        };
        let model = self.last[Field::Model as usize].clone();
        if model.is_empty() {
            return Err(ScanError::new(body.len(), ScanErrorKind::Missing("model")));
        }
        if model.len() > MODEL_MAX {
            let kind = ScanErrorKind::Length { field: "model", max: MODEL_MAX };
            return Err(ScanError::new(model.start, kind));
        }
        let Some(model_text) = text(&body[model.clone()]) else {
            return Err(wrong_type(model.start, "model", "a string"));
        };
        if !model_text.is_ascii() && model_text.contains(char::REPLACEMENT_CHARACTER) {
            // Parsers differ in what they make of a lone surrogate, so that the name could be another to the engine.
            return Err(wrong_type(model.start, "model", "a string without lone surrogates and U+FFFD"));
        }
        let stream = match range(Field::Stream) {
            None => false,
            Some(range) => match &body[range.clone()] {
                b"true" => true,
                b"false" => false,
                _ => return Err(wrong_type(range.start, "stream", "true, false or null")),
            },
        };
        let usage = match range(Field::StreamOptions) {
            None => UsageAsk::NotAsked,
            Some(range) => usage_ask(&body[range.clone()]).ok_or_else(|| {
                let expected = "null, or an object whose `include_usage` is true, false or null";
                wrong_type(range.start, "stream_options", expected)
            })?,
        };
        self.check_repeats(body)?;
        Ok(Fields {
            model: Name::from(&*model_text),
            stream,
            usage,
            max_tokens: number(Field::MaxTokens)?,
            max_completion_tokens: number(Field::MaxCompletionTokens)?,
            n: number(Field::N)?,
            messages: range(Field::Messages),
            prompt: range(Field::Prompt),
            input: range(Field::Input),
            user: range(Field::User),
            seed: range(Field::Seed),
            logprobs: range(Field::Logprobs),
            stream_options: range(Field::StreamOptions),
            model_all: self.model_all,
            stream_options_all: self.stream_options_all,
            priority_all: self.priority_all,
            after_brace: self.after_brace,
        })
    }

    /// Bounds what [`super::inject_usage`] may have to replace.
    fn check_repeats(&self, body: &[u8]) -> Result<(), ScanError> {
        let mut seen = 0;
        for span in self.stream_options_all.iter().filter(|span| body[span.start] == b'{') {
            include_usage(&body[span.clone()], |_, _| seen += 1);
            if seen > OCCURRENCES_MAX {
                return Err(repeated(span.start, "include_usage"));
            }
        }
        Ok(())
    }
}

pub(super) fn repeated(offset: usize, field: &'static str) -> ScanError {
    ScanError::new(offset, ScanErrorKind::Repeated { field, max: OCCURRENCES_MAX })
}

fn wrong_type(offset: usize, field: &'static str, expected: &'static str) -> ScanError {
    ScanError::new(offset, ScanErrorKind::Type { field, expected })
}

/// A JSON string's content; `None` if `value` is something else.
fn text(value: &[u8]) -> Option<Cow<'_, str>> {
    let inside = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if !inside.contains(&b'\\') {
        return std::str::from_utf8(inside).ok().map(Cow::Borrowed);
    }
    let mut text = Vec::new();
    Cursor::new(value).unescape(&mut |part| {
        text.extend_from_slice(part);
        true
    })?;
    String::from_utf8(text).ok().map(Cow::Owned)
}

/// `None` for what is neither a yes nor a no: engines differ in what they make of it.
fn usage_ask(options: &[u8]) -> Option<UsageAsk> {
    if options[0] != b'{' {
        return None;
    }
    let mut ask = Some(UsageAsk::NotAsked);
    include_usage(options, |_, value| {
        ask = match value {
            b"true" => Some(UsageAsk::Asked),
            b"false" | b"null" => Some(UsageAsk::NotAsked),
            _ => None,
        };
    });
    ask
}

/// A number of tokens or choices as the engines' parsers read it: `16`, `16.0` and `1.6e1` are the same. Nothing within
/// for a negative one; `None` if it is not a whole number.
fn count(text: &[u8]) -> Option<Option<u64>> {
    if let Some(number) = whole_number(text) {
        return Some(Some(number));
    }
    if text.len() > NUMBER_MAX || !matches!(text[0], b'-' | b'0'..=b'9') {
        return None;
    }
    if !std::str::from_utf8(text).ok()?.parse::<f64>().ok()?.is_finite() {
        return None;
    }
    let (negative, text) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
    let exponent_at = text.iter().position(|byte| matches!(byte, b'e' | b'E')).unwrap_or(text.len());
    let exponent = match std::str::from_utf8(text.get(exponent_at + 1..).unwrap_or_default()).ok()? {
        "" => 0,
        digits => digits.parse::<i32>().ok()?,
    };
    let point_at = text[..exponent_at].iter().position(|byte| *byte == b'.').unwrap_or(exponent_at);
    let digits =
        || text[..exponent_at].iter().filter(|byte| **byte != b'.').map(|byte| u64::from(byte - b'0'));
    // Digits before the point, once the exponent has moved it. By the text, not as a double: a double of this size
    // could be whole where the number is not.
    let whole = i64::try_from(point_at).ok()? + i64::from(exponent);
    let places = digits().zip(0_i64..);
    if places.clone().any(|(digit, place)| digit != 0 && place >= whole) {
        return None;
    }
    let zeros =
        if digits().all(|digit| digit == 0) { 0 } else { whole - i64::try_from(digits().count()).ok()? };
    let number = places.filter(|(_, place)| *place < whole).map(|(digit, _)| digit);
    let shifted = std::iter::repeat_n(0, usize::try_from(zeros.clamp(0, 20)).ok()?);
    let number =
        number.chain(shifted).fold(0_u64, |number, digit| number.saturating_mul(10).saturating_add(digit));
    Some((!negative || number == 0).then_some(number))
}
