//! Shards over a simulated network, from seeds.
//!
//! A seed draws the weather, the settings, engines with their faults and clients with theirs ([`plan`]), runs until
//! everything is quiet ([`sim`]), and checks what must hold whatever happens ([`check`]).
//!
//! One seed again, with a trace:
//! `LLMGW_SIM_SEED=17 cargo test -p llmgw-dataplane --features simtest --test simulation replay -- --nocapture`
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::cast_possible_truncation)] // a test talks to people
#![allow(missing_docs)]

mod check;
mod client;
mod engine;
mod http;
mod plan;
mod sim;

use llmgw_dataplane::{marks, planted};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static QUIET: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs a seed; a panic is a finding like any other.
fn attempt(seed: u64) -> Result<(), String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if QUIET.get() {
                PANIC.set(Some(info.to_string()));
            } else {
                usual(info);
            }
        }));
    });
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(|| sim::run(seed, false)));
    QUIET.set(false);
    result.unwrap_or_else(|_| Err(PANIC.take().unwrap_or_default()))
}

fn command(seed: u64) -> String {
    format!(
        "LLMGW_SIM_SEED={seed} cargo test -p llmgw-dataplane --features simtest --test simulation replay -- --nocapture"
    )
}

/// Seeds that reach every mark.
const MARKS_WITHIN: u64 = 4000;

fn seeds() -> u64 {
    std::env::var("LLMGW_SIM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000)
}

/// Runs `count` seeds on all cores. Answers the first failures and the marks that were hit.
fn run_many(count: u64, stop_after: usize) -> (Vec<(u64, String)>, BTreeMap<&'static str, u64>) {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let work = || {
        let mut failures = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= count {
                break;
            }
            if let Err(why) = attempt(seed) {
                failures.push((seed, why));
                stop.store(failures.len() >= stop_after, Ordering::Relaxed);
            }
        }
        (failures, marks::hits())
    };
    let (mut failures, mut hits) = (Vec::new(), BTreeMap::new());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            let (found, marked) = worker.join().unwrap();
            failures.extend(found);
            for (name, n) in marked {
                *hits.entry(name).or_default() += n;
            }
        }
    });
    failures.sort_unstable();
    (failures, hits)
}

/// Every seed holds, and together they reach every coverage mark.
#[test]
fn ten_thousand_seeds() {
    let (failures, hits) = run_many(seeds(), 8);
    for (seed, why) in &failures {
        println!("seed {seed}: {why}\n  {}", command(*seed));
    }
    assert!(failures.is_empty(), "{} seeds failed; replay: {}", failures.len(), command(failures[0].0));
    // Fewer seeds, asked for by hand, need not reach the rare ones.
    let missed: Vec<_> = marks::ALL.iter().filter(|name| !hits.contains_key(*name)).collect();
    assert!(missed.is_empty() || seeds() < MARKS_WITHIN, "marks that no seed reaches: {missed:?}");
}

#[test]
fn replay() {
    let Some(seed) = std::env::var("LLMGW_SIM_SEED").ok().and_then(|seed| seed.parse().ok()) else {
        return; // nothing to replay
    };
    let bug = std::env::var("LLMGW_SIM_BUG").ok();
    planted::plant(planted::ALL.iter().copied().find(|b| Some(format!("{b:?}")) == bug));
    if let Err(why) = sim::run(seed, true) {
        panic!("seed {seed}: {why}");
    }
}

/// `X-TL-Route`, and whatever else names the inside, goes to nobody unless the settings say so: looked at in every
/// answer of every seed, and here with both settings.
#[test]
fn route_header_only_for_debug() {
    for seed in 0..60 {
        for debug_headers in [false, true] {
            let mut plan = plan::Plan::draw(seed);
            plan.settings.debug_headers = debug_headers;
            if let Err(why) = sim::run_plan(plan, false) {
                panic!("seed {seed}, debug headers {debug_headers}: {why}");
            }
        }
    }
}

/// A seed gives the same result twice, so that a failure can be replayed.
#[test]
fn seeds_repeat() {
    for seed in 0..20 {
        marks::reset();
        let first = (attempt(seed), marks::hits());
        marks::reset();
        assert_eq!((attempt(seed), marks::hits()), first, "seed {seed}");
    }
}

#[test]
fn planted_bugs_are_found() {
    const WITHIN: u64 = 3000;
    let mut missed = Vec::new();
    for bug in planted::ALL.iter().copied() {
        planted::plant(Some(bug));
        let found = (0..WITHIN).find_map(|seed| attempt(seed).err().map(|why| (seed, why)));
        planted::plant(None);
        match found {
            Some((seed, why)) => println!("{bug:?}: found by seed {seed}: {why}"),
            None => missed.push(bug),
        }
    }
    println!("{} of {} planted bugs found", planted::ALL.len() - missed.len(), planted::ALL.len());
    assert!(missed.is_empty(), "not found within {WITHIN} seeds: {missed:?}");
}

/// [`marks::ALL`] and the source name the same marks.
#[test]
fn marks_are_listed() {
    fn names(dir: &std::path::Path, found: &mut std::collections::BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                names(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let uses = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                for line in uses {
                    found.extend(
                        line.split("crate::mark!(")
                            .skip(1)
                            .filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())),
                    );
                }
            }
        }
    }
    let mut found = std::collections::BTreeSet::new();
    names(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut found);
    let found: Vec<String> = found.into_iter().collect();
    assert_eq!(marks::ALL, found, "src/marks.rs lists other marks than the source has");
}
