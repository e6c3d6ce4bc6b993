//! `cargo xtask conformance`: the HTTP/1.1 cases over real sockets, counted by family, with nginx and HAProxy beside us
//! on request. With them, the table goes into `docs/conformance.md`.

use crate::proc::{self, Outcome, cargo};
use crate::setup;
use std::process::{Command, Stdio};

/// Where the table stands.
const PAGE: &str = "docs/conformance.md";
const BEGIN: &str = "<!-- counts: written by cargo xtask conformance --peers -->\n";
const END: &str = "<!-- end of counts -->\n";

/// Runs the cases; an error when a gateway of ours did not pass them all.
pub fn run(peers: bool) -> Outcome {
    if peers {
        for step in setup::FOR_PEERS {
            setup::ensure(step)?;
        }
    }
    proc::run(cargo().args(["build", "-p", "llmgw", "-p", "llmgw-conformance", "--bins"]))?;
    let built = proc::target_dir().join("debug");
    let mut command = Command::new(built.join("conformance"));
    command.arg(built.join("llmgw"));
    if peers {
        command.arg("bench/peers");
    }
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    println!("$ {}", proc::spell(&command));
    let output = command.output().map_err(|e| format!("cannot run `{}`: {e}", proc::spell(&command)))?;
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{table}");
    if !output.status.success() {
        return Err(format!("conformance ended with {}", output.status));
    }
    if peers {
        let page = std::fs::read_to_string(PAGE).map_err(|e| format!("cannot read {PAGE}: {e}"))?;
        let page = with_table(&page, &table).ok_or_else(|| format!("{PAGE} has no place for the table"))?;
        std::fs::write(PAGE, page).map_err(|e| format!("cannot write {PAGE}: {e}"))?;
        println!("{PAGE} has the counts");
    }
    Ok(())
}

/// The page with what stands between the marks replaced.
fn with_table(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{table}{END}{after}"))
}

#[cfg(test)]
mod tests;
