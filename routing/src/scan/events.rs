//! The events of one stream, most of which differ from the one before in a piece of text alone.
//!
//! **Invariant:** what is told of an event is what [`skim_chunk`] tells of it, for all JSON.

use super::usage::{ChunkInfo, skim_chunk};
use super::walk::string_end;
use memchr::memchr2;
use memchr::memmem::Finder;
use std::sync::LazyLock;

/// Longest event that is remembered, bytes.
const EVENT_MAX: usize = 1024;
/// Events remembered in vain before it is given up: the stream repeats itself otherwise than expected.
const VAIN_MAX: u8 = 8;

/// Looks at the events of one stream.
///
/// An event that tells nothing is remembered without its text. One that is the same around some other text tells
/// nothing either, since text without a quote or a backslash cannot hold a key.
#[derive(Debug, Clone, Default)]
pub struct EventSkim {
    /// What stood before the text, then what stood after it. Empty: nothing is remembered.
    around: Vec<u8>,
    /// Length of the first part.
    before: u16,
    /// Times that something was remembered since it was last of use.
    vain: u8,
}

impl EventSkim {
    /// Nothing seen yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at the top level of one event's JSON object, given whole; see [`skim_chunk`].
    #[inline]
    pub fn skim(&mut self, json: &[u8]) -> ChunkInfo {
        if self.is_like_before(json) {
            self.vain = 0;
            return ChunkInfo::default();
        }
        self.skim_and_remember(json)
    }

    #[inline]
    fn is_like_before(&self, json: &[u8]) -> bool {
        let (before, after) = self.around.split_at(usize::from(self.before));
        !before.is_empty()
            && json.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)).is_some_and(is_plain)
    }

    fn skim_and_remember(&mut self, json: &[u8]) -> ChunkInfo {
        let info = skim_chunk(json);
        if info == ChunkInfo::default() && json.len() <= EVENT_MAX && self.vain < VAIN_MAX {
            self.remember(json);
        }
        info
    }

    fn remember(&mut self, json: &[u8]) {
        let Some(start) = text_start(json) else { return };
        let Some(end) = string_end(json, start).filter(|end| is_plain(&json[start..*end])) else { return };
        let Ok(before) = u16::try_from(start) else { return };
        self.vain += 1;
        self.around.clear();
        self.around.reserve_exact(start + json.len() - end);
        self.around.extend_from_slice(&json[..start]);
        self.around.extend_from_slice(&json[end..]);
        self.before = before;
    }
}

/// Text that is all of it inside of a string.
fn is_plain(text: &[u8]) -> bool {
    memchr2(b'"', b'\\', text).is_none()
}

/// Where the text begins: the value of the first key that is known to hold some.
fn text_start(json: &[u8]) -> Option<usize> {
    static KEYS: LazyLock<[Finder<'static>; 3]> =
        LazyLock::new(|| ["content\":\"", "text\":\"", "arguments\":\""].map(Finder::new));
    // A backslash could make a quote that is none.
    if memchr::memchr(b'\\', json).is_some() {
        return None;
    }
    KEYS.iter().find_map(|key| Some(key.find(json)? + key.needle().len()))
}
