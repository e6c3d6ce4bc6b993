//! The numbered, tagged tokens of the simulated engine, out of any split of a choice's text.
//!
//! A token is `TAG:NUMBER `, the tag being the request's id (choice `k` > 0: `ID/k`), numbers counting from 0: see
//! `sim`'s module of the same name, whose encoder the tests hold this against.

/// One token as the engine numbered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// Whose stream it belongs to.
    pub tag: &'a str,
    /// Its place in the stream, from 0.
    pub number: u64,
}

/// Longest token text, in bytes; what is longer is no token.
const TOKEN_MAX: usize = 128;

/// Gathers the text of one choice and hands out tokens as they are complete.
#[derive(Debug, Default)]
pub struct TokenScanner {
    partial: String,
}

impl TokenScanner {
    /// Takes text as it came; `on_token` gets each piece up to a space, parsed or not.
    pub fn feed(&mut self, mut text: &str, mut on_token: impl FnMut(Option<Token<'_>>)) {
        while let Some(end) = text.find(' ') {
            if self.partial.is_empty() {
                on_token(parse(&text[..end]));
            } else {
                self.partial.push_str(&text[..end]);
                on_token(parse(&self.partial));
                self.partial.clear();
            }
            text = &text[end + 1..];
        }
        if self.partial.len() < TOKEN_MAX {
            self.partial.push_str(text);
        }
    }

    /// Whether the text so far ends inside a token.
    pub fn is_partial(&self) -> bool {
        !self.partial.is_empty()
    }
}

/// Reads one token without its space.
pub fn parse(text: &str) -> Option<Token<'_>> {
    let (tag, number) = text.split_once(':')?;
    if tag.is_empty() || number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(Token { tag, number: number.parse().ok()? })
}

#[cfg(test)]
mod tests;
