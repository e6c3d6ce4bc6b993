//! The configuration as a tree in which every key and value knows where it came from.
//!
//! **Invariant:** the tree keeps the text of every scalar as written, so that what is decoded (and quoted in a
//! message) is what the operator wrote: `1.10` stays `1.10`, a model called `7` stays `7`.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use std::fmt;
use std::sync::Arc;

/// Where a key or value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The file; line and column count from 1.
    File {
        /// Line.
        line: u64,
        /// Column, in characters.
        column: u64,
    },
    /// An environment variable.
    Env(Arc<str>),
    /// Nowhere: the default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { line, column } => write!(f, "line {line}, column {column}"),
            Origin::Env(name) => write!(f, "environment {name}"),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// A value and its origin.
#[derive(Debug, Clone)]
pub struct Node {
    /// Where it stands.
    pub at: Origin,
    /// What it is.
    pub value: Value,
}

/// A YAML value.
#[derive(Debug, Clone)]
pub enum Value {
    /// Null, or nothing.
    Null,
    /// A plain scalar that YAML reads as a boolean.
    Bool(bool),
    /// A plain scalar that YAML reads as a number, as written.
    Number(String),
    /// Any other scalar; also every value that comes from the environment.
    Text(String),
    /// A sequence.
    List(Vec<Node>),
    /// A mapping, in order.
    Map(Vec<Entry>),
}

/// A pair of a mapping.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key stands.
    pub key_at: Origin,
    /// The value.
    pub node: Node,
}

impl Value {
    /// What it is, for messages.
    pub fn describe(&self) -> String {
        match self {
            Value::Null => "nothing".into(),
            Value::Bool(b) => format!("`{b}`"),
            Value::Number(text) | Value::Text(text) => format!("`{}`", clip(&masked(text))),
            Value::List(_) => "a list".into(),
            Value::Map(_) => "a section".into(),
        }
    }
}

/// Where the value at a path such as `routes[0].model` stands, or the nearest above it that exists.
pub fn origin_at(mut entries: &[Entry], path: &str) -> Origin {
    let mut at = Origin::Default;
    for part in path.split('.') {
        let mut names = part.split(['[', ']']).filter(|name| !name.is_empty());
        let key = names.next().unwrap_or_default();
        let Some(mut node) = entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node) else {
            return at;
        };
        at = node.at.clone();
        for place in names {
            let (Value::List(items), Ok(place)) = (&node.value, place.parse::<usize>()) else { return at };
            let Some(item) = items.get(place) else { return at };
            node = item;
            at = node.at.clone();
        }
        entries = match &node.value {
            Value::Map(entries) => entries,
            _ => &[],
        };
    }
    at
}

/// A text with the user and password of a URL hidden, for messages.
pub fn masked(text: &str) -> String {
    match text.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1))) {
        Some((scheme, rest)) => format!("{scheme}://***@{rest}"),
        None => text.to_owned(),
    }
}

/// At most 80 characters of a value in a message.
fn clip(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Why a file is not YAML.
pub struct SyntaxError {
    /// Where.
    pub at: Origin,
    /// What.
    pub message: String,
}

/// Parses one YAML document. An empty one is an empty mapping.
pub fn parse(text: &str) -> Result<Node, SyntaxError> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
        underscored_numbers_as_strings: true,
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::AsString,
    };
    if text.lines().all(|line| line.trim_start().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(Node { at: Origin::Default, value: Value::Map(Vec::new()) });
    }
    match serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, options) {
        Ok(raw) => Ok(convert(raw, text)),
        Err(error) => {
            let at = match error.location() {
                Some(at) => Origin::File { line: at.line(), column: at.column() },
                None => Origin::Default,
            };
            let message = match error.without_snippet() {
                serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
                    format!("`{key}` stands here twice")
                }
                serde_saphyr::Error::MultipleDocuments { .. } => {
                    "a second YAML document begins here; a configuration is one".to_owned()
                }
                other => format!("not YAML: {}", strip_position(&other.to_string())),
            };
            Err(SyntaxError { at, message })
        }
    }
}

/// The library repeats the position in its message; ours stands in front.
fn strip_position(message: &str) -> &str {
    let first = message.lines().next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let first = match first.strip_prefix("line ") {
        Some(rest) => rest.split_once(": ").map_or(first, |(_, tail)| tail),
        None => first,
    };
    first.find(" at line ").map_or(first, |end| &first[..end])
}

enum Raw {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

fn convert(raw: Spanned<Raw>, source: &str) -> Node {
    let at = origin(&raw);
    let value = match raw.value {
        Raw::Null => Value::Null,
        Raw::Bool(b) => Value::Bool(b),
        Raw::Number(printed) => Value::Number(as_written(raw.defined, source).unwrap_or(printed)),
        Raw::Text(text) => Value::Text(text),
        Raw::List(items) => Value::List(items.into_iter().map(|item| convert(item, source)).collect()),
        Raw::Map(pairs) => Value::Map(
            pairs
                .into_iter()
                .map(|(key, value)| Entry {
                    key_at: origin(&key),
                    key: key.value,
                    node: convert(value, source),
                })
                .collect(),
        ),
    };
    Node { at, value }
}

fn origin<T>(spanned: &Spanned<T>) -> Origin {
    Origin::File { line: spanned.referenced.line(), column: spanned.referenced.column() }
}

fn as_written(at: serde_saphyr::Location, source: &str) -> Option<String> {
    let start = usize::try_from(at.span().byte_offset()?).ok()?;
    let length = usize::try_from(at.span().byte_len()?).ok()?;
    let text = source.get(start..start.checked_add(length)?)?.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RawVisitor;
        impl<'de> Visitor<'de> for RawVisitor {
            type Value = Raw;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a YAML value")
            }
            fn visit_unit<E>(self) -> Result<Raw, E> {
                Ok(Raw::Null)
            }
            fn visit_bool<E>(self, v: bool) -> Result<Raw, E> {
                Ok(Raw::Bool(v))
            }
            fn visit_i64<E>(self, v: i64) -> Result<Raw, E> {
                Ok(Raw::Number(v.to_string()))
            }
            fn visit_u64<E>(self, v: u64) -> Result<Raw, E> {
                Ok(Raw::Number(v.to_string()))
            }
            fn visit_f64<E>(self, v: f64) -> Result<Raw, E> {
                Ok(Raw::Number(v.to_string()))
            }
            fn visit_str<E>(self, v: &str) -> Result<Raw, E> {
                Ok(Raw::Text(v.to_owned()))
            }
            fn visit_string<E>(self, v: String) -> Result<Raw, E> {
                Ok(Raw::Text(v))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Raw::List(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Raw::Map(pairs))
            }
        }
        deserializer.deserialize_any(RawVisitor)
    }
}
