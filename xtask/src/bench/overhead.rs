//! `cargo xtask bench overhead`: what the gateway adds to streamed requests, in pairs of slices.

use crate::fleet::{self, Fleet, Plan};
use crate::proc::{self, Outcome};
use std::process::Command;

/// Pairs of slices measured; one more warms up.
const ROUNDS: u64 = 5;
/// What the gateway may add at the 99th percentile.
const P99_OVERHEAD_MAX: &str = "2ms";
/// New streams a second; each lasts 2 s (20 tokens, 100 ms apart), so that 1,000 are open.
const STREAMS_A_SECOND: &str = "500";

/// Measures and prints; an error when too much is added.
pub fn run(seconds: u64) -> Outcome {
    let binaries = fleet::build()?;
    let engine_args = ["--ttft", "20ms", "--itl", "100ms", "--itl-growth", "0", "--max-seqs", "4096"];
    let fleet = Fleet::start(&binaries, &Plan { engines: 3, engine_args: &engine_args, config: "" })?;
    let slice_ms = seconds * 1_000 / (2 * (ROUNDS + 1));
    let mut load = Command::new(&binaries.loadgen);
    load.args([
        "overhead",
        "--direct",
        &fleet.engine_urls[0],
        "--via",
        &fleet.url(),
        "--model",
        fleet::MODEL,
    ]);
    load.args([
        "--stream",
        "--output-tokens",
        "20",
        "--rate",
        STREAMS_A_SECOND,
        "--slice",
        &format!("{slice_ms}ms"),
    ]);
    load.args([
        "--rounds",
        &ROUNDS.to_string(),
        "--warmup-rounds",
        "1",
        "--max-p99-overhead",
        P99_OVERHEAD_MAX,
    ]);
    let measured = proc::run(&mut load);
    fleet.stop()?;
    measured
}
