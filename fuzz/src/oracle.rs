//! What serde_json says of a request body.

use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use std::ops::Range;

/// One member of the top-level object.
#[derive(Debug)]
pub struct Member {
    /// Unescaped; U+FFFD for each lone surrogate.
    pub key: Vec<u8>,
    /// Where the value lies in the body.
    pub value: Range<usize>,
}

/// The members of the object that `body` is, in order; `None` if it is not one JSON object in UTF-8.
pub fn members(body: &[u8]) -> Option<Vec<Member>> {
    let text = std::str::from_utf8(body).ok()?;
    // Keys taken as bytes are not checked for control characters; this checks them.
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    let mut json = serde_json::Deserializer::from_str(text);
    let members = json.deserialize_map(Members { base: text.as_ptr() as usize }).ok()?;
    json.end().ok()?;
    Some(members)
}

/// The content of a JSON string; `None` for another value.
pub fn as_text(value: &[u8]) -> Option<Vec<u8>> {
    let mut json = serde_json::Deserializer::from_slice(value);
    json.deserialize_bytes(Bytes).ok()
}

/// Deepest nesting of valid JSON.
pub fn nesting(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

struct Members {
    base: usize,
}

impl<'de> Visitor<'de> for Members {
    type Value = Vec<Member>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(Key(key)) = map.next_key()? {
            let value: &RawValue = map.next_value()?;
            let start = value.get().as_ptr() as usize - self.base;
            members.push(Member { key, value: start..start + value.get().len() });
        }
        Ok(members)
    }
}

/// As bytes, for serde_json takes lone surrogates only so.
struct Key(Vec<u8>);

impl<'de> serde::Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(Bytes).map(Key)
    }
}

struct Bytes;

impl Visitor<'_> for Bytes {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(replace_surrogates(bytes))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<u8>, E> {
        Ok(text.as_bytes().to_vec())
    }
}

/// serde_json writes a lone surrogate as the three bytes that UTF-8 forbids.
fn replace_surrogates(mut bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    loop {
        match bytes {
            [0xED, 0xA0..=0xBF, _, rest @ ..] => {
                text.extend_from_slice("\u{FFFD}".as_bytes());
                bytes = rest;
            }
            [byte, rest @ ..] => {
                text.push(*byte);
                bytes = rest;
            }
            [] => return text,
        }
    }
}
