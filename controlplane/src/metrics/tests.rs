use super::{OwnStats, SHARD_FAMILIES, render};
use crate::fixture::{addresses, config, plane};
use crate::plane::DataPlane;
use crate::process::Readings;
use crate::publisher::Publisher;
use llmgw_dataplane::metrics::ShardStats;
use llmgw_dataplane::record::Outcome;
use llmgw_dataplane::shared::Shared;
use llmgw_routing::budget::RetryBudget;
use std::collections::HashSet;
use std::sync::Arc;

const FLEET: &str = "endpoints: [{ id: 'e\"1', model: 'm\\x', url: 'http://10.0.0.1:1', pool: p }, \
                     { id: e2, model: other, url: 'http://10.0.0.2:1' }]";

fn text(plane: &dyn DataPlane, now: u64) -> String {
    render(plane, &OwnStats::default(), &Readings::default(), now)
}

#[track_caller]
fn has(text: &str, line: &str) {
    assert!(text.lines().any(|l| l == line), "no line {line}\nin\n{text}");
}

#[test]
fn requests_tokens_and_durations_are_summed_over_shards() {
    let config = config(FLEET);
    let mut publisher = Publisher::new(1);
    let snapshot = publisher.build(&config, &addresses(&config), 0).unwrap();
    let series = snapshot.endpoints[0].series;
    let shared = Shared::<()>::new(snapshot, Arc::clone(publisher.loads()), RetryBudget::new(0.2), 2);
    for shard in 0..2 {
        let stats = shared.series.get(series, shard);
        stats.count(200, Outcome::Completed);
        stats.count(418, Outcome::EngineError);
        stats.duration.record(400_000);
        stats.ttft.record(200_000);
        stats.prompt_tokens.add(10);
        stats.completion_tokens.add(3);
        stats.cached_tokens.add(4);
        shared.seats[shard].stats.retries_never_sent.add(1);
        shared.seats[shard].stats.connections.set(5);
    }
    shared.series.get(0, 0).count(404, Outcome::Rejected);
    let text = text(&shared, 0);
    for line in [
        r#"llmgw_requests_total{model="m\\x",pool="p",status="200"} 2"#,
        r#"llmgw_requests_total{model="m\\x",pool="p",status="other"} 2"#,
        r#"llmgw_requests_total{model="",pool="",status="404"} 1"#,
        r#"llmgw_request_outcomes_total{model="m\\x",pool="p",outcome="engine_error"} 2"#,
        r#"llmgw_request_duration_seconds_bucket{model="m\\x",pool="p",le="0.00025"} 0"#,
        r#"llmgw_request_duration_seconds_bucket{model="m\\x",pool="p",le="0.0005"} 2"#,
        r#"llmgw_request_duration_seconds_bucket{model="m\\x",pool="p",le="+Inf"} 2"#,
        r#"llmgw_request_duration_seconds_sum{model="m\\x",pool="p"} 0.0008"#,
        r#"llmgw_ttft_seconds_count{model="m\\x",pool="p"} 2"#,
        r#"llmgw_tokens_total{model="m\\x",direction="prompt"} 20"#,
        r#"llmgw_tokens_total{model="m\\x",direction="completion"} 6"#,
        r#"llmgw_cached_tokens_total{model="m\\x"} 8"#,
        r#"llmgw_retries_total{kind="never_sent"} 2"#,
        r#"llmgw_connections{side="client"} 10"#,
        r#"llmgw_shard_connections{shard="1"} 5"#,
        "llmgw_snapshot_version 1",
        r#"llmgw_config_reloads_total{result="refused"} 0"#,
    ] {
        has(&text, line);
    }
}

#[test]
fn endpoints_show_their_load_and_health() {
    let plane = plane(&config(FLEET), true);
    let slot = plane.snapshot.load().endpoints[0].slot.index();
    plane.loads.acquire(slot);
    plane.loads.mark_failed(slot, 3_500_000_000);
    let text = text(&*plane, 1_000_000_000);
    for line in [
        r#"llmgw_endpoint_inflight{replica="e\"1"} 1"#,
        r#"llmgw_endpoint_inflight{replica="e2"} 0"#,
        r#"llmgw_endpoint_health{replica="e\"1",state="failed"} 1"#,
        r#"llmgw_endpoint_health{replica="e\"1",state="ready"} 0"#,
        r#"llmgw_endpoint_health{replica="e2",state="ready"} 1"#,
        r#"llmgw_endpoint_cooldown_seconds{replica="e\"1"} 2.5"#,
        r#"llmgw_replicas{model="m\\x",state="failed"} 1"#,
        r#"llmgw_replicas{model="other",state="ready"} 1"#,
    ] {
        has(&text, line);
    }
}

#[test]
fn series_of_removed_endpoints_go() {
    let mut publisher = Publisher::new(1);
    let before = config(FLEET);
    let snapshot = publisher.build(&before, &addresses(&before), 0).unwrap();
    let shared = Shared::<()>::new(snapshot, Arc::clone(publisher.loads()), RetryBudget::new(0.2), 1);
    let series = shared.snapshot.load().endpoints[0].series;
    shared.series.get(series, 0).count(200, Outcome::Completed);
    assert!(text(&shared, 0).contains(r#"model="m\\x""#));
    let after = config("endpoints: [{ id: e2, model: other, url: 'http://10.0.0.2:1' }]");
    DataPlane::publish(&shared, publisher.build(&after, &addresses(&after), 0).unwrap());
    let text = text(&shared, 0);
    assert!(!text.contains(r#"model="m\\x""#) && !text.contains(r#"e\"1"#), "{text}");
    assert!(shared.series.collect(|_| true).iter().all(|(id, ..)| *id != series), "and their memory");
}

#[test]
fn every_family_is_declared_once_before_its_samples() {
    let text = text(&*plane(&config(FLEET), true), 0);
    let mut seen = HashSet::new();
    let mut current = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            current = rest.split(' ').next().unwrap();
            assert!(seen.insert(current), "{current} twice");
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            assert!(name.starts_with(current), "{name} under {current}");
        }
    }
}

#[test]
fn every_shard_counter_has_its_place_and_only_one() {
    let placed: Vec<&str> =
        SHARD_FAMILIES.iter().flat_map(|f| f.3.iter().map(|(counter, _)| *counter)).collect();
    let counters: Vec<&str> = ShardStats::default().each().iter().map(|(name, _)| *name).collect();
    let unknown: Vec<_> = placed.iter().filter(|name| !counters.contains(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?} are no counters");
    assert_eq!(placed.iter().collect::<HashSet<_>>().len(), placed.len());
}
