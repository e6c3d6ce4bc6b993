//! Engines that announce themselves: routed when they do, gone when they fall silent, whatever they leave behind.

use crate::PATIENCE;
use crate::client::streamed;
use crate::engine::{count, sim};
use crate::gateway::{BINARY, Gateway, endpoint};
use llmgw_loadgen::checker::TokenCheck;
use llmgw_loadgen::prompts::Prompts;
use llmgw_loadgen::schedule::Arrivals;
use llmgw_loadgen::workload::Lengths;
use llmgw_loadgen::{Load, RunConfig, run};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Heartbeats ten times as fast as by default, so that nobody waits for seconds.
const FAST: &str =
    "router: { policy: least_outstanding, heartbeat_interval: 200ms, heartbeat_miss_limit: 3 }";
const LIFETIME: Duration = Duration::from_millis(600);

/// A simulated engine as a process of its own, which announces itself.
struct Worker {
    child: Child,
    address: String,
}

impl Worker {
    fn start(registry: SocketAddr, id: &str, listen: &str) -> Worker {
        let mut command = Command::new(BINARY);
        command.args(["sim-engine", "--listen", listen, "--model", "m", "--ttft", "1ms", "--itl", "5ms"]);
        command.args(["--registry", &registry.to_string(), "--worker-id", id]);
        command.args(["--heartbeat-interval", "200ms"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the built binary starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("its standard output");
        BufReader::new(stdout).read_line(&mut line).expect("its address");
        let address = line.trim().trim_start_matches("listening on http://").to_owned();
        Worker { child, address }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process takes signals");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn workers(gateway: &Gateway) -> Vec<Worker> {
    let workers = (0..3).map(|i| Worker::start(gateway.registry, &format!("w{i}"), "127.0.0.1:0")).collect();
    gateway.wait_metric("llmgw_workers", |n| n == 3.0);
    gateway.wait_metric("llmgw_replicas{model=\"m\",state=\"ready\"}", |n| n == 3.0);
    workers
}

#[test]
fn a_worker_that_announces_itself_is_routed_until_it_leaves() {
    let gateway = Gateway::start(&[], FAST);
    gateway.wait_ready(503);
    let answer = gateway.chat(&streamed(2)).expect(404);
    assert_eq!(answer.error_code(), "model_not_found");
    let worker = Worker::start(gateway.registry, "w0", "127.0.0.1:0");
    gateway.wait_ready(200);
    let answer = gateway.chat(&streamed(2)).expect(200);
    assert_eq!(answer.header("x-llmgw-replica").as_deref(), Some("w0"));
    assert!(gateway.metric("llmgw_heartbeats_total{result=\"taken\"}") >= 1.0);
    // SIGTERM: it says so, and gets nothing more, though it would still be counted as alive.
    worker.signal(Signal::TERM);
    gateway.wait_log("worker drains");
    let answer = gateway.chat(&streamed(2)).expect(503);
    assert_eq!(answer.error_code(), "no_capacity");
    gateway.wait_metric("llmgw_workers", |n| n == 0.0);
    gateway.wait_ready(503);
    assert_eq!(gateway.metric("llmgw_endpoint_inflight{replica=\"w0\"}"), 0.0);
    assert!(!gateway.page("/metrics").text().contains("w0"), "its series go with it");
    gateway.chat(&streamed(2)).expect(503);
}

/// A reload gives an endpoint the id of a worker: the endpoint has it, the worker is refused, and joins again once the
/// id is free.
#[test]
fn a_reload_takes_a_workers_id() {
    let gateway = Gateway::start(&[], FAST);
    let _worker = Worker::start(gateway.registry, "w0", "127.0.0.1:0");
    gateway.wait_ready(200);
    let other = sim();
    gateway.reload(&[endpoint("w0", &other.url())], FAST);
    for _ in 0..3 {
        let answer = gateway.chat(&streamed(2)).expect(200);
        assert_eq!(answer.header("x-llmgw-replica").as_deref(), Some("w0"));
    }
    assert_eq!(count(&other, "completed"), 3);
    gateway.wait_metric("llmgw_workers", |n| n == 0.0);
    gateway.wait_log("`w0` is the id of an endpoint in the configuration");
    gateway.reload(&[], FAST);
    gateway.wait_metric("llmgw_workers", |n| n == 1.0);
    gateway.chat(&streamed(2)).expect(200);
    assert_eq!(count(&other, "completed"), 3, "it is the worker's again");
}

#[allow(clippy::disallowed_methods)] // real time, against real processes
#[test]
fn a_killed_worker_costs_no_request_that_had_no_byte_yet() {
    let gateway = Gateway::start(&[], FAST);
    let mut fleet = workers(&gateway);
    let mut config = RunConfig::new(gateway.url(), "m");
    config.load = Load::Open { rate: 300.0, arrivals: Arrivals::Poisson };
    config.duration = Some(Duration::from_secs(5));
    config.stream = true;
    config.check = TokenCheck::Strict;
    config.max_errors = u64::MAX;
    config.prompts =
        Prompts::Drawn { prompt: Lengths::Fixed(16), output: Lengths::Uniform(5, 40), shared_prefix: 0 };
    let load = std::thread::spawn(move || run(&config).expect("the load runs"));
    gateway.wait_metric("llmgw_requests_total{model=\"m\"", |n| n > 300.0);
    let killed = fleet.remove(1);
    let address = killed.address.clone();
    killed.signal(Signal::KILL);
    let silent = Instant::now();
    gateway.wait_metric("llmgw_workers", |n| n == 2.0);
    let gone = silent.elapsed();
    // It may have beaten up to an interval before.
    assert!(gone + Duration::from_millis(250) > LIFETIME, "evicted too early: {gone:?}");
    drop(killed);
    // The same engine again, at the same place.
    let again = Worker::start(gateway.registry, "w1", &address);
    let started = Instant::now();
    gateway.wait_metric("llmgw_endpoint_health{replica=\"w1\",state=\"ready\"}", |n| n == 1.0);
    gateway.wait_metric("llmgw_endpoint_inflight{replica=\"w1\"}", |n| n > 0.0);
    assert!(started.elapsed() < Duration::from_secs(3), "back after {:?}", started.elapsed());
    let report = load.join().expect("the load ends");
    fleet.push(again);
    assert!(report.requests.ok > 1000 && report.failed_checks == 0, "{:?}", report.errors);
    // A stream that was cut ends with the error event, and nothing else ever fails.
    assert!(report.errors.keys().all(|kind| kind == "error_event"), "{:?}", report.errors);
    assert!(gateway.metric("llmgw_retries_total") > 0.0, "somebody had to go elsewhere");
    assert!(silent.elapsed() < PATIENCE);
}
