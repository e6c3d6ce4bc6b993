//! Where requests' shapes come from: drawn from distributions, or a trace's.

use std::sync::Arc;

use crate::trace::TraceRequest;
use crate::workload::{Lengths, push_text};

/// Source of prompts and output lengths.
#[derive(Clone, Debug)]
pub enum Prompts {
    /// Random text, different each time beyond a shared beginning.
    Drawn {
        /// Tokens of a prompt, the shared ones included.
        prompt: Lengths,
        /// Tokens asked for.
        output: Lengths,
        /// Tokens that all prompts begin with.
        shared_prefix: u32,
    },
    /// A trace's, in its order and over again.
    Trace {
        /// The trace.
        requests: Arc<Vec<TraceRequest>>,
        /// Longer prompts are cut to this many tokens.
        input_max: u32,
        /// Longer outputs are cut to this many tokens.
        output_max: u32,
    },
}

/// One request's shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The prompt's text.
    pub prompt: String,
    /// Tokens asked for.
    pub output: u32,
}

/// Makes the shapes of one worker, a function of the seed.
#[derive(Clone, Debug)]
pub struct Shaper {
    prompts: Prompts,
    shared: String,
    lengths: fastrand::Rng,
    text: fastrand::Rng,
    next: usize,
    stride: usize,
}

impl Shaper {
    /// The shapes of worker `worker` of `workers`, which deal a trace out between them.
    pub fn new(prompts: Prompts, worker: usize, workers: usize, seed: u64) -> Shaper {
        let mut shared = String::new();
        if let Prompts::Drawn { shared_prefix, .. } = prompts {
            push_text(&mut shared, shared_prefix, &mut fastrand::Rng::with_seed(seed));
        }
        let own =
            seed.wrapping_add(1 + u64::try_from(worker).unwrap_or(0)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut lengths = fastrand::Rng::with_seed(own);
        let text = lengths.fork();
        Shaper { prompts, shared, lengths, text, next: worker, stride: workers }
    }

    /// The same lengths with other text, so that a repetition finds no cache warmed by the first.
    pub fn with_text_seed(mut self, seed: u64) -> Shaper {
        self.text = fastrand::Rng::with_seed(seed);
        self
    }

    /// The next shape.
    pub fn next_shape(&mut self) -> Shape {
        match &self.prompts {
            Prompts::Drawn { prompt, output, shared_prefix } => {
                let tokens = prompt.draw(&mut self.lengths).max(1);
                let mut text =
                    String::with_capacity(self.shared.len().max(usize::try_from(tokens).unwrap_or(0) * 4));
                let shared = self.shared.len().min(usize::try_from(tokens).unwrap_or(0) * 4);
                text.push_str(&self.shared[..shared]);
                push_text(&mut text, tokens.saturating_sub(*shared_prefix), &mut self.text);
                Shape { prompt: text, output: output.draw(&mut self.lengths).max(1) }
            }
            Prompts::Trace { requests, input_max, output_max } => {
                let request = &requests[self.next % requests.len()];
                let shape = Shape {
                    prompt: request.prompt(*input_max),
                    output: request.output_length.clamp(1, (*output_max).max(1)),
                };
                self.next += self.stride;
                shape
            }
        }
    }
}

#[cfg(test)]
mod tests;
