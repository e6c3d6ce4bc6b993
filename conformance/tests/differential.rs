//! What the gateway sends to engines, as other HTTP implementations read it.
//!
//! For each case and for random mutations of cases: every parser reads the same requests in what came to the engine,
//! and they are what the gateway meant; and hyper reads in the client's bytes every request that the gateway took.
//! `LLMGW_CONFORMANCE_SEED` and `LLMGW_CONFORMANCE_MUTATIONS` change the run; a failure prints the seed.

#![allow(clippy::print_stdout)] // the figures of a run

mod hyper_reader;

use hyper_reader::HyperReader;
use llmgw_conformance::case::{Case, End, Side, all, probe};
use llmgw_conformance::mutate::mutate;
use llmgw_conformance::parsers::{PYTHON, Reading, in_ci, node, python, read_by_node, read_by_python};
use llmgw_conformance::shard::Stack;
use llmgw_conformance::wire::{Seen, read_request};
use std::collections::HashSet;

const SEED: u64 = 20_260_301;
const MUTATIONS: u64 = 100_000;
/// Mutations of longer cases would only take time.
const LENGTH_MAX: usize = 2048;
/// Connections that are shown to the parsers in other languages.
const SHOWN_MAX: usize = 4000;
/// Paths whose requests go to engines.
const PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"];

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// The requests of a connection, as the tests' own reader reads them.
fn own_reading(connection: &[u8]) -> Reading {
    let (mut requests, mut at) = (Vec::new(), 0);
    while at < connection.len() {
        let (message, used) = read_request(&connection[at..])?.ok_or("incomplete")?;
        requests.push((message.method, message.target, message.body));
        at += used;
    }
    Ok(requests)
}

/// The gateway's surface and nothing else: POST, a generation path, a JSON object.
fn meant(reading: &Reading) -> Result<(), String> {
    for (method, target, body) in reading.as_ref().map_err(Clone::clone)? {
        let path = target.split('?').next().unwrap_or_default();
        if method != "POST"
            || !PATHS.contains(&path)
            || serde_json::from_slice::<serde_json::Value>(body).is_err()
        {
            return Err(format!("{method} {target} {:?} was not meant", body.escape_ascii().to_string()));
        }
    }
    Ok(())
}

/// Without the ids that differ from run to run.
fn fingerprint(connection: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(connection);
    let kept = text
        .split("\r\n")
        .filter(|line| !line.starts_with("x-request-id") && !line.starts_with("traceparent"));
    kept.collect::<Vec<_>>().join("\r\n").into_bytes()
}

/// Everything that came to engines, each kind of connection once.
#[derive(Default)]
struct Shown {
    connections: Vec<Vec<u8>>,
    known: HashSet<Vec<u8>>,
}

impl Shown {
    fn take(&mut self, seen: Seen) -> Result<usize, String> {
        if let Some(error) = seen.engine_error {
            return Err(error);
        }
        for connection in seen.captures {
            meant(&own_reading(&connection))?;
            if self.connections.len() < SHOWN_MAX && self.known.insert(fingerprint(&connection)) {
                self.connections.push(connection);
            }
        }
        Ok(seen.engine.len())
    }
}

/// `part` occurs in `whole` in this order.
fn subsequence(part: &[Vec<u8>], whole: &[Vec<u8>]) -> bool {
    let mut whole = whole.iter();
    part.iter().all(|wanted| whole.any(|body| body == wanted))
}

/// Runs bytes of a client and compares what came to the engine with hyper's reading of the same bytes.
fn compare(stack: &mut Stack, hyper: &HyperReader, shown: &mut Shown, bytes: &[u8]) -> Result<usize, String> {
    let head = bytes.starts_with(b"HEAD ");
    let seen = stack.exchange(&[bytes.to_vec()], End::Close, head);
    let sent: Vec<Vec<u8>> = seen.engine.iter().map(|message| message.body.clone()).collect();
    if !sent.is_empty() {
        let read = hyper.read(bytes);
        let bodies: Vec<Vec<u8>> = read.requests.into_iter().map(|(_, _, body)| body).collect();
        if !subsequence(&sent, &bodies) {
            return Err(format!(
                "the gateway took {} requests, hyper reads {bodies:?} ({:?})",
                sent.len(),
                read.error
            ));
        }
    }
    shown.take(seen)
}

/// Shows the connections to every parser there is.
fn ask_parsers(connections: &[Vec<u8>], hyper: &HyperReader) {
    let own: Vec<Reading> = connections.iter().map(|connection| own_reading(connection)).collect();
    let mut readings: Vec<(String, Vec<Reading>)> = Vec::new();
    readings.push(("hyper".to_owned(), connections.iter().map(|c| hyper.read(c).all()).collect()));
    let mut missing = Vec::new();
    match python() {
        Ok(python) => {
            for parser in PYTHON {
                let read = read_by_python(&python, parser, connections).expect("the parser's process works");
                readings.push((parser.to_owned(), read));
            }
        }
        Err(why) => missing.push(why),
    }
    match node() {
        Ok(node) => {
            let read = read_by_node(&node, connections).expect("the parser's process works");
            readings.push(("node".to_owned(), read));
        }
        Err(why) => missing.push(why),
    }
    for why in missing {
        assert!(!in_ci(), "{why}");
        println!("skipped: {why}");
    }
    for (parser, read) in readings {
        println!("{parser}: {} connections", read.len());
        for ((connection, own), read) in connections.iter().zip(&own).zip(&read) {
            assert_eq!(own, read, "{parser} differs over {}", connection.escape_ascii());
        }
    }
}

#[test]
fn every_parser_reads_what_the_gateway_meant() {
    let cases = all().expect("h1.toml can be read");
    let from_clients = |case: &&Case| case.side == Side::Request && case.bytes().len() <= LENGTH_MAX;
    let bases: Vec<Vec<u8>> = cases.iter().filter(from_clients).map(Case::bytes).collect();
    let sound = cases.iter().filter(from_clients).filter(|case| !case.engine.is_empty());
    let sound: Vec<Vec<u8>> = sound.map(Case::bytes).collect();
    let (mut stack, hyper, mut shown) = (Stack::new(), HyperReader::new(), Shown::default());
    let mut accepted = 0;
    for base in &bases {
        let bytes = [&base[..], &probe()].concat();
        let took = compare(&mut stack, &hyper, &mut shown, &bytes);
        accepted += took.unwrap_or_else(|why| panic!("{why}\n{}", bytes.escape_ascii()));
    }
    println!("{} cases: {accepted} requests at the engine", bases.len());

    let seed = setting("LLMGW_CONFORMANCE_SEED", SEED);
    let mutations = setting("LLMGW_CONFORMANCE_MUTATIONS", MUTATIONS);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut taken = 0;
    for n in 0..mutations {
        // Mostly of what is accepted: a broken request that is broken again shows little.
        let from = if rng.u8(..4) > 0 { &sound } else { &bases };
        let (base, other) = (&from[rng.usize(..from.len())], &bases[rng.usize(..bases.len())]);
        let bytes = [mutate(&mut rng, base, other), probe()].concat();
        let took = compare(&mut stack, &hyper, &mut shown, &bytes);
        taken +=
            took.unwrap_or_else(|why| panic!("seed {seed}, mutation {n}: {why}\n{}", bytes.escape_ascii()));
    }
    println!("seed {seed}, {mutations} mutations: {taken} requests at the engine");
    ask_parsers(&shown.connections, &hyper);
}
