//! A gateway with simulated engines behind it, from the release binaries, on free loopback ports; for measurements.
//!
//! Every process is in a guard: it ends when the fleet is dropped.

use crate::proc::{self, Guard, Outcome, TempDir, cargo};
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The model that the engines serve.
pub const MODEL: &str = "sim";

/// How long a process may take until it answers.
const READY_PATIENCE: Duration = Duration::from_secs(15);

/// The release binaries.
pub struct Binaries {
    /// The gateway and the simulated engine.
    pub llmgw: PathBuf,
    /// The load generator.
    pub loadgen: PathBuf,
}

/// Builds the release binaries.
pub fn build() -> Outcome<Binaries> {
    proc::run(cargo().args(["build", "--release", "-p", "llmgw", "-p", "llmgw-loadgen", "--bins"]))?;
    let folder = proc::target_dir().join("release");
    Ok(Binaries { llmgw: folder.join("llmgw"), loadgen: folder.join("loadgen") })
}

/// What to start.
pub struct Plan<'a> {
    /// How many engines.
    pub engines: usize,
    /// Further flags of `llmgw sim-engine`.
    pub engine_args: &'a [&'a str],
    /// Further top-level keys of `server.yaml`.
    pub config: &'a str,
}

/// A running gateway and its engines.
pub struct Fleet {
    /// `http://host:port` of each engine.
    pub engine_urls: Vec<String>,
    /// Where the gateway serves clients.
    pub gateway_addr: SocketAddr,
    /// The gateway's process.
    pub gateway: Guard,
    engines: Vec<Guard>,
    logs: TempDir,
}

impl Fleet {
    /// Starts engines, then the gateway, and waits until each is ready.
    pub fn start(binaries: &Binaries, plan: &Plan<'_>) -> Outcome<Self> {
        let logs = TempDir::new("fleet")?;
        let ports = free_addrs(plan.engines + 2)?;
        let (own, engine_addrs) = ports.split_at(2);
        let mut engines = Vec::new();
        for (n, addr) in engine_addrs.iter().enumerate() {
            let mut command = Command::new(&binaries.llmgw);
            command
                .args(["sim-engine", "--listen", &addr.to_string(), "--model", MODEL])
                .args(plan.engine_args);
            let log = logs.path().join(format!("engine-{n}.log"));
            let mut guard = Guard::start("sim-engine", &mut command, &log)?;
            ready(*addr, "/health", &mut guard, &log)?;
            engines.push(guard);
        }
        let config = logs.path().join("server.yaml");
        std::fs::write(&config, server_yaml(own, engine_addrs, plan.config))
            .map_err(|e| format!("cannot write {}: {e}", config.display()))?;
        let log = logs.path().join("gateway.log");
        let mut command = Command::new(&binaries.llmgw);
        command.arg("server").arg("--config").arg(&config);
        let mut gateway = Guard::start("gateway", &mut command, &log)?;
        ready(own[1], "/readyz", &mut gateway, &log)?;
        let engine_urls = engine_addrs.iter().map(|addr| format!("http://{addr}")).collect();
        Ok(Fleet { engine_urls, gateway_addr: own[0], gateway, engines, logs })
    }

    /// Where clients send requests.
    pub fn url(&self) -> String {
        format!("http://{}", self.gateway_addr)
    }

    /// Stops all, the gateway by SIGTERM first. An error when one had died before or did not stop.
    pub fn stop(mut self) -> Outcome {
        let mut wrong = Vec::new();
        if let Some(status) = self.gateway.poll()? {
            wrong.push(format!("the gateway had ended by itself: {status}"));
        } else if !self.gateway.stop(Duration::from_secs(35))? {
            wrong.push("the gateway did not stop within 35 s of SIGTERM".to_owned());
        }
        drop(self.engines);
        if wrong.is_empty() {
            return Ok(());
        }
        let kept = self.logs.keep();
        Err(format!("{}; logs are kept in {}", wrong.join("; "), kept.display()))
    }
}

fn server_yaml(own: &[SocketAddr], engines: &[SocketAddr], more: &str) -> String {
    let mut yaml = format!("listen: \"{}\"\nhealth_listen: \"{}\"\n", own[0], own[1]);
    yaml.push_str("admin_listen: \"127.0.0.1:0\"\n");
    yaml.push_str("registry_listen: \"127.0.0.1:0\"\n");
    yaml.push_str("auth: { required: false }\nlog: { level: warn, access: false }\n");
    yaml.push_str(more);
    yaml.push_str("endpoints:\n");
    for (n, addr) in engines.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = writeln!(yaml, "  - {{ id: e{n}, model: {MODEL}, url: \"http://{addr}\", engine: sim }}");
    }
    yaml
}

/// Addresses that were free a moment ago, all different.
pub fn free_addrs(count: usize) -> Outcome<Vec<SocketAddr>> {
    let bound: Result<Vec<_>, _> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    let addrs = bound.and_then(|all| all.iter().map(TcpListener::local_addr).collect());
    addrs.map_err(|e| format!("no free loopback port: {e}"))
}

/// Waits until a process answers 200 there.
pub fn ready(addr: SocketAddr, path: &str, process: &mut Guard, log: &Path) -> Outcome {
    let deadline = Instant::now() + READY_PATIENCE;
    while Instant::now() < deadline {
        if get(addr, path).is_some_and(|answer| answer.starts_with("HTTP/1.1 200")) {
            return Ok(());
        }
        if let Some(status) = process.poll()? {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            return Err(format!("a process ended at start with {status}:\n{}", said.trim()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(format!("http://{addr}{path} did not answer 200 within {} s", READY_PATIENCE.as_secs()))
}

/// A whole answer, head included.
pub fn get(addr: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&addr, Duration::from_secs(1)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
