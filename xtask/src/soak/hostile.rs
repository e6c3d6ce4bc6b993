//! slowhttptest against the gateway: slow heads, slow bodies, slow reads, by somebody else's hand.

use crate::fleet::{self, Binaries, Fleet, Plan};
use crate::proc::{self, Guard, Outcome, TempDir};
use crate::setup::{self, Step};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The tool.
const SLOWHTTPTEST: Step = Step {
    name: "slowhttptest",
    tests: "",
    check: || {
        // It has no option that only tells its version.
        if proc::works("sh", &["-c", "command -v slowhttptest"]) {
            Ok(())
        } else {
            Err("not installed".to_owned())
        }
    },
    apt: &["slowhttptest"],
    make: None,
    otherwise: "install slowhttptest (Debian has a package of that name)",
};

/// Attacking connections at a time, and how many of them begin in a second.
const CONNECTIONS: &str = "1000";
const RATE: &str = "500";
/// Seconds of load in a slice, and those that an attack has before it, to have all its connections.
const SLICE_S: u64 = 5;
const AHEAD_S: u64 = 3;
/// How long the gateway may take to forget them all, once they are gone.
const FORGET: Duration = Duration::from_secs(30);
/// What a p99 of milliseconds varies by itself.
const NOISE_MS: f64 = 2.0;

/// Each attack in slices, each beside one without it, while streams run: none may fail, their p99 may at most double,
/// and nothing may be left.
pub fn slowhttptest(minutes: u64) -> Outcome {
    if let Err(told) = setup::ensure(&SLOWHTTPTEST) {
        println!("skipped: {told}");
        return Ok(());
    }
    let binaries = fleet::build()?;
    let config = "timeouts: { header: 2s, idle: 5s, body_idle: 2s, between_tokens: 5s, total: 60s }\n";
    let engine_args = ["--max-seqs", "256", "--ttft", "20ms", "--itl", "10ms"];
    let mut fleet = Fleet::start(&binaries, &Plan { engines: 2, engine_args: &engine_args, config })?;
    let url = format!("{}/v1/chat/completions", fleet.url());
    let models = format!("{}/v1/models", fleet.url());
    let attacks: [(&str, &[&str], &str); 3] = [
        ("slow heads", &["-H", "-i", "1"], &url),
        ("slow bodies", &["-B", "-i", "1", "-s", "100000"], &url),
        ("slow reads", &["-X", "-w", "1", "-y", "8", "-n", "1", "-z", "1", "-k", "100"], &models),
    ];
    let pairs = (minutes * 60 / 3 / (2 * SLICE_S + AHEAD_S)).max(2);
    let logs = TempDir::new("slow")?;
    load(&binaries, &fleet, logs.path())?;
    for (name, args, target) in attacks {
        println!("== {name}");
        let mut ratios = Vec::new();
        for _ in 0..pairs {
            let quiet = load(&binaries, &fleet, logs.path())?;
            let mut attack = Command::new("slowhttptest");
            let seconds = (SLICE_S + AHEAD_S).to_string();
            attack.args(args).args(["-c", CONNECTIONS, "-r", RATE, "-l", &seconds, "-u", target]);
            if ratios.is_empty() {
                println!("$ {}", proc::spell(&attack));
            }
            let mut attack = Guard::start("slowhttptest", &mut attack, &logs.path().join("attack.log"))?;
            std::thread::sleep(Duration::from_secs(AHEAD_S));
            let held = descriptors(&fleet);
            let attacked = load(&binaries, &fleet, logs.path())?;
            attack.wait()?;
            if let Some(status) = fleet.gateway.poll()? {
                return Err(format!("{name}: the gateway ended with {status}"));
            }
            forgotten(&fleet).map_err(|told| format!("{name}: {told}"))?;
            println!(
                "p99 of the first token: {quiet:.1} ms in quiet, {attacked:.1} ms with {held} descriptors open"
            );
            ratios.push((attacked - NOISE_MS).max(0.0) / quiet);
        }
        ratios.sort_by(f64::total_cmp);
        let median = ratios[ratios.len() / 2];
        println!("{name}: {median:.2} times, the median of {pairs} pairs");
        if median > 2.0 {
            return Err(format!("{name}: clients that behave wait {median:.2} times as long"));
        }
    }
    fleet.stop()?;
    Ok(())
}

/// Streams for a slice; the p99 of their first token, ms.
fn load(binaries: &Binaries, fleet: &Fleet, folder: &Path) -> Outcome<f64> {
    let file = folder.join("load.json");
    let mut load = Command::new(&binaries.loadgen);
    load.args(["run", "--url", &fleet.url(), "--model", fleet::MODEL, "--stream", "--no-progress", "--json"]);
    load.arg(&file);
    load.args(["--concurrency", "20", "--duration", &format!("{SLICE_S}s"), "--output-tokens", "8"]);
    proc::capture(&mut load)?;
    let text = std::fs::read_to_string(&file).map_err(|e| format!("no report of the load: {e}"))?;
    let report: Value = serde_json::from_str(&text).map_err(|e| format!("the report of the load: {e}"))?;
    let p99 = &report["latency"]["ttft"]["p99_ms"];
    p99.as_f64().ok_or_else(|| format!("no p99 in the report of the load: {}", report["latency"]))
}

fn descriptors(fleet: &Fleet) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", fleet.gateway.pid())).map_or(0, Iterator::count)
}

/// Waits until the gateway holds no connection but those of streams that are done.
fn forgotten(fleet: &Fleet) -> Outcome {
    let begun = std::time::Instant::now();
    while descriptors(fleet) > 100 {
        if begun.elapsed() > FORGET {
            return Err(format!("{} descriptors are still open", descriptors(fleet)));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}
