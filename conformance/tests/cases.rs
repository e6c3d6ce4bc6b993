//! Every case, whole and split at every byte, against a shard over the simulated network.

#![allow(clippy::print_stdout)] // the table of verdicts

use llmgw_conformance::case::{Case, all};
use llmgw_conformance::judge::check;
use llmgw_conformance::shard::Stack;

/// Cases up to this long are split at each byte.
const EACH_BYTE_MAX: usize = 2048;

/// Where to split: at each byte, or in a long case at each of the first and last and some between.
fn cuts(length: usize) -> Vec<usize> {
    let edge = EACH_BYTE_MAX / 4;
    let wanted =
        |&cut: &usize| length <= EACH_BYTE_MAX || cut < edge || cut + edge > length || cut % 997 == 0;
    (1..length).filter(wanted).collect()
}

fn violations(case: &Case) -> Vec<String> {
    let mut stack = Stack::new();
    let mut wrong = Vec::new();
    let mut note = |how: String, seen| {
        if let Err(why) = check(case, &seen) {
            wrong.push(format!("{} {how}: {why}\n  {}", case.id, case.bytes().escape_ascii()));
        }
    };
    note("whole".to_owned(), stack.run(case, &[]));
    let length = case.bytes().len();
    for cut in cuts(length) {
        note(format!("cut at {cut}"), stack.run(case, &[cut]));
    }
    if length <= EACH_BYTE_MAX {
        note("byte by byte".to_owned(), stack.run(case, &(1..length).collect::<Vec<_>>()));
    }
    wrong.truncate(3);
    wrong
}

#[test]
fn every_case_whole_and_split_at_every_byte() {
    let cases = all().expect("h1.toml can be read");
    let wrong: Vec<String> = cases.iter().flat_map(violations).collect();
    let runs: usize = cases.iter().map(|case| cuts(case.bytes().len()).len() + 2).sum();
    println!("{} cases, {runs} runs, {} violations", cases.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
