//! `cargo xtask soak`: long runs for what short ones cannot show: slow leaks, rare interleavings, deep inputs.

use crate::fleet::{self, Binaries, Fleet, Plan};
use crate::proc::{self, Guard, Outcome, TempDir, cargo};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

mod hostile;
mod kill;
mod memory;
mod mutants;
#[cfg(test)]
mod tests;

/// Which run.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum What {
    /// Memory of an idle stream, over 2,000 of them
    Idle,
    /// Streams for minutes: memory and descriptors must stay flat
    Streams,
    /// The simulation with many more seeds
    Sim,
    /// The fuzz targets; inputs that reach new code are kept in their corpora
    Fuzz,
    /// The unsafe code's tests, and the fuzz targets, under AddressSanitizer
    Asan,
    /// The parsers' tests under Miri, where that is installed
    Miri,
    /// slowhttptest's attacks, from Debian, against the gateway
    Slow,
    /// A worker killed under 1,000 requests a second: what clients and the registry make of it
    Kill,
    /// Known pitfalls of routing, made in a copy of the tree: a test must notice each
    Pitfalls,
    /// cargo-mutants over the decisions, where that is installed; hours, so not part of `all`
    Mutants,
    /// One after another
    All,
}

/// Streams opened by the idle run.
const IDLE_STREAMS: usize = 2_000;
/// What an idle stream may cost, in KiB of resident memory; the aim is 3.
const IDLE_KIB_MAX: f64 = 5.0;
/// Streams in flight in the streams run.
const STREAMS: usize = 200;
/// Time between samples.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// Growth of resident memory after warm-up that still counts as flat: noise of the allocator.
const RSS_GROWTH_KIB_MAX: u64 = 4 * 1024;
/// Growth of open descriptors after warm-up that still counts as flat: pooled connections come and go.
const FDS_GROWTH_MAX: u64 = 32;
/// Seeds of a minute of simulation, roughly.
const SEEDS_A_MINUTE: u64 = 20_000;

/// Runs one kind or all.
pub fn run(what: What, minutes: u64) -> Outcome {
    let wanted = |kind: What| what == kind || what == What::All;
    if wanted(What::Idle) || wanted(What::Streams) {
        let binaries = fleet::build()?;
        if wanted(What::Idle) {
            idle(&binaries)?;
        }
        if wanted(What::Streams) {
            streams(&binaries, minutes)?;
        }
    }
    if wanted(What::Sim) {
        simulation(minutes)?;
    }
    if wanted(What::Fuzz) {
        let options = crate::fuzz::Options { sanitizer: None, keep: true };
        crate::fuzz::run_and(minutes * 60, None, &options)?;
    }
    if wanted(What::Asan) {
        memory::asan(minutes)?;
    }
    if wanted(What::Miri) {
        memory::miri()?;
    }
    if wanted(What::Slow) {
        hostile::slowhttptest(minutes)?;
    }
    if wanted(What::Kill) {
        kill::run()?;
    }
    if wanted(What::Pitfalls) {
        mutants::pitfalls()?;
    }
    if what == What::Mutants {
        mutants::mutants()?;
    }
    Ok(())
}

fn simulation(minutes: u64) -> Outcome {
    let mut command = cargo();
    command.args([
        "test",
        "--release",
        "-p",
        "llmgw-dataplane",
        "--features",
        "simtest",
        "--test",
        "simulation",
    ]);
    command.args(["ten_thousand_seeds", "--", "--nocapture"]);
    let seeds = (minutes * SEEDS_A_MINUTE).to_string();
    println!("LLMGW_SIM_SEEDS={seeds}");
    proc::run(command.env("LLMGW_SIM_SEEDS", seeds))
}

// === Streams for minutes ===

fn streams(binaries: &Binaries, minutes: u64) -> Outcome {
    let engine_args = ["--max-seqs", "256", "--ttft", "20ms", "--itl", "10ms"];
    let mut fleet = Fleet::start(binaries, &Plan { engines: 3, engine_args: &engine_args, config: "" })?;
    let logs = TempDir::new("soak")?;
    let log = logs.path().join("loadgen.log");
    let mut command = Command::new(&binaries.loadgen);
    command.args(["run", "--url", &fleet.url(), "--model", fleet::MODEL, "--stream", "--no-progress"]);
    command.args(["--prompt-tokens", "uniform:16:512", "--output-tokens", "uniform:4:128"]);
    command.args(["--concurrency", &STREAMS.to_string(), "--duration", &format!("{minutes}m")]);
    println!("$ {}", proc::spell(&command));
    let mut load = Guard::start("loadgen", &mut command, &log)?;
    let mut samples = Vec::new();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = load.poll()? {
            break status;
        }
        if let Some(status) = fleet.gateway.poll()? {
            return Err(format!("the gateway ended with {status}"));
        }
        let sample = Sample::take(fleet.gateway.pid())?;
        println!(
            "{:>5} s  {:>8} KiB  {:>5} descriptors",
            begun.elapsed().as_secs(),
            sample.rss_kib,
            sample.fds
        );
        samples.push(sample);
        std::thread::sleep(SAMPLE_EVERY);
    };
    println!("{}", std::fs::read_to_string(&log).unwrap_or_default());
    fleet.stop()?;
    if !status.success() {
        return Err(format!("loadgen ended with {status}"));
    }
    println!("{}", flat(&samples)?);
    Ok(())
}

/// What a process holds at a moment.
#[derive(Debug, Clone, Copy)]
struct Sample {
    rss_kib: u64,
    fds: u64,
}

impl Sample {
    fn take(pid: u32) -> Outcome<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
            .map_err(|e| format!("cannot read the status of process {pid}: {e}"))?;
        let rss_kib = rss_kib(&status).ok_or_else(|| format!("process {pid} tells no resident size"))?;
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        Ok(Sample { rss_kib, fds: u64::try_from(fds).unwrap_or(u64::MAX) })
    }
}

/// `VmRSS` of `/proc/PID/status`.
fn rss_kib(status: &str) -> Option<u64> {
    let row = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    row.split_whitespace().next()?.parse().ok()
}

/// Compares the first third after warm-up (a fifth of the run) with the last third, by their medians.
fn flat(samples: &[Sample]) -> Outcome<String> {
    let warm = &samples[samples.len() / 5..];
    let third = warm.len() / 3;
    if third < 2 {
        return Err(format!("{} samples say nothing about growth; run longer", samples.len()));
    }
    let median = |part: &[Sample], of: fn(&Sample) -> u64| {
        let mut values: Vec<u64> = part.iter().map(of).collect();
        values.sort_unstable();
        values[values.len() / 2]
    };
    let (early, late) = (&warm[..third], &warm[warm.len() - third..]);
    let rss = (median(early, |s| s.rss_kib), median(late, |s| s.rss_kib));
    let fds = (median(early, |s| s.fds), median(late, |s| s.fds));
    let told = format!("resident {} -> {} KiB, descriptors {} -> {}", rss.0, rss.1, fds.0, fds.1);
    if rss.1 > rss.0 + RSS_GROWTH_KIB_MAX || fds.1 > fds.0 + FDS_GROWTH_MAX {
        return Err(format!("not flat: {told} (may grow by {RSS_GROWTH_KIB_MAX} KiB and {FDS_GROWTH_MAX})"));
    }
    Ok(format!("flat: {told}"))
}

// === Idle streams ===

fn idle(binaries: &Binaries) -> Outcome {
    if more_descriptors(&["soak", "idle"])? {
        return Ok(());
    }
    // One token, then quiet: what remains is what an open stream costs.
    let engine_args = ["--max-seqs", "4096", "--ttft", "1ms", "--itl", "3600s"];
    let fleet =
        Fleet::start(binaries, &Plan { engines: 3, engine_args: &engine_args, config: "shards: 1\n" })?;
    let pid = fleet.gateway.pid();
    // The first streams also pay for what all share: pools, tables, metrics.
    let mut open = open_streams(fleet.gateway_addr, IDLE_STREAMS / 20)?;
    let before = Sample::take(pid)?;
    let counted = IDLE_STREAMS - open.len();
    open.extend(open_streams(fleet.gateway_addr, counted)?);
    std::thread::sleep(Duration::from_secs(2));
    let after = Sample::take(pid)?;
    drop(open);
    drop(fleet);
    #[allow(clippy::cast_precision_loss)] // KiB of one process and thousands of streams
    let each = (after.rss_kib.saturating_sub(before.rss_kib)) as f64 / counted as f64;
    println!("{IDLE_STREAMS} idle streams: {} KiB resident, {each:.2} KiB a stream", after.rss_kib);
    if each > IDLE_KIB_MAX {
        return Err(format!("an idle stream costs {each:.2} KiB; at most {IDLE_KIB_MAX}"));
    }
    Ok(())
}

/// Opens streams and waits for the first token of each.
fn open_streams(addr: SocketAddr, count: usize) -> Outcome<Vec<TcpStream>> {
    let body = format!(
        r#"{{"model":"{}","stream":true,"max_tokens":64,"messages":[{{"role":"user","content":"hi"}}]}}"#,
        fleet::MODEL
    );
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\nHost: {addr}\r\nContent-Type: application/json\r\n");
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let failed = |e: std::io::Error| format!("cannot open a stream through {addr}: {e}");
    let mut open = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = TcpStream::connect(addr).map_err(failed)?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(failed)?;
        stream.write_all(request.as_bytes()).map_err(failed)?;
        let mut got = Vec::new();
        let mut piece = [0; 4096];
        while !got.windows(6).any(|w| w == b"data: ") {
            match stream.read(&mut piece).map_err(failed)? {
                0 => return Err(format!("a stream ended: {}", String::from_utf8_lossy(&got))),
                n => got.extend_from_slice(&piece[..n]),
            }
        }
        open.push(stream);
    }
    Ok(open)
}

/// Runs this program again with the soft limit of descriptors at the hard one, if it is too low here. Answers whether
/// that run did the work. (Raising one's own limit needs unsafe code or a dependency.)
fn more_descriptors(args: &[&str]) -> Outcome<bool> {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let row = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap_or("");
    let soft: usize = row.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(usize::MAX);
    if soft > IDLE_STREAMS + 100 {
        return Ok(false);
    }
    let own = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let mut again = Command::new("sh");
    again.args(["-c", "ulimit -n \"$(ulimit -Hn)\" && exec \"$0\" \"$@\""]).arg(own).args(args);
    if !again.status().map_err(|e| format!("cannot run sh: {e}"))?.success() {
        return Err("the idle run failed".to_owned());
    }
    Ok(true)
}
