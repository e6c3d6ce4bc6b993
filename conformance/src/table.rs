//! Counts by family, as text for the terminal and as Markdown for the documentation.

use crate::case::{Case, Level};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One gateway's results, in the order of the cases; none where the case does not apply to it.
pub struct Column {
    /// Its name and version.
    pub name: String,
    /// By case.
    pub results: Vec<Option<Result<(), String>>>,
}

/// Passed and run, for the cases of one family and level.
fn count(cases: &[Case], column: &Column, family: &str, level: Option<Level>) -> (usize, usize) {
    let wanted = |case: &Case| {
        (family.is_empty() || case.family == family) && level.is_none_or(|level| case.level == level)
    };
    let results = cases.iter().zip(&column.results).filter(|(case, _)| wanted(case));
    let run: Vec<_> = results.filter_map(|(_, result)| result.as_ref()).collect();
    (run.iter().filter(|result| result.is_ok()).count(), run.len())
}

/// Markdown with one row a family: passed of run. Columns from `own` on are other gateways', also by level.
pub fn markdown(cases: &[Case], columns: &[Column], own: usize) -> String {
    let mut families: BTreeMap<&str, usize> = BTreeMap::new();
    cases.iter().for_each(|case| *families.entry(&case.family).or_default() += 1);
    let mut out = String::from("| family | cases |");
    for (i, column) in columns.iter().enumerate() {
        let _ = write!(out, " {} |", column.name);
        if i >= own {
            let _ = write!(out, " must | strict |");
        }
    }
    out.push_str("\n|---|--:|");
    columns
        .iter()
        .enumerate()
        .for_each(|(i, _)| out.push_str(if i >= own { "--:|--:|--:|" } else { "--:|" }));
    out.push('\n');
    let rows = families.iter().map(|(family, cases)| (*family, *cases));
    for (family, cases_of) in rows.chain([("", cases.len())]) {
        let name = if family.is_empty() { "all" } else { family };
        let _ = write!(out, "| {name} | {cases_of} |");
        for (i, column) in columns.iter().enumerate() {
            let levels: &[Option<Level>] =
                if i >= own { &[None, Some(Level::Must), Some(Level::Strict)] } else { &[None] };
            for level in levels {
                let (passed, run) = count(cases, column, family, *level);
                let cell = if run == 0 { "-".to_owned() } else { format!("{passed}/{run}") };
                let _ = write!(out, " {cell} |");
            }
        }
        out.push('\n');
    }
    out
}

/// The cases that a gateway did not pass, one a line.
pub fn failures(cases: &[Case], column: &Column) -> String {
    let mut out = String::new();
    for (case, result) in cases.iter().zip(&column.results) {
        if let Some(Err(why)) = result {
            let _ = writeln!(out, "{}: {} ({}): {}: {why}", column.name, case.id, case.section, case.title);
        }
    }
    out
}
