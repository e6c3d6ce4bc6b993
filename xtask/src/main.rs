//! `cargo xtask`: every chore of the repository, so that no shell script holds knowledge.
//!
//! * `test` sets up what the tests need and runs them all; `tidy` checks style by code; `deny` checks licences and
//!   banned crates; `fuzz`, `bench` and `soak` are the longer runs; `ci` is what follows the tests in CI.
//! * Nothing is left running: a started process lives in a guard that ends it by its id.
//! * Dependencies stay at clap and serde_json: this builds first, before anything can be tested.
// A command-line tool talks to its user, measures wall time and waits between samples.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods)]

mod bench;
mod ci;
mod conformance;
mod deny;
mod fleet;
mod fuzz;
mod proc;
mod reference;
mod setup;
mod soak;
mod suite;
mod tidy;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Chores of the llmgw repository.
#[derive(Parser)]
#[command(name = "cargo xtask", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set up what the tests need and run them all
    Test {
        /// Run only tests whose name contains this
        #[arg(long, value_name = "F")]
        filter: Option<String>,
    },
    /// Check style: lengths, banned words, module docs, unsafe, dead files, links
    Tidy,
    /// Check licences and banned crates (and advisories, where cargo-deny is installed)
    Deny,
    /// Build and run the fuzz targets over copies of their corpora
    Fuzz {
        /// Seconds for each target
        #[arg(long, value_name = "N", default_value_t = 30)]
        seconds: u64,
        /// Only this target
        target: Option<String>,
    },
    /// Measure: the parts (by the clock, in instructions), the overhead, or side by side with other proxies
    Bench {
        #[command(subcommand)]
        what: Option<bench::What>,
    },
    /// Long runs that look for leaks and rare interleavings
    Soak {
        #[arg(value_enum, default_value_t = soak::What::All)]
        what: soak::What,
        /// Minutes for each kind of run
        #[arg(long, value_name = "N", default_value_t = 10)]
        minutes: u64,
    },
    /// Run the HTTP/1.1 conformance cases over real sockets and count them by family
    Conformance {
        /// nginx and HAProxy too; writes the table into docs/conformance.md
        #[arg(long)]
        peers: bool,
    },
    /// Write what is generated and checked in: docs/reference.md, docs/openapi.json
    Reference,
    /// What CI runs beside the tests: fmt, clippy, tidy, deny, short fuzz
    Ci,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = std::env::set_current_dir(proc::root()) {
        eprintln!("xtask: cannot enter the repository at {}: {error}", proc::root().display());
        return ExitCode::from(2);
    }
    let done = match cli.command {
        Command::Test { filter } => suite::run(filter.as_deref()),
        Command::Tidy => tidy::run(),
        Command::Deny => deny::run(),
        Command::Fuzz { seconds, target } => fuzz::run(seconds, target.as_deref()),
        Command::Bench { what } => bench::run(what),
        Command::Soak { what, minutes } => soak::run(what, minutes),
        Command::Conformance { peers } => conformance::run(peers),
        Command::Reference => reference::run(),
        Command::Ci => ci::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
