//! Reading the configuration again.

use super::{Fleet, ids, lifetime, lock};
use crate::config::{Config, ConfigError, DriverChoice, Loaded};
use crate::logs::{self, LogHandle};
use crate::publisher::{self, PublishError};
use crate::runtime::variables;
use llmgw_dataplane::driver::clock::wall_ns;
use llmgw_routing::SECOND;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where the configuration comes from, and what of it lives outside snapshots.
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// The file's driver: a flag may stand over it, and is no change.
    pub driver: DriverChoice,
    /// The log, whose level may change.
    pub log: LogHandle,
    /// Whether access lines are written.
    pub access_on: Arc<AtomicBool>,
}

/// Why a reload was refused; the running configuration stays.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum ReloadError {
    /// There is no file to read.
    NoFile,
    /// The file is wrong.
    Config(ConfigError),
    /// It cannot be published.
    Publish(PublishError),
}

impl fmt::Display for ReloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReloadError::NoFile => f.write_str("this process was not started from a file"),
            ReloadError::Config(error) => error.fmt(f),
            ReloadError::Publish(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReloadError {}

impl Fleet {
    /// Reads the configuration again and takes it whole, or logs why not and changes nothing. Returns the number of the
    /// new snapshot.
    pub async fn reload(&self) -> Result<u64, ReloadError> {
        // The environment's iterator cannot move between threads, as a task does.
        let vars: Vec<_> = variables().collect();
        let result = self.try_reload(vars.into_iter()).await;
        let own = &self.own;
        own.last_reload_refused.store(result.is_err(), Ordering::Relaxed);
        let count = if result.is_ok() { &own.reloads } else { &own.reloads_refused };
        count.fetch_add(1, Ordering::Relaxed);
        if result.is_ok() {
            own.configured_at.store(wall_ns() / SECOND, Ordering::Relaxed);
        }
        match &result {
            Ok(version) => tracing::info!(version, "configuration reloaded"),
            Err(error) => tracing::error!("reload refused, the running configuration stays: {error}"),
        }
        result
    }

    /// Reloads with these environment variables over the file.
    pub async fn try_reload(&self, vars: impl Iterator<Item = (String, String)>) -> Result<u64, ReloadError> {
        let source = self.source.as_ref().ok_or(ReloadError::NoFile)?;
        // One at a time: of two, the later reads what the earlier has taken.
        let _turn = self.reloading.lock().await;
        let loaded = Config::load(&source.path, vars).map_err(ReloadError::Config)?;
        let Loaded { mut config, warnings } = loaded;
        let running = Config::clone(&self.config());
        let driver = running.driver;
        let fixed = Config { driver: source.driver, ..running }.fixed_keys_changed(&config);
        if !fixed.is_empty() {
            return Err(ReloadError::Publish(PublishError::Fixed(fixed)));
        }
        config.driver = driver;
        let addresses = publisher::resolve(&config).await.map_err(ReloadError::Publish)?;
        let mut state = lock(&self.state);
        let old_routes = Arc::clone(&state.routes);
        let rerouted = !state.routes_set && *config.routes != *old_routes;
        if rerouted {
            state.routes = config.routes.clone().into();
        }
        let version = match self.publish_as(&mut state, &config, &addresses) {
            Ok(version) => version,
            Err(error) => {
                state.routes = old_routes;
                return Err(ReloadError::Publish(error));
            }
        };
        if rerouted {
            self.epoch.fetch_add(1, Ordering::AcqRel);
        }
        {
            let mut members = lock(&self.members);
            members.reserve(ids(&config));
            members.lifetime = lifetime(&config);
        }
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        source.log.set_level(config.log.level);
        source.access_on.store(logs::access_on(&config.log), Ordering::Relaxed);
        (state.config, state.addresses) = (Arc::new(config), addresses);
        drop(state);
        self.due.notify_one();
        Ok(version)
    }
}
