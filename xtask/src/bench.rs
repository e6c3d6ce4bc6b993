//! `cargo xtask bench`: what the code costs (`micro`), and what the gateway adds to a request (`overhead`).

use crate::fleet::{self, Fleet, Plan};
use crate::proc::{self, Outcome, cargo};
use std::process::Command;

/// What to measure.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum What {
    /// The gateway's parts, one by one
    Micro,
    /// Paired slices of requests, direct and through the gateway
    Overhead,
}

/// Measures and prints.
pub fn run(what: What, seconds: u64) -> Outcome {
    match what {
        What::Micro => proc::run(cargo().args(["run", "--release", "-p", "llmgw-bench"])),
        What::Overhead => overhead(seconds),
    }
}

fn overhead(seconds: u64) -> Outcome {
    let binaries = fleet::build()?;
    let fleet = Fleet::start(&binaries, &Plan { engines: 3, engine_args: &[], config: "" })?;
    let mut load = Command::new(&binaries.loadgen);
    load.args(["overhead", "--direct", &fleet.engine_urls[0], "--via", &fleet.url()]);
    load.args(["--model", fleet::MODEL, "--duration", &format!("{seconds}s"), "--stream"]);
    let measured = proc::run(&mut load);
    fleet.stop()?;
    measured
}
