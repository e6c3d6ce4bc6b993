//! Other HTTP implementations, as processes that are told bytes and tell the requests in them.

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Method, target and body of each request of a connection, or why the parser refused.
pub type Reading = Result<Vec<(String, String, Vec<u8>)>, String>;

/// The parsers of `parsers/read.py`.
pub const PYTHON: [&str; 4] = ["h11", "httptools", "aiohttp", "http.server"];

/// What a missing parser is in CI: a failure, so that none goes missing unseen.
pub fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

/// Python with the parsers, as `cargo xtask test` sets it up; the error says what is missing.
pub fn python() -> Result<PathBuf, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
    let python = target.join("oracles/python/bin/python");
    let imports = "import h11, httptools, aiohttp.http_parser";
    works(&python, &["-c", imports]).map(|()| python).map_err(|why| {
        format!("no Python with h11, httptools and aiohttp ({why}); `cargo xtask test` sets it up")
    })
}

/// Node, if it is there.
pub fn node() -> Result<PathBuf, String> {
    works(Path::new("node"), &["--version"])
        .map(|()| "node".into())
        .map_err(|why| format!("no Node ({why}); install nodejs"))
}

fn works(program: &Path, args: &[&str]) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{} ended with {status}", program.display())),
        Err(error) => Err(format!("{}: {error}", program.display())),
    }
}

/// Has one of Python's parsers read connections.
pub fn read_by_python(python: &Path, parser: &str, connections: &[Vec<u8>]) -> Result<Vec<Reading>, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("parsers/read.py");
    let mut command = Command::new(python);
    command.arg(script).arg(parser);
    read_by(command, connections)
}

/// Has Node read connections.
pub fn read_by_node(node: &Path, connections: &[Vec<u8>]) -> Result<Vec<Reading>, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("parsers/read.mjs");
    let mut command = Command::new(node);
    command.arg(script);
    read_by(command, connections)
}

fn read_by(mut command: Command, connections: &[Vec<u8>]) -> Result<Vec<Reading>, String> {
    let mut lines = String::new();
    for connection in connections {
        connection.iter().for_each(|byte| lines.push_str(&format!("{byte:02x}")));
        lines.push('\n');
    }
    let mut child = match command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return Err(format!("{command:?}: {error}")),
    };
    let mut stdin = child.stdin.take().ok_or_else(|| "no standard input".to_owned())?;
    // Written beside the reading, so that neither pipe fills up.
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let stdout = child.stdout.take().ok_or_else(|| "no standard output".to_owned())?;
    let mut readings = Vec::with_capacity(connections.len());
    for line in BufReader::new(stdout).lines() {
        let line = line.map_err(|error| format!("reading a parser: {error}"))?;
        readings.push(reading(&line));
    }
    let _ = writer.join();
    let status = child.wait().map_err(|error| format!("waiting for a parser: {error}"))?;
    if readings.len() != connections.len() {
        return Err(format!("{} of {} connections were read; {status}", readings.len(), connections.len()));
    }
    Ok(readings)
}

fn reading(line: &str) -> Reading {
    let value: Value = serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))?;
    let Value::Array(requests) = value else { return Err(value["error"].to_string()) };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(requests.iter().map(|r| (text(&r[0]), text(&r[1]), unhex(&text(&r[2])))).collect())
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).filter_map(|i| u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()).collect()
}
