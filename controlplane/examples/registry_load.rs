//! What a registry full of workers costs: 10,000 of them over real connections, each beating every two seconds.
//!
//! Prints the processor time of the server's threads alone, as a share of one core. Arguments: workers, connections,
//! seconds. Run it in release mode.
#![allow(clippy::print_stdout, missing_docs)]

use llmgw_controlplane::config::Config;
use llmgw_controlplane::fleet::{Fleet, Parts};
use llmgw_controlplane::publisher::{Addresses, Publisher};
use llmgw_controlplane::registry::Listener;
use llmgw_dataplane::driver::clock::monotonic_ns;
use llmgw_dataplane::shared::Shared;
use llmgw_proto::control::v1::WorkerStatus;
use llmgw_proto::control::v1::worker_registry_client::WorkerRegistryClient;
use llmgw_routing::budget::RetryBudget;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tonic::transport::Endpoint;

const SERVER: &str = "server";
const INTERVAL: Duration = Duration::from_secs(2);

fn main() -> Result<(), Box<dyn Error>> {
    let argument = |n: usize, default: u64| {
        std::env::args().nth(n).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (workers, connections, seconds) = (argument(1, 10_000), argument(2, 250).max(1), argument(3, 20));
    let server = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name(SERVER)
        .enable_all()
        .build()?;
    let config = Config::parse("load", "auth: { required: false }", [])?.config;
    let mut publisher = Publisher::new(1);
    let snapshot = publisher.build(&config, &Addresses::new(), 0)?;
    let shared =
        Arc::new(Shared::<()>::new(snapshot, Arc::clone(publisher.loads()), RetryBudget::new(0.2), 1));
    let fleet = Arc::new(Fleet::new(Parts {
        publisher,
        config,
        addresses: Addresses::new(),
        plane: Arc::clone(&shared) as _,
        clock: monotonic_ns,
        own: Arc::default(),
        changed: Arc::new(Notify::new()),
        source: None,
    }));
    let listener = server.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    let (_stop, stopped) = watch::channel(false);
    let listener =
        Listener { listener, tls: None, fleet: Arc::clone(&fleet), own: Arc::default(), clock: monotonic_ns };
    server.spawn(listener.serve(stopped.clone()));
    server.spawn(Arc::clone(&fleet).run(stopped));

    let client = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (beats, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    client.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
        for n in 0..connections {
            let channel = endpoint.connect().await?;
            for worker in (n..workers).step_by(usize::try_from(connections)?) {
                let mut client = WorkerRegistryClient::new(channel.clone());
                let (beats, failed) = (Arc::clone(&beats), Arc::clone(&failed));
                tokio::spawn(async move {
                    // Phases are spread, as those of workers are that started at different times.
                    tokio::time::sleep(INTERVAL * u32::try_from(worker).unwrap_or(0) / 10_000).await;
                    let mut ticks = tokio::time::interval(INTERVAL);
                    loop {
                        ticks.tick().await;
                        let status = WorkerStatus {
                            worker_id: format!("worker-{worker:05}"),
                            http_address: format!("10.0.{}.{}:8000", worker / 250, worker % 250 + 1),
                            role: "unified".into(),
                            model: format!("model-{}", worker % 10),
                            queue_depth: 3,
                            running: 7,
                            kv_free_blocks: 1000,
                            kv_total_blocks: 4096,
                            ..WorkerStatus::default()
                        };
                        let done = if client.heartbeat(status).await.is_ok() { &beats } else { &failed };
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        }
        let began = (cpu()?, monotonic_ns());
        while (shared.snapshot.load().endpoints.len() as u64) < workers {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let joined = (cpu()?, monotonic_ns());
        report("joining", began, joined, shared.snapshot.load().version);
        // What joining left behind is over.
        tokio::time::sleep(INTERVAL).await;
        let (from, count) = ((cpu()?, monotonic_ns()), beats.load(Ordering::Relaxed));
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let to = (cpu()?, monotonic_ns());
        report("beating", from, to, shared.snapshot.load().version);
        let beaten = beats.load(Ordering::Relaxed) - count;
        println!(
            "{} heartbeats a second over {connections} connections, {} us each, {} failed, {} registered",
            beaten / seconds,
            (to.0 - from.0) / 1000 / beaten.max(1),
            failed.load(Ordering::Relaxed),
            fleet.workers().len()
        );
        Ok::<(), Box<dyn Error>>(())
    })
}

#[allow(clippy::cast_precision_loss)] // for people
fn report(what: &str, from: (u64, u64), to: (u64, u64), version: u64) {
    let (used, passed) = ((to.0 - from.0) as f64, (to.1 - from.1) as f64);
    println!(
        "{what}: {:.2} s, {:.1}% of a core, snapshot {version}",
        passed / 1e9,
        100.0 * used / passed.max(1.0)
    );
}

/// Processor time of the server's threads (blocking ones included), in nanoseconds.
fn cpu() -> Result<u64, Box<dyn Error>> {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        let Ok(name) = std::fs::read_to_string(path.join("comm")) else { continue };
        if name.trim() == SERVER {
            // The first number of schedstat is time on a processor, in nanoseconds.
            let stat = std::fs::read_to_string(path.join("schedstat"))?;
            sum += stat.split_whitespace().next().unwrap_or("0").parse::<u64>()?;
        }
    }
    Ok(sum)
}
