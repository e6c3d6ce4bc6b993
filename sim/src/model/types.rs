//! What goes into the model and what comes out.

use std::fmt;

use crate::tokenizer::Prompt;

/// Nanoseconds on the caller's clock.
pub type Nanos = u64;

/// What the modelled engine can do.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Most sequences running (prefilling or decoding) at once.
    pub max_seqs: u32,
    /// Prompt tokens prefilled a second, all sequences together.
    pub prefill_tps: u64,
    /// Fixed latency between a prompt's prefill and its first token.
    pub ttft_ns: Nanos,
    /// Interval between a sequence's tokens when it runs alone.
    pub itl_ns: Nanos,
    /// How much longer the interval is in a full batch, in thousandths; linear in between.
    pub itl_growth_permille: u32,
    /// True: the whole batch decodes at the same instants, as a scheduler's steps do. False: each sequence
    /// keeps its own phase, which spreads the same load evenly.
    pub lockstep: bool,
    /// Blocks of the KV cache.
    pub kv_blocks: u32,
    /// Tokens a block holds.
    pub block_size: u32,
}

/// One sequence to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// The tokenized prompt.
    pub prompt: Prompt,
    /// Tokens to generate; 0 ends with the prefill (embeddings).
    pub output_tokens: u32,
}

/// Names a submitted sequence until its end; never reused for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeqId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl SeqId {
    /// The slot the sequence lives in: small, dense, reused.
    pub fn slot(self) -> usize {
        usize::try_from(self.slot).unwrap_or(usize::MAX)
    }
}

/// Why a sequence is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// Prompt and output need more blocks than the cache has.
    TooLong {
        /// Blocks needed.
        needed: u64,
        /// Blocks there are.
        capacity: u32,
    },
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::TooLong { needed, capacity } = self;
        write!(
            f,
            "prompt and output need {needed} KV blocks, the engine has {capacity}: shorten them or raise --kv-blocks"
        )
    }
}

impl std::error::Error for SubmitError {}

/// What happens to a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The prompt is computed (again, after a preemption).
    Prefilled {
        /// Prompt tokens taken from the prefix cache at the first admission.
        cached_tokens: u32,
    },
    /// A token is generated.
    Token {
        /// Its number, from 0.
        index: u32,
    },
    /// All tokens are generated; the identifier is dead.
    Finished,
    /// The sequence lost its blocks and waits again.
    Preempted,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sequences accepted.
    pub submitted: u64,
    /// Sequences that generated all their tokens.
    pub finished: u64,
    /// Sequences cancelled before their end.
    pub cancelled: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Prompt tokens whose prefill was completed, cached ones included.
    pub prompt_tokens: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub queried_tokens: u64,
    /// Prompt tokens found there.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
}
