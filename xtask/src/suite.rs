//! `cargo xtask test`: sets up what the tests need, then runs all of them.
//!
//! * What a test needs beyond Rust and a C compiler is a row of the table in [`setup`]. A row that cannot be met skips
//!   its tests and says so; in CI it is a failure.
//! * Everything is built once, in the test profile, dev-dependencies included, so that the binaries the end-to-end
//!   tests start and the tests themselves share their dependencies.
//! * The last line of output is `N passed, N failed, N skipped`, over all runs.

use crate::proc::{self, Outcome, cargo};
use crate::setup;
use std::process::Command;

#[cfg(test)]
mod tests;

/// How nextest's summary begins.
const NEXTEST: &str = "Summary [";
/// How the standard harness's summary begins.
const HARNESS: &str = "test result: ";

/// Runs everything; an error when a test failed, or in CI could not run.
pub fn run(filter: Option<&str>) -> Outcome {
    let skip = setup::for_tests()?;
    let nextest = proc::has_cargo("nextest");
    if !nextest {
        println!("cargo-nextest is not installed; using cargo test (cargo install --locked cargo-nextest)");
    }
    proc::run(cargo().args(["build", "--profile", "test", "--workspace", "--bins", "--tests"]))?;

    let mut total = Count::default();
    let mut failed = Vec::new();
    let mut round = |name: &str, summary: &str, mut command: Command| -> Outcome {
        let mut count = Count::default();
        let passed = proc::watch(&mut command, |line| count.read(line, summary))?;
        if !passed {
            failed.push(format!("{name} (`{}`)", proc::spell(&command)));
            // A build that fails has no tests to count, yet must not read as a success.
            count.failed = count.failed.max(1);
        }
        total.add(&count);
        Ok(())
    };

    let summary = if nextest { NEXTEST } else { HARNESS };
    round("workspace", summary, runner(nextest, &["--workspace"], filter, &skip))?;
    let simulation = ["-p", "llmgw-dataplane", "--features", "simtest", "--test", "simulation"];
    round("simulation", summary, runner(nextest, &simulation, filter, &skip))?;
    if nextest {
        // cargo test runs them by itself, nextest does not.
        let mut command = cargo();
        command.args(["test", "--doc", "--workspace"]);
        tail(&mut command, filter, &[]);
        round("doc tests", HARNESS, command)?;
    }
    println!("{total}");
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// One run of the tests by whichever runner there is.
fn runner(nextest: bool, what: &[&str], filter: Option<&str>, skip: &[&str]) -> Command {
    let mut command = cargo();
    if nextest {
        // A filter may match nothing in one of the runs; without one, no tests at all is a mistake.
        let none = if filter.is_some() { "pass" } else { "fail" };
        command.args(["nextest", "run", "--no-fail-fast", "--no-tests", none]).args(what);
    } else {
        command.args(["test", "--no-fail-fast"]).args(what);
    }
    tail(&mut command, filter, skip);
    command
}

fn tail(command: &mut Command, filter: Option<&str>, skip: &[&str]) {
    command.args(filter);
    if !skip.is_empty() {
        command.arg("--");
        for name in skip {
            command.args(["--skip", name]);
        }
    }
}

/// Tests counted from a runner's summaries.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Count {
    /// Adds what `line` tells, if it is a summary: it begins with `prefix`. (nextest repeats the harness's own summary
    /// of a failed test, which must not count again.)
    fn read(&mut self, line: &str, prefix: &str) {
        let plain = without_ansi(line);
        let Some(summary) = plain.trim().strip_prefix(prefix) else { return };
        let words: Vec<&str> =
            summary.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect();
        for pair in words.windows(2) {
            let Ok(number) = pair[0].parse::<u64>() else { continue };
            match pair[1] {
                "passed" => self.passed += number,
                "failed" | "timed" => self.failed += number,
                "skipped" | "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }

    fn add(&mut self, other: &Count) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// A line without terminal colours.
fn without_ansi(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(c);
        }
    }
    plain
}
