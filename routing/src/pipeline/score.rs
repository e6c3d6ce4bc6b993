//! Ratings of candidates; 1 is best.

use super::{Candidate, Context};

/// Rates candidates between 0 and 1.
pub trait Scorer {
    /// Name in configuration and explanations.
    fn name(&self) -> &'static str;
    /// Adds `weight` times its score to each candidate.
    fn add_scores(&self, weight: f64, context: &Context<'_>, candidates: &mut [Candidate]);
}

/// The scorers there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScorerKind {
    /// `1 - inflight / max(inflight)`: the gateway's own count, which no scrape interval makes stale.
    Inflight,
}

impl ScorerKind {
    /// All scorers, for lists in messages.
    pub const ALL: [ScorerKind; 1] = [ScorerKind::Inflight];

    /// By its name in configuration.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl Scorer for ScorerKind {
    fn name(&self) -> &'static str {
        match self {
            ScorerKind::Inflight => "inflight",
        }
    }

    fn add_scores(&self, weight: f64, _context: &Context<'_>, candidates: &mut [Candidate]) {
        match self {
            ScorerKind::Inflight => {
                let max = candidates.iter().map(|c| c.inflight).max().unwrap_or(0).max(1);
                for candidate in candidates {
                    candidate.score += weight * (1.0 - f64::from(candidate.inflight) / f64::from(max));
                }
            }
        }
    }
}
