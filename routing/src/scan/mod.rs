//! Looking into JSON without parsing it into types.
//!
//! Requests: [`RequestScan`] validates a body strictly as it arrives and notes where its few interesting fields lie;
//! [`Fields`] holds them; [`Edits`] splices a body without copying it. Answers: [`EventSkim`], [`skim_answer`]
//! and [`UsageSkim`] pick the token counts out of what an engine says, trusting its JSON.
//!
//! **Invariants:** nothing here recurses, so no nesting overflows the stack; memory is bounded whatever the input; a
//! request scan gives the same result however its input is cut into chunks.

mod edits;
mod error;
mod events;
mod fields;
mod request;
mod text;
mod tokens;
mod usage;
pub(crate) mod walk;

#[cfg(test)]
mod tests;

pub use edits::{Edits, Segments, inject_usage, rewrite_model, set_priority};
pub use error::{ScanError, ScanErrorKind};
pub use events::EventSkim;
pub use fields::{Fields, Name, Spans, UsageAsk};
pub use request::RequestScan;
pub use usage::{ChunkInfo, FinishReason, Usage, UsageSkim, skim_answer, skim_chunk};
