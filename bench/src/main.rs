//! Micro-benchmarks of what a request costs in user code: `cargo xtask bench micro`.
//!
//! Each figure is the median of many short slices, in nanoseconds a call; on a shared machine only comparisons within
//! one run mean anything.
#![allow(clippy::disallowed_methods)] // it measures time
#![allow(clippy::print_stdout)] // it prints its table

use llmgw_dataplane::http1::{Chunk, Decoder, HeadLimits, find_head_end, parse_request, parse_response};
use llmgw_dataplane::sse::{EventKind, Framer, Piece, parse_event};
use llmgw_routing::load::LoadTable;
use llmgw_routing::pipeline::{PickState, Profile, Request, decide};
use llmgw_routing::prefix::prefix_key;
use llmgw_routing::scan::{RequestScan, inject_usage, skim_chunk};
use llmgw_routing::snapshot::{Endpoint, Engine, Model, Role};
use smallvec::SmallVec;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const SLICES: usize = 41;
const CALLS: u32 = 2_000;

const REQUEST_HEAD: &[u8] = b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway.example:8080\r\n\
accept: application/json\r\ncontent-type: application/json\r\nuser-agent: OpenAI/Python 1.99.0\r\n\
authorization: Bearer sk-0123456789abcdef\r\nx-stainless-lang: python\r\naccept-encoding: gzip, deflate\r\n\
content-length: 230\r\n\r\n";
const RESPONSE_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 22:49:42 GMT\r\nserver: uvicorn\r\n\
content-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\ntransfer-encoding: chunked\r\n\r\n";
const EVENT: &[u8] = b"data: {\"id\":\"chatcmpl-8de5e039c7f675c2\",\"object\":\"chat.completion.chunk\",\
\"created\":1796078983,\"model\":\"smollm2\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" welcome\"},\
\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n";

fn main() {
    let body = chat_body(200);
    let long = chat_body(32 * 1024);
    println!("{:44} {:>10}", "ns a call (median)", "");
    show("parse request head", || {
        let end = find_head_end(black_box(REQUEST_HEAD), 0).unwrap_or_default();
        black_box(parse_request(&REQUEST_HEAD[..end], &HeadLimits::default()).is_ok());
    });
    show("parse response head", || {
        let limits = HeadLimits::default();
        black_box(parse_response(black_box(RESPONSE_HEAD), &limits, false).is_ok());
    });
    show(&format!("scan {} byte body, inject usage", body.len()), || scan(&body));
    show(&format!("scan {} byte body, inject usage", long.len()), || scan(&long));
    for endpoints in [4, 64, 1000] {
        for policy in ["least_outstanding", "affinity"] {
            decide_cost(policy, endpoints);
        }
    }
    show(&format!("frame, parse and skim a {} byte event", EVENT.len()), || {
        let mut framer = Framer::new();
        framer.push(black_box(EVENT), |piece| {
            if let Piece::Event(event) = piece
                && let EventKind::Data(json) = parse_event(event).kind
            {
                black_box(skim_chunk(&json).choices_empty);
            }
        });
    });
    let chunk = [b"150\r\n".as_slice(), &[b'x'; 0x150], b"\r\n"].concat();
    show("decode a 336 byte chunk", || {
        let mut decoder = Decoder::new();
        let mut at = 0;
        while let Ok(Chunk::Data { consumed, .. }) = decoder.decode(black_box(&chunk[at..])) {
            at += consumed;
        }
    });
}

fn chat_body(prompt: usize) -> Vec<u8> {
    let prompt = "lorem ipsum ".repeat(prompt.div_ceil(12));
    format!(
        "{{\"model\":\"m\",\"messages\":[{{\"role\":\"system\",\"content\":\"Be brief.\"}},\
         {{\"role\":\"user\",\"content\":\"{prompt}\"}}],\"stream\":true,\"max_tokens\":128}}"
    )
    .into_bytes()
}

fn scan(body: &[u8]) {
    let mut scan = RequestScan::new(64);
    let fed = scan.feed(black_box(body));
    if let (Ok(()), Ok(fields)) = (fed, scan.finish(body)) {
        let mut key = SmallVec::new();
        prefix_key(&fields, body, &mut key);
        black_box((inject_usage(&fields, body).len(), key.len()));
    }
}

fn decide_cost(policy: &str, endpoints: u32) {
    let loads = LoadTable::new(endpoints);
    let endpoint = |i: u32| {
        Some(Arc::new(Endpoint {
            id: format!("e{i:04}").into(),
            slot: loads.allocate()?,
            served_model: "m".into(),
            pool: "default".into(),
            series: 1,
            address: ([127, 0, 0, 1], 9000).into(),
            authority: "127.0.0.1:9000".into(),
            base_path: "".into(),
            engine: Engine::Vllm,
            weight: 1.0,
            role: Role::Unified,
        }))
    };
    let endpoints: Vec<_> = (0..endpoints).filter_map(endpoint).collect();
    let count = endpoints.len();
    let Some(profile) = Profile::from_policy(policy, 1.25) else { return };
    let model = Model::new("m", endpoints, Arc::new(profile), 0, None);
    let mut state = PickState::new(1);
    show(&format!("decide, {policy}, {count} endpoints"), || {
        let request = Request { request_id: "req-1", prefix_key: b"system\nBe brief.\n", exclude: &[] };
        black_box(decide(&model, &request, &loads, 1, &mut state).is_ok());
    });
}

fn show(name: &str, mut call: impl FnMut()) {
    let mut slices: Vec<f64> = (0..SLICES)
        .map(|_| {
            let start = Instant::now();
            (0..CALLS).for_each(|_| call());
            start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
        })
        .collect();
    slices.sort_by(f64::total_cmp);
    println!("{name:44} {:10.1}", slices[SLICES / 2]);
}
