//! `cargo xtask bench`: what the code costs (`micro`, `counts`), what the gateway adds to a request (`overhead`), and
//! how it compares with other proxies (`peers`).

mod counts;
mod fit;
mod gateways;
mod overhead;
mod peers;
mod report;
mod svg;
#[cfg(test)]
mod tests;

use crate::proc::{self, Outcome, cargo};
use std::path::PathBuf;

/// What to measure.
#[derive(clap::Subcommand)]
pub enum What {
    /// The gateway's parts, one by one, by the clock
    Micro,
    /// The gateway's parts in instructions, against stored baselines (needs valgrind)
    Counts(CountsArgs),
    /// Paired slices of requests, direct and through the gateway
    Overhead {
        /// Seconds of load
        #[arg(long, value_name = "N", default_value_t = 72)]
        seconds: u64,
    },
    /// A request's cost on one shard, and on as many as there are cores
    Shards,
    /// Both drivers side by side with nginx and HAProxy, in CPU time and memory
    Peers(PeersArgs),
}

/// Flags of `bench counts`.
#[derive(clap::Args)]
pub struct CountsArgs {
    /// Fail when a count has grown by more than 5%
    #[arg(long, conflicts_with = "update")]
    check: bool,
    /// Store what was counted as the new baselines
    #[arg(long)]
    update: bool,
    /// Count in the release binary that is there, without building
    #[arg(long)]
    no_build: bool,
}

/// Flags of `bench peers`.
#[derive(clap::Args)]
pub struct PeersArgs {
    /// Few and short slices, under a minute; good for a first look only
    #[arg(long)]
    quick: bool,
    /// Slices of each gateway and measure [default: 40; quick: 5]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Milliseconds a slice [default: 250; quick: 100]
    #[arg(long, value_name = "MS")]
    slice_ms: Option<u64>,
    /// Take only these measures: idle, saturated, paced, third, events_200, events_40, large
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Requests a second of the fixed rate, where the machine can do so much
    #[arg(long, value_name = "N", default_value_t = 12_000)]
    rate: u32,
    /// Python of an environment with sglang-router, to measure it too
    #[arg(long, value_name = "FILE")]
    sglang_python: Option<PathBuf>,
    /// Measure the release binaries that are there, without building
    #[arg(long)]
    no_build: bool,
    /// Write everything measured here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the comparison here
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// For CI: fails when a step takes more instructions than its baseline by so much that it must be meant. Skipped, with
/// the reason, where valgrind is missing and cannot be had.
pub fn gate() -> Outcome {
    if let Err(why) = crate::setup::ensure(&crate::setup::VALGRIND) {
        println!("skipped: instruction counts: {why}");
        return Ok(());
    }
    counts::run(&CountsArgs { check: true, update: false, no_build: false })
}

/// Measures and prints.
pub fn run(what: Option<What>) -> Outcome {
    match what.unwrap_or(What::Micro) {
        What::Micro => proc::run(cargo().args(["run", "--release", "-p", "llmgw-bench"])),
        What::Shards => proc::run(cargo().args(["run", "--release", "-p", "llmgw-bench", "shards"])),
        What::Counts(args) => counts::run(&args),
        What::Overhead { seconds } => overhead::run(seconds),
        What::Peers(args) => peers::run(&args),
    }
}
