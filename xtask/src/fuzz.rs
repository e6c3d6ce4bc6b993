//! `cargo xtask fuzz`: libFuzzer over the parsers, on the stable compiler.
//!
//! The targets and their corpora are in `fuzz/`, a workspace of its own. A run works on a copy of the corpus, so that
//! the repository's stays as it is; what crashed is kept in `fuzz/artifacts/`. A soak run keeps what reaches new code:
//! it is merged into the repository's corpus, up to a bound.

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

/// Largest input that is kept, bytes.
const KEPT_INPUT_MAX: u64 = 4 * 1024;
/// Largest corpus of a target that is kept, bytes and inputs.
const KEPT_CORPUS_MAX: u64 = 192 * 1024;
const KEPT_INPUTS_MAX: usize = 250;

/// Builds the targets and runs one or all for `seconds` each.
pub fn run(seconds: u64, only: Option<&str>) -> Outcome {
    run_and(seconds, only, &Options { sanitizer: None, keep: false })
}

/// What a longer run does besides.
pub struct Options {
    /// A sanitizer to build with, by its name.
    pub sanitizer: Option<&'static str>,
    /// Keep inputs that reach new code.
    pub keep: bool,
}

/// As [`run`], and what the options say.
pub fn run_and(seconds: u64, only: Option<&str>, options: &Options) -> Outcome {
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
    let host = build(options.sanitizer)?;
    let folder = target_dir(options.sanitizer).join(host).join("release");
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
            match run.finish(options.keep) {
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
fn build(sanitizer: Option<&str>) -> Outcome<String> {
    let host = proc::host()?;
    let mut command = cargo();
    command.args(["build", "--release", "--bins", "--manifest-path", "fuzz/Cargo.toml", "--target", &host]);
    command.arg("--target-dir").arg(target_dir(sanitizer));
    // Naming the target keeps the flags away from build scripts.
    match sanitizer {
        // The stable compiler has it, behind this.
        Some(name) => {
            command.env("RUSTFLAGS", format!("{RUSTFLAGS} -Zsanitizer={name}")).env("RUSTC_BOOTSTRAP", "1")
        }
        None => command.env("RUSTFLAGS", RUSTFLAGS),
    };
    proc::run(&mut command)?;
    Ok(host)
}

/// Its own: the flags differ from those of every other build.
fn target_dir(sanitizer: Option<&str>) -> PathBuf {
    let dir = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| "fuzz/target".into(), |dir| PathBuf::from(dir).join("fuzz"));
    sanitizer.map_or_else(|| dir.clone(), |name| dir.join(name))
}

/// A target at work, on a copy of its corpus.
struct Run {
    target: String,
    binary: PathBuf,
    process: Guard,
    folder: TempDir,
    /// The repository's corpus.
    seeds: PathBuf,
}

impl Run {
    fn start(binary: &Path, home: &Path, target: &str, seconds: u64) -> Outcome<Self> {
        let folder = TempDir::new(&format!("fuzz-{target}"))?;
        let corpus = folder.path().join("corpus");
        let seeds = home.join("corpus").join(target);
        copy(&seeds, &corpus)?;
        let artifacts = home.join("artifacts").join(target);
        std::fs::create_dir_all(&artifacts)
            .map_err(|e| format!("cannot make {}: {e}", artifacts.display()))?;
        let mut command = Command::new(binary);
        command.arg(&corpus).arg(format!("-max_total_time={seconds}"));
        command.arg(format!("-artifact_prefix={}/", artifacts.display()));
        command.args(["-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1", "-verbosity=0"]);
        println!("$ {}", proc::spell(&command));
        let process = Guard::start(target, &mut command, &folder.path().join("log"))?;
        Ok(Run { target: target.to_owned(), binary: binary.to_owned(), process, folder, seeds })
    }

    /// Waits; answers what was done, or what failed and how to see it again.
    fn finish(mut self, keep: bool) -> Outcome<String> {
        let status = self.process.wait()?;
        // libFuzzer may print inputs as they are.
        let log = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let after = |mark: &str| log.lines().find_map(|line| Some(line.split_once(mark)?.1.trim()));
        if status.success() {
            let runs = after("stat::number_of_executed_units:").unwrap_or("?");
            let found = after("stat::new_units_added:").unwrap_or("?");
            let kept = if keep { format!(", {} kept", self.keep()?) } else { String::new() };
            let target = &self.target;
            return Ok(format!("{target}: {runs} runs, {found} inputs that reach new code, no fault{kept}"));
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

impl Run {
    /// Adds to the repository's corpus what reaches code that it does not: all of it, or inputs of every size up to the
    /// bounds. Answers how many.
    fn keep(&self) -> Outcome<usize> {
        let merged = self.folder.path().join("merged");
        copy(&self.seeds, &merged)?;
        let mut command = Command::new(&self.binary);
        command.arg("-merge=1").arg(format!("-max_len={KEPT_INPUT_MAX}")).arg("-rss_limit_mb=1024");
        command.arg(&merged).arg(self.folder.path().join("corpus"));
        let mut merge = Guard::start(&self.target, &mut command, &self.folder.path().join("merge-log"))?;
        if !merge.wait()?.success() {
            return Err(format!("{}: the corpora could not be merged", self.target));
        }
        let size = |path: &Path| path.metadata().map_or(0, |data| data.len());
        let seeds = files(&self.seeds);
        let mut total: u64 = seeds.iter().map(|path| size(path)).sum();
        let mut new = files(&merged);
        new.retain(|path| path.file_name().is_some_and(|name| !self.seeds.join(name).exists()));
        new.sort_by_key(|path| size(path));
        let room = KEPT_INPUTS_MAX.saturating_sub(seeds.len()).max(1);
        let mut kept = 0;
        for path in new.iter().step_by(new.len().div_ceil(room).max(1)) {
            if total + size(path) > KEPT_CORPUS_MAX {
                break;
            }
            total += size(path);
            let to = self.seeds.join(path.file_name().unwrap_or_default());
            std::fs::copy(path, &to).map_err(|e| format!("cannot write {}: {e}", to.display()))?;
            kept += 1;
        }
        Ok(kept)
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|e| e.file_type().is_ok_and(|kind| kind.is_file())).map(|e| e.path()).collect()
}

/// Copies a corpus; a target without one starts from nothing.
fn copy(from: &Path, to: &Path) -> Outcome {
    std::fs::create_dir_all(to).map_err(|e| format!("cannot make {}: {e}", to.display()))?;
    for path in files(from) {
        std::fs::copy(&path, to.join(path.file_name().unwrap_or_default()))
            .map_err(|e| format!("cannot copy {}: {e}", path.display()))?;
    }
    Ok(())
}
