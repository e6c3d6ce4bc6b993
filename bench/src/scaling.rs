//! `llmgw-bench shards`: what a request costs a shard while others work beside it, in user code: engines and load are
//! the stub driver's, so that nothing else competes for the cores. What rises with the number of shards is what they
//! share.
#![allow(clippy::print_stdout)] // it prints its table

use crate::cases;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const ROUNDS: usize = 41;
const CALLS: u32 = 4_000;

/// Paired slices of one shard and of as many as there are cores; prints medians and the ratio within a round.
pub fn run() -> Result<(), String> {
    let cores = std::thread::available_parallelism().map_err(|e| format!("cores: {e}"))?.get();
    if cores < 2 {
        return Err("two cores are needed: one a shard".to_owned());
    }
    let alone = rounds(1)?;
    let beside = rounds(cores)?;
    let again = rounds(1)?;
    println!("ns a request and shard, medians of {ROUNDS} slices of {CALLS} requests");
    println!("1 shard             {:8.0}", median(alone.clone()));
    println!("{cores} shards            {:8.0}", median(beside.clone()));
    println!("1 shard, once more  {:8.0}", median(again.clone()));
    let ratio = median(beside) / ((median(alone) + median(again)) / 2.0);
    println!("a shard beside others to one alone: {ratio:.2}");
    Ok(())
}

/// Slices of `shards` shards that run at the same time, each on its core: ns a request of each slice.
fn rounds(shards: usize) -> Result<Vec<f64>, String> {
    let barrier = Barrier::new(shards);
    let makers = cases::side_by_side(shards);
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = makers
            .into_iter()
            .enumerate()
            .map(|(core, make)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    pin(core);
                    let mut call = make();
                    let slice = || {
                        barrier.wait();
                        let start = Instant::now();
                        (0..CALLS).for_each(|_| call());
                        start.elapsed()
                    };
                    std::iter::repeat_with(slice).take(ROUNDS).collect::<Vec<Duration>>()
                })
            })
            .collect();
        for thread in threads {
            let slices = thread.join().map_err(|_| "a shard panicked".to_owned())?;
            all.extend(slices.iter().map(|slice| slice.as_secs_f64() * 1e9 / f64::from(CALLS)));
        }
        Ok(all)
    })
}

/// Where that is not allowed, the scheduler keeps them apart.
fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
