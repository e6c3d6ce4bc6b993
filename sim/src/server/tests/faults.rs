//! Each fault does what it says, and clears.

use std::io::ErrorKind;
use std::net::TcpStream;

use rstest::rstest;

use super::client::*;

/// A stream under a fault: what came, and how it ended.
fn struck(fault: &str) -> (u32, Vec<String>, Result<(), ErrorKind>) {
    let engine = engine(|_| {});
    engine.set_fault(fault).unwrap();
    let mut client = Client::new(engine.local_addr());
    client.send("POST", CHAT, "", &stream("t", 5));
    match client.answer() {
        Ok(answer) => (answer.tokens("t"), answer.events(), Ok(())),
        Err((Some(answer), error)) => (answer.tokens("t"), answer.events(), Err(error.kind())),
        Err((None, error)) => (0, Vec::new(), Err(error.kind())),
    }
}

#[rstest]
#[case("reset-before-head", 0, false, Err(ErrorKind::ConnectionReset))]
#[case("reset-after=0", 0, false, Err(ErrorKind::ConnectionReset))]
#[case("reset-after=3", 3, false, Err(ErrorKind::ConnectionReset))]
#[case("reset-after=5", 5, false, Err(ErrorKind::ConnectionReset))]
#[case("no-terminator", 5, false, Err(ErrorKind::UnexpectedEof))]
#[case("no-terminator=chunk", 5, true, Err(ErrorKind::UnexpectedEof))]
#[case("no-terminator=done", 5, false, Ok(()))]
#[case("bad-chunk", 1, false, Err(ErrorKind::InvalidData))]
#[case("bad-chunk=4", 4, false, Err(ErrorKind::InvalidData))]
#[case("split-bytes", 5, true, Ok(()))]
#[case("two-events", 5, true, Ok(()))]
#[case("slow=2", 5, true, Ok(()))]
fn streams_end_as_told(
    #[case] fault: &str,
    #[case] tokens: u32,
    #[case] done: bool,
    #[case] end: Result<(), ErrorKind>,
) {
    let (got, events, how) = struck(fault);
    assert_eq!((got, how), (tokens, end));
    assert_eq!(events.last().is_some_and(|last| last == "[DONE]"), done, "{events:?}");
}

#[rstest]
#[case("429=7", 429, Some("7"))]
#[case("503=2", 503, Some("2"))]
#[case("503", 503, None)]
#[case("500", 500, None)]
fn statuses_come_in_openai_shape(
    #[case] fault: &str,
    #[case] status: u16,
    #[case] retry_after: Option<&str>,
) {
    let engine = engine(|_| {});
    engine.set_fault(fault).unwrap();
    let mut client = Client::new(engine.local_addr());
    let answer = client.ask("POST", CHAT, &chat("t", ""));
    assert_eq!((answer.status, answer.field("retry-after")), (status, retry_after));
    assert_eq!(answer.json()["error"]["code"], status);
    engine.clear_faults();
    assert_eq!(client.ask("POST", CHAT, &chat("t", "")).status, 200, "the connection was kept");
}

#[rstest]
#[case("status", "HTTP/1.1 2OO OK")]
#[case("length", "content-length: 7")]
#[case("both", "transfer-encoding: chunked")]
#[case("nul", "a\0b")]
fn malformed_heads_are_malformed(#[case] variant: &str, #[case] part: &str) {
    let engine = engine(|_| {});
    engine.set_fault(&format!("malformed-head={variant}")).unwrap();
    let mut client = Client::new(engine.local_addr());
    client.send("POST", CHAT, "", &chat("t", ""));
    assert!(client.head().unwrap().head.contains(part));
}

#[test]
fn two_events_share_a_chunk() {
    let engine = engine(|_| {});
    engine.set_fault("two-events").unwrap();
    let answer = Client::new(engine.local_addr()).ask("POST", CHAT, &stream("t", 5));
    // Role, five tokens, finish, [DONE]: eight events.
    assert_eq!((answer.chunks.len(), answer.events().len()), (4, 8));
}

#[rstest]
#[case("hang", 0, 0)]
#[case("stall=0", 0, 0)]
#[case("stall=2", 3, 2)]
#[case("stall=5", 6, 5)]
fn silence_lasts_until_the_client_goes(#[case] fault: &str, #[case] chunks: usize, #[case] tokens: u32) {
    let engine = engine(|_| {});
    engine.set_fault(fault).unwrap();
    let mut client = Client::new(engine.local_addr());
    client.send("POST", CHAT, "x-request-id: quiet\r\n", &stream("t", 5));
    if fault != "hang" {
        client.head().unwrap();
        for _ in 0..chunks {
            assert!(!client.chunk().unwrap().is_empty());
        }
    }
    eventually("the request is there", || engine.state()["active"] == 1);
    assert_eq!(engine.request("quiet").unwrap()["outcome"], "active");
    drop(client);
    eventually("the client's end is seen", || engine.state()["aborted"] == 1);
    let request = engine.request("quiet").unwrap();
    assert_eq!((&request["outcome"], &request["tokens_sent"]), (&"aborted".into(), &tokens.into()));
    let state = engine.state();
    assert_eq!(
        (&state["active"], &state["running"], &state["cache"]["blocks_used"]),
        (&0.into(), &0.into(), &0.into())
    );
}

#[rstest]
#[case("reset-after=2", ErrorKind::ConnectionReset)]
#[case("no-terminator", ErrorKind::UnexpectedEof)]
#[case("bad-chunk", ErrorKind::InvalidData)]
fn plain_answers_break_too(#[case] fault: &str, #[case] kind: ErrorKind) {
    let engine = engine(|_| {});
    engine.set_fault(fault).unwrap();
    let mut client = Client::new(engine.local_addr());
    client.send("POST", CHAT, "", &chat("t", ""));
    assert_eq!(client.answer().unwrap_err().1.kind(), kind);
}

#[test]
fn refusing_engine_closes_its_listener_and_idle_connections_until_cleared() {
    let engine = engine(|config| config.admin_listen = Some(([127, 0, 0, 1], 0).into()));
    let mut idle = Client::new(engine.local_addr());
    assert_eq!(idle.ask("GET", "/health", "").status, 200);
    let mut admin = Client::new(engine.admin_addr().unwrap());
    assert_eq!(admin.ask("POST", "/sim/fault", r#"{"fault":"refuse"}"#).status, 200);
    assert_eq!(TcpStream::connect(engine.local_addr()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(idle.ended().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(admin.ask("DELETE", "/sim/fault", "").status, 200);
    assert_eq!(Client::new(engine.local_addr()).ask("GET", "/health", "").status, 200);
}

#[test]
fn refusal_for_a_time_ends_by_itself() {
    let engine = engine(|config| config.faults = vec![crate::Fault::parse("refuse=5ms").unwrap()]);
    eventually("it listens again", || TcpStream::connect(engine.local_addr()).is_ok());
}

#[test]
fn count_strikes_so_many_requests() {
    let engine = engine(|_| {});
    let mut client = Client::new(engine.local_addr());
    assert_eq!(client.ask("POST", "/sim/fault", r#"{"fault":"500","count":2}"#).status, 200);
    let statuses: Vec<u16> = (0..4).map(|_| client.ask("POST", CHAT, &chat("t", "")).status).collect();
    assert_eq!(statuses, [500, 500, 200, 200]);
    assert_eq!(engine.state()["faults_injected"], 2);
    assert_eq!(client.ask("POST", "/sim/fault", r#"{"fault":"bogus"}"#).status, 400);
    assert_eq!(client.ask("POST", "/sim/fault", r#"{"fault":"500","count":0}"#).status, 400);
}
