//! A worker killed under load: what clients notice of it, when the registry forgets it, and when it is back.

use crate::fleet;
use crate::proc::{self, Guard, Outcome, TempDir};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Workers; the second is killed.
const WORKERS: usize = 3;
const KILLED: usize = 1;
/// Requests a second, all of them streams.
const RATE: &str = "1000";
/// Of load, in all.
const LOAD: &str = "25s";
/// Load before the kill.
const AHEAD: Duration = Duration::from_secs(4);
/// `router.heartbeat_interval` times `router.heartbeat_miss_limit`, as by default.
const LIFETIME_MS: u64 = 6_000;
/// What the clock of a busy machine and our looks may add.
const LATE_MS: u64 = 500;
/// From its first new heartbeat to its first request.
const BACK_MS: u64 = 3_000;
/// For anything that is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

struct Setup {
    llmgw: PathBuf,
    admin: SocketAddr,
    registry: SocketAddr,
    health: SocketAddr,
    engines: Vec<SocketAddr>,
    logs: TempDir,
}

/// The run; an error names what did not hold.
pub fn run() -> Outcome {
    let binaries = fleet::build()?;
    let addrs = fleet::free_addrs(4 + WORKERS)?;
    let logs = TempDir::new("kill")?;
    let config = logs.path().join("server.yaml");
    let yaml = format!(
        "listen: \"{}\"\nadmin_listen: \"{}\"\nhealth_listen: \"{}\"\nregistry_listen: \"{}\"\n\
         auth: {{ required: false }}\nlog: {{ level: warn, access: false }}\n\
         router: {{ policy: least_outstanding }}\n",
        addrs[0], addrs[1], addrs[2], addrs[3]
    );
    std::fs::write(&config, yaml).map_err(|e| format!("cannot write {}: {e}", config.display()))?;
    let setup = Setup {
        llmgw: binaries.llmgw,
        admin: addrs[1],
        health: addrs[2],
        registry: addrs[3],
        engines: addrs[4..].to_vec(),
        logs,
    };
    let mut command = Command::new(&setup.llmgw);
    command.arg("server").arg("--config").arg(&config);
    let log = setup.logs.path().join("gateway.log");
    let mut gateway = Guard::start("gateway", &mut command, &log)?;
    fleet::ready(setup.health, "/healthz", &mut gateway, &log)?;
    let mut workers = (0..WORKERS).map(|n| setup.worker(n)).collect::<Outcome<Vec<_>>>()?;
    setup.until("all workers are routable", |list| {
        (list.len() == WORKERS && list.iter().all(|w| w["routable"] == true)).then_some(())
    })?;

    let report = setup.logs.path().join("load.json");
    let url = format!("http://{}", addrs[0]);
    let mut load = Command::new(&binaries.loadgen);
    load.args(["run", "--url", &url, "--model", fleet::MODEL, "--stream", "--check", "strict"]);
    load.args(["--rate", RATE, "--arrivals", "poisson", "--duration", LOAD, "--no-progress"]);
    load.args(["--prompt-tokens", "16", "--output-tokens", "uniform:4:24", "--max-errors", "1000000"]);
    load.arg("--json").arg(&report);
    println!("$ {}", proc::spell(&load));
    let mut load = Guard::start("loadgen", &mut load, &setup.logs.path().join("load.log"))?;
    std::thread::sleep(AHEAD);
    // SIGKILL, in the middle of streams.
    setup.until("the worker has requests in flight", |list| {
        of(list, KILLED)?["in_flight"].as_u64().filter(|n| *n > 1)
    })?;
    drop(workers.remove(KILLED));

    let (last, gone) = setup.until_gone()?;
    println!("gone {gone} ms after its last heartbeat");
    workers.push(setup.worker(KILLED)?);
    let first = setup.until("it is registered again", |list| beat(of(list, KILLED)?))?;
    let served = setup.until("it has requests again", |list| {
        of(list, KILLED)?["in_flight"].as_u64().filter(|n| *n > 0).map(|_| unix_ms())
    })?;
    let back = served.saturating_sub(first);
    println!("has requests {back} ms after its first new heartbeat");
    load.wait()?;
    let metrics = fleet::get(setup.health, "/metrics").ok_or("no /metrics")?;
    let text = std::fs::read_to_string(&report).map_err(|e| format!("no report of the load: {e}"))?;
    let report: Value = serde_json::from_str(&text).map_err(|e| format!("the report of the load: {e}"))?;
    let seen = Seen::of(&report, &metrics);
    println!("{seen:?}");
    if let Some(status) = gateway.poll()? {
        return Err(format!("the gateway ended with {status}"));
    }
    drop(workers);
    let in_time = (LIFETIME_MS..=LIFETIME_MS + LATE_MS).contains(&gone) && last < first;
    if !in_time || back > BACK_MS {
        return Err("the registry was not in time".to_owned());
    }
    seen.judge()
}

impl Setup {
    fn worker(&self, n: usize) -> Outcome<Guard> {
        let address = self.engines[n];
        let mut command = Command::new(&self.llmgw);
        command.args(["sim-engine", "--model", fleet::MODEL, "--ttft", "5ms", "--itl", "5ms"]);
        command.args(["--listen", &address.to_string(), "--registry", &self.registry.to_string()]);
        command.args(["--worker-id", &id(n)]);
        let log = self.logs.path().join(format!("{}.log", id(n)));
        let mut guard = Guard::start("worker", &mut command, &log)?;
        fleet::ready(address, "/health", &mut guard, &log)?;
        Ok(guard)
    }

    /// Looks at the workers until `wanted` finds something.
    fn until<T>(&self, what: &str, wanted: impl Fn(&[Value]) -> Option<T>) -> Outcome<T> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(found) = wanted(&workers(self.admin)?) {
                return Ok(found);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(format!("waited {} s until {what}", PATIENCE.as_secs()))
    }

    /// The worker's last heartbeat, and how long after it the registry had forgotten it.
    fn until_gone(&self) -> Outcome<(u64, u64)> {
        let last = std::cell::Cell::new(0);
        let at = self.until("the killed worker is gone", |list| {
            let Some(worker) = of(list, KILLED) else { return Some(unix_ms()) };
            last.set(beat(worker).unwrap_or(0).max(last.get()));
            None
        })?;
        Ok((last.get(), at.saturating_sub(last.get())))
    }
}

/// What clients and the gateway counted.
#[derive(Debug)]
struct Seen {
    ok: u64,
    failed_checks: u64,
    errors: BTreeMap<String, u64>,
    broken_streams: u64,
    retries: u64,
}

impl Seen {
    fn of(report: &Value, metrics: &str) -> Seen {
        let sum = |name: &str| {
            let lines = metrics.lines().filter(|line| line.starts_with(name));
            lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
        };
        let errors = report["errors"].as_object().into_iter().flatten();
        Seen {
            ok: report["requests"]["ok"].as_u64().unwrap_or(0),
            failed_checks: report["failed_checks"].as_u64().unwrap_or(u64::MAX),
            errors: errors.map(|(name, n)| (name.clone(), n.as_u64().unwrap_or(0))).collect(),
            broken_streams: sum("llmgw_broken_streams_total"),
            retries: sum("llmgw_retries_total"),
        }
    }

    /// Who had no byte yet notices nothing; a stream that broke ends with the error event, and with nothing else.
    fn judge(&self) -> Outcome {
        if self.ok < 10_000 || self.failed_checks > 0 {
            return Err("too few requests, or tokens that are not what an engine sent".to_owned());
        }
        if self.errors.keys().any(|kind| kind != "error_event") {
            return Err("a client saw another failure than an error event in a stream".to_owned());
        }
        if self.errors.get("error_event").copied().unwrap_or(0) != self.broken_streams {
            return Err("clients and the gateway count different broken streams".to_owned());
        }
        if self.broken_streams == 0 || self.retries == 0 {
            return Err(
                "the kill broke no stream, or no request had to go elsewhere: nothing is shown".to_owned()
            );
        }
        Ok(())
    }
}

fn id(n: usize) -> String {
    format!("w{n}")
}

fn of(list: &[Value], n: usize) -> Option<&Value> {
    list.iter().find(|worker| worker["worker_id"] == id(n))
}

fn beat(worker: &Value) -> Option<u64> {
    worker["last_heartbeat_unix_ms"].as_u64()
}

fn workers(admin: SocketAddr) -> Outcome<Vec<Value>> {
    let answer = fleet::get(admin, "/admin/v1/workers").ok_or("the admin API does not answer")?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let json: Value =
        serde_json::from_str(body).map_err(|e| format!("the list of workers: {e}: {answer}"))?;
    Ok(json["data"].as_array().cloned().unwrap_or_default())
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_error_events_that_the_gateway_counted_too_are_taken() {
        let judge = |errors: Value, failed_checks: u64, broken: u64| {
            let report =
                json!({ "requests": { "ok": 20_000 }, "failed_checks": failed_checks, "errors": errors });
            let metrics =
                format!("llmgw_broken_streams_total {broken}\nllmgw_retries_total{{kind=\"sent\"}} 1\n");
            Seen::of(&report, &metrics).judge().is_ok()
        };
        assert!(judge(json!({ "error_event": 3 }), 0, 3));
        assert!(!judge(json!({ "error_event": 3 }), 1, 3), "tokens are checked");
        assert!(!judge(json!({ "error_event": 3, "status_503": 1 }), 0, 3));
        assert!(!judge(json!({ "error_event": 2 }), 0, 3), "a stream ended without its event");
        assert!(!judge(json!({}), 0, 0), "nothing was shown");
    }
}
