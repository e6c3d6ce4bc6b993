//! A named combination of weighted scorers and a picker.

use super::{PickerKind, Scorer, ScorerKind};
use std::fmt;
use std::sync::Arc;

/// How endpoints of a model are chosen.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Name; also the reason that its decisions carry.
    pub name: Arc<str>,
    /// Scorers with their weights.
    pub scorers: Vec<(ScorerKind, f64)>,
    /// Takes one of the scored candidates.
    pub picker: PickerKind,
    /// The reason of a decision that bounded loads moved off its owner.
    pub(super) overflow_reason: Arc<str>,
}

/// Why a profile cannot be.
#[derive(Debug, Clone, PartialEq)]
pub enum ProfileError {
    /// No scorer has this name.
    UnknownScorer(Box<str>),
    /// No picker has this name.
    UnknownPicker(Box<str>),
    /// A weight that is not a positive number.
    Weight {
        /// Scorer.
        scorer: &'static str,
        /// Its weight.
        weight: f64,
    },
    /// The scorer was named twice.
    Repeated(&'static str),
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProfileError::UnknownScorer(name) => {
                let known = ScorerKind::ALL.map(|kind| kind.name()).join(", ");
                write!(f, "unknown scorer `{name}`; known ones: {known}")
            }
            ProfileError::UnknownPicker(name) => {
                write!(f, "unknown picker `{name}`; known ones: {}", PickerKind::CONFIGURABLE.join(", "))
            }
            ProfileError::Weight { scorer, weight } => {
                write!(f, "weight {weight} of scorer `{scorer}` must be a number above 0")
            }
            ProfileError::Repeated(scorer) => write!(f, "scorer `{scorer}` is given twice"),
        }
    }
}

impl std::error::Error for ProfileError {}

impl Profile {
    /// The policies that need no configuration: `affinity` (with its load factor), `weighted`, `least_outstanding`.
    pub fn from_policy(name: &str, load_factor: f64) -> Option<Profile> {
        let picker = match name {
            "affinity" => PickerKind::Affinity { load_factor },
            "weighted" => PickerKind::Weighted,
            "least_outstanding" => PickerKind::LeastOutstanding,
            _ => return None,
        };
        Some(Self::assemble(name, Vec::new(), picker))
    }

    /// Starts a configured profile.
    pub fn builder(name: &str) -> ProfileBuilder {
        ProfileBuilder { name: name.into(), scorers: Vec::new(), picker: PickerKind::P2c }
    }

    /// Decisions depend on the request's prefix key, so it has to be rendered.
    pub fn needs_prefix(&self) -> bool {
        matches!(self.picker, PickerKind::Affinity { .. })
    }

    fn assemble(name: &str, scorers: Vec<(ScorerKind, f64)>, picker: PickerKind) -> Profile {
        Profile { name: name.into(), scorers, picker, overflow_reason: "load".into() }
    }
}

/// Puts a configured profile together, by the names that configuration uses.
#[derive(Debug, Clone)]
pub struct ProfileBuilder {
    name: Box<str>,
    scorers: Vec<(ScorerKind, f64)>,
    picker: PickerKind,
}

impl ProfileBuilder {
    /// Adds a scorer. `weight` must be above 0: a scorer that is not wanted is left out.
    pub fn scorer(mut self, name: &str, weight: f64) -> Result<Self, ProfileError> {
        let kind = ScorerKind::from_name(name).ok_or_else(|| ProfileError::UnknownScorer(name.into()))?;
        if !weight.is_finite() || weight <= 0.0 {
            return Err(ProfileError::Weight { scorer: kind.name(), weight });
        }
        if self.scorers.iter().any(|(known, _)| *known == kind) {
            return Err(ProfileError::Repeated(kind.name()));
        }
        self.scorers.push((kind, weight));
        Ok(self)
    }

    /// Sets the picker: `p2c` (also the default), `max-score` or `round-robin`.
    pub fn picker(mut self, name: &str) -> Result<Self, ProfileError> {
        self.picker = PickerKind::from_name(name).ok_or_else(|| ProfileError::UnknownPicker(name.into()))?;
        Ok(self)
    }

    /// The profile. A picker that looks at scores always has `inflight` among them, with weight 1 if it was not given:
    /// decisions made on scraped numbers alone herd.
    pub fn build(mut self) -> Profile {
        if !self.scorers.iter().any(|(kind, _)| *kind == ScorerKind::Inflight) {
            self.scorers.push((ScorerKind::Inflight, 1.0));
        }
        Profile::assemble(&self.name, self.scorers, self.picker)
    }
}
