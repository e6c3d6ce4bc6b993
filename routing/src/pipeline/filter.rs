//! Hard rules on which endpoints may be considered.
//!
//! A decision applies all of them in one pass, see [`crate::load::LoadTable::gather`]; here they stand apart, by name,
//! for explanations and for the test that both agree.

use super::Context;
use crate::load::Health;

/// Drops endpoints that must not be chosen.
pub trait Filter {
    /// Name in explanations.
    fn name(&self) -> &'static str;
    /// Whether the endpoint in `slot` stays a candidate.
    fn keeps(&self, context: &Context<'_>, slot: u32) -> bool;
}

/// The filters there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterKind {
    /// Endpoints already tried for this request are out.
    Exclusion,
    /// Endpoints that drain are out.
    Draining,
    /// Endpoints in cooldown, failed or busy, are out.
    Health,
}

impl FilterKind {
    /// All of them, in the order in which explanations show them.
    pub const ALL: [FilterKind; 3] = [FilterKind::Exclusion, FilterKind::Draining, FilterKind::Health];
}

impl Filter for FilterKind {
    fn name(&self) -> &'static str {
        match self {
            FilterKind::Exclusion => "exclusion",
            FilterKind::Draining => "draining",
            FilterKind::Health => "health",
        }
    }

    fn keeps(&self, context: &Context<'_>, slot: u32) -> bool {
        let health = context.loads.health(slot, context.now);
        match self {
            FilterKind::Exclusion => !context.request.exclude.contains(&slot),
            FilterKind::Draining => health != Health::Draining,
            FilterKind::Health => !matches!(health, Health::Busy { .. } | Health::Failed { .. }),
        }
    }
}
