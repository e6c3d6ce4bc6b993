//! What the control plane sees of the data plane, whatever its driver.

use llmgw_dataplane::metrics::{SeriesRegistry, ShardStats};
use llmgw_dataplane::shared::{Shared, Stop};
use llmgw_routing::load::LoadTable;
use llmgw_routing::snapshot::Snapshot;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The data plane without its driver's type.
pub trait DataPlane: Send + Sync + 'static {
    /// The published snapshot.
    fn snapshot(&self) -> Arc<Snapshot>;
    /// Publishes a snapshot, and what of it lives outside: the retry budget's ratio.
    fn publish(&self, snapshot: Arc<Snapshot>);
    /// In-flight counts and cooldowns.
    fn loads(&self) -> &LoadTable;
    /// (model, pool) metrics.
    fn series(&self) -> &SeriesRegistry;
    /// Shards there are to be.
    fn shards(&self) -> usize;
    /// Whether a shard has started.
    fn started(&self, shard: usize) -> bool;
    /// A shard's counters.
    fn stats(&self, shard: usize) -> &ShardStats;
    /// Request body bytes reserved.
    fn buffered(&self) -> usize;
    /// How far a shutdown has come.
    fn stopping(&self) -> Stop;
    /// Frees snapshots that no shard holds any more.
    fn reap(&self);
}

impl<S: Send + 'static> DataPlane for Shared<S> {
    fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }
    fn publish(&self, snapshot: Arc<Snapshot>) {
        self.budget.set_ratio(snapshot.settings.retry_budget);
        Shared::publish(self, snapshot);
    }
    fn loads(&self) -> &LoadTable {
        &self.loads
    }
    fn series(&self) -> &SeriesRegistry {
        &self.series
    }
    fn shards(&self) -> usize {
        self.seats.len()
    }
    fn started(&self, shard: usize) -> bool {
        self.seats.get(shard).is_some_and(|seat| seat.bell.get().is_some())
    }
    fn stats(&self, shard: usize) -> &ShardStats {
        &self.seats[shard].stats
    }
    fn buffered(&self) -> usize {
        self.buffered.load(Ordering::Relaxed)
    }
    fn stopping(&self) -> Stop {
        Shared::stopping(self)
    }
    fn reap(&self) {
        Shared::reap(self);
    }
}
