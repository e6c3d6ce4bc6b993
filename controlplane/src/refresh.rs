//! Engines named by host name: their addresses are looked up again from time to time, and an address that the name
//! server no longer gives is replaced.

use crate::config::Config;
use crate::plane::DataPlane;
use crate::publisher::{self, PublishError, Publisher};
use llmgw_dataplane::driver::clock::wall_ns;
use llmgw_routing::SECOND;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::MissedTickBehavior;

#[cfg(test)]
mod tests;

/// Between two look-ups.
const INTERVAL: Duration = Duration::from_secs(30);

/// What is published and by whom; whoever publishes holds the lock while it does.
pub struct World {
    /// Builds snapshots.
    pub publisher: Publisher,
    /// The configuration of the last one.
    pub config: Config,
}

/// Locks it; never held across an await.
pub fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks up every [`INTERVAL`] until `stop`; `changed` is told of a new snapshot.
pub async fn run(
    world: Arc<Mutex<World>>,
    plane: Arc<dyn DataPlane>,
    changed: Arc<Notify>,
    mut stop: watch::Receiver<bool>,
) {
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + INTERVAL, INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        match pass(&world, &*plane).await {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!("addresses of engines changed");
                changed.notify_one();
            }
            // The last known addresses stay.
            Err(error) => tracing::warn!("{error}"),
        }
    }
}

/// One look-up; `true` if something changed and was published.
pub async fn pass(world: &Mutex<World>, plane: &dyn DataPlane) -> Result<bool, PublishError> {
    let (config, version) = {
        let world = lock(world);
        (world.config.clone(), world.publisher.version())
    };
    if config.endpoints.iter().all(|endpoint| endpoint.url.host.parse::<IpAddr>().is_ok()) {
        return Ok(false);
    }
    let addresses = publisher::resolve(&config).await?;
    let mut world = lock(world);
    // A reload in between has looked up for itself.
    if world.publisher.version() != version || !world.publisher.moved(&addresses) {
        return Ok(false);
    }
    let snapshot = world.publisher.build(&config, &addresses, wall_ns() / SECOND)?;
    plane.publish(snapshot);
    Ok(true)
}
