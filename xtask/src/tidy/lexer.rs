//! Just enough of Rust's lexical grammar to tell code from comments and strings, and to find where functions end.
//!
//! Invariant: [`mask`] keeps every newline and the number of characters, so a place in the result is the same place in
//! the source.

/// The source with comments, string contents and character literals blanked.
pub fn mask(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = skip(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

/// Where the comment or literal that begins at `at` ends; `at` itself when none begins there.
fn skip(chars: &[char], at: usize) -> usize {
    let here = |offset: usize| chars.get(at + offset).copied().unwrap_or('\0');
    let word_before = at > 0 && is_word(chars[at - 1]);
    match here(0) {
        '/' if here(1) == '/' => chars[at..].iter().position(|&c| c == '\n').map_or(chars.len(), |n| at + n),
        '/' if here(1) == '*' => block_comment(chars, at),
        '"' => quoted(chars, at + 1),
        'b' | 'c' if here(1) == '"' && !word_before => quoted(chars, at + 2),
        'b' | 'c' if here(1) == 'r' && !word_before => raw(chars, at, 2),
        'b' if here(1) == '\'' && !word_before => character(chars, at + 1),
        'r' if !word_before => raw(chars, at, 1),
        '\'' => character(chars, at),
        _ => at,
    }
}

pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn block_comment(chars: &[char], at: usize) -> usize {
    let mut depth = 0_usize;
    let mut i = at;
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                i += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                i += 2;
                if depth == 0 {
                    return i;
                }
            }
            _ => i += 1,
        }
    }
    chars.len()
}

fn quoted(chars: &[char], mut i: usize) -> usize {
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// A raw string whose `r` ends `letters` characters after `at`; `at` when it is an identifier after all.
fn raw(chars: &[char], at: usize, letters: usize) -> usize {
    let mut i = at + letters;
    let hashes = chars[i.min(chars.len())..].iter().take_while(|&&c| c == '#').count();
    i += hashes;
    if chars.get(i) != Some(&'"') {
        return at;
    }
    i += 1;
    while i < chars.len() {
        if chars[i] == '"' && chars[i + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes {
            return i + 1 + hashes;
        }
        i += 1;
    }
    chars.len()
}

/// A character literal that opens at `quote`; a lifetime is left alone.
fn character(chars: &[char], quote: usize) -> usize {
    let start = if quote > 0 && chars[quote - 1] == 'b' { quote - 1 } else { quote };
    match (chars.get(quote + 1), chars.get(quote + 2)) {
        (Some('\\'), Some(_)) => {
            chars[quote + 3..].iter().position(|&c| c == '\'').map_or(chars.len(), |n| quote + 4 + n)
        }
        (Some(_), Some('\'')) => quote + 3,
        _ => start,
    }
}

/// A function body: its name and its first and last line, from 1.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// As written.
    pub name: String,
    /// Line of the `fn`.
    pub first: usize,
    /// Line of the closing brace.
    pub last: usize,
}

/// Every function with a body in masked source, inner ones included.
pub fn functions(code: &str) -> Vec<Function> {
    let chars: Vec<char> = code.chars().collect();
    let line_of = |at: usize| 1 + chars[..at].iter().filter(|&&c| c == '\n').count();
    let mut found = Vec::new();
    for at in words(&chars, "fn") {
        let name: String =
            chars[at + 2..].iter().skip_while(|c| c.is_whitespace()).take_while(|&&c| is_word(c)).collect();
        // `fn(u8)` is a type.
        if name.is_empty() {
            continue;
        }
        if let Some(end) = body_end(&chars, at) {
            found.push(Function { name, first: line_of(at), last: line_of(end) });
        }
    }
    found
}

/// Where `word` stands alone.
pub fn words(chars: &[char], word: &str) -> Vec<usize> {
    let word: Vec<char> = word.chars().collect();
    (0..chars.len())
        .filter(|&at| {
            chars[at..].starts_with(&word)
                && (at == 0 || !is_word(chars[at - 1]))
                && !chars.get(at + word.len()).is_some_and(|&c| is_word(c))
        })
        .collect()
}

fn body_end(chars: &[char], at: usize) -> Option<usize> {
    // Parentheses and brackets of the signature may hold semicolons (`[u8; 4]`).
    let (mut nested, mut braces) = (0_i32, 0_i32);
    for (i, &c) in chars.iter().enumerate().skip(at) {
        match c {
            '(' | '[' if braces == 0 => nested += 1,
            ')' | ']' if braces == 0 => nested -= 1,
            ';' if braces == 0 && nested == 0 => return None,
            '{' if nested == 0 => braces += 1,
            '}' if nested == 0 => {
                braces -= 1;
                if braces == 0 {
                    return Some(i);
                }
            }
            _ => {}
        }
    }
    None
}
