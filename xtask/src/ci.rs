//! `cargo xtask ci`: what CI runs beside the tests. Every step runs, also after one failed, so that one run tells all.

use crate::proc::{self, Outcome, cargo};
use std::time::{Duration, Instant};

/// Seconds for each fuzz target; four targets make 120 s in all.
const FUZZ_SECONDS: u64 = 30;

type Step = (&'static str, fn() -> Outcome);

const STEPS: &[Step] = &[
    ("fmt", || proc::run(cargo().args(["fmt", "--all", "--check"]))),
    ("tidy", crate::tidy::run),
    ("deny", crate::deny::run),
    ("clippy", || clippy(&["--workspace"])),
    ("clippy, simtest", || clippy(&["-p", "llmgw-dataplane", "--features", "simtest"])),
    ("counts", crate::bench::gate),
    ("fuzz", || crate::fuzz::run(FUZZ_SECONDS, None)),
];

/// Runs all steps and prints what each took; an error names those that failed.
pub fn run() -> Outcome {
    let mut rows: Vec<(&str, Duration, Outcome)> = Vec::new();
    for (name, step) in STEPS {
        println!("== {name}");
        let begun = Instant::now();
        let done = step();
        if let Err(message) = &done {
            println!("{name}: {message}");
        }
        rows.push((name, begun.elapsed(), done));
    }
    println!("\n{:<18} {:>8}  result", "step", "seconds");
    for (name, took, done) in &rows {
        println!("{name:<18} {:>8.1}  {}", took.as_secs_f64(), if done.is_ok() { "ok" } else { "FAILED" });
    }
    let failed: Vec<&str> =
        rows.iter().filter(|(_, _, done)| done.is_err()).map(|(name, ..)| *name).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

fn clippy(what: &[&str]) -> Outcome {
    proc::run(cargo().arg("clippy").args(what).args(["--all-targets", "--", "-D", "warnings"]))
}
