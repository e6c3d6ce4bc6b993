//! Engines named by host name: their addresses are looked up again from time to time, and an address that the name
//! server no longer gives is replaced.

use crate::fleet::Fleet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

#[cfg(test)]
mod tests;

/// Between two look-ups.
const INTERVAL: Duration = Duration::from_secs(30);

/// Looks up every [`INTERVAL`] until `stop`.
pub async fn run(fleet: Arc<Fleet>, mut stop: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + INTERVAL, INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        match fleet.look_up().await {
            Ok(false) => {}
            Ok(true) => tracing::info!("addresses of engines changed"),
            // The last known addresses stay.
            Err(error) => tracing::warn!("{error}"),
        }
    }
}
