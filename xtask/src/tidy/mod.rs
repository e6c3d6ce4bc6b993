//! `cargo xtask tidy`: style checked by code, not by reviewers.
//!
//! A rule reads one file or the list of all and tells what it finds with the place and the replacement. A line that
//! must break a rule says so: `// tidy: allow(rule) why`, on it or just above it.

mod lexer;
mod rules;
mod tree;

#[cfg(test)]
mod tests;

use crate::proc::{self, Outcome};
use std::fmt;
use std::path::Path;
use std::process::Command;

/// Longest line of code, prose and configuration, in characters.
const LINE_CHARS_MAX: usize = 120;
/// Longest Rust file, in lines; from [`FILE_LINES_AIM`] on there is a warning.
const FILE_LINES_MAX: usize = 800;
/// Aimed at for a Rust file, in lines.
const FILE_LINES_AIM: usize = 600;
/// Longest function, in lines.
const FUNCTION_LINES_MAX: usize = 100;

/// One file of the repository.
#[derive(Debug, Clone)]
struct File {
    /// From the root, with slashes.
    path: String,
    text: String,
    /// The text with comments and the contents of strings blanked; equal to `text` outside of Rust.
    code: String,
}

impl File {
    fn new(path: &str, text: &str) -> Self {
        let code = if path.ends_with(".rs") { lexer::mask(text) } else { text.to_owned() };
        File { path: path.to_owned(), text: text.to_owned(), code }
    }

    fn is(&self, extension: &str) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, e)| e == extension)
    }

    /// Whether all of it is test code.
    fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or("");
        self.path.split('/').any(|part| part == "tests") || name == "tests.rs" || name.ends_with("_tests.rs")
    }

    /// Whether the line (from 1) or the comment above it allows `rule`.
    fn allows(&self, line: usize, rule: &str) -> bool {
        let mark = format!("tidy: allow({rule})");
        let from = line.saturating_sub(2);
        self.text.lines().skip(from).take(line - from).any(|text| text.contains(&mark))
    }
}

/// How much a finding weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Warning,
    Error,
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    level: Level,
    rule: &'static str,
    path: String,
    line: usize,
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = if self.level == Level::Error { "error" } else { "warning" };
        write!(f, "{}:{}: {level}({}): {}", self.path, self.line, self.rule, self.message)
    }
}

/// What the checks collect.
#[derive(Default)]
struct Report(Vec<Finding>);

impl Report {
    fn add(&mut self, file: &File, line: usize, rule: &'static str, message: impl Into<String>) {
        if !file.allows(line, rule) {
            let message = message.into();
            self.0.push(Finding { level: Level::Error, rule, path: file.path.clone(), line, message });
        }
    }

    fn warn(&mut self, file: &File, line: usize, rule: &'static str, message: impl Into<String>) {
        let message = message.into();
        self.0.push(Finding { level: Level::Warning, rule, path: file.path.clone(), line, message });
    }
}

/// Checks the whole repository; an error when something must change.
pub fn run() -> Outcome {
    let files = load()?;
    let findings = check(&files);
    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|f| f.level == Level::Error).count();
    let warnings = findings.len() - errors;
    println!("tidy: {} files, {errors} errors, {warnings} warnings", files.len());
    if errors == 0 { Ok(()) } else { Err(format!("tidy found {errors} things to change")) }
}

/// All findings over a set of files, in order of place.
fn check(files: &[File]) -> Vec<Finding> {
    let mut report = Report::default();
    for file in files {
        rules::layout(file, &mut report);
        rules::words(file, &mut report);
        if file.is("rs") {
            rules::module_doc(file, &mut report);
            rules::function_length(file, &mut report);
            rules::unsafe_code(file, &mut report);
        }
    }
    tree::dead_modules(files, &mut report);
    tree::links(files, &mut report);
    tree::specified_tests(files, &mut report);
    let mut findings = report.0;
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    findings
}

/// Every text file that git tracks or would track.
fn load() -> Outcome<Vec<File>> {
    let mut list = Command::new("git");
    list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let paths: Vec<String> = match proc::capture(&mut list) {
        Ok(out) => out.split('\0').filter(|p| !p.is_empty()).map(str::to_owned).collect(),
        // An unpacked archive has no git folder.
        Err(_) => walk(Path::new("."), ""),
    };
    let mut files = Vec::new();
    for path in paths {
        // A tracked file may be deleted in the working tree, and binary fixtures are not text.
        if let Ok(text) = std::fs::read_to_string(&path) {
            files.push(File::new(&path, &text));
        }
    }
    if files.is_empty() {
        return Err("tidy found no files; is this the repository?".to_owned());
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn walk(folder: &Path, prefix: &str) -> Vec<String> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return found };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == ".git" || name == "target" || name == "artifacts" {
            continue;
        }
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(walk(&entry.path(), &path));
        } else {
            found.push(path);
        }
    }
    found
}
