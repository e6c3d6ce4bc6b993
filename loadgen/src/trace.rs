//! Request traces: lengths and arrival times recorded elsewhere, with prompts rebuilt from block hashes.
//!
//! A line is `{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}`; a block is
//! [`BLOCK_TOKENS`] tokens and equal ids stand for equal content, so the text of a block is a function of its id: two
//! prompts share exactly the text of the block ids they share from the start.

use std::fmt;
use std::io::{self, BufRead};
use std::time::Duration;

use serde::Deserialize;

use crate::workload::BYTES_PER_TOKEN;

/// Tokens of one block.
pub const BLOCK_TOKENS: usize = 512;
/// Bytes of text of one block.
pub const BLOCK_BYTES: usize = BLOCK_TOKENS * BYTES_PER_TOKEN;
/// Most requests read from a trace.
pub const REQUESTS_MAX: usize = 2_000_000;

/// One request of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TraceRequest {
    /// When it arrived, in milliseconds since the trace began.
    pub timestamp: u64,
    /// Prompt tokens.
    pub input_length: u32,
    /// Tokens generated.
    pub output_length: u32,
    /// Content of the prompt, block by block; the last block may be partly filled.
    pub hash_ids: Vec<u64>,
}

impl TraceRequest {
    /// Due time when the trace is played `speed` times as fast.
    pub fn due(&self, speed: f64) -> Duration {
        #[allow(clippy::cast_precision_loss)] // milliseconds of a trace: far below 2^53
        let seconds = self.timestamp as f64 / 1e3 / speed;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// The prompt's text: its blocks, cut to `input_length` tokens, at most `tokens_max`.
    pub fn prompt(&self, tokens_max: u32) -> String {
        let tokens = usize::try_from(self.input_length.min(tokens_max)).unwrap_or(usize::MAX);
        let bytes = tokens.saturating_mul(BYTES_PER_TOKEN).min(self.hash_ids.len() * BLOCK_BYTES);
        let mut text = String::with_capacity(bytes + BLOCK_BYTES);
        for &id in &self.hash_ids {
            if text.len() >= bytes {
                break;
            }
            push_block(&mut text, id);
        }
        text.truncate(bytes); // ASCII: every byte is a boundary
        text
    }
}

/// Appends the [`BLOCK_BYTES`] bytes of text that a block id stands for.
///
/// It begins with the id itself, lowest digit first, so that blocks of different ids part at once: the first token
/// tells a million neighbouring ids apart.
pub fn push_block(out: &mut String, id: u64) {
    const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let end = out.len() + BLOCK_BYTES;
    let mut rest = id;
    for _ in 0..13 {
        out.push(char::from(DIGITS[usize::try_from(rest & 31).unwrap_or(0)]));
        rest >>= 5;
    }
    let mut rng = fastrand::Rng::with_seed(id);
    while out.len() < end {
        let mut draw = rng.u64(..);
        for _ in 0..(end - out.len()).min(12) {
            out.push(char::from(DIGITS[usize::try_from(draw & 31).unwrap_or(0)]));
            draw >>= 5;
        }
    }
}

/// Why a trace cannot be used.
#[derive(Debug)]
pub enum TraceError {
    /// The file cannot be read.
    Io(io::Error),
    /// A line is no request; lines count from 1.
    Line(usize, serde_json::Error),
    /// Arrivals go backwards at this line.
    Order(usize),
    /// No request in it.
    Empty,
    /// More than [`REQUESTS_MAX`] requests.
    TooLong,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceError::Io(_) => f.write_str("the trace cannot be read"),
            TraceError::Line(line, _) => write!(
                f,
                "line {line} of the trace is no request: expected timestamp, input_length, output_length, hash_ids"
            ),
            TraceError::Order(line) => {
                write!(f, "line {line} of the trace is earlier than the line before: sort it")
            }
            TraceError::Empty => f.write_str("the trace holds no request"),
            TraceError::TooLong => {
                write!(f, "the trace holds more than {REQUESTS_MAX} requests: use --trace-limit")
            }
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TraceError::Io(e) => Some(e),
            TraceError::Line(_, e) => Some(e),
            _ => None,
        }
    }
}

/// Reads a trace, at most `limit` requests of it.
pub fn read(source: impl BufRead, limit: Option<usize>) -> Result<Vec<TraceRequest>, TraceError> {
    let mut requests: Vec<TraceRequest> = Vec::new();
    for (index, line) in source.lines().enumerate() {
        if limit.is_some_and(|limit| requests.len() >= limit) {
            break;
        }
        let line = line.map_err(TraceError::Io)?;
        if line.trim().is_empty() {
            continue;
        }
        if requests.len() == REQUESTS_MAX {
            return Err(TraceError::TooLong);
        }
        let request: TraceRequest =
            serde_json::from_str(&line).map_err(|e| TraceError::Line(index + 1, e))?;
        if requests.last().is_some_and(|before| before.timestamp > request.timestamp) {
            return Err(TraceError::Order(index + 1));
        }
        requests.push(request);
    }
    if requests.is_empty() { Err(TraceError::Empty) } else { Ok(requests) }
}

#[cfg(test)]
mod tests;
