//! Runs the cases: by the clock for a person, or a given number of times for callgrind.
#![allow(clippy::print_stdout)] // it prints its table

use crate::cases;
use std::time::Instant;

const SLICES: usize = 41;
const CALLS: u32 = 2_000;

/// Prints the median of many short slices of each case, in nanoseconds a call. On a shared machine only comparisons
/// within one run mean anything.
pub fn run() {
    println!("{:44} {:>10}", "ns a call (median)", "");
    for case in cases::all() {
        let mut call = (case.make)();
        let mut slices: Vec<f64> = (0..SLICES)
            .map(|_| {
                let start = Instant::now();
                (0..CALLS).for_each(|_| call());
                start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
            })
            .collect();
        slices.sort_by(f64::total_cmp);
        println!("{:44} {:10.1}", case.name, slices[SLICES / 2]);
    }
}

/// Prints the names.
pub fn list() {
    cases::all().iter().for_each(|case| println!("{}", case.name));
}

/// Calls one case `count` times.
pub fn call(name: &str, count: &str) -> Result<(), String> {
    let count: u32 = count.parse().map_err(|e| format!("{count}: {e}"))?;
    let all = cases::all();
    let case = all.iter().find(|case| case.name == name).ok_or_else(|| format!("no case {name}"))?;
    let mut call = (case.make)();
    (0..count).for_each(|_| call());
    Ok(())
}
