//! Request bodies as the gateway and the engines' parsers read them: a body that they read differently would be a hole.
//!
//! `cases.txt` holds the bodies and, for each, which parser takes a side of its own. The rule that must hold for all of
//! them: whoever accepts a body that the gateway accepts reads the same value from every field that the gateway reads.
//! The parsers are serde_json, and, where the set-up installed them, Python's `json` (with which vLLM and SGLang
//! parse), `orjson`, pydantic's own parser, and a pydantic model of the fields with vLLM's types.

#![allow(clippy::print_stdout)] // a test that is skipped says why

use llmgw_routing::prefix::prefix_key;
use llmgw_routing::scan::{Fields, RequestScan, ScanError, UsageAsk};
use serde_json::{Map, Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A body, and what is known of it.
struct Case {
    /// The gateway accepts it.
    accepted: bool,
    name: &'static str,
    /// Parsers that see it the other way round.
    others: Vec<&'static str>,
    body: Vec<u8>,
}

/// A case a line: `y` or `n`, name, parsers that disagree (`prompt`: all of them, on the prompt), ` | `, body. In the
/// body `%XX` is a byte, `%(N)[text]` a text repeated.
fn cases() -> Vec<Case> {
    let lines = include_str!("cases.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (head, body) = line.split_once(" | ").unwrap_or_else(|| panic!("no body: {line}"));
            let mut words = head.split_whitespace();
            let accepted = words.next() == Some("y");
            let name = words.next().unwrap_or_else(|| panic!("no name: {line}"));
            Case { accepted, name, others: words.collect(), body: unescape(body) }
        })
        .collect()
}

fn unescape(text: &str) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some((plain, escape)) = rest.split_once('%') {
        out.extend_from_slice(plain.as_bytes());
        if let Some(repeat) = escape.strip_prefix('(') {
            let (count, tail) = repeat.split_once(")[").expect("%(N)[text]");
            let (unit, tail) = tail.split_once(']').expect("%(N)[text]");
            // A bracket inside of the unit is written %5D.
            let unit = unescape(&unit.replace('~', "%"));
            out.extend(unit.repeat(count.parse().expect("a count")));
            rest = tail;
        } else {
            out.push(u8::from_str_radix(&escape[..2], 16).expect("%XX"));
            rest = &escape[2..];
        }
    }
    out.extend_from_slice(rest.as_bytes());
    out
}

/// The scan of a body, which does not depend on how it is split.
fn scan(case: &Case) -> Result<Fields, ScanError> {
    let scan = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut scan = RequestScan::new(64);
        for piece in pieces {
            scan.feed(piece)?;
        }
        scan.finish(&case.body)
    };
    let whole = scan(&mut std::iter::once(&*case.body));
    assert_eq!(scan(&mut case.body.chunks(1)), whole, "{}: byte by byte", case.name);
    for cut in 1..case.body.len().min(400) {
        let (a, b) = case.body.split_at(cut);
        assert_eq!(scan(&mut [a, b].into_iter()), whole, "{}: cut at {cut}", case.name);
    }
    whole
}

/// The fields that the gateway reads, as JSON.
fn read(fields: &Fields) -> Map<String, Value> {
    let read = json!({
        "model": &*fields.model, "stream": fields.stream, "include_usage": fields.usage == UsageAsk::Asked,
        "max_tokens": fields.max_tokens, "max_completion_tokens": fields.max_completion_tokens, "n": fields.n,
    });
    read.as_object().expect("an object").clone()
}

/// What a parser read, with absent and `null` as the gateway takes them, and negative numbers as none.
fn as_the_gateway(mut seen: Map<String, Value>) -> Map<String, Value> {
    for (name, value) in &mut seen {
        match name.as_str() {
            "stream" | "include_usage" if value.is_null() => *value = json!(false),
            "max_tokens" | "max_completion_tokens" | "n" => {
                // Only a negative number is below any u64; 16.0 is 16; beyond u64 is the largest.
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                // whole, or refused by the scan
                if let Some(float) = value.as_f64().filter(|_| value.as_u64().is_none()) {
                    *value = if float < 0.0 { Value::Null } else { json!(float as u64) };
                }
            }
            _ => {}
        }
    }
    seen
}

fn ranges<'b>(fields: &Fields, body: &'b [u8]) -> Vec<(&'static str, &'b [u8])> {
    let all = [
        ("messages", &fields.messages),
        ("prompt", &fields.prompt),
        ("input", &fields.input),
        ("user", &fields.user),
        ("seed", &fields.seed),
        ("logprobs", &fields.logprobs),
        ("stream_options", &fields.stream_options),
    ];
    all.into_iter().filter_map(|(name, range)| Some((name, &body[range.clone()?]))).collect()
}

/// Checks one parser's opinion of a case: on accepting it, and on every field. What differs is noted.
fn check(
    case: &Case,
    scanned: &Result<Fields, ScanError>,
    parser: &str,
    seen: Option<Map<String, Value>>,
    differs: &mut Vec<String>,
) {
    let mut note = |what: String| differs.push(format!("{}: {parser} {what}", case.name));
    let alone = case.others.contains(&parser);
    if (seen.is_some() == case.accepted) == alone {
        note(format!("is listed wrongly; it reads {seen:?}"));
    }
    let (Ok(fields), Some(mut seen)) = (scanned, seen) else { return };
    if let Some(wrong) = seen.remove("wrong").filter(|wrong| *wrong != json!([])) {
        note(format!("reads other values of {wrong}"));
    }
    if let Some(Value::String(prompt)) = seen.remove("prompt") {
        let mut key = Default::default();
        prefix_key(fields, &case.body, &mut key);
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        if (key != prompt) != case.others.contains(&"prompt") {
            note(format!("reads another prompt: {prompt}, not {key}"));
        }
    }
    let (seen, read) = (as_the_gateway(seen), read(fields));
    if seen != read {
        note(format!("reads {seen:?}, not {read:?}"));
    }
}

#[test]
fn the_corpus_is_large_and_the_gateway_takes_its_side() {
    let cases = cases();
    assert!(cases.len() >= 150, "{}", cases.len());
    let mut names: Vec<&str> = cases.iter().map(|case| case.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), cases.len(), "names are unique");
    let wrong = cases
        .iter()
        .map(|case| (case, scan(case)))
        .filter(|(case, scanned)| scanned.is_ok() != case.accepted);
    let wrong: Vec<String> = wrong.map(|(case, scanned)| format!("{}: {scanned:?}", case.name)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn serde_json_reads_the_same() {
    let mut differs = Vec::new();
    for case in cases() {
        let scanned = scan(&case);
        let value: Option<Value> = serde_json::from_slice(&case.body).ok();
        let seen = value.as_ref().and_then(Value::as_object).map(|map| {
            let get = |name: &str| map.get(name).cloned().unwrap_or_default();
            let mut seen = Map::new();
            for name in ["model", "stream", "max_tokens", "max_completion_tokens", "n"] {
                seen.insert(name.to_owned(), get(name));
            }
            seen.insert("include_usage".to_owned(), get("stream_options")["include_usage"].clone());
            if let Ok(fields) = &scanned {
                for (name, text) in ranges(fields, &case.body) {
                    assert_eq!(serde_json::from_slice::<Value>(text).ok(), Some(get(name)), "{}", case.name);
                }
            }
            seen
        });
        check(&case, &scanned, "serde_json", seen, &mut differs);
    }
    assert!(differs.is_empty(), "{}", differs.join("\n"));
}

#[test]
#[allow(clippy::print_stdout)] // how much was compared
fn oracle_python_reads_the_same() {
    let Some(mut reader) = Reader::python() else { return };
    let (mut compared, mut differs) = (0, Vec::new());
    for case in cases() {
        let scanned = scan(&case);
        let found = scanned.as_ref().map(|fields| ranges(fields, &case.body)).unwrap_or_default();
        for (parser, seen) in reader.read(&case.body, &found) {
            check(&case, &scanned, &parser, seen.as_object().cloned(), &mut differs);
            compared += 1;
        }
    }
    println!("{compared} comparisons");
    assert!(differs.is_empty(), "{}", differs.join("\n"));
}

/// The Python parsers: a process that answers a line with a line.
struct Reader {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Reader {
    /// Unless the set-up did not install them.
    fn python() -> Option<Reader> {
        let home = home("python")?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/oracles/body.py");
        let mut command = Command::new(home.join("bin/python"));
        let command = command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the reader starts");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Some(Reader { child, input, output })
    }

    fn read(&mut self, body: &[u8], ranges: &[(&str, &[u8])]) -> Map<String, Value> {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let ranges: Map<String, Value> =
            ranges.iter().map(|(name, text)| ((*name).to_owned(), hex(text).into())).collect();
        writeln!(self.input, "{}", json!({ "body": hex(body), "ranges": ranges })).expect("it takes a line");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the set-up put the packages. Without them the test is skipped, but not in CI.
#[allow(clippy::print_stdout)] // the reason why a test is skipped
fn home(kind: &str) -> Option<PathBuf> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../oracles").join(kind);
    if home.join("installed").exists() {
        return Some(home);
    }
    let told = format!("{} is not there; `cargo xtask test` installs it", home.display());
    assert!(std::env::var_os("CI").is_none(), "{told}");
    println!("skipped: {told}");
    None
}
