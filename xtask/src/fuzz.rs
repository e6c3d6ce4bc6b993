//! `cargo xtask fuzz`: libFuzzer over the parsers, on the stable compiler.
//!
//! The targets and their corpora are in `fuzz/`, a workspace of its own. A run works on a copy of the corpus, so that
//! the repository's stays as it is; what crashed is kept in `fuzz/artifacts/`.

use crate::proc::{self, Guard, Outcome, TempDir, cargo};
use crate::setup;
use std::path::{Path, PathBuf};
use std::process::Command;

#[cfg(test)]
mod tests;

/// Coverage that libFuzzer steers by, with assertions on; the release profile of `fuzz/` adds optimisation.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Ccodegen-units=1";

/// Builds the targets and runs one or all for `seconds` each.
pub fn run(seconds: u64, only: Option<&str>) -> Outcome {
    let targets = targets()?;
    if let Some(name) = only.filter(|name| !targets.iter().any(|t| t == name)) {
        return Err(format!("no fuzz target {name}; there are: {}", targets.join(", ")));
    }
    if let Err(told) = setup::ensure(&setup::CXX) {
        if proc::in_ci() {
            return Err(told);
        }
        println!("skipped: fuzzing; {told}");
        return Ok(());
    }
    let host = build()?;
    let folder = target_dir().join(host).join("release");
    let wanted: Vec<&String> =
        targets.iter().filter(|t| only.is_none_or(|name| name == t.as_str())).collect();
    // A target runs on one core.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut failed = Vec::new();
    for batch in wanted.chunks(cores) {
        let runs: Vec<Run> = batch
            .iter()
            .map(|t| Run::start(&folder.join(t), Path::new("fuzz"), t, seconds))
            .collect::<Outcome<_>>()?;
        for run in runs {
            let target = run.target.clone();
            match run.finish() {
                Ok(told) => println!("{told}"),
                Err(told) => {
                    println!("{told}");
                    failed.push(target);
                }
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("fuzzing found a fault in: {}", failed.join(", "))) }
}

/// Names of the targets: the files of `fuzz/fuzz_targets`.
fn targets() -> Outcome<Vec<String>> {
    let entries = std::fs::read_dir("fuzz/fuzz_targets").map_err(|e| format!("fuzz/fuzz_targets: {e}"))?;
    let names =
        entries.flatten().filter_map(|e| e.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned));
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

/// Builds all targets; answers the host's triple, which names the output folder.
fn build() -> Outcome<String> {
    let told = proc::capture(Command::new("rustc").arg("-vV"))?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc -vV names no host")?;
    let mut command = cargo();
    command.args(["build", "--release", "--bins", "--manifest-path", "fuzz/Cargo.toml", "--target", host]);
    command.arg("--target-dir").arg(target_dir());
    // Naming the target keeps the flags away from build scripts.
    command.env("RUSTFLAGS", RUSTFLAGS);
    proc::run(&mut command)?;
    Ok(host.to_owned())
}

/// Its own: the flags differ from those of every other build.
fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| "fuzz/target".into(), |dir| PathBuf::from(dir).join("fuzz"))
}

/// A target at work, on a copy of its corpus.
struct Run {
    target: String,
    binary: PathBuf,
    process: Guard,
    folder: TempDir,
}

impl Run {
    fn start(binary: &Path, home: &Path, target: &str, seconds: u64) -> Outcome<Self> {
        let folder = TempDir::new(&format!("fuzz-{target}"))?;
        let corpus = folder.path().join("corpus");
        copy(&home.join("corpus").join(target), &corpus)?;
        let artifacts = home.join("artifacts").join(target);
        std::fs::create_dir_all(&artifacts)
            .map_err(|e| format!("cannot make {}: {e}", artifacts.display()))?;
        let mut command = Command::new(binary);
        command.arg(&corpus).arg(format!("-max_total_time={seconds}"));
        command.arg(format!("-artifact_prefix={}/", artifacts.display()));
        command.args(["-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1", "-verbosity=0"]);
        println!("$ {}", proc::spell(&command));
        let process = Guard::start(target, &mut command, &folder.path().join("log"))?;
        Ok(Run { target: target.to_owned(), binary: binary.to_owned(), process, folder })
    }

    /// Waits; answers what was done, or what failed and how to see it again.
    fn finish(mut self) -> Outcome<String> {
        let status = self.process.wait()?;
        // libFuzzer may print inputs as they are.
        let log = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let after = |mark: &str| log.lines().find_map(|line| Some(line.split_once(mark)?.1.trim()));
        if status.success() {
            let runs = after("stat::number_of_executed_units:").unwrap_or("?");
            let found = after("stat::new_units_added:").unwrap_or("?");
            return Ok(format!("{}: {runs} runs, {found} inputs that reach new code, no fault", self.target));
        }
        let tail: Vec<&str> = log.lines().rev().take(40).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        let remedy = match after("Test unit written to ") {
            Some(file) => format!("failed on {file}; replay it with\n    {} {file}", self.binary.display()),
            None => format!("ended with {status} and left no input"),
        };
        Err(format!("{}\n{} {remedy}", tail.join("\n"), self.target))
    }
}

/// Copies a corpus; a target without one starts from nothing.
fn copy(from: &Path, to: &Path) -> Outcome {
    std::fs::create_dir_all(to).map_err(|e| format!("cannot make {}: {e}", to.display()))?;
    let Ok(entries) = std::fs::read_dir(from) else { return Ok(()) };
    for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|kind| kind.is_file())) {
        std::fs::copy(entry.path(), to.join(entry.file_name()))
            .map_err(|e| format!("cannot copy {}: {e}", entry.path().display()))?;
    }
    Ok(())
}
