//! Readers by others, each a process that answers a line with a line.

use crate::Event;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Readers of one language.
pub struct Reader {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Reader {
    /// The Python readers, unless the set-up did not install them.
    pub fn python() -> Option<Reader> {
        let home = home("python")?;
        Some(Reader::start(Command::new(home.join("bin/python")).arg(script("sse.py"))))
    }

    /// The Node.js readers, unless the set-up did not install them.
    pub fn node() -> Option<Reader> {
        let home = home("node")?;
        Some(Reader::start(Command::new("node").arg(script("sse.mjs")).arg(home.join("package.json"))))
    }

    fn start(command: &mut Command) -> Reader {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the reader starts");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Reader { child, input, output }
    }

    /// What each reader makes of a stream.
    pub fn read(&mut self, stream: &[u8]) -> Vec<(String, Vec<Event>)> {
        let hex: String = stream.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(self.input, "{hex}").expect("the reader takes a line");
        self.input.flush().expect("the reader takes a line");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the reader answers");
        let answer: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let event = |event: &Value| (text(&event[0]), text(&event[1]));
        let readers = answer.as_object().expect("an object").iter();
        readers
            .map(|(name, events)| {
                (name.clone(), events.as_array().expect("events").iter().map(event).collect())
            })
            .collect()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/oracles").join(name)
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
