//! Rules that look at the whole tree: dead modules, links that point nowhere, crates that must not be depended on.

use super::lexer::{is_word, words};
use super::{File, Report};
use std::collections::HashSet;
use std::path::Path;

/// Every Rust file is a root of a crate or named by a `mod` or a path beside it or above it.
pub fn dead_modules(files: &[File], report: &mut Report) {
    let manifests: String =
        files.iter().filter(|f| f.path.ends_with("Cargo.toml")).map(|f| f.text.as_str()).collect();
    for file in files.iter().filter(|f| f.is("rs")) {
        let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
        let stem = name.trim_end_matches(".rs");
        let (parent, folder_name) = folder.rsplit_once('/').unwrap_or(("", folder));
        let target = matches!(folder_name, "tests" | "examples" | "benches" | "bin" | "fuzz_targets");
        if matches!(name, "main.rs" | "lib.rs" | "build.rs") || (target && name != "mod.rs") {
            continue;
        }
        if manifests.contains(&format!("/{name}\"")) {
            continue;
        }
        let module = if name == "mod.rs" { folder_name } else { stem };
        let near = |other: &&File| {
            let home = other.path.rsplit_once('/').map_or("", |(home, _)| home);
            other.is("rs") && other.path != file.path && (home == folder || home == parent)
        };
        if !files.iter().filter(near).any(|other| names(other, module, name)) {
            report.add(
                file,
                1,
                "dead-file",
                format!("no file declares `mod {module}`; delete it or declare it"),
            );
        }
    }
}

/// Whether `file` has `mod module` in code or the file's name in a path or include.
fn names(file: &File, module: &str, name: &str) -> bool {
    let chars: Vec<char> = file.code.chars().collect();
    let declared = words(&chars, "mod").into_iter().any(|at| {
        let word: String =
            chars[at + 3..].iter().skip_while(|c| c.is_whitespace()).take_while(|&&c| is_word(c)).collect();
        word == module
    });
    declared || file.text.contains(&format!("/{name}\"")) || file.text.contains(&format!("\"{name}\""))
}

/// Relative links of Markdown files point at something.
pub fn links(files: &[File], report: &mut Report) {
    let known: HashSet<&str> = files.iter().map(|f| f.path.as_str()).collect();
    for file in files.iter().filter(|f| f.is("md")) {
        let mut fenced = false;
        for (n, line) in file.text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            }
            if fenced {
                continue;
            }
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let target = target.split_whitespace().next().unwrap_or("");
                let path = target.split('#').next().unwrap_or("");
                if path.is_empty() || path.contains(':') {
                    continue;
                }
                let Some(resolved) = resolve(&file.path, path) else {
                    report.add(file, n + 1, "link", format!("{target} leaves the repository"));
                    continue;
                };
                let folder = format!("{resolved}/");
                let exists = known.contains(resolved.as_str())
                    || resolved.is_empty()
                    || known.iter().any(|k| k.starts_with(&folder))
                    || Path::new(&resolved).exists();
                if !exists {
                    report.add(file, n + 1, "link", format!("{target} points nowhere"));
                }
            }
        }
    }
}

/// `link` as seen from the file at `from`, from the root; none when it climbs out.
fn resolve(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The page whose numbers tests enforce; the last cell of its tables names them.
const SPECIFICATION: &str = "docs/specification.md";

/// Every test that the specification names exists.
pub fn specified_tests(files: &[File], report: &mut Report) {
    let Some(page) = files.iter().find(|f| f.path == SPECIFICATION) else { return };
    let mut known: HashSet<String> = HashSet::new();
    for file in files.iter().filter(|f| f.is("rs")) {
        let chars: Vec<char> = file.code.chars().collect();
        let name = |at: usize| -> String {
            chars[at + 2..].iter().skip_while(|c| c.is_whitespace()).take_while(|&&c| is_word(c)).collect()
        };
        known.extend(words(&chars, "fn").into_iter().map(name));
    }
    let mut of_tests = false;
    for (n, line) in page.text.lines().enumerate() {
        if !line.starts_with('|') {
            of_tests = false;
            continue;
        }
        let last = last_cell(line);
        if last == "test" {
            of_tests = true;
        } else if of_tests && last.is_empty() {
            report.warn(page, n + 1, "specified-test", "no test holds us to this");
        }
        // A command is not a test.
        for name in last.split('`').skip(1).step_by(2).filter(|name| !name.contains(' ')) {
            if !known.contains(name.rsplit("::").next().unwrap_or(name)) {
                report.add(page, n + 1, "specified-test", format!("no test is called {name}"));
            }
        }
    }
}

fn last_cell(row: &str) -> &str {
    let row = row.trim_end();
    row.strip_suffix('|').unwrap_or(row).rsplit('|').next().unwrap_or("").trim()
}
