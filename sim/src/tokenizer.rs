//! The simulated tokenizer: four bytes of UTF-8 text are one token, the last token may be shorter.
//!
//! So texts that share a prefix share their tokens, and whole blocks of tokens, exactly that far. A token's id is its
//! bytes read as a little-endian `u32` (absent bytes are zero), which `/detokenize` turns back.
//!
//! A block is named by the hash of its bytes seeded with the hash of the block before it, so that equal names mean
//! equal prefixes.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of text a token stands for.
pub const BYTES_PER_TOKEN: usize = 4;

/// A prompt as the model sees it: how many tokens, and the chained names of its full blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Tokens in all.
    pub tokens: u32,
    /// The names of the full blocks, first to last.
    pub blocks: Vec<u64>,
}

impl Prompt {
    /// Tokenizes text into blocks of `block_size` tokens.
    pub fn from_text(text: &[u8], block_size: u32) -> Self {
        let block_bytes = usize::try_from(block_size).unwrap_or(usize::MAX).saturating_mul(BYTES_PER_TOKEN);
        let mut chain = 0;
        let blocks = text
            .chunks_exact(block_bytes.max(1))
            .map(|block| {
                chain = xxh3_64_with_seed(block, chain);
                chain
            })
            .collect();
        Self { tokens: count(text), blocks }
    }

    /// A prompt that came as token ids.
    pub fn from_ids(ids: &[u32], block_size: u32) -> Self {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        Self::from_text(&bytes, block_size)
    }
}

/// Tokens in a text.
pub fn count(text: &[u8]) -> u32 {
    u32::try_from(text.len().div_ceil(BYTES_PER_TOKEN)).unwrap_or(u32::MAX)
}

/// The token ids of a text.
pub fn encode(text: &[u8]) -> Vec<u32> {
    text.chunks(BYTES_PER_TOKEN)
        .map(|chunk| {
            let mut bytes = [0; BYTES_PER_TOKEN];
            bytes[..chunk.len()].copy_from_slice(chunk);
            u32::from_le_bytes(bytes)
        })
        .collect()
}

/// The text of token ids; bytes that are not UTF-8 become the replacement character.
pub fn decode(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).filter(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
