//! Hard rules on which endpoints may be considered.

use super::Context;
use crate::load::Health;

/// Drops endpoints that must not be chosen.
pub trait Filter {
    /// Name in configuration and explanations.
    fn name(&self) -> &'static str;
    /// Whether the endpoint in `slot` stays a candidate.
    fn keeps(&self, context: &Context<'_>, slot: u32) -> bool;
}

/// The filters there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterKind {
    /// Endpoints already tried for this request are out.
    Exclusion,
    /// Endpoints in cooldown, failed or busy, are out.
    Health,
}

impl Filter for FilterKind {
    fn name(&self) -> &'static str {
        match self {
            FilterKind::Exclusion => "exclusion",
            FilterKind::Health => "health",
        }
    }

    fn keeps(&self, context: &Context<'_>, slot: u32) -> bool {
        match self {
            FilterKind::Exclusion => !context.request.exclude.contains(&slot),
            FilterKind::Health => context.loads.health(slot, context.now) == Health::Ready,
        }
    }
}
