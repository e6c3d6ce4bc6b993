//! `run` against a server that answers rightly, or wrongly in one chosen way.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{FakeServer, Manner};
use llmgw_loadgen::checker::{TokenCheck, Violation};
use llmgw_loadgen::prompts::Prompts;
use llmgw_loadgen::schedule::Arrivals;
use llmgw_loadgen::stats::Failure;
use llmgw_loadgen::{Load, RunConfig, run, trace};

fn config(server: &FakeServer, requests: u64) -> RunConfig {
    RunConfig {
        load: Load::Closed { concurrency: 4 },
        requests: Some(requests),
        stream: true,
        timeout: Duration::from_secs(20),
        ..RunConfig::new(server.url(), "fake")
    }
}

#[rstest::rstest]
#[case::streamed(Manner::Good, true, 1)]
#[case::whole(Manner::Good, false, 1)]
#[case::bytewise(Manner::GoodBytewise, true, 1)]
#[case::threads(Manner::Good, true, 3)]
fn a_right_server_passes(#[case] manner: Manner, #[case] stream: bool, #[case] threads: usize) {
    let server = FakeServer::start(manner);
    let report =
        run(&RunConfig { stream, threads, check: TokenCheck::Strict, ..config(&server, 20) }).expect("ran");
    assert!(report.passed, "{}", report.table());
    assert_eq!((report.requests.ok, report.requests.failed), (20, 0));
    assert_eq!((report.tokens.numbered, report.tokens.untagged), (20 * 16, 0));
    assert_eq!(report.latency.total.count, 20);
    assert_eq!(report.latency.ttft.count, if stream { 20 } else { 0 });
    assert_eq!(report.latency.inter_token.count, if stream { 20 * 15 } else { 0 });
    assert_eq!(server.requests.load(Ordering::Relaxed), 20);
}

#[rstest::rstest]
#[case(Manner::LostToken, Failure::Check(Violation::Lost))]
#[case(Manner::LostLastToken, Failure::Check(Violation::Lost))]
#[case(Manner::RepeatedToken, Failure::Check(Violation::Repeated))]
#[case(Manner::ForeignToken, Failure::Check(Violation::Foreign))]
#[case(Manner::ForeignStream, Failure::Check(Violation::Foreign))]
#[case(Manner::MissingDone, Failure::Check(Violation::MissingTerminator))]
#[case(Manner::AfterDone, Failure::Check(Violation::AfterTerminator))]
#[case(Manner::BadJson, Failure::Check(Violation::BadJson))]
#[case(Manner::NotAStream, Failure::Check(Violation::WrongKind))]
#[case(Manner::ErrorEvent, Failure::ErrorEvent)]
#[case(Manner::CloseInBody, Failure::ClosedInBody)]
#[case(Manner::CloseBeforeHead, Failure::ClosedBeforeHead)]
#[case(Manner::MalformedHead, Failure::Malformed)]
#[case(Manner::Status(503), Failure::Status(503))]
fn each_wrong_manner_is_found_by_its_name(#[case] manner: Manner, #[case] expected: Failure) {
    let server = FakeServer::start(manner);
    let report = run(&config(&server, 6)).expect("ran");
    assert!(!report.passed, "{}", report.table());
    assert_eq!(report.failures.count(expected), 6, "{}", report.table());
    assert_eq!(report.failures.total(), 6);
}

#[rstest::rstest]
#[case(Manner::LostToken, Failure::Check(Violation::Lost))]
#[case(Manner::RepeatedToken, Failure::Check(Violation::Repeated))]
#[case(Manner::ForeignStream, Failure::Check(Violation::Foreign))]
#[case(Manner::CloseInBody, Failure::ClosedInBody)]
fn whole_answers_are_checked_too(#[case] manner: Manner, #[case] expected: Failure) {
    let server = FakeServer::start(manner);
    let report = run(&RunConfig { stream: false, ..config(&server, 4) }).expect("ran");
    assert_eq!(report.failures.count(expected), 4, "{}", report.table());
}

#[test]
fn errors_within_the_bound_pass_but_failed_checks_never_do() {
    let busy = FakeServer::start(Manner::Status(503));
    let report = run(&RunConfig { max_errors: 6, ..config(&busy, 6) }).expect("ran");
    assert!(report.passed, "{}", report.table());
    let report = run(&RunConfig { max_errors: 5, ..config(&busy, 6) }).expect("ran");
    assert!(!report.passed);
    let loser = FakeServer::start(Manner::LostToken);
    let report = run(&RunConfig { max_errors: 100, ..config(&loser, 6) }).expect("ran");
    assert!(!report.passed);
}

#[test]
fn a_connection_gone_stale_is_replaced_without_an_error() {
    let server = FakeServer::start(Manner::GoodOnce);
    let one = Load::Closed { concurrency: 1 };
    let report = run(&RunConfig { load: one, ..config(&server, 10) }).expect("ran");
    assert!(report.passed, "{}", report.table());
    assert_eq!(report.requests.ok, 10);
}

#[test]
fn a_request_over_its_time_is_a_timeout() {
    let server = FakeServer::start(Manner::Silent);
    let report = run(&RunConfig { timeout: Duration::from_millis(20), ..config(&server, 4) }).expect("ran");
    assert_eq!(report.failures.count(Failure::Timeout), 4, "{}", report.table());
}

#[test]
fn nobody_listening_is_a_connect_error() {
    let url = FakeServer::start(Manner::Good).url(); // stopped at once
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound");
    let report = run(&RunConfig { requests: Some(3), ..RunConfig::new(format!("http://{free}"), "fake") })
        .expect("ran");
    assert_eq!(report.failures.count(Failure::Connect), 3, "{url} {}", report.table());
}

#[rstest::rstest]
#[case(Arrivals::Constant)]
#[case(Arrivals::Poisson)]
fn an_open_loop_counts_latency_from_the_due_time(#[case] arrivals: Arrivals) {
    // All due within 50 microseconds and sent one at a time: what had to wait must show it.
    let server = FakeServer::start(Manner::GoodBytewise);
    let load = Load::Open { rate: 1e6, arrivals };
    let report = run(&RunConfig { load, in_flight_max: 1, ..config(&server, 50) }).expect("ran");
    assert!(report.passed, "{}", report.table());
    assert_eq!(report.requests.ok, 50);
    let (total, lag) = (report.latency.total, report.latency.send_lag);
    assert!(total.max_ms >= lag.max_ms && lag.max_ms > lag.min_ms, "{}", report.table());
    assert!(lag.p99_ms > 10.0 * lag.min_ms.max(0.001), "late requests must show as late: {}", report.table());
}

#[test]
fn warm_up_is_not_measured() {
    let server = FakeServer::start(Manner::Good);
    let report = run(&RunConfig {
        warmup: Duration::from_millis(50),
        duration: Some(Duration::from_millis(50)),
        requests: None,
        ..config(&server, 0)
    })
    .expect("ran");
    assert!(report.passed, "{}", report.table());
    assert!(report.requests.warmup > 0 && report.requests.ok > 0, "{}", report.table());
    let all = server.requests.load(Ordering::Relaxed);
    assert_eq!(report.requests.warmup + report.requests.ok, all);
    assert_eq!(report.latency.total.count, report.requests.ok);
    let in_window = report.recorder.ok_in_window;
    assert!(
        in_window <= report.requests.ok && report.requests.ok - in_window <= 4,
        "at most those running at its end"
    );
}

#[test]
fn sessions_carry_what_was_said() {
    let server = FakeServer::start(Manner::Good);
    let load = Load::Sessions { sessions: 3, turns: 4, think: Duration::ZERO };
    let report = run(&RunConfig { load, requests: None, ..config(&server, 0) }).expect("ran");
    assert!(report.passed, "{}", report.table());
    assert_eq!(report.requests.ok, 12);
}

#[test]
fn a_trace_is_replayed_to_its_end() {
    let sample = include_bytes!("data/conversation_sample.jsonl").as_slice();
    let requests = Arc::new(trace::read(sample, Some(50)).expect("a trace"));
    let server = FakeServer::start(Manner::Good);
    let due = requests.iter().map(|r| u64::from(r.output_length.min(20))).sum::<u64>();
    let report = run(&RunConfig {
        load: Load::Replay { speed: 1000.0 },
        prompts: Prompts::Trace { requests, input_max: 4096, output_max: 20 },
        requests: None,
        ..config(&server, 0)
    })
    .expect("ran");
    assert!(report.passed, "{}", report.table());
    assert_eq!((report.requests.ok, report.tokens.numbered), (50, due));
}

#[test]
fn a_stopped_run_still_reports() {
    let server = FakeServer::start(Manner::Silent);
    let config = RunConfig { duration: Some(Duration::from_secs(600)), requests: None, ..config(&server, 0) };
    let stop = config.stop.clone();
    let requests = server.requests.clone();
    let stopper = std::thread::spawn(move || {
        while requests.load(Ordering::Relaxed) < 4 {
            std::thread::yield_now();
        }
        stop.stop();
    });
    let report = run(&config).expect("ran");
    stopper.join().expect("stopper");
    assert!(report.interrupted && report.failures.total() == 0, "{}", report.table());
}

#[test]
fn contradictions_are_refused() {
    let refused = |change: fn(&mut RunConfig)| {
        let mut config = RunConfig::new("http://127.0.0.1:1", "m");
        change(&mut config);
        run(&config).err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert!(refused(|c| c.url = "https://127.0.0.1".into()).contains("http://HOST:PORT"));
    assert!(refused(|c| c.load = Load::Closed { concurrency: 0 }).contains("--concurrency"));
    assert!(refused(|c| c.load = Load::Open { rate: 0.0, arrivals: Arrivals::Constant }).contains("--rate"));
    assert!(refused(|c| c.load = Load::Replay { speed: 1.0 }).contains("trace"));
    assert!(refused(|c| c.threads = 0).contains("--threads"));
}
