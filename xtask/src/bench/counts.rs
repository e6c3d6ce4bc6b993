//! `cargo xtask bench counts`: instructions of a call of each step, counted by callgrind, against stored baselines. A
//! noisy machine does not change them.
//!
//! Invariant: a count is the difference of two runs of different length, so that start and set-up cancel out.

use super::CountsArgs;
use crate::proc::{self, Outcome, cargo};
use crate::setup;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::process::Command;

/// Where the baselines are.
const BASELINES: &str = "bench/baselines.json";
/// Growth that fails a check.
const GROWTH_MAX: f64 = 0.05;
/// Calls in the shorter run; the longer has twice as many.
const CALLS: u64 = 400;

/// Counts all, and compares.
pub fn run(args: &CountsArgs) -> Outcome {
    setup::ensure(&setup::VALGRIND)?;
    if !args.no_build {
        proc::run(cargo().args(["build", "--release", "-p", "llmgw-bench", "--bins"]))?;
    }
    let binary = proc::target_dir().join("release/llmgw-bench");
    let names = proc::capture(Command::new(&binary).arg("callgrind"))?;
    let stored = baselines()?;
    let mut counted = Map::new();
    let mut grown = Vec::new();
    println!("{:<32} {:>12} {:>12} {:>8}", "instructions a call", "baseline", "now", "change");
    for name in names.lines() {
        let now = count(&binary, name)?;
        let before = stored.get(name).and_then(Value::as_u64);
        println!(
            "{name:<32} {:>12} {now:>12} {:>8}",
            before.map_or("-".to_owned(), |b| b.to_string()),
            change(before, now)
        );
        if before.is_some_and(|before| has_grown(before, now)) {
            grown.push(name);
        }
        counted.insert(name.to_owned(), json!(now));
    }
    if args.update {
        let text = format!("{:#}\n", Value::Object(counted));
        return std::fs::write(BASELINES, text).map_err(|e| format!("cannot write {BASELINES}: {e}"));
    }
    let missing: Vec<&str> = names.lines().filter(|name| !stored.contains_key(*name)).collect();
    if !args.check || grown.is_empty() && missing.is_empty() {
        return Ok(());
    }
    let wrong = [(grown, "grew by more than 5%"), (missing, "have no baseline")];
    let told = wrong
        .iter()
        .filter(|(names, _)| !names.is_empty())
        .map(|(names, what)| format!("{} {what}", names.join(", ")));
    let told: Vec<String> = told.collect();
    Err(format!("{}; if that is wanted, store it: cargo xtask bench counts --update", told.join("; ")))
}

fn baselines() -> Outcome<Map<String, Value>> {
    let Ok(text) = std::fs::read_to_string(BASELINES) else { return Ok(Map::new()) };
    serde_json::from_str(&text).map_err(|e| format!("{BASELINES}: {e}"))
}

/// Whether `now` fails a check.
pub fn has_grown(before: u64, now: u64) -> bool {
    ratio(before, now) > 1.0 + GROWTH_MAX
}

fn change(before: Option<u64>, now: u64) -> String {
    before.map_or("new".to_owned(), |before| format!("{:+.1}%", (ratio(before, now) - 1.0) * 100.0))
}

#[allow(clippy::cast_precision_loss)] // far below 2^53
fn ratio(before: u64, now: u64) -> f64 {
    now as f64 / before.max(1) as f64
}

/// Instructions of one call.
fn count(binary: &Path, name: &str) -> Outcome<u64> {
    let (short, long) = (collected(binary, name, CALLS)?, collected(binary, name, 2 * CALLS)?);
    Ok(long.saturating_sub(short) / CALLS)
}

fn collected(binary: &Path, name: &str, calls: u64) -> Outcome<u64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(binary).args(["callgrind", name, &calls.to_string()]);
    // The environment lies on the stack and moves it; an empty one is the same everywhere.
    command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    let output = command.output().map_err(|e| format!("cannot run valgrind: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{name} ended with {} under valgrind: {}", output.status, said.trim()));
    }
    let value = said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    value.ok_or_else(|| format!("valgrind did not say how much it collected: {}", said.trim()))
}
