//! A shard over the stub driver: whole requests and single events, everything on, in user code alone.

use super::stub::{Bytes, StubDriver};
use super::{Call, EVENT, RESPONSE_HEAD, chat_body, endpoints};
use llmgw_dataplane::driver::{Event, Token};
use llmgw_dataplane::shard::Shard;
use llmgw_dataplane::shared::{RecordConsumer, Shared, record_ring};
use llmgw_routing::budget::RetryBudget;
use llmgw_routing::load::LoadTable;
use llmgw_routing::pipeline::Profile;
use llmgw_routing::snapshot::{Model, Settings, Snapshot};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// A shard with one client and one warm engine connection.
struct Rig {
    shard: Shard<StubDriver>,
    records: RecordConsumer,
    client: Option<Token>,
}

/// What `shards` shards share: one model on `count` endpoints.
fn world(shards: usize, count: u16) -> Arc<Shared<()>> {
    let loads = LoadTable::new(u32::from(count.max(4)));
    let endpoints = endpoints(&loads, count);
    let profile = Arc::new(Profile::from_policy("affinity", 1.25).expect("affinity is a policy"));
    let model = Arc::new(Model::new("m", endpoints.clone(), profile, 1, None));
    let settings = Arc::new(Settings::default());
    let budget = RetryBudget::new(settings.retry_budget);
    let models = [(Box::<str>::from("m"), model)].into_iter().collect();
    let snapshot = Arc::new(Snapshot::new(1, models, endpoints, settings));
    Arc::new(Shared::new(snapshot, loads, budget, shards))
}

impl Rig {
    fn new() -> Self {
        Rig::join(&world(1, 1), 0)
    }

    /// Shard `id` of a world.
    fn join(shared: &Arc<Shared<()>>, id: usize) -> Self {
        let (producer, records) = record_ring();
        let mut driver = StubDriver::default();
        driver.events.push_back(Event::Accepted { socket: (), peer: IpAddr::V4(Ipv4Addr::LOCALHOST) });
        let mut shard = Shard::new(id, driver, Arc::clone(shared), producer, 1);
        shard.turn();
        let client = shard.driver_mut().client;
        Rig { shard, records, client }
    }

    /// Bytes from the client.
    fn ask(&mut self, bytes: &Bytes) {
        let Some(client) = self.client else { return };
        self.shard.driver_mut().events.push_back(Event::Data(client, Arc::clone(bytes)));
        self.shard.turn();
    }

    /// Bytes from the engine.
    fn answer(&mut self, bytes: &Bytes) {
        let Some(upstream) = self.shard.driver_mut().upstream else { return };
        self.shard.driver_mut().events.push_back(Event::Data(upstream, Arc::clone(bytes)));
        self.shard.turn();
    }

    /// One request, its whole answer and its settlement.
    fn exchange(&mut self, request: &Bytes, answer: &Bytes) {
        self.ask(request);
        self.answer(answer);
        self.settled(1);
    }

    /// A case must do what it says, or its count means nothing.
    fn settled(&mut self, count: usize) {
        let settled = std::iter::from_fn(|| self.records.pop().ok()).count();
        assert_eq!(settled, count, "requests settled");
    }
}

fn request(stream: bool) -> Bytes {
    let body = chat_body(200, stream);
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.example\r\nAccept: application/json\r\n\
         User-Agent: OpenAI/Python 1.99.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), &body].concat().into()
}

fn json_answer() -> Bytes {
    let body = format!(
        "{{\"id\":\"chatcmpl-8de5e039c7f675c2\",\"object\":\"chat.completion\",\"created\":1796078983,\"model\":\"m\",\
         \"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{}\"}},\"finish_reason\":\
         \"stop\"}}],\"usage\":{{\"prompt_tokens\":31,\"total_tokens\":159,\"completion_tokens\":128}}}}",
        "The Danube flows. ".repeat(20)
    );
    format!(
        "HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 22:49:42 GMT\r\nserver: uvicorn\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
    .into()
}

fn chunk(data: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}

/// A request and its small JSON answer, settlement included.
pub fn request_json() -> Call {
    let (mut rig, request, answer) = (Rig::new(), request(false), json_answer());
    rig.exchange(&request, &answer);
    Box::new(move || rig.exchange(&request, &answer))
}

/// A streamed request: head with one event, the end with usage, settlement included.
pub fn request_stream() -> Call {
    let usage = b"data: {\"id\":\"chatcmpl-8de5e039c7f675c2\",\"object\":\"chat.completion.chunk\",\
        \"created\":1796078983,\"model\":\"m\",\"choices\":[],\
        \"usage\":{\"prompt_tokens\":31,\"total_tokens\":33,\"completion_tokens\":2}}\n\n";
    let first: Bytes = [RESPONSE_HEAD, &chunk(EVENT)].concat().into();
    let last: Bytes = [chunk(usage), chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n".to_vec()].concat().into();
    let (mut rig, request) = (Rig::new(), request(true));
    let mut call = move || {
        rig.ask(&request);
        rig.answer(&first);
        rig.answer(&last);
        rig.settled(1);
    };
    call();
    Box::new(call)
}

/// One event of a stream, from the engine's bytes to the client's.
pub fn relay_event() -> Call {
    let (mut rig, request) = (Rig::new(), request(true));
    let first: Bytes = [RESPONSE_HEAD, &chunk(EVENT)].concat().into();
    let event: Bytes = chunk(EVENT).into();
    rig.ask(&request);
    rig.answer(&first);
    Box::new(move || {
        let before = rig.shard.driver_mut().sent;
        rig.answer(&event);
        assert!(rig.shard.driver_mut().sent >= before + EVENT.len(), "an event was not relayed");
    })
}

/// A call of `request_json` for each of `shards` shards that share a world of three endpoints, each to be made on a
/// thread of its own.
pub fn side_by_side(shards: usize) -> Vec<Box<dyn FnOnce() -> Call + Send>> {
    let world = world(shards, 3);
    let make = |id: usize| {
        let world = Arc::clone(&world);
        let make: Box<dyn FnOnce() -> Call + Send> = Box::new(move || {
            let (mut rig, request, answer) = (Rig::join(&world, id), request(false), json_answer());
            // Warm connections to all endpoints.
            (0..16).for_each(|_| rig.exchange(&request, &answer));
            Box::new(move || rig.exchange(&request, &answer))
        });
        make
    };
    (0..shards).map(make).collect()
}
