//! Scripted engines: what they answer, and what they do wrong.

use crate::plan::{EnginePlan, pct};
use llmgw_dataplane::driver::sim::{PeerId, PeerState, World};
use llmgw_routing::{MILLISECOND, Nanos, SECOND};
use std::collections::VecDeque;

/// How an engine treats one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Good,
    /// A head of 1xx before the answer.
    Interim,
    /// The answer begins before the request's body was read.
    Early,
    /// More bytes than the answer has.
    Excess,
    Hang,
    Busy,
    Error,
    ResetBefore,
    CloseBefore,
    ResetInHead,
    ResetAfter,
    EndEarly,
    MalformedHead,
    HugeHead,
    BadChunk,
    Stall,
    ErrorEvent,
    Redirect,
    /// An event larger than the gateway holds, then a reset.
    HugeEvent,
}

const FAULTS: [Act; 15] = [
    Act::Hang,
    Act::Busy,
    Act::Busy,
    Act::Error,
    Act::ResetBefore,
    Act::CloseBefore,
    Act::ResetInHead,
    Act::ResetAfter,
    Act::EndEarly,
    Act::MalformedHead,
    Act::BadChunk,
    Act::Stall,
    Act::ErrorEvent,
    Act::Redirect,
    Act::HugeHead,
];

/// A request that reached an engine.
pub struct Attempt {
    pub request: String,
    pub act: Act,
    pub status: u16,
    /// Stream: each event as sent, and whether it is the usage chunk. Plain: one piece.
    pub pieces: Vec<(Vec<u8>, bool)>,
    pub stream: bool,
    pub conn: usize,
    pub arrived_at: Nanos,
    /// The engine has said everything, or the connection is gone.
    pub over: bool,
}

enum Step {
    Send(Vec<u8>),
    Wait(Nanos),
    Reset,
    Close,
    Hang,
    Done { keep: bool },
}

pub struct EngineConn {
    pub peer: PeerId,
    pub engine: usize,
    buf: Vec<u8>,
    out: Vec<u8>,
    steps: VecDeque<Step>,
    wait_until: Nanos,
    read_again: Nanos,
    pub attempt: Option<usize>,
    /// Body bytes of an early answer that are still to be read.
    owed: usize,
    idle_since: Nanos,
    /// It carried a request already.
    served: bool,
    pub gone: bool,
}

impl EngineConn {
    pub fn new(peer: PeerId, engine: usize, now: Nanos) -> Self {
        EngineConn {
            peer,
            engine,
            buf: Vec::new(),
            out: Vec::new(),
            steps: VecDeque::new(),
            wait_until: 0,
            read_again: 0,
            attempt: None,
            owed: 0,
            idle_since: now,
            served: false,
            gone: false,
        }
    }
}

pub struct Engines {
    pub plans: Vec<EnginePlan>,
    pub conns: Vec<EngineConn>,
    pub attempts: Vec<Attempt>,
    pub rng: fastrand::Rng,
    pub big: bool,
}

impl Engines {
    /// Does what can be done on a connection now. Answers when to look again.
    pub fn step(&mut self, world: &World, index: usize) -> Option<Nanos> {
        let now = world.now();
        if self.conns[index].gone {
            return None;
        }
        let peer = self.conns[index].peer;
        if world.hung_up(peer) || !matches!(world.state(peer), PeerState::Open) {
            // As engines do: the request is aborted at once.
            self.end(index);
            world.close(peer);
            return None;
        }
        let mut wake = self.read(world, index, now);
        loop {
            self.parse(index, now);
            let before = self.conns[index].steps.len();
            let at = self.play(world, index, now);
            wake = min_some(wake, at);
            let conn = &self.conns[index];
            if conn.gone || conn.steps.len() == before || at.is_some() {
                break;
            }
        }
        let conn = &self.conns[index];
        let idle =
            !conn.gone && conn.attempt.is_none() && conn.buf.is_empty() && conn.owed == 0 && conn.served;
        let plan = &self.plans[conn.engine];
        let Some(at) = plan.closes_idle.filter(|_| idle).map(|after| conn.idle_since + after) else {
            return wake;
        };
        if at > now {
            return min_some(wake, Some(at));
        }
        // A reset after its last answer must not destroy that.
        if plan.resets_idle && world.unacknowledged(peer) == 0 {
            world.reset(peer);
        } else {
            world.close(peer);
        }
        self.end(index);
        None
    }

    fn end(&mut self, index: usize) {
        let conn = &mut self.conns[index];
        conn.gone = true;
        if let Some(attempt) = conn.attempt.take() {
            self.attempts[attempt].over = true;
        }
    }

    fn read(&mut self, world: &World, index: usize, now: Nanos) -> Option<Nanos> {
        let conn = &mut self.conns[index];
        let reads = self.plans[conn.engine].reads;
        if conn.read_again > now {
            return Some(conn.read_again);
        }
        let bytes = world.read(conn.peer, reads);
        if !bytes.is_empty() && reads != usize::MAX {
            conn.read_again = now + 5 * MILLISECOND;
        }
        let skip = conn.owed.min(bytes.len());
        conn.owed -= skip;
        conn.buf.extend_from_slice(&bytes[skip..]);
        (conn.read_again > now).then_some(conn.read_again)
    }

    /// Takes a request if one is there and none is being answered.
    fn parse(&mut self, index: usize, now: Nanos) {
        let conn = &mut self.conns[index];
        if conn.attempt.is_some() || !conn.steps.is_empty() || conn.owed > 0 {
            return;
        }
        let Some(end) = conn.buf.windows(4).position(|w| w == b"\r\n\r\n") else { return };
        let head = String::from_utf8_lossy(&conn.buf[..end]).into_owned();
        let field = |name: &str| {
            head.split("\r\n")
                .skip(1)
                .filter_map(|l| l.split_once(": "))
                .find(|(n, _)| *n == name)
                .map(|(_, v)| v.to_owned())
        };
        let length: usize = field("content-length").and_then(|v| v.parse().ok()).unwrap_or(0);
        let whole = conn.buf.len() >= end + 4 + length;
        let faults = self.plans[conn.engine].faults;
        let early = !whole && faults > 0 && pct(&mut self.rng, 3);
        if !whole && !early {
            return;
        }
        let id = field("x-request-id").unwrap_or_default();
        let take = (end + 4 + length).min(conn.buf.len());
        conn.owed = end + 4 + length - take;
        let request: Vec<u8> = conn.buf.drain(..take).collect();
        let body = String::from_utf8_lossy(&request[end + 4..]).into_owned();
        let act = if self.plans[conn.engine].busy_only {
            Act::Busy
        } else if early {
            Act::Early
        } else if pct(&mut self.rng, faults) {
            if pct(&mut self.rng, 4) { Act::HugeEvent } else { FAULTS[self.rng.usize(..FAULTS.len())] }
        } else if pct(&mut self.rng, 4) {
            Act::Interim
        } else if faults > 0 && pct(&mut self.rng, 3) {
            Act::Excess
        } else {
            Act::Good
        };
        let number = self.attempts.len();
        conn.attempt = Some(number);
        conn.served = true;
        self.attempts.push(Attempt {
            request: id,
            act,
            status: 200,
            pieces: Vec::new(),
            stream: body.contains("\"stream\":true"),
            conn: index,
            arrived_at: now,
            over: false,
        });
        let steps = self.script(number, &body);
        self.conns[index].steps = steps;
    }

    fn script(&mut self, number: usize, body: &str) -> VecDeque<Step> {
        let rng = &mut self.rng;
        let attempt = &mut self.attempts[number];
        let mut steps = VecDeque::new();
        if pct(rng, 50) {
            steps.push_back(Step::Wait(rng.u64(..100 * MILLISECOND)));
        }
        let say = |text: &str| Step::Send(text.as_bytes().to_vec());
        match attempt.act {
            Act::Hang => {
                steps.push_back(Step::Hang);
                return steps;
            }
            Act::ResetBefore => {
                steps.push_back(Step::Reset);
                return steps;
            }
            Act::CloseBefore => {
                steps.push_back(Step::Close);
                return steps;
            }
            Act::ResetInHead => {
                steps.extend([say("HTTP/1.1 200 OK\r\ncontent-ty"), Step::Wait(MILLISECOND), Step::Reset]);
                return steps;
            }
            Act::MalformedHead => {
                let heads = [
                    "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
                    "ICY 200 OK\r\n\r\n",
                ];
                steps.extend([say(heads[rng.usize(..2)]), Step::Hang]);
                return steps;
            }
            Act::HugeHead => {
                steps.extend([say(&format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(70_000))), Step::Hang]);
                return steps;
            }
            Act::Redirect => {
                attempt.status = 302;
                steps.push_back(say("HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n"));
                steps.push_back(Step::Done { keep: true });
                return steps;
            }
            Act::Busy => {
                attempt.status = if rng.bool() { 429 } else { 503 };
                let retry = if rng.bool() { "retry-after: 3\r\n" } else { "" };
                let head =
                    format!("HTTP/1.1 {} Busy\r\n{retry}content-length: 2\r\n\r\n{{}}", attempt.status);
                steps.extend([say(&head), Step::Done { keep: true }]);
                return steps;
            }
            Act::Error => {
                attempt.status = [500, 400, 422][rng.usize(..3)];
                let body = format!("{{\"error\":{{\"message\":\"{}\",\"type\":\"x\"}}}}", attempt.request);
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {} Error\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}",
                    attempt.status
                );
                steps.extend([say(&head), Step::Done { keep: true }]);
                return steps;
            }
            Act::Interim => steps.push_back(say("HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")),
            _ => {}
        }
        if attempt.stream {
            stream_answer(rng, attempt, number, body, self.big, &mut steps);
        } else {
            plain_answer(rng, attempt, number, self.big, &mut steps);
        }
        steps
    }

    /// Plays the script as far as it goes now.
    fn play(&mut self, world: &World, index: usize, now: Nanos) -> Option<Nanos> {
        loop {
            let conn = &mut self.conns[index];
            while !conn.out.is_empty() {
                let n = world.write(conn.peer, &conn.out);
                conn.out.drain(..n);
                if n == 0 {
                    return None; // told when there is room
                }
            }
            if conn.wait_until > now {
                return Some(conn.wait_until);
            }
            match conn.steps.pop_front() {
                None => return None,
                Some(Step::Send(bytes)) => conn.out = bytes,
                Some(Step::Wait(ns)) => conn.wait_until = now + ns,
                Some(Step::Hang) => {
                    conn.steps.push_front(Step::Hang);
                    return None;
                }
                Some(Step::Done { keep }) => {
                    if let Some(attempt) = conn.attempt.take() {
                        self.attempts[attempt].over = true;
                    }
                    conn.idle_since = now;
                    if !keep {
                        conn.gone = true;
                        world.close(conn.peer);
                    }
                    return None;
                }
                Some(step @ (Step::Reset | Step::Close)) => {
                    let peer = conn.peer;
                    self.end(index);
                    if matches!(step, Step::Reset) {
                        world.reset(peer);
                    } else {
                        world.close(peer);
                    }
                    return None;
                }
            }
        }
    }
}

pub fn min_some(a: Option<Nanos>, b: Option<Nanos>) -> Option<Nanos> {
    [a, b].into_iter().flatten().min()
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    let mut out = format!("{:x}\r\n", bytes.len()).into_bytes();
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
    out
}

fn stream_answer(
    rng: &mut fastrand::Rng,
    attempt: &mut Attempt,
    number: usize,
    body: &str,
    big: bool,
    steps: &mut VecDeque<Step>,
) {
    let chunked = pct(rng, 85);
    let eol = ["\n", "\n", "\n", "\r\n", "\r"][rng.usize(..5)];
    let big = big && pct(rng, 50);
    let tokens = if big { 400 } else { rng.usize(1..25) };
    let id = attempt.request.clone();
    let event = |content: &str, finish: &str| {
        format!(
            "data: {{\"id\":\"{number}\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{content}\"}},\"finish_reason\":{finish}}}]}}{eol}{eol}"
        )
        .into_bytes()
    };
    let pad = if big { "p".repeat(1000) } else { String::new() };
    for token in 0..tokens {
        let text = match rng.u8(..12) {
            0 => " [DONE]",
            1 => " \\\"usage\\\":{}",
            2 => " data: x\\n\\n é",
            _ => "",
        };
        let finish = if token + 1 == tokens { "\"stop\"" } else { "null" };
        attempt.pieces.push((event(&format!("{id}/{number}:t{token}{text}{pad}"), finish), false));
        if pct(rng, 4) {
            attempt.pieces.push((format!(": engine comment{eol}{eol}").into_bytes(), false));
        }
    }
    if attempt.act == Act::HugeEvent {
        attempt.pieces.push((event(&"h".repeat(150_000), "null"), false));
    }
    if body.contains("\"include_usage\":true") {
        let usage = format!(
            "data: {{\"id\":\"{number}\",\"choices\":[],\"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":{tokens},\"total_tokens\":9}}}}{eol}{eol}"
        );
        attempt.pieces.push((usage.into_bytes(), true));
    }
    attempt.pieces.push((format!("data: [DONE]{eol}{eol}").into_bytes(), false));
    let framing = if chunked { "transfer-encoding: chunked\r\n" } else { "connection: close\r\n" };
    let keep = ["", "keep-alive: timeout=3\r\n"][rng.usize(..2)];
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n{framing}{keep}\r\n");
    steps.push_back(Step::Send(head.into_bytes()));
    let cut = rng.usize(..attempt.pieces.len());
    let gap = [0, 0, MILLISECOND, 30 * MILLISECOND, 150 * MILLISECOND, 3 * SECOND][rng.usize(..6)];
    let gap = if big { 0 } else { gap };
    let mut held = Vec::new();
    let last = attempt.pieces.len() - 1;
    for (i, (bytes, _)) in attempt.pieces.iter().enumerate() {
        if i == cut && fails_in_body(rng, attempt.act, chunked, steps, &mut held) {
            return;
        }
        held.extend_from_slice(bytes);
        // Two events in a chunk, an event in two chunks, or one in one.
        if i < last && pct(rng, 15) {
            continue;
        }
        let bytes = std::mem::take(&mut held);
        let at = if pct(rng, 20) { rng.usize(1..bytes.len()) } else { bytes.len() };
        for part in [&bytes[..at], &bytes[at..]] {
            if !part.is_empty() {
                steps.push_back(Step::Send(if chunked { chunk(part) } else { part.to_vec() }));
                if gap > 0 && rng.bool() {
                    steps.push_back(Step::Wait(rng.u64(..gap)));
                }
            }
        }
    }
    if attempt.act == Act::HugeEvent {
        steps.pop_back();
        steps.extend([Step::Wait(MILLISECOND), Step::Reset]);
        return;
    }
    end_answer(rng, attempt.act, chunked, chunked, steps);
}

/// The fault that an act is, in the middle of a body. `false` if it is none.
fn fails_in_body(
    rng: &mut fastrand::Rng,
    act: Act,
    chunked: bool,
    steps: &mut VecDeque<Step>,
    held: &mut Vec<u8>,
) -> bool {
    match act {
        Act::ResetAfter | Act::EndEarly | Act::BadChunk | Act::Stall => {}
        Act::ErrorEvent => {
            held.extend_from_slice(
                b"data: {\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\"}}\n\n",
            );
            steps.push_back(Step::Send(if chunked { chunk(held) } else { held.clone() }));
            end_answer(rng, Act::Good, chunked, chunked, steps);
            return true;
        }
        _ => return false,
    }
    if !held.is_empty() {
        steps.push_back(Step::Send(if chunked { chunk(held) } else { held.clone() }));
    }
    match act {
        Act::ResetAfter => steps.extend([Step::Wait(rng.u64(..5 * MILLISECOND)), Step::Reset]),
        Act::BadChunk if chunked => steps.extend([Step::Send(b"zz\r\n".to_vec()), Step::Hang]),
        Act::Stall => steps.push_back(Step::Hang),
        _ if chunked => steps.extend([Step::Send(b"0\r\n\r\n".to_vec()), Step::Done { keep: true }]),
        _ => steps.push_back(Step::Close),
    }
    true
}

fn end_answer(rng: &mut fastrand::Rng, act: Act, chunked: bool, keep: bool, steps: &mut VecDeque<Step>) {
    if chunked {
        if rng.bool() {
            // The end of the framing comes late: the connection must not be used before.
            steps.push_back(Step::Wait(rng.u64(..50 * MILLISECOND)));
        }
        steps.push_back(Step::Send(b"0\r\n\r\n".to_vec()));
    }
    if act == Act::Excess && keep {
        if rng.bool() {
            steps.push_back(Step::Wait(rng.u64(..50 * MILLISECOND)));
        }
        steps.push_back(Step::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec()));
    }
    // After bytes too many, one answer may be mistaken, but not every later one.
    steps.push_back(Step::Done { keep: keep && act != Act::Excess });
}

fn plain_answer(
    rng: &mut fastrand::Rng,
    attempt: &mut Attempt,
    number: usize,
    big: bool,
    steps: &mut VecDeque<Step>,
) {
    let pad = match rng.u8(..4) {
        _ if big && pct(rng, 60) => 450_000,
        0 => rng.usize(..30_000),
        _ => rng.usize(..300),
    };
    let json = format!(
        "{{\"id\":\"{number}\",\"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{}/{number} {}\"}},\"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":3,\"completion_tokens\":4,\"total_tokens\":7}}}}",
        attempt.request,
        "q".repeat(pad)
    )
    .into_bytes();
    attempt.pieces.push((json.clone(), false));
    let kind = rng.u8(..3);
    let framing = match kind {
        0 => format!("content-length: {}\r\n", json.len()),
        1 => "transfer-encoding: chunked\r\n".to_owned(),
        _ => "connection: close\r\n".to_owned(),
    };
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{framing}\r\n");
    steps.push_back(Step::Send(head.into_bytes()));
    let cut = rng.usize(..json.len());
    let act = attempt.act;
    let mut from = 0;
    if matches!(act, Act::ResetAfter | Act::EndEarly | Act::BadChunk | Act::Stall) {
        let part = &json[..cut];
        if !part.is_empty() {
            steps.push_back(Step::Send(if kind == 1 { chunk(part) } else { part.to_vec() }));
        }
        match act {
            Act::ResetAfter => steps.extend([Step::Wait(MILLISECOND), Step::Reset]),
            Act::BadChunk if kind == 1 => steps.extend([Step::Send(b"5;\r\n".to_vec()), Step::Hang]),
            Act::Stall => steps.push_back(Step::Hang),
            // A body that ends with the connection cannot be told from a complete one.
            _ if kind == 2 => {
                attempt.pieces = vec![(part.to_vec(), false)];
                steps.push_back(Step::Close);
            }
            _ => steps.push_back(Step::Close),
        }
        return;
    }
    if rng.bool() && cut > 0 {
        let part = &json[..cut];
        steps.push_back(Step::Send(if kind == 1 { chunk(part) } else { part.to_vec() }));
        steps.push_back(Step::Wait(rng.u64(..30 * MILLISECOND)));
        from = cut;
    }
    let rest = &json[from..];
    steps.push_back(Step::Send(if kind == 1 { chunk(rest) } else { rest.to_vec() }));
    end_answer(rng, act, kind == 1, kind != 2, steps);
}
