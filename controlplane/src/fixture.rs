//! A data plane without shards, for tests.

use crate::config::Config;
use crate::fleet::{Fleet, Parts};
use crate::publisher::{Addresses, Publisher};
use llmgw_dataplane::driver::Bell;
use llmgw_dataplane::shared::Shared;
use llmgw_routing::budget::RetryBudget;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::Notify;

/// A shard's bell that nobody hears.
struct Mute;
impl Bell for Mute {
    fn ring(&self) {}
}

/// A configuration without keys.
pub fn config(rest: &str) -> Config {
    let text = format!("auth: {{ required: false }}\n{rest}");
    Config::parse("s.yaml", &text, []).unwrap().config
}

/// Addresses for endpoints whose hosts are addresses; names become `10.9.9.9`.
pub fn addresses(config: &Config) -> Addresses {
    let pair = |e: &crate::config::EndpointConfig| {
        let ip = e.url.host.parse().unwrap_or([10, 9, 9, 9].into());
        ((e.url.host.clone(), e.url.port), vec![SocketAddr::new(ip, e.url.port)])
    };
    config.endpoints.iter().map(pair).collect()
}

/// The data plane of a configuration, with one shard; `started` says whether it runs.
pub fn plane(config: &Config, started: bool) -> Arc<Shared<()>> {
    let mut publisher = Publisher::new(usize::MAX);
    let snapshot = publisher.build(config, &addresses(config), 77).unwrap();
    let shared = Shared::new(snapshot, Arc::clone(publisher.loads()), RetryBudget::new(0.2), 1);
    if started {
        assert!(shared.seats[0].bell.set(Arc::new(Mute)).is_ok());
    }
    Arc::new(shared)
}

/// A fleet of a configuration, and where it publishes. Its clock stands still.
pub fn fleet(config: Config) -> (Arc<Fleet>, Arc<Shared<()>>) {
    let mut publisher = Publisher::new(usize::MAX);
    let addresses = addresses(&config);
    let snapshot = publisher.build(&config, &addresses, 77).unwrap();
    let shared = Arc::new(Shared::new(snapshot, Arc::clone(publisher.loads()), RetryBudget::new(0.2), 1));
    let parts = Parts {
        publisher,
        config,
        addresses,
        plane: Arc::clone(&shared) as _,
        clock: || 0,
        own: Arc::default(),
        changed: Arc::new(Notify::new()),
        source: None,
    };
    (Arc::new(Fleet::new(parts)), shared)
}
