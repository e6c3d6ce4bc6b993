//! Token counts, finish reasons and errors in an engine's answers.

use super::walk::{Cursor, SEPARATED, STRUCTURE, skip_until, spells};
use memchr::memmem::Finder;
use memchr::{memchr_iter, memrchr_iter};
use smallvec::SmallVec;
use std::sync::LazyLock;

/// Largest usage object of a non-streamed answer that is looked at, bytes.
const USAGE_MAX: usize = 4096;
/// Longest key or finish reason that is compared, bytes as escaped.
const WORD_MAX: usize = 128;

/// Tokens as an engine reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt; 0 if not reported.
    pub prompt_tokens: u64,
    /// Tokens generated; 0 if not reported.
    pub completion_tokens: u64,
    /// Prompt tokens taken from the prefix cache, if the engine says.
    pub cached_tokens: Option<u64>,
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// Naturally, or at a stop string.
    Stop,
    /// At the token limit.
    Length,
    /// To call a tool.
    ToolCalls,
    /// By a content filter.
    ContentFilter,
    /// Anything else that an engine may say.
    Other,
}

impl FinishReason {
    /// Name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::ContentFilter => "content_filter",
            FinishReason::Other => "other",
        }
    }

    /// From the inside of a JSON string.
    fn from_raw(raw: &[u8]) -> Self {
        let named = [Self::Stop, Self::Length, Self::ToolCalls, Self::ContentFilter];
        match named.into_iter().find(|reason| spells(raw, reason.name().as_bytes())) {
            Some(reason) => reason,
            None if spells(raw, b"function_call") => Self::ToolCalls,
            None => Self::Other,
        }
    }
}

/// What an event of a stream tells the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChunkInfo {
    /// Whether `choices`, if it is an array, is empty. Not told where nothing else is.
    pub choices_empty: Option<bool>,
    /// `usage`, if it is an object.
    pub usage: Option<Usage>,
    /// The last `finish_reason` that is a string.
    pub finish_reason: Option<FinishReason>,
    /// There is an `error` object.
    pub has_error: bool,
}

/// Looks at the top level of one JSON object, given whole.
///
/// Most events of a stream hold nothing but text: those are known by the absence of the few words that matter, and are
/// not walked over.
pub fn skim_chunk(json: &[u8]) -> ChunkInfo {
    if says_nothing(json) { ChunkInfo::default() } else { walk_chunk(json) }
}

/// Usage and finish reason of a whole answer that is not streamed.
///
/// Engines write both behind the text, so they are looked for from the end. Within a string their names cannot be met:
/// the quotes around them would be escaped. What is not where it is expected is found by a walk over everything.
pub fn skim_answer(json: &[u8]) -> ChunkInfo {
    from_the_end(json).unwrap_or_else(|| walk_chunk(json))
}

fn from_the_end(json: &[u8]) -> Option<ChunkInfo> {
    // There are few quotes behind the text.
    let last = |name: &[u8]| memrchr_iter(b'"', json).find(|at| json[*at..].starts_with(name));
    let at = last(b"\"usage\"")?;
    let mut cursor = Cursor::new(&json[at..]);
    cursor.key()?;
    if cursor.peek() != Some(b'{') {
        return None;
    }
    let usage = Some(usage(&mut cursor));
    // It is the answer's own if what follows ends the object that holds it, and with it the bytes.
    while cursor.key().is_some() {
        cursor.value()?;
    }
    let end = at + cursor.offset();
    if json[end - 1] != b'}' || !json[end..].trim_ascii().is_empty() {
        return None;
    }
    let mut info = ChunkInfo { usage, ..ChunkInfo::default() };
    if let Some(at) = last(b"\"finish_reason\"") {
        let mut cursor = Cursor::new(&json[at..]);
        cursor.key()?;
        info.finish_reason = Some(FinishReason::from_raw(cursor.string()?));
        // The last field of a choice, or nearly so: the choice ends, and then the array or another begins.
        while cursor.key().is_some() {
            cursor.value()?;
        }
        matches!(cursor.peek(), Some(b']' | b',')).then_some(())?;
    }
    Some(info)
}

/// Whether no key that matters can have a value that does: each of the words, where it stands as a key, is followed by
/// `null`. An escaped character could spell a key, and a false alarm costs only the walk.
fn says_nothing(json: &[u8]) -> bool {
    static WORDS: LazyLock<[Finder<'static>; 3]> =
        LazyLock::new(|| ["usage\"", "error\"", "finish_reason\""].map(Finder::new));
    let null_follows = |at: usize| {
        let mut rest = json[at..].iter().skip_while(|byte| byte.is_ascii_whitespace());
        rest.next() == Some(&b':') && rest.find(|byte| !byte.is_ascii_whitespace()) == Some(&b'n')
    };
    let harmless = |word: &Finder<'_>| word.find_iter(json).all(|at| null_follows(at + word.needle().len()));
    memchr_iter(b'\\', json).all(|at| json.get(at + 1) != Some(&b'u')) && WORDS.iter().all(harmless)
}

pub(super) fn walk_chunk(json: &[u8]) -> ChunkInfo {
    let mut info = ChunkInfo::default();
    let mut cursor = Cursor::new(json);
    if !cursor.take(b'{') {
        return info;
    }
    while let Some(key) = cursor.key() {
        let kind = cursor.peek();
        match top_field(key) {
            Some(Top::Choices) => {
                info.choices_empty = None;
                if kind == Some(b'[') {
                    info.choices_empty = Some(choices(&mut cursor, &mut info.finish_reason));
                    continue;
                }
            }
            Some(Top::Usage) => {
                info.usage = None;
                if kind == Some(b'{') {
                    info.usage = Some(usage(&mut cursor));
                    continue;
                }
            }
            Some(Top::Error) => info.has_error = kind == Some(b'{'),
            None => {}
        }
        if cursor.value().is_none() {
            break;
        }
    }
    info
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Top {
    Choices,
    Usage,
    Error,
}

fn top_field(key: &[u8]) -> Option<Top> {
    match key {
        b"choices" => Some(Top::Choices),
        b"usage" => Some(Top::Usage),
        b"error" => Some(Top::Error),
        escaped if escaped.contains(&b'\\') => [Top::Choices, Top::Usage, Top::Error]
            .into_iter()
            .find(|top| spells(escaped, [&b"choices"[..], b"usage", b"error"][*top as usize])),
        _ => None,
    }
}

/// Walks over the array; whether it is empty.
fn choices(cursor: &mut Cursor<'_>, finish: &mut Option<FinishReason>) -> bool {
    let mut empty = true;
    cursor.take(b'[');
    while cursor.element() {
        empty = false;
        if !cursor.take(b'{') {
            if cursor.value().is_none() {
                break;
            }
            continue;
        }
        while let Some(key) = cursor.key() {
            if spells(key, b"finish_reason") && cursor.peek() == Some(b'"') {
                let Some(raw) = cursor.string() else { break };
                *finish = Some(FinishReason::from_raw(raw));
            } else if cursor.value().is_none() {
                break;
            }
        }
    }
    empty
}

/// Walks over a usage object.
fn usage(cursor: &mut Cursor<'_>) -> Usage {
    let mut usage = Usage::default();
    cursor.take(b'{');
    while let Some(key) = cursor.key() {
        if spells(key, b"prompt_tokens_details") && cursor.take(b'{') {
            while let Some(key) = cursor.key() {
                let Some(value) = cursor.value() else { break };
                if spells(key, b"cached_tokens") {
                    usage.cached_tokens = whole_number(value);
                }
            }
            continue;
        }
        let Some(value) = cursor.value() else { break };
        if spells(key, b"prompt_tokens") {
            usage.prompt_tokens = whole_number(value).unwrap_or(0);
        } else if spells(key, b"completion_tokens") {
            usage.completion_tokens = whole_number(value).unwrap_or(0);
        }
    }
    usage
}

/// A JSON number that is a whole one and fits.
pub(crate) fn whole_number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Picks usage and finish reason out of a JSON object that comes in chunks, in bounded memory.
#[derive(Debug, Clone, Default)]
pub struct UsageSkim {
    depth: usize,
    text: Text,
    /// The containers open at the first three levels are `{`, `[`, `{`: a choice, if it lies under `choices`.
    shape: [u8; 3],
    /// The top-level field under way.
    top: Option<Top>,
    /// The string last seen at a level that matters, as escaped.
    word: SmallVec<[u8; 32]>,
    word_whole: bool,
    /// The last key of a choice is `finish_reason`.
    finish_key: bool,
    /// The usage object under way.
    usage_text: Option<SmallVec<[u8; 128]>>,
    usage: Option<Usage>,
    finish_reason: Option<FinishReason>,
}

/// Where in a string the skim is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Text {
    #[default]
    Outside,
    Inside,
    Escaped,
}

impl UsageSkim {
    /// Nothing seen yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes.
    pub fn feed(&mut self, chunk: &[u8]) {
        let mut at = 0;
        // Where the part of a usage object that lies in this chunk begins.
        let mut copy_from = 0;
        while at < chunk.len() {
            match self.text {
                Text::Inside => at = self.string_bytes(chunk, at),
                Text::Escaped => {
                    self.keep_word(&chunk[at..=at]);
                    self.text = Text::Inside;
                    at += 1;
                }
                Text::Outside => {
                    // Commas and colons tell something only where keys are looked at.
                    let class = if matches!(self.depth, 1 | 3) { SEPARATED } else { STRUCTURE };
                    at = skip_until(chunk, at, class);
                    if at == chunk.len() {
                        break;
                    }
                    let collecting = self.usage_text.is_some();
                    self.structure(chunk[at]);
                    at += 1;
                    match (collecting, self.usage_text.is_some()) {
                        (false, true) => copy_from = at - 1,
                        (true, true) if self.depth == 1 => self.end_usage(&chunk[copy_from..at]),
                        _ => {}
                    }
                }
            }
        }
        if self.usage_text.is_some() {
            self.keep_usage(&chunk[copy_from..]);
        }
    }

    /// What was found.
    pub fn finish(self) -> Option<Usage> {
        self.usage
    }

    /// Why generation ended, as far as seen.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish_reason
    }

    /// Keys of the top level, and keys and strings of choices, are kept to be compared.
    fn word_matters(&self) -> bool {
        self.depth == 1 || self.depth == 3 && self.top == Some(Top::Choices)
    }

    fn keep_word(&mut self, bytes: &[u8]) {
        if self.word_matters() {
            if self.word.len() + bytes.len() <= WORD_MAX {
                self.word.extend_from_slice(bytes);
            } else {
                self.word_whole = false;
            }
        }
    }

    fn string_bytes(&mut self, chunk: &[u8], at: usize) -> usize {
        let rest = &chunk[at..];
        let near = rest.iter().take(16).position(|b| matches!(b, b'"' | b'\\'));
        let found = near.or_else(|| {
            let skipped = rest.len().min(16);
            memchr::memchr2(b'"', b'\\', &rest[skipped..]).map(|place| place + skipped)
        });
        let Some(place) = found else {
            self.keep_word(rest);
            return chunk.len();
        };
        self.keep_word(&rest[..place]);
        if rest[place] == b'\\' {
            self.keep_word(b"\\");
            self.text = Text::Escaped;
        } else {
            self.text = Text::Outside;
            if self.finish_key && self.depth == 3 && self.word_whole {
                self.finish_reason = Some(FinishReason::from_raw(&self.word));
            }
        }
        at + place + 1
    }

    fn structure(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.text = Text::Inside;
                self.word.clear();
                self.word_whole = true;
            }
            b'{' | b'[' => {
                if let Some(place) = self.shape.get_mut(self.depth) {
                    *place = byte;
                }
                if self.depth == 1 && byte == b'{' && self.top == Some(Top::Usage) {
                    self.usage_text = Some(SmallVec::new());
                }
                self.depth += 1;
                self.finish_key = false;
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.finish_key = false;
            }
            b',' => {
                self.finish_key = false;
                if self.depth == 1 {
                    self.top = None;
                }
            }
            b':' if self.depth == 1 && self.shape[0] == b'{' => {
                self.top = self.word_whole.then(|| top_field(&self.word)).flatten();
                if self.top == Some(Top::Usage) {
                    self.usage = None;
                }
            }
            b':' if self.depth == 3 => {
                self.finish_key = self.top == Some(Top::Choices)
                    && self.shape == *b"{[{"
                    && self.word_whole
                    && spells(&self.word, b"finish_reason");
            }
            _ => {}
        }
    }

    fn keep_usage(&mut self, bytes: &[u8]) {
        if let Some(text) = &mut self.usage_text {
            // One byte beyond the bound marks it as too long.
            let room = (USAGE_MAX + 1).saturating_sub(text.len()).min(bytes.len());
            text.extend_from_slice(&bytes[..room]);
        }
    }

    fn end_usage(&mut self, bytes: &[u8]) {
        self.keep_usage(bytes);
        if let Some(text) = self.usage_text.take()
            && text.len() <= USAGE_MAX
        {
            self.usage = Some(usage(&mut Cursor::new(&text)));
        }
    }
}
