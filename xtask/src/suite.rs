//! `cargo xtask test`: sets up what the tests need, then runs all of them.
//!
//! * What a test needs beyond Rust and a C compiler is a row of [`STEPS`]. A row that cannot be met skips its tests
//!   and says so; in CI it is a failure.
//! * Everything is built once, in the test profile, dev-dependencies included, so that the binaries the end-to-end
//!   tests start and the tests themselves share their dependencies.
//! * The last line of output is `N passed, N failed, N skipped`, over all runs.

use crate::proc::{self, Outcome, cargo};
use std::process::Command;

#[cfg(test)]
mod tests;

/// Something the tests need from the machine.
struct Step {
    name: &'static str,
    /// Tests whose name contains this cannot run without it; empty: only convenience.
    tests: &'static str,
    /// What is wrong, if anything.
    check: fn() -> Result<(), String>,
    /// Debian packages that mend it.
    apt: &'static [&'static str],
    /// What to do where apt cannot help.
    otherwise: &'static str,
}

/// Descriptors that the test of many streams needs in one process: both sides of each stream, and some.
const DESCRIPTORS_MIN: u64 = 4_096;

const STEPS: &[Step] = &[
    Step {
        name: "linker",
        tests: "",
        check: || {
            if proc::works("cc", &["--version"]) { Ok(()) } else { Err("no `cc` on the path".to_owned()) }
        },
        apt: &["gcc", "libc6-dev"],
        otherwise: "install a C compiler; Rust links with it",
    },
    Step {
        name: "loopback",
        tests: "",
        check: || std::net::TcpListener::bind("127.0.0.1:0").map(drop).map_err(|e| format!("127.0.0.1: {e}")),
        apt: &[],
        otherwise: "bring the loopback interface up: ip link set lo up",
    },
    Step {
        name: "descriptors",
        tests: "thousand_streams",
        check: || match descriptors_max(&std::fs::read_to_string("/proc/self/limits").unwrap_or_default()) {
            Some(hard) if hard < DESCRIPTORS_MIN => {
                Err(format!("the hard limit is {hard}, at least {DESCRIPTORS_MIN} are needed"))
            }
            _ => Ok(()),
        },
        apt: &[],
        otherwise: "raise the hard limit of open files (ulimit -Hn, LimitNOFILE=, --ulimit nofile=)",
    },
];

/// Runs everything; an error when a test failed, or in CI could not run.
pub fn run(filter: Option<&str>) -> Outcome {
    let skip = set_up()?;
    let nextest = proc::has_cargo("nextest");
    if !nextest {
        println!("cargo-nextest is not installed; using cargo test (cargo install --locked cargo-nextest)");
    }
    proc::run(cargo().args(["build", "--profile", "test", "--workspace", "--bins", "--tests"]))?;

    let mut total = Count::default();
    let mut failed = Vec::new();
    let mut round = |name: &str, mut command: Command| -> Outcome {
        let mut count = Count::default();
        let passed = proc::watch(&mut command, |line| count.read(line))?;
        if !passed {
            failed.push(format!("{name} (`{}`)", proc::spell(&command)));
            // A build that fails has no tests to count, yet must not read as a success.
            count.failed = count.failed.max(1);
        }
        total.add(&count);
        Ok(())
    };

    round("workspace", runner(nextest, &["--workspace"], filter, &skip))?;
    let simulation = ["-p", "llmgw-dataplane", "--features", "simtest", "--test", "simulation"];
    round("simulation", runner(nextest, &simulation, filter, &skip))?;
    if nextest {
        // cargo test runs them by itself, nextest does not.
        let mut command = cargo();
        command.args(["test", "--doc", "--workspace"]);
        tail(&mut command, filter, &[]);
        round("doc tests", command)?;
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

/// Goes through [`STEPS`]; answers the names of tests to skip.
fn set_up() -> Outcome<Vec<&'static str>> {
    let mut skip = Vec::new();
    for step in STEPS {
        let Err(wrong) = (step.check)() else { continue };
        if install(step) && (step.check)().is_ok() {
            continue;
        }
        let told = format!("{}: {wrong}; {}", step.name, step.otherwise);
        if proc::in_ci() || step.tests.is_empty() {
            return Err(told);
        }
        println!("skipping tests named *{}*: {told}", step.tests);
        skip.push(step.tests);
    }
    Ok(skip)
}

/// Tries apt, where there is one and we may use it.
fn install(step: &Step) -> bool {
    let root = proc::capture(Command::new("id").arg("-u")).is_ok_and(|uid| uid.trim() == "0");
    if step.apt.is_empty() || !root || !proc::works("apt-get", &["--version"]) {
        return false;
    }
    println!("{} is missing; installing {}", step.name, step.apt.join(" "));
    let apt = |args: &[&str]| {
        proc::run(Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(args)).is_ok()
    };
    let mut args = vec!["install", "-y", "--no-install-recommends"];
    args.extend(step.apt);
    apt(&args) || (apt(&["update"]) && apt(&args))
}

/// The hard limit of open files as `/proc/self/limits` tells it; none when unlimited or unknown.
fn descriptors_max(limits: &str) -> Option<u64> {
    let row = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    row.split_whitespace().nth(1)?.parse().ok()
}

/// Tests counted from a runner's summaries.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Count {
    /// Adds what `line` tells, if it is a summary of nextest or of the standard harness.
    fn read(&mut self, line: &str) {
        let plain = without_ansi(line);
        let plain = plain.trim();
        let summary = match plain.strip_prefix("test result: ") {
            Some(rest) => rest,
            None if plain.starts_with("Summary [") => plain,
            None => return,
        };
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
