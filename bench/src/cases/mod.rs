//! What is measured by the clock and by instruction counts: the steps of a request, and a whole shard over a driver
//! that costs nothing.
//!
//! Invariant: a case does the same in every call, so that the difference of two counts is the cost of the calls.

mod shard;
mod stub;
#[cfg(test)]
mod tests;

pub use shard::side_by_side;

use llmgw_dataplane::http1::{Chunk, Decoder, HeadLimits, find_head_end, parse_request, parse_response};
use llmgw_dataplane::sse::{EventKind, Framer, Piece, parse_event};
use llmgw_routing::load::LoadTable;
use llmgw_routing::pipeline::{PickState, Profile, Request, decide};
use llmgw_routing::prefix::prefix_key;
use llmgw_routing::scan::{EventSkim, RequestScan, inject_usage};
use llmgw_routing::snapshot::{Endpoint, Engine, Model, Role};
use smallvec::SmallVec;
use std::hint::black_box;
use std::sync::Arc;

const REQUEST_HEAD: &[u8] = b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway.example:8080\r\n\
accept: application/json\r\ncontent-type: application/json\r\nuser-agent: OpenAI/Python 1.99.0\r\n\
authorization: Bearer sk-0123456789abcdef\r\nx-stainless-lang: python\r\naccept-encoding: gzip, deflate\r\n\
content-length: 230\r\n\r\n";
const RESPONSE_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 22:49:42 GMT\r\nserver: uvicorn\r\n\
content-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\ntransfer-encoding: chunked\r\n\r\n";
const EVENT: &[u8] = b"data: {\"id\":\"chatcmpl-8de5e039c7f675c2\",\"object\":\"chat.completion.chunk\",\
\"created\":1796078983,\"model\":\"smollm2\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" welcome\"},\
\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n";

/// A case, ready to be called.
pub type Call = Box<dyn FnMut()>;

/// Something measured.
pub struct Case {
    /// Without spaces: it is an argument and a key of the baselines.
    pub name: &'static str,
    /// Sets it up.
    pub make: fn() -> Call,
}

/// All cases.
pub fn all() -> Vec<Case> {
    let case = |name, make| Case { name, make };
    vec![
        case("parse-request-head", parse_request_head),
        case("parse-response-head", parse_response_head),
        case("scan-body-400B", || scan(200)),
        case("scan-body-33KiB", || scan(32 * 1024)),
        case("decide-least-outstanding-4", || decide_cost("least_outstanding", 4)),
        case("decide-affinity-4", || decide_cost("affinity", 4)),
        case("decide-weighted-4", || decide_cost("weighted", 4)),
        case("decide-least-outstanding-64", || decide_cost("least_outstanding", 64)),
        case("decide-affinity-64", || decide_cost("affinity", 64)),
        case("decide-weighted-64", || decide_cost("weighted", 64)),
        case("decide-least-outstanding-1000", || decide_cost("least_outstanding", 1000)),
        case("decide-affinity-1000", || decide_cost("affinity", 1000)),
        case("decide-weighted-1000", || decide_cost("weighted", 1000)),
        case("frame-and-skim-event", frame_and_skim),
        case("decode-chunk-336B", decode_chunk),
        case("shard-request-json", shard::request_json),
        case("shard-request-stream", shard::request_stream),
        case("shard-relay-event", shard::relay_event),
    ]
}

fn parse_request_head() -> Call {
    Box::new(|| {
        let end = find_head_end(black_box(REQUEST_HEAD), 0).unwrap_or_default();
        black_box(parse_request(&REQUEST_HEAD[..end], &HeadLimits::default()).is_ok());
    })
}

fn parse_response_head() -> Call {
    Box::new(|| {
        let limits = HeadLimits::default();
        black_box(parse_response(black_box(RESPONSE_HEAD), &limits, false).is_ok());
    })
}

/// A chat request's body whose prompt has about `prompt` bytes.
fn chat_body(prompt: usize, stream: bool) -> Vec<u8> {
    let prompt = "lorem ipsum ".repeat(prompt.div_ceil(12));
    format!(
        "{{\"model\":\"m\",\"messages\":[{{\"role\":\"system\",\"content\":\"Be brief.\"}},\
         {{\"role\":\"user\",\"content\":\"{prompt}\"}}],\"stream\":{stream},\"max_tokens\":128}}"
    )
    .into_bytes()
}

fn scan(prompt: usize) -> Call {
    let body = chat_body(prompt, true);
    Box::new(move || {
        let mut scan = RequestScan::new(64);
        let fed = scan.feed(black_box(&body));
        if let (Ok(()), Ok(fields)) = (fed, scan.finish(&body)) {
            let mut key = SmallVec::new();
            prefix_key(&fields, &body, &mut key);
            black_box((inject_usage(&fields, &body).len(), key.len()));
        }
    })
}

/// Endpoints of one model, on ports from 9000.
fn endpoints(loads: &Arc<LoadTable>, count: u16) -> Vec<Arc<Endpoint>> {
    let endpoint = |i: u16| {
        let port = 9000 + i;
        Some(Arc::new(Endpoint {
            id: format!("e{i:04}").into(),
            slot: loads.allocate()?,
            served_model: "m".into(),
            pool: "default".into(),
            series: 1,
            address: ([127, 0, 0, 1], port).into(),
            authority: format!("127.0.0.1:{port}").into(),
            base_path: "".into(),
            engine: Engine::Vllm,
            weight: 1.0,
            role: Role::Unified,
            priority_scheduling: false,
            announced: false,
        }))
    };
    (0..count).filter_map(endpoint).collect()
}

fn decide_cost(policy: &str, count: u16) -> Call {
    let loads = LoadTable::new(u32::from(count));
    let endpoints = endpoints(&loads, count);
    let Some(profile) = Profile::from_policy(policy, 1.25) else { return Box::new(|| ()) };
    let model = Model::new("m", endpoints, Arc::new(profile), 0, None);
    let mut state = PickState::new(1);
    Box::new(move || {
        let request = Request { request_id: "req-1", prefix_key: b"system\nBe brief.\n", exclude: &[] };
        black_box(decide(&model, &request, &loads, 1, &mut state).is_ok());
    })
}

fn frame_and_skim() -> Call {
    let (mut framer, mut skim) = (Framer::new(), EventSkim::new());
    Box::new(move || {
        framer.push(black_box(EVENT), |piece| {
            if let Piece::Event(event) = piece
                && let EventKind::Data(json) = parse_event(event).kind
            {
                black_box(skim.skim(&json).choices_empty);
            }
        });
    })
}

fn decode_chunk() -> Call {
    let chunk = [b"150\r\n".as_slice(), &[b'x'; 0x150], b"\r\n"].concat();
    Box::new(move || {
        let mut decoder = Decoder::new();
        let mut at = 0;
        while let Ok(Chunk::Data { consumed, .. }) = decoder.decode(black_box(&chunk[at..])) {
            at += consumed;
        }
    })
}
