//! Every conformance case over real sockets, against the built gateway over both drivers.

use llmgw_conformance::case::all;
use llmgw_conformance::gateways;
use llmgw_conformance::judge::check;
use llmgw_conformance::socket::ScriptedEngine;
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);

fn every_case(driver: &str) {
    let engine = ScriptedEngine::start(false).expect("a free port");
    let within = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let binary = Path::new(env!("CARGO_BIN_EXE_llmgw"));
    let gateway = match gateways::llmgw(binary, driver, engine.address(), within) {
        Ok(gateway) => gateway,
        // Containers often forbid it; the driver's own tests tell whether that is so.
        Err(why) if driver == "io_uring" => {
            println!("skipped: io_uring cannot be used here: {why}");
            return;
        }
        Err(why) => panic!("the gateway does not start: {why}"),
    };
    let mut wrong = Vec::new();
    let cases = all().expect("h1.toml can be read");
    for case in &cases {
        let seen = engine.run(case, gateway.address, PATIENCE).expect("the gateway takes connections");
        if let Err(why) = check(case, &seen) {
            wrong.push(format!("{}: {why}", case.id));
        }
    }
    println!("{} cases over {driver}, {} violations", cases.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_case_over_epoll() {
    every_case("epoll");
}

#[test]
fn every_case_over_io_uring() {
    every_case("io_uring");
}
