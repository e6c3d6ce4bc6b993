//! Numbered tokens: the text a simulated engine generates, and the check that a stream of it arrived whole.
//!
//! Token `i` (from 0) of a stream is the text `<tag>:<i> `, the tag naming the stream. Whoever reads a stream can so
//! prove that no token was lost, repeated, reordered, or taken from another stream. The tag is, in this order:
//!
//! 1. what stands in `[[...]]` in the prompt, the last one counts (markers are no part of the prompt the model sees),
//! 2. with a `seed`, or at temperature 0, a hash of prompt and seed: the same request gives the same text,
//! 3. the `x-request-id` header, else the engine's own identifier of the request.
//!
//! Choice `k` > 0 of one request (`n`, several prompts) has the tag `<tag>/<k>`.
//!
//! Invariants: a tag is 1 to [`TAG_MAX`] bytes of `A-Z a-z 0-9 _ . - /`, so that tokens need no JSON escaping and the
//! first `:` ends the tag. This file depends on nothing but `std`.

use std::fmt;

/// Longest tag in bytes; a longer one is cut.
pub const TAG_MAX: usize = 64;

/// True for the bytes a tag may have.
fn is_tag_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b'/')
}

/// Makes a tag of any text: other bytes are dropped, the rest is cut at [`TAG_MAX`]. None when nothing is left.
pub fn sanitize_tag(text: &str) -> Option<String> {
    let tag: String = text.bytes().filter(|b| is_tag_byte(*b)).take(TAG_MAX).map(char::from).collect();
    (!tag.is_empty()).then_some(tag)
}

/// The marker a client puts into a prompt to choose its stream's tag.
pub fn marker(tag: &str) -> String {
    format!("[[{tag}]]")
}

/// Finds the first `[[tag]]` in a prompt: the tag and the byte range of the whole marker.
pub fn find_marker(prompt: &str) -> Option<(&str, std::ops::Range<usize>)> {
    let mut from = 0;
    while let Some(open) = prompt.get(from..)?.find("[[") {
        let start = from + open;
        let inner = start + 2;
        let len = prompt.as_bytes()[inner..].iter().take_while(|b| is_tag_byte(**b)).count();
        if (1..=TAG_MAX).contains(&len) && prompt.as_bytes()[inner + len..].starts_with(b"]]") {
            return Some((&prompt[inner..inner + len], start..inner + len + 2));
        }
        from = start + 1;
    }
    None
}

/// Removes every `[[tag]]` from a prompt; the last one's tag. So a marker shifts no text, and of a conversation that
/// carries the markers of earlier turns the latest counts.
pub fn take_markers(prompt: &mut String) -> Option<String> {
    let mut tag = None;
    while let Some((found, range)) = find_marker(prompt) {
        tag = Some(found.to_owned());
        prompt.replace_range(range, "");
    }
    tag
}

/// The tag of choice `k` of a request with this tag.
pub fn choice_tag(tag: &str, choice: usize) -> String {
    if choice == 0 { tag.to_owned() } else { format!("{tag}/{choice}") }
}

/// Appends token `index` of a stream.
pub fn write_token(out: &mut Vec<u8>, tag: &[u8], index: u32) {
    out.extend_from_slice(tag);
    out.push(b':');
    write_decimal(out, index);
    out.push(b' ');
}

/// Token `index` of a stream as text.
pub fn token(tag: &str, index: u32) -> String {
    format!("{tag}:{index} ")
}

/// Appends a number in decimal, without allocating.
pub fn write_decimal(out: &mut Vec<u8>, mut value: u32) {
    let mut digits = [0_u8; 10];
    let mut at = digits.len();
    loop {
        at -= 1;
        // The remainder is below 10, so the conversion never fails.
        digits[at] = b'0' + u8::try_from(value % 10).unwrap_or(0);
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// What is wrong with a stream of numbered tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// The text is not of the form `<tag>:<number> `.
    Malformed {
        /// The offending piece.
        text: String,
    },
    /// A token of another stream.
    WrongStream {
        /// The tag this stream has.
        expected: String,
        /// The tag that came.
        found: String,
    },
    /// A number other than the next one: below it, repeated or reordered; above it, lost.
    WrongNumber {
        /// The number that was due.
        expected: u32,
        /// The number that came.
        found: u32,
    },
    /// The stream ended within a token.
    Partial {
        /// What had come of it.
        text: String,
    },
    /// The stream ended with another number of tokens.
    WrongCount {
        /// How many were due.
        expected: u32,
        /// How many came.
        found: u32,
    },
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { text } => write!(f, "not a numbered token: {text:?}"),
            Self::WrongStream { expected, found } => {
                write!(f, "token of another stream: expected tag {expected:?}, got {found:?}")
            }
            Self::WrongNumber { expected, found } if found < expected => {
                write!(f, "token {found} repeated or reordered: {expected} was due")
            }
            Self::WrongNumber { expected, found } => write!(f, "token {expected} lost: got {found}"),
            Self::Partial { text } => write!(f, "stream ended within a token: {text:?}"),
            Self::WrongCount { expected, found } => write!(f, "{found} tokens instead of {expected}"),
        }
    }
}

impl std::error::Error for TokenError {}

/// Checks the content of one stream as it arrives, cut anywhere.
#[derive(Clone, Debug)]
pub struct TokenChecker {
    tag: Option<String>,
    next: u32,
    partial: String,
}

impl TokenChecker {
    /// Expects tokens of this tag, from number 0.
    pub fn new(tag: impl Into<String>) -> Self {
        Self { tag: Some(tag.into()), next: 0, partial: String::new() }
    }

    /// Takes the tag of the first token and holds the stream to it.
    pub fn any() -> Self {
        Self { tag: None, next: 0, partial: String::new() }
    }

    /// Takes the next piece of content.
    ///
    /// # Errors
    /// The first token that is not the next one of this stream.
    pub fn push(&mut self, content: &str) -> Result<(), TokenError> {
        let mut rest = content;
        while let Some(end) = rest.find(' ') {
            let (head, tail) = rest.split_at(end);
            rest = &tail[1..];
            if self.partial.is_empty() {
                self.token(head)?;
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.push_str(head);
                self.token(&whole)?;
            }
        }
        self.partial.push_str(rest);
        Ok(())
    }

    /// Whole tokens seen so far.
    pub fn count(&self) -> u32 {
        self.next
    }

    /// The tag, once known.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The stream ended; checks that it ended between tokens, and after `expected` of them where given.
    ///
    /// # Errors
    /// [`TokenError::Partial`] or [`TokenError::WrongCount`].
    pub fn finish(&self, expected: Option<u32>) -> Result<u32, TokenError> {
        if !self.partial.is_empty() {
            return Err(TokenError::Partial { text: self.partial.clone() });
        }
        match expected {
            Some(expected) if expected != self.next => {
                Err(TokenError::WrongCount { expected, found: self.next })
            }
            _ => Ok(self.next),
        }
    }

    fn token(&mut self, text: &str) -> Result<(), TokenError> {
        let malformed = || TokenError::Malformed { text: text.to_owned() };
        let (tag, number) = text.split_once(':').ok_or_else(malformed)?;
        let number: u32 = number.parse().map_err(|_| malformed())?;
        match &self.tag {
            Some(expected) if expected != tag => {
                return Err(TokenError::WrongStream { expected: expected.clone(), found: tag.to_owned() });
            }
            Some(_) => {}
            None => self.tag = Some(tag.to_owned()),
        }
        if number != self.next {
            return Err(TokenError::WrongNumber { expected: self.next, found: number });
        }
        self.next += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
