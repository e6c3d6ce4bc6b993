//! Whether the limits fit the process.

use super::Config;

/// Descriptors kept for listeners, rings, logs, probes and the control plane's own connections.
const RESERVE: u64 = 256;

/// What of `limits` the process can really hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectiveLimits {
    /// `limits.max_connections` (a shard), lowered if it does not fit.
    pub max_connections: u64,
    /// Says that, and why; `None` when everything fits.
    pub message: Option<String>,
}

impl Config {
    /// Compares `limits.max_connections` of `shards` shards with RLIMIT_NOFILE's hard limit. A client connection may
    /// need an engine connection beside it, so each counts twice.
    pub fn effective_limits(&self, nofile_hard: u64, shards: usize) -> EffectiveLimits {
        let shards = u64::try_from(shards).unwrap_or(u64::MAX).max(1);
        let asked = self.limits.max_connections;
        let wanted = asked.saturating_mul(shards).saturating_mul(2).saturating_add(RESERVE);
        if wanted <= nofile_hard {
            return EffectiveLimits { max_connections: asked, message: None };
        }
        let fits = (nofile_hard.saturating_sub(RESERVE) / 2 / shards).max(1);
        let message = format!(
            "limits.max_connections {asked} on {shards} shards may need {wanted} descriptors, but the hard limit of \
             open files is {nofile_hard}: {fits} connections a shard are allowed. Raise the limit (ulimit -Hn, \
             LimitNOFILE=) or lower limits.max_connections"
        );
        EffectiveLimits { max_connections: fits.min(asked), message: Some(message) }
    }
}
