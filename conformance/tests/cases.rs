//! Every case, whole and split at every byte, against a shard over the simulated network.

#![allow(clippy::print_stdout)] // the table of verdicts

use llmgw_conformance::case::{Case, all};
use llmgw_conformance::judge::check;
use llmgw_conformance::shard::Stack;

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
    let cuts = case.cuts();
    for &cut in &cuts {
        note(format!("cut at {cut}"), stack.run(case, &[cut]));
    }
    if cuts.len() + 1 == length {
        note("byte by byte".to_owned(), stack.run(case, &(1..length).collect::<Vec<_>>()));
    }
    wrong.truncate(3);
    wrong
}

#[test]
fn every_case_whole_and_split_at_every_byte() {
    let cases = all().expect("h1.toml can be read");
    let wrong: Vec<String> = cases.iter().flat_map(violations).collect();
    let runs: usize = cases.iter().map(|case| case.cuts().len() + 2).sum();
    println!("{} cases, {runs} runs, {} violations", cases.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Heads are remembered: what was seen before on other connections changes no verdict. Each case after each of its
/// family, on one shard.
#[test]
fn no_case_changes_the_verdict_on_another() {
    let cases = all().expect("h1.toml can be read");
    let (mut wrong, mut runs) = (Vec::new(), 0);
    for before in &cases {
        let mut stack = Stack::new();
        for case in cases.iter().filter(|case| case.family == before.family) {
            stack.run(before, &[]);
            runs += 1;
            if let Err(why) = check(case, &stack.run(case, &[])) {
                wrong.push(format!("{} after {}: {why}", case.id, before.id));
            }
        }
    }
    println!("{runs} pairs, {} violations", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
