//! Is an answer whole? Tokens in order and of this stream alone, the terminator present, nothing after it.
//!
//! Simulated engines number their tokens. Real ones do not: for those the stream's form alone is checked, unless
//! [`TokenCheck::Strict`] asks for numbers.

use std::fmt;

use serde::Deserialize;

use crate::tokens::{Token, TokenScanner};

/// A way in which an answer was not what the engine must have sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Violation {
    /// A token is missing.
    Lost,
    /// A token came again, or more came than were asked for.
    Repeated,
    /// A token of another stream, or text that is no token.
    Foreign,
    /// The stream ended without `[DONE]`.
    MissingTerminator,
    /// Something came after `[DONE]`.
    AfterTerminator,
    /// An event or body that is not the JSON it must be.
    BadJson,
    /// A stream was asked for and something else came, or the other way round.
    WrongKind,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Violation::Lost => "lost_token",
            Violation::Repeated => "repeated_token",
            Violation::Foreign => "foreign_token",
            Violation::MissingTerminator => "missing_terminator",
            Violation::AfterTerminator => "after_terminator",
            Violation::BadJson => "bad_json",
            Violation::WrongKind => "wrong_content_type",
        })
    }
}

/// How far token numbers are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCheck {
    /// Where an answer holds any numbered token.
    Auto,
    /// Always: an answer without numbers fails.
    Strict,
    /// Never; the stream's form still is.
    Off,
}

impl std::str::FromStr for TokenCheck {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(TokenCheck::Auto),
            "strict" => Ok(TokenCheck::Strict),
            "off" => Ok(TokenCheck::Off),
            _ => Err(format!("`{text}` is no kind of check: use auto, strict or off")),
        }
    }
}

/// Tokens counted over one answer, or many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TokenCounts {
    /// Numbered tokens received.
    pub numbered: u64,
    /// Pieces of text that carried no number.
    pub untagged: u64,
    /// Numbers that never came.
    pub lost: u64,
    /// Numbers that came again.
    pub repeated: u64,
    /// Tokens of another stream.
    pub foreign: u64,
}

impl TokenCounts {
    /// Adds another's counts.
    pub fn merge(&mut self, other: &TokenCounts) {
        self.numbered += other.numbered;
        self.untagged += other.untagged;
        self.lost += other.lost;
        self.repeated += other.repeated;
        self.foreign += other.foreign;
    }
}

/// What one event of a stream was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It carried generated text.
    Content,
    /// `[DONE]`.
    Done,
    /// An error object.
    Error,
    /// A role, finish reason, usage or other chunk without text.
    Other,
}

/// Checks one answer, streamed or whole.
#[derive(Debug)]
pub struct Checker {
    tag: String,
    mode: TokenCheck,
    choices: Vec<Choice>,
    counts: TokenCounts,
    done: bool,
    first: Option<Violation>,
    error_event: bool,
    completion_tokens: Option<u64>,
    text: Option<String>,
}

#[derive(Debug, Default)]
struct Choice {
    index: u32,
    scanner: TokenScanner,
    next: u64,
    finish_reason: Option<String>,
}

/// Most choices of one answer that are told apart.
const CHOICES_MAX: usize = 128;

impl Checker {
    /// A checker of one answer whose tokens must carry `tag`; `keep_text` keeps what the model said for the next turn.
    pub fn new(mode: TokenCheck, tag: &str, keep_text: bool) -> Checker {
        Checker {
            mode,
            tag: tag.to_owned(),
            choices: Vec::new(),
            counts: TokenCounts::default(),
            done: false,
            first: None,
            error_event: false,
            completion_tokens: None,
            text: keep_text.then(String::new),
        }
    }

    /// Takes the data of one event.
    pub fn event(&mut self, data: &[u8]) -> EventKind {
        if self.done {
            self.violate(Violation::AfterTerminator);
            return EventKind::Other;
        }
        if data == b"[DONE]" {
            self.done = true;
            return EventKind::Done;
        }
        self.chunk(data)
    }

    /// Takes the body of an answer that was not streamed.
    pub fn body(&mut self, body: &[u8]) {
        self.chunk(body);
        self.done = true;
    }

    fn chunk(&mut self, json: &[u8]) -> EventKind {
        let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(json) else {
            self.violate(Violation::BadJson);
            return EventKind::Other;
        };
        if chunk.error.is_some() {
            self.error_event = true;
            return EventKind::Error;
        }
        if let Some(usage) = chunk.usage {
            self.completion_tokens = usage.completion_tokens.or(self.completion_tokens);
        }
        let mut kind = EventKind::Other;
        for part in chunk.choices.unwrap_or_default() {
            let text = part.text();
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                kind = EventKind::Content;
                if let Some(kept) = &mut self.text
                    && part.index == 0
                {
                    kept.push_str(text);
                }
                self.take_text(part.index, text);
            }
            if let Some(reason) = part.finish_reason
                && let Some(choice) = self.choice(part.index)
            {
                choice.finish_reason = Some(reason.into_owned());
            }
        }
        kind
    }

    fn choice(&mut self, index: u32) -> Option<&mut Choice> {
        let at = match self.choices.iter().position(|c| c.index == index) {
            Some(at) => at,
            None if self.choices.len() < CHOICES_MAX => {
                self.choices.push(Choice { index, ..Choice::default() });
                self.choices.len() - 1
            }
            None => return None,
        };
        self.choices.get_mut(at)
    }

    fn take_text(&mut self, index: u32, text: &str) {
        if self.mode == TokenCheck::Off {
            return;
        }
        let mut counts = self.counts;
        let own = std::mem::take(&mut self.tag);
        if let Some(Choice { scanner, next, .. }) = self.choice(index) {
            scanner.feed(text, |token| count_token(&mut counts, &own, index, next, token));
        }
        self.tag = own;
        self.counts = counts;
    }

    fn violate(&mut self, violation: Violation) {
        self.first.get_or_insert(violation);
    }

    /// The answer is over. `asked` is the number of tokens asked for.
    pub fn finish(self, asked: u32) -> Verdict {
        let numbers_due = match self.mode {
            TokenCheck::Off => false,
            TokenCheck::Auto => self.counts.numbered > 0,
            TokenCheck::Strict => true,
        };
        let mut counts = self.counts;
        if numbers_due && self.done {
            self.account_end(&mut counts, asked);
        }
        let violation = self.first.or(if !numbers_due {
            None
        } else if counts.foreign > 0 || counts.untagged > 0 {
            Some(Violation::Foreign)
        } else if counts.repeated > 0 {
            Some(Violation::Repeated)
        } else if counts.lost > 0 {
            Some(Violation::Lost)
        } else {
            None
        });
        let unterminated = (!self.done && !self.error_event).then_some(Violation::MissingTerminator);
        Verdict {
            violation: violation.or(unterminated),
            error_event: self.error_event,
            counts,
            text: self.text.unwrap_or_default(),
        }
    }

    /// What the end of a terminated answer says about how many tokens there had to be.
    fn account_end(&self, counts: &mut TokenCounts, asked: u32) {
        let before = *counts;
        // A reason of "length" says that all that was asked for was generated; usage says how much was.
        for choice in self.choices.iter().filter(|c| c.finish_reason.as_deref() == Some("length")) {
            account(counts, choice.next, u64::from(asked));
        }
        if let Some(total) = self.completion_tokens
            && *counts == before
        {
            account(counts, self.choices.iter().map(|c| c.next).sum(), total);
        }
        if *counts == before && self.choices.iter().any(|c| c.scanner.is_partial()) {
            counts.lost += 1;
        }
        let finished = self.choices.iter().any(|c| c.finish_reason.is_some());
        if *counts == before && counts.numbered == 0 && !finished {
            counts.lost += u64::from(asked);
        }
    }
}

fn account(counts: &mut TokenCounts, got: u64, due: u64) {
    counts.lost += due.saturating_sub(got);
    counts.repeated += got.saturating_sub(due);
}

fn count_token(counts: &mut TokenCounts, own: &str, choice: u32, next: &mut u64, token: Option<Token<'_>>) {
    let Some(token) = token else {
        counts.untagged += 1;
        return;
    };
    counts.numbered += 1;
    if !is_own(token.tag, own, choice) {
        counts.foreign += 1;
    } else if token.number < *next {
        counts.repeated += 1;
    } else {
        counts.lost += token.number - *next;
        *next = token.number + 1;
    }
}

fn is_own(tag: &str, own: &str, choice: u32) -> bool {
    match tag.strip_prefix(own) {
        Some("") => choice == 0,
        Some(rest) => choice > 0 && rest.strip_prefix('/').is_some_and(|k| k.parse() == Ok(choice)),
        None => false,
    }
}

/// What was found about one answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The gravest thing wrong with it.
    pub violation: Option<Violation>,
    /// It carried an error object in place of an end.
    pub error_event: bool,
    /// Its tokens.
    pub counts: TokenCounts,
    /// What the model said, if that was to be kept.
    pub text: String,
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    choices: Option<Vec<ChoiceChunk<'a>>>,
    usage: Option<Usage>,
    #[serde(borrow)]
    error: Option<&'a serde_json::value::RawValue>,
}

#[derive(Deserialize)]
struct Usage {
    completion_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct ChoiceChunk<'a> {
    #[serde(default)]
    index: u32,
    #[serde(borrow)]
    delta: Option<Message<'a>>,
    #[serde(borrow)]
    message: Option<Message<'a>>,
    #[serde(borrow)]
    text: Option<std::borrow::Cow<'a, str>>,
    #[serde(borrow)]
    finish_reason: Option<std::borrow::Cow<'a, str>>,
}

impl ChoiceChunk<'_> {
    fn text(&self) -> Option<&str> {
        let message = self.delta.as_ref().or(self.message.as_ref());
        message.and_then(|m| m.content.as_deref()).or(self.text.as_deref())
    }
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    content: Option<std::borrow::Cow<'a, str>>,
}

#[cfg(test)]
mod tests;
