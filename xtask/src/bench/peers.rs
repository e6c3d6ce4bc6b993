//! `cargo xtask bench peers`: llmgw's drivers, nginx and HAProxy, all up at once, in slices of a few hundred
//! milliseconds in random order.
//!
//! **Invariants**
//!
//! * Gateways are on one core, engines and load on another; what is measured is the gateway's process alone.
//! * CPU speed drifts, so ratios are taken within a round, and told as the median and quartiles of many rounds.
//! * Every process is in a guard.

use super::PeersArgs;
use super::gateways::{Gateway, Site};
use super::report::{self, Results, Settings};
use super::svg;
use crate::fleet;
use crate::proc::{self, Guard, Outcome, TempDir, cargo};
use crate::setup;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

/// Rounds and slice, in full and in quick mode.
const FULL: (usize, u64) = (40, 250);
const QUICK: (usize, u64) = (5, 100);
/// Load before each slice that is not measured, in milliseconds.
const WARM_MS: u64 = 60;
/// Rest before CPU time is read, in milliseconds: what a gateway does a little later (its log) is seen too.
const SETTLE_MS: u64 = 30;
const IDLE_STREAMS: usize = 2000;

/// Measures and reports.
pub fn run(args: &PeersArgs) -> Outcome {
    for step in setup::FOR_PEERS {
        setup::ensure(step)?;
    }
    let (gateway_core, load_core) = cores()?;
    if !args.no_build {
        proc::run(cargo().args(["build", "--release", "-p", "llmgw", "-p", "llmgw-bench", "--bins"]))?;
    }
    let folder = TempDir::new("peers")?;
    let done = measure(args, gateway_core, load_core, &folder);
    if done.is_err() {
        eprintln!("configurations and logs are kept in {}", folder.keep().display());
    }
    let results = done?;
    print!("{}", report::text(&results));
    if let Some(path) = &args.json {
        let text = format!("{:#}\n", report::json(&results));
        std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    if let Some(path) = &args.svg {
        std::fs::write(path, svg::draw(&results))
            .map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    Ok(())
}

/// A core for the gateways and another for the rest.
fn cores() -> Outcome<(usize, usize)> {
    let status =
        std::fs::read_to_string("/proc/self/status").map_err(|e| format!("/proc/self/status: {e}"))?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or("");
    match parse_cores(list).as_slice() {
        [gateway, load, ..] => Ok((*gateway, *load)),
        _ => {
            Err("this measurement needs two cores: one for the gateways, one for engines and load".to_owned())
        }
    }
}

/// Cores of a list like `0-2,5`.
pub fn parse_cores(list: &str) -> Vec<usize> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

fn measure(args: &PeersArgs, gateway_core: usize, load_core: usize, folder: &TempDir) -> Outcome<Results> {
    let (rounds, slice_ms) = if args.quick { QUICK } else { FULL };
    let (rounds, slice_ms) = (args.rounds.unwrap_or(rounds), args.slice_ms.unwrap_or(slice_ms));
    let engines = fleet::free_addrs(3)?;
    let (gateways, left_out) = start(args, &Site { core: gateway_core, engines: &engines, folder })?;
    let mut targets = vec![json!({"name": report::DIRECT, "addresses": engines, "pid": null})];
    for gateway in &gateways {
        let (name, pid) = (&gateway.name, gateway.process.pid());
        targets.push(json!({"name": name, "addresses": [gateway.address], "pid": pid}));
    }
    let ports: Vec<u16> = engines.iter().map(SocketAddr::port).collect();
    let plan = json!({
        "engines": ports, "targets": targets, "rounds": rounds, "slice_ms": slice_ms, "warm_ms": WARM_MS,
        "settle_ms": SETTLE_MS, "rate": args.rate, "idle_streams": IDLE_STREAMS, "only": args.only,
    });
    let plan_file = folder.path().join("plan.json");
    std::fs::write(&plan_file, plan.to_string()).map_err(|e| format!("cannot write the plan: {e}"))?;
    let mut command = Command::new("taskset");
    command.args(["-c", &load_core.to_string()]);
    command.arg(proc::target_dir().join("release/llmgw-bench")).arg("load").arg(&plan_file);
    let rows = load(&mut command)?;
    let about: Vec<(String, String)> =
        gateways.iter().map(|gateway| (gateway.name.clone(), gateway.version.clone())).collect();
    for gateway in gateways {
        gateway.stop()?;
    }
    let settings =
        Settings { rounds, slice_ms, gateway_core, load_core, about, left_out, machine: machine() };
    Ok(Results::new(settings, &rows))
}

/// Starts all that can be; a driver that does not work here, or a router that is not installed, is left out.
fn start(args: &PeersArgs, site: &Site<'_>) -> Outcome<(Vec<Gateway>, Vec<String>)> {
    let llmgw = proc::target_dir().join("release/llmgw");
    let mut gateways = vec![site.nginx()?, site.haproxy()?, site.llmgw(&llmgw, "epoll")?];
    let mut left_out = Vec::new();
    let floor = proc::target_dir().join("release/llmgw-bench");
    let mut optional = vec![site.llmgw(&llmgw, "io_uring"), site.floor(&floor)];
    optional.extend(args.sglang_python.as_ref().map(|python| site.sglang(python)));
    for started in optional {
        match started {
            Ok(gateway) => gateways.push(gateway),
            Err(why) => left_out.push(why),
        }
    }
    Ok((gateways, left_out))
}

/// Runs the load and takes its rows; shows how far it is.
fn load(command: &mut Command) -> Outcome<Vec<Value>> {
    println!("$ {}", proc::spell(command));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("cannot run `{}`: {e}", proc::spell(command)))?;
    let out = child.stdout.take();
    let mut guard = Guard::new("the load".to_owned(), child);
    let mut rows: Vec<Value> = Vec::new();
    let mut measure = String::new();
    for line in out.into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let line = line.map_err(|e| format!("cannot read from the load: {e}"))?;
        let row: Value = serde_json::from_str(&line).map_err(|e| format!("the load said `{line}`: {e}"))?;
        if let Some(name) = row["measure"].as_str().filter(|name| *name != measure) {
            name.clone_into(&mut measure);
            println!("measuring: {name}");
            // A closed terminal is no reason to stop.
            let _ = std::io::stdout().flush();
        }
        rows.push(row);
    }
    let status = guard.wait()?;
    if status.success() { Ok(rows) } else { Err(format!("the load ended with {status}")) }
}

/// Processor, cores and kernel, in a line.
fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, m)| m);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // The release's suffix names a vendor's build, which says nothing about speed.
    let kernel = kernel.trim().split('-').next().unwrap_or_default().to_owned();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{}, {cores} cores, Linux {kernel}, loopback", model.unwrap_or("unknown processor"))
}
