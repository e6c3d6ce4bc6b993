//! Runs the cases against gateways over real sockets and prints the counts.
//!
//! `conformance LLMGW [PEERS]`: the built gateway, and the folder of the peers' configuration templates if they are to
//! run too. The table goes to standard output, what did not pass to standard error.
#![allow(clippy::print_stdout, clippy::print_stderr)] // a command-line tool talks to its user

use llmgw_conformance::case::{Case, Level, all};
use llmgw_conformance::gateways::{self, Gateway};
use llmgw_conformance::judge::{check, check_peer};
use llmgw_conformance::socket::ScriptedEngine;
use llmgw_conformance::table::{Column, failures, markdown};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Silence that counts as waiting.
const PATIENCE: Duration = Duration::from_secs(5);
const PEER_PATIENCE: Duration = Duration::from_millis(700);

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("conformance: {why}");
            ExitCode::from(2)
        }
    }
}

/// Whether our own gateway passed everything.
fn run() -> Result<bool, String> {
    let mut args = std::env::args_os().skip(1);
    let binary = args.next().ok_or("usage: conformance LLMGW [PEERS]")?;
    let peers = args.next();
    let within = std::env::temp_dir();
    let cases = all()?;
    let mut columns = Vec::new();
    for driver in ["epoll", "io_uring"] {
        let engine = engine(false)?;
        match gateways::llmgw(Path::new(&binary), driver, engine.address(), &within) {
            Ok(gateway) => columns
                .push(column(&cases, &engine, &gateway, PATIENCE, |case, seen| Some(check(case, seen)))?),
            Err(why) => eprintln!("skipped: llmgw over {driver}: {why}"),
        }
    }
    let own = columns.len();
    if let Some(peers) = peers {
        let peers = Path::new(&peers);
        type Start = fn(&Path, std::net::SocketAddr, &Path) -> Result<Gateway, String>;
        let starts: [(&str, Start); 2] =
            [("nginx.conf.in", gateways::nginx), ("haproxy.cfg.in", gateways::haproxy)];
        for (template, start) in starts {
            let engine = engine(true)?;
            let gateway = start(&peers.join(template), engine.address(), &within)?;
            columns.push(column(&cases, &engine, &gateway, PEER_PATIENCE, |case, seen| {
                (case.level != Level::Own).then(|| check_peer(case, seen))
            })?);
        }
    }
    columns.iter().for_each(|column| eprint!("{}", failures(&cases, column)));
    print!("{}", markdown(&cases, &columns, own));
    let passed = |column: &Column| column.results.iter().all(|r| !matches!(r, Some(Err(_))));
    Ok(own > 0 && columns[..own].iter().all(passed))
}

fn engine(gets_count: bool) -> Result<ScriptedEngine, String> {
    ScriptedEngine::start(gets_count).map_err(|error| format!("cannot start an engine: {error}"))
}

fn column(
    cases: &[Case],
    engine: &ScriptedEngine,
    gateway: &Gateway,
    patience: Duration,
    judge: impl Fn(&Case, &llmgw_conformance::wire::Seen) -> Option<Result<(), String>>,
) -> Result<Column, String> {
    let mut results = Vec::with_capacity(cases.len());
    for case in cases {
        let seen = engine.run(case, None, gateway.address, patience);
        let seen = seen.map_err(|error| format!("{}: {}: {error}", gateway.name, case.id))?;
        results.push(judge(case, &seen));
    }
    Ok(Column { name: gateway.name.clone(), results })
}
