//! Every conformance case over real sockets, whole and split, against the built gateway over both drivers.

#![allow(clippy::print_stdout)] // the figures of a run

use llmgw_conformance::case::all;
use llmgw_conformance::gateways;
use llmgw_conformance::judge::check;
use llmgw_conformance::socket::ScriptedEngine;
use llmgw_dataplane::driver::uring::{self, Unusable};
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);
/// Places at which each case is split; the shard over the simulated network is given all of them.
const SPLITS: usize = 8;

/// Whether this machine has no ring for anybody, as containers often have not: the kernel lacks or refuses it, which
/// this process asks by itself. A ring that is there and does not do what it should is no reason to skip.
fn no_ring() -> bool {
    match uring::self_test() {
        Ok(()) | Err(Unusable::Kernel(_) | Unusable::Misbehaves(_)) => false,
        Err(
            Unusable::Disabled(_)
            | Unusable::Forbidden
            | Unusable::Missing
            | Unusable::TooOld
            | Unusable::MemoryLimit,
        ) => true,
    }
}

fn every_case(driver: &str) {
    let engine = ScriptedEngine::start(false).expect("a free port");
    let within = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let binary = Path::new(env!("CARGO_BIN_EXE_llmgw"));
    let gateway = match gateways::llmgw(binary, driver, engine.address(), within) {
        Ok(gateway) => gateway,
        Err(why) if driver == "io_uring" && no_ring() => {
            println!("skipped: io_uring cannot be used here: {why}");
            return;
        }
        Err(why) => panic!("the gateway does not start over {driver}: {why}"),
    };
    // 0: every place of every case. That takes a minute, and is for a run by hand.
    let splits =
        std::env::var("LLMGW_CONFORMANCE_SPLITS").ok().and_then(|n| n.parse().ok()).unwrap_or(SPLITS);
    let (mut wrong, mut runs) = (Vec::new(), 0);
    let cases = all().expect("h1.toml can be read");
    for case in &cases {
        let cuts = case.cuts();
        let step = if splits == 0 { 1 } else { cuts.len().div_ceil(splits).max(1) };
        // Another offset for each case, so that all places are met.
        let chosen = cuts.iter().skip(case.id.len() % step).step_by(step).map(|at| Some(*at));
        for at in [None].into_iter().chain(chosen) {
            let seen =
                engine.run(case, at, gateway.address, PATIENCE).expect("the gateway takes connections");
            runs += 1;
            if let Err(why) = check(case, &seen) {
                wrong.push(format!("{} cut at {at:?}: {why}", case.id));
            }
        }
    }
    println!("{} cases over {driver}, {runs} runs, {} violations", cases.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_case_over_epoll() {
    every_case("epoll");
}

#[test]
fn every_case_over_io_uring() {
    every_case("io_uring");
}
