//! `disconnect` against the simulated engine itself, and against servers that hide a client's leaving from it.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use common::{FakeServer, Manner};
use llmgw_loadgen::abort::Phase;
use llmgw_loadgen::{DisconnectConfig, RunConfig, disconnect, run};

fn engine() -> llmgw_sim::Engine {
    let config = llmgw_sim::Config { model: "m".into(), ..llmgw_sim::Config::default() };
    llmgw_sim::Engine::start(config).expect("an engine")
}

fn config(url: String, engine: &llmgw_sim::Engine) -> DisconnectConfig {
    DisconnectConfig {
        requests: 40,
        concurrency: 20,
        stay: Duration::from_millis(40),
        max_delay: Duration::from_secs(2), // of a busy test machine; the bound's own test is below
        ..DisconnectConfig::new(url, vec![engine.url()])
    }
}

#[test]
fn the_engine_itself_notices_in_every_phase() {
    let engine = engine();
    let report = disconnect(&config(engine.url(), &engine)).expect("checked");
    assert!(report.passed, "{}", report.table());
    assert!(report.stalled);
    assert_eq!((report.all.left, report.all.missed), (40, 0), "{}", report.table());
    for phase in [Phase::WaitingHead, Phase::MidStream, Phase::QuietStream] {
        let noticed = &report.phases[&phase.to_string()];
        assert_eq!(noticed.aborted, noticed.left, "{phase}: {}", report.table());
    }
    for phase in [Phase::BeforeHead, Phase::DuringBody] {
        let noticed = &report.phases[&phase.to_string()];
        assert_eq!(noticed.aborted + noticed.never_arrived, noticed.left, "{phase}: {}", report.table());
    }
    assert_eq!(engine.state()["faults"].as_array().map(Vec::len), Some(0), "faults are taken back");
}

#[test]
fn a_bound_that_cannot_hold_fails() {
    let engine = engine();
    let phases = vec![Phase::MidStream];
    let max_delay = Duration::from_nanos(1);
    let report = disconnect(&DisconnectConfig { phases, max_delay, ..config(engine.url(), &engine) })
        .expect("checked");
    assert!(!report.passed && report.all.missed == 0, "{}", report.table());
}

#[test]
fn a_proxy_that_keeps_the_engine_busy_is_found() {
    let engine = engine();
    let proxy = deaf_proxy(engine.local_addr());
    let config = DisconnectConfig {
        requests: 4,
        phases: vec![Phase::WaitingHead, Phase::MidStream],
        deadline: Duration::from_millis(200),
        output: 100_000,
        ..config(proxy, &engine)
    };
    let report = disconnect(&config).expect("checked");
    assert!(!report.passed, "{}", report.table());
    assert_eq!(report.all.missed, 4, "{}", report.table());
    assert!(report.engines.iter().any(|engine| !engine.is_idle()));
}

#[test]
fn an_engine_that_cannot_be_asked_is_an_error() {
    let server = FakeServer::start(Manner::Status(404));
    let error = disconnect(&DisconnectConfig::new(server.url(), vec![server.url()])).expect_err("no engine");
    assert!(error.to_string().contains("/sim/state"), "{error}");
}

#[test]
fn the_engines_streams_pass_the_strict_check() {
    let engine = engine();
    for (stream, include_usage) in [(false, false), (true, false), (true, true)] {
        let report = run(&RunConfig {
            requests: Some(20),
            stream,
            include_usage,
            check: llmgw_loadgen::checker::TokenCheck::Strict,
            ..RunConfig::new(engine.url(), "m")
        })
        .expect("ran");
        assert!(report.passed && report.tokens.numbered == 20 * 16, "{}", report.table());
    }
}

#[rstest::rstest]
#[case("no-terminator=done", "missing_terminator")]
#[case("no-terminator=all", "closed_in_body")]
#[case("reset-after=3", "closed_in_body")]
#[case("reset-before-head", "closed_before_head")]
#[case("bad-chunk=2", "malformed_http")]
#[case("malformed-head=both", "malformed_http")]
#[case("503=1", "status_503")]
fn the_engines_faults_are_found(#[case] fault: &str, #[case] expected: &str) {
    let engine = engine();
    engine.set_fault(fault).expect("a fault");
    let config = RunConfig { requests: Some(5), stream: true, ..RunConfig::new(engine.url(), "m") };
    let report = run(&config).expect("ran");
    assert_eq!(report.errors.get(expected), Some(&5), "{fault}: {}", report.table());
}

#[rstest::rstest]
#[case("split-bytes")]
#[case("two-events")]
fn the_engines_odd_but_right_answers_pass(#[case] fault: &str) {
    let engine = engine();
    engine.set_fault(fault).expect("a fault");
    let config = RunConfig { requests: Some(10), stream: true, ..RunConfig::new(engine.url(), "m") };
    let report = run(&config).expect("ran");
    assert!(report.passed && report.tokens.numbered == 160, "{fault}: {}", report.table());
}

/// Forwards, but keeps reading from the engine when the client has gone.
fn deaf_proxy(engine: std::net::SocketAddr) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let Ok(upstream) = TcpStream::connect(engine) else { return };
                let pipe = |mut from: TcpStream, mut to: TcpStream| {
                    std::thread::spawn(move || {
                        let mut buffer = [0; 4096];
                        while let Ok(n @ 1..) = from.read(&mut buffer) {
                            let _ = to.write_all(&buffer[..n]);
                        }
                        from // kept open: the other side must not learn of it
                    })
                };
                let (Ok(client_in), Ok(upstream_in)) = (client.try_clone(), upstream.try_clone()) else {
                    return;
                };
                let up = pipe(client_in, upstream);
                let down = pipe(upstream_in, client);
                let _ = (up.join(), down.join());
            });
        }
    });
    format!("http://{address}")
}
