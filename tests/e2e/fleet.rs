//! Whole fleets under load: no token lost, no engine left at work for nobody, shards that share.

use crate::client::streamed;
use crate::engine::{count, endpoints, paced, sim};
use crate::gateway::{BINARY, Gateway};
use llmgw_loadgen::checker::TokenCheck;
use llmgw_loadgen::prompts::Prompts;
use llmgw_loadgen::workload::Lengths;
use llmgw_loadgen::{DisconnectConfig, Load, RunConfig, disconnect, run};
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn thousand_streams_lose_no_token() {
    let engines = [paced(20), paced(20), paced(20)];
    let gateway = Gateway::start(&endpoints(&engines), "shards: 2\nrouter: { policy: least_outstanding }");
    let mut config = RunConfig::new(gateway.url(), "m");
    config.load = Load::Closed { concurrency: 1000 };
    config.requests = Some(2000);
    config.stream = true;
    config.check = TokenCheck::Strict;
    config.prompts =
        Prompts::Drawn { prompt: Lengths::Fixed(16), output: Lengths::Uniform(20, 60), shared_prefix: 0 };
    let report = run(&config).expect("the load runs");
    assert!(report.passed, "{:#?}", report.errors);
    assert_eq!(report.requests.ok, 2000);
    let tokens = report.tokens;
    assert_eq!((tokens.lost, tokens.repeated, tokens.foreign), (0, 0, 0));
    gateway.wait_metric("llmgw_requests_total{model=\"m\",pool=\"default\",status=\"200\"", |n| n == 2000.0);
    gateway.wait_metric("llmgw_endpoint_inflight", |n| n == 0.0);
    assert_eq!(gateway.metric("llmgw_retries_total"), 0.0);
    let (served, spread): (Vec<u64>, u64) = {
        let served: Vec<u64> = engines.iter().map(|engine| count(engine, "completed")).collect();
        let spread = served.iter().max().unwrap_or(&0) - served.iter().min().unwrap_or(&0);
        (served, spread)
    };
    assert_eq!(served.iter().sum::<u64>(), 2000);
    assert!(spread < 400, "least_outstanding spreads: {served:?}");
}

#[test]
fn client_leaves_engine_told_within_50ms() {
    let engines = [sim(), sim()];
    let gateway = Gateway::start(&endpoints(&engines), "shards: 2");
    let urls = engines.iter().map(llmgw_sim::Engine::url).collect();
    let mut config = DisconnectConfig::new(gateway.url(), urls);
    config.requests = 150;
    config.concurrency = 30;
    let report = disconnect(&config).expect("the check runs");
    assert!(report.passed, "{}", report.table());
    assert!(report.all.delay.p99_ms < 50.0, "{}", report.table());
    assert_eq!(report.phases.len(), 5, "every phase: {}", report.table());
    gateway.wait_metric("llmgw_endpoint_inflight", |n| n == 0.0);
    gateway.wait_metric("llmgw_buffered_bytes", |n| n == 0.0);
    gateway.wait_metric("llmgw_connections{side=\"client\"", |n| n == 0.0);
    for engine in &engines {
        assert_eq!((count(engine, "running"), count(engine, "waiting")), (0, 0));
    }
    assert!(gateway.metric("llmgw_cancelled_total") > 0.0);
}

#[test]
fn connections_spread_over_shards_and_counts_are_global() {
    let engine = paced(1000);
    let gateway = Gateway::start(&endpoints([&engine]), "shards: 2");
    let mut clients: Vec<_> = (0..16).map(|_| gateway.connect()).collect();
    for client in &mut clients {
        client.post("/v1/chat/completions", "", &streamed(1000));
        client.head().expect(200);
    }
    for shard in ["0", "1"] {
        let open = gateway.metric(&format!("llmgw_shard_connections{{shard=\"{shard}\""));
        assert!((6.0..=10.0).contains(&open), "shard {shard} has {open} of 16 connections");
    }
    assert_eq!(gateway.metric("llmgw_endpoint_inflight{replica=\"e0\""), 16.0);
    drop(clients);
    gateway.wait_metric("llmgw_endpoint_inflight{replica=\"e0\"", |n| n == 0.0);
}

#[test]
#[allow(clippy::disallowed_methods)] // real time, of a real process
fn demo_once() {
    let begun = Instant::now();
    let output = Command::new(BINARY).args(["demo", "--once"]).output().expect("the binary runs");
    let took = begun.elapsed();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("token:0 token:1 token:2"), "{said}");
    assert!(said.contains("pieces from sim-"), "{said}");
    assert!(said.contains("curl -N http://127.0.0.1:"), "{said}");
    assert!(took < Duration::from_secs(3), "it took {took:?}");
}
