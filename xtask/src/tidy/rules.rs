//! Rules that look at one file.

use super::lexer::{functions, is_word, words as find_words};
use super::{FILE_LINES_AIM, FILE_LINES_MAX, FUNCTION_LINES_MAX, File, LINE_CHARS_MAX, Report};

/// The only folder that may hold unsafe code.
const UNSAFE_HOME: &str = "dataplane/src/driver/";

/// How far above an `unsafe` its `// SAFETY:` may begin, in lines.
const SAFETY_LINES: usize = 12;

/// Calls that must not stand in code, and what to do instead.
const BANNED_CALLS: &[(&str, &str)] = &[
    ("dbg!", "remove it, or make a metric or a log line of it"),
    ("todo!", "finish it"),
    ("unimplemented!", "finish it, or return an error that says what is not supported"),
];

/// Sleeps that must not stand in tests.
const SLEEPS: &[&str] = &["thread::sleep", "time::sleep"];

/// Marks of unfinished work. Spelled in halves so that this file passes its own check.
const MARKS: &[&str] = &[concat!("FIX", "ME"), concat!("XX", "X")];

/// Folders of one machine.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Lines, files and white space.
pub fn layout(file: &File, report: &mut Report) {
    let measured = file.is("rs") || file.is("md") || file.is("toml");
    for ((n, line), code) in numbered(&file.text).zip(file.code.lines()) {
        let chars = if file.is_test() { code_chars(line, code) } else { line.chars().count() };
        // What cannot be broken over lines: rows of tables, links, inline tables of TOML.
        let row = line.trim_start();
        let exempt = file.is("md") && (row.starts_with('|') || line.contains("]("))
            || file.is("toml") && row.starts_with('{');
        if measured && !exempt && chars > LINE_CHARS_MAX {
            report.add(file, n, "line-length", format!("{chars} characters; at most {LINE_CHARS_MAX}"));
        }
        // A fixture is what an engine sent, to the byte.
        if file.path.contains("/data/") || file.path.contains("/corpus/") || file.is("lock") {
            continue;
        }
        if line.ends_with([' ', '\t']) {
            report.add(file, n, "trailing-space", "white space at the end of the line");
        }
        if line.contains('\t') && measured {
            report.add(file, n, "tab", "a tab; use spaces");
        }
    }
    if measured && !file.text.is_empty() && !file.text.ends_with('\n') {
        report.add(file, file.text.lines().count(), "final-newline", "no newline at the end of the file");
    }
    let lines = file.text.lines().count();
    if file.is("rs") && lines > FILE_LINES_MAX {
        report.add(
            file,
            1,
            "file-length",
            format!("{lines} lines; at most {FILE_LINES_MAX}: split it by subject"),
        );
    } else if file.is("rs") && lines > FILE_LINES_AIM {
        report.warn(file, 1, "file-length", format!("{lines} lines; aim at {FILE_LINES_AIM}"));
    }
}

/// Length of a line of a test: a literal in a table of inputs is as long as the input is.
fn code_chars(line: &str, code: &str) -> usize {
    if !line.contains('"') {
        return line.chars().count();
    }
    let indent = line.chars().take_while(|&c| c == ' ').count();
    indent + code.chars().filter(|&c| c != ' ').count()
}

/// Banned calls, marks of unfinished work, machine paths, sleeps in tests.
pub fn words(file: &File, report: &mut Report) {
    // Captured output and dependency lists are not ours to word.
    if file.is("lock") || file.path.contains("/data/") || file.path == "LICENSE" {
        return;
    }
    for (n, line) in numbered(&file.text) {
        for mark in MARKS {
            if line.match_indices(mark).any(|(at, _)| stands_alone(line, at, mark.len())) {
                report.add(file, n, "mark", format!("{mark}: finish it, or describe the limit in words"));
            }
        }
        for path in MACHINE_PATHS {
            let starts =
                |at: usize| at == 0 || line[..at].ends_with([' ', '"', '\'', '`', '(', '=', ':', '<', '[']);
            // After a colon and a slash pair stands a host, not a folder.
            if line.match_indices(path).any(|(at, _)| starts(at) && !line[..at].ends_with("://")) {
                report.add(
                    file,
                    n,
                    "machine-path",
                    format!("{path} exists on one machine; use a relative path"),
                );
            }
        }
    }
    if !file.is("rs") {
        return;
    }
    for (n, line) in numbered(&file.code) {
        for (call, instead) in BANNED_CALLS {
            let name = call.len() - 1;
            if line.match_indices(call).any(|(at, _)| stands_alone(line, at, name)) {
                report.add(file, n, "banned-call", format!("{call}: {instead}"));
            }
        }
        if file.is_test() && SLEEPS.iter().any(|sleep| line.contains(sleep)) {
            report.add(file, n, "sleep", "a sleep in a test: wait for the event, or use the injected clock");
        }
    }
}

fn stands_alone(line: &str, at: usize, length: usize) -> bool {
    let before = line[..at].chars().next_back();
    let after = line[at + length..].chars().next();
    !before.is_some_and(is_word) && !after.is_some_and(is_word)
}

/// A module opens with what it is for.
pub fn module_doc(file: &File, report: &mut Report) {
    let name = file.path.rsplit('/').next().unwrap_or("");
    let inner_tests = file.is_test() && file.path.contains("/src/");
    if inner_tests || name == "build.rs" {
        return;
    }
    let first = file.text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("#!["));
    if !first.is_some_and(|line| line.starts_with("//!")) {
        report.add(file, 1, "module-doc", "open the file with `//!`: what it is for and its invariants");
    }
}

/// Functions one can read at once.
pub fn function_length(file: &File, report: &mut Report) {
    for function in functions(&file.code) {
        let lines = function.last - function.first + 1;
        if lines > FUNCTION_LINES_MAX {
            let message = format!("`{}` has {lines} lines; at most {FUNCTION_LINES_MAX}", function.name);
            report.add(file, function.first, "function-length", message);
        }
    }
}

/// Unsafe code stands in one folder, and each use says why it is sound.
pub fn unsafe_code(file: &File, report: &mut Report) {
    let chars: Vec<char> = file.code.chars().collect();
    let lines: Vec<&str> = file.text.lines().collect();
    for at in find_words(&chars, "unsafe") {
        let n = 1 + chars[..at].iter().filter(|&&c| c == '\n').count();
        if !file.path.starts_with(UNSAFE_HOME) {
            report.add(file, n, "unsafe-place", format!("unsafe code stands only under {UNSAFE_HOME}"));
        }
        let next: String = chars[at + 6..].iter().skip_while(|c| c.is_whitespace()).take(4).collect();
        if !(next.starts_with('{') || next == "impl") {
            continue;
        }
        let above = &lines[n.saturating_sub(SAFETY_LINES)..n];
        if !above.iter().any(|line| line.contains("// SAFETY:")) {
            report.add(file, n, "safety-comment", "no `// SAFETY:` comment that says why this is sound");
        }
    }
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(n, line)| (n + 1, line))
}
