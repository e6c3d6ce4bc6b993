//! A connection has its turn, however many requests it has sent at once.

use llmgw_conformance::shard::Stack;

/// Requests that each client sends at once, and clients.
const PIPELINED: usize = 64;
const CLIENTS: usize = 8;
/// Most answers that a connection may get in a turn: a burst when its bytes come, and one more at the end of the turn.
const MOST_A_TURN: usize = 12;

/// Many requests, none of which has to wait for an engine, on each of several connections.
fn takes_turns(request: &str) {
    let turns = Stack::new().crowd(CLIENTS, request.repeat(PIPELINED).as_bytes());
    for (n, answers) in turns.iter().enumerate() {
        assert!(
            answers.iter().all(|n| *n <= MOST_A_TURN),
            "turn {n} of {} answers {answers:?} requests of the connections",
            turns.len()
        );
    }
    for client in 0..CLIENTS {
        let answered: usize = turns.iter().map(|answers| answers[client]).sum();
        assert_eq!(answered, PIPELINED, "connection {client}: {turns:?}");
    }
}

#[test]
fn pipelined_requests_take_turns() {
    takes_turns("GET /v1/models HTTP/1.1\r\nhost: gw\r\n\r\n");
}

#[test]
fn pipelined_requests_that_fail_take_turns() {
    takes_turns("POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: 2\r\n\r\n{}");
    takes_turns("GET /nowhere HTTP/1.1\r\nhost: gw\r\n\r\n");
}
