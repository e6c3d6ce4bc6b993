//! What a seed stands for: weather, settings, engines, clients and what they will do.

use llmgw_dataplane::driver::sim::{Door, Weather};
use llmgw_dataplane::driver::{ConnError, MAX_LATE_BYTES};
use llmgw_routing::snapshot::Settings;
use llmgw_routing::{MILLISECOND, Nanos, SECOND};

/// Chance in 100.
pub fn pct(rng: &mut fastrand::Rng, chance: u8) -> bool {
    rng.u8(..100) < chance
}

/// Everything drawn for a seed.
pub struct Plan {
    pub seed: u64,
    pub weather: Weather,
    pub settings: Settings,
    pub shards: usize,
    pub engines: Vec<EnginePlan>,
    pub clients: Vec<Vec<ConnPlan>>,
    /// Ask for a shutdown at this time after the start, and for the end of everything at the second.
    pub stop: Option<(Nanos, Nanos)>,
    /// Publish a snapshot without the first endpoint.
    pub reload: Option<Nanos>,
    /// When every endpoint is drained, and when what still runs is cut.
    pub drain: Option<(Nanos, Nanos)>,
    /// No engine ever fails: every sound request must be answered with 200.
    pub fair: bool,
    /// Bodies of hundreds of kilobytes.
    pub big: bool,
    /// Connections may be refused for their number.
    pub few_connections: bool,
}

pub struct EnginePlan {
    pub door: Door,
    /// Chance in 100 that a request meets a fault.
    pub faults: u8,
    /// Reads this many bytes each 5 ms.
    pub reads: usize,
    /// Closes an idle connection after this long.
    pub closes_idle: Option<Nanos>,
    /// Resets it instead.
    pub resets_idle: bool,
    /// Answers nothing but 429 and 503.
    pub busy_only: bool,
}

/// One connection of a client.
#[derive(Debug)]
pub struct ConnPlan {
    pub start_after: Nanos,
    pub requests: Vec<RequestPlan>,
    /// Writes the next request without waiting for the answer.
    pub pipelined: bool,
    /// Largest piece written at once, and the pause after it.
    pub piece: usize,
    pub piece_gap: Nanos,
    pub cancel: Option<Cancel>,
    pub stall: Option<Stall>,
    /// Largest read, and the pause after it.
    pub reads: usize,
    pub read_gap: Nanos,
    /// Waits this long after the last answer before it closes.
    pub close_after: Nanos,
    /// Sends FIN after the last request and reads on.
    pub half_closes: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Cancel {
    pub when: When,
    pub by_reset: bool,
}

#[derive(Debug, Clone, Copy)]
pub enum When {
    After(Nanos),
    ResponseBytes(usize),
    RequestBytes(usize),
}

/// Stops reading after so many bytes, for a while or for ever.
#[derive(Debug, Clone, Copy)]
pub struct Stall {
    pub after: usize,
    pub lasts: Option<Nanos>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    Stream { usage: bool },
    Plain,
    Embeddings,
    Models,
    HeadModels,
    Preflight,
    UnknownPath,
    WrongMethod,
    UnknownModel,
    EmptyModel,
    BadJson,
    BadChunk,
    TooLarge,
    Gzip,
    MalformedHead,
    HugeHead,
    HalfHead,
    HalfBody,
}

impl Ask {
    /// Goes to an engine.
    pub fn sound(self) -> bool {
        matches!(self, Ask::Stream { .. } | Ask::Plain | Ask::Embeddings)
    }

    /// A body follows its head.
    pub fn has_body(self) -> bool {
        let bodiless = [
            Ask::Models,
            Ask::HeadModels,
            Ask::Preflight,
            Ask::UnknownPath,
            Ask::WrongMethod,
            Ask::MalformedHead,
            Ask::HugeHead,
            Ask::HalfHead,
            Ask::Gzip,
        ];
        !bodiless.contains(&self)
    }

    /// The connection cannot go on after it.
    pub fn closes(self) -> bool {
        matches!(
            self,
            Ask::BadChunk
                | Ask::TooLarge
                | Ask::Gzip
                | Ask::MalformedHead
                | Ask::HugeHead
                | Ask::HalfHead
                | Ask::HalfBody
                | Ask::BadJson
        )
    }
}

#[derive(Debug)]
pub struct RequestPlan {
    pub id: String,
    pub ask: Ask,
    pub chunked: bool,
    pub expect: bool,
    pub pad: usize,
    pub http10: bool,
    pub close: bool,
}

const LOCAL: [Ask; 16] = [
    Ask::Models,
    Ask::HeadModels,
    Ask::Preflight,
    Ask::UnknownPath,
    Ask::WrongMethod,
    Ask::UnknownModel,
    Ask::EmptyModel,
    Ask::BadJson,
    Ask::BadChunk,
    Ask::TooLarge,
    Ask::Gzip,
    Ask::MalformedHead,
    Ask::HugeHead,
    Ask::HalfHead,
    Ask::HalfBody,
    Ask::UnknownModel,
];

impl Plan {
    pub fn draw(seed: u64) -> Plan {
        let rng = &mut fastrand::Rng::with_seed(seed ^ 0x5eed_5eed);
        let big = pct(rng, 6);
        let mut weather = Weather::draw(rng);
        if big {
            weather.segment_max = 16 * 1024;
            weather.read_max = MAX_LATE_BYTES;
            weather.window = weather.window.max(16 * 1024);
        }
        let fair = pct(rng, 45);
        let few_connections = !fair && pct(rng, 12);
        let settings = draw_settings(rng, few_connections, fair);
        let faults = if fair { 0 } else { [20, 50, 80][rng.usize(..3)] };
        let mut engines: Vec<_> = (0..rng.usize(1..4)).map(|_| draw_engine(rng, faults, fair)).collect();
        // Everybody comes at once and every engine is busy: more retries than the budget has.
        let rush = !fair && pct(rng, 5);
        if rush {
            engines.iter_mut().for_each(|engine| (engine.busy_only, engine.door) = (true, Door::Open));
        }
        let clients = (0..if rush { 12 } else { rng.usize(1..6) })
            .map(|client| {
                let conns = if pct(rng, 50) { 1 } else { rng.usize(2..5) };
                let mut conns: Vec<_> =
                    (0..conns).map(|conn| draw_conn(rng, &settings, client, conn, big)).collect();
                if rush {
                    conns[0].start_after = 0;
                }
                conns
            })
            .collect();
        let stop = (!fair && pct(rng, 15)).then(|| {
            let at = rng.u64(..3 * SECOND);
            (at, at + rng.u64(..40 * SECOND))
        });
        let reload = (!fair && pct(rng, 15)).then(|| rng.u64(..2 * SECOND));
        let shards = if pct(rng, 30) { 2 } else { 1 };
        let drain = (!fair && pct(rng, 10)).then(|| {
            let at = rng.u64(..2 * SECOND);
            (at, at + rng.u64(..3 * SECOND))
        });
        Plan {
            drain,
            seed,
            weather,
            settings,
            shards,
            engines,
            clients,
            stop,
            reload,
            fair,
            big,
            few_connections,
        }
    }
}

fn draw_settings(rng: &mut fastrand::Rng, few: bool, fair: bool) -> Settings {
    let mut s = Settings {
        max_body: 40_000,
        max_header: 2048,
        timeout_first_token: 20 * SECOND,
        timeout_between_tokens: 10 * SECOND,
        timeout_total: 100 * SECOND,
        timeout_shutdown: 10 * SECOND,
        half_close_abort: pct(rng, 85),
        inject_usage: pct(rng, 85),
        debug_headers: rng.bool(),
        ..Settings::default()
    };
    if pct(rng, 30) {
        s.keep_alive_comment = SECOND;
    }
    if few {
        s.max_connections = 2;
        s.max_connections_per_client = if rng.bool() { 1 } else { 4 };
    }
    if !fair && pct(rng, 12) {
        s.buffered_total = 12_000;
    }
    if pct(rng, 10) {
        s.retries = 0;
    }
    s
}

fn draw_engine(rng: &mut fastrand::Rng, faults: u8, fair: bool) -> EnginePlan {
    let door = match rng.u8(..20) {
        0 | 1 if !fair => {
            Door::Fails([ConnError::Refused, ConnError::Unreachable, ConnError::Local][rng.usize(..3)])
        }
        2 if !fair => Door::Silent,
        _ => Door::Open,
    };
    let idle_max = if rng.bool() { 3 * SECOND } else { 50 * MILLISECOND };
    EnginePlan {
        door,
        faults,
        reads: if pct(rng, 15) { rng.usize(100..3000) } else { usize::MAX },
        closes_idle: pct(rng, 40).then(|| rng.u64(..idle_max)),
        resets_idle: rng.bool(),
        busy_only: false,
    }
}

fn draw_conn(
    rng: &mut fastrand::Rng,
    settings: &Settings,
    client: usize,
    conn: usize,
    big: bool,
) -> ConnPlan {
    let count = if pct(rng, 40) { 1 } else { rng.usize(1..5) };
    let mut requests = Vec::new();
    for n in 0..count {
        let ask = match rng.u8(..100) {
            0..50 => Ask::Stream { usage: pct(rng, 40) },
            50..75 => Ask::Plain,
            75..80 => Ask::Embeddings,
            _ => LOCAL[rng.usize(..LOCAL.len())],
        };
        let http10 = ask != Ask::BadChunk && pct(rng, 4);
        let close = pct(rng, 8);
        requests.push(RequestPlan {
            id: format!("c{client}k{conn}r{n}"),
            ask,
            chunked: !http10 && (ask == Ask::BadChunk || pct(rng, 25)),
            expect: !http10 && ask.has_body() && pct(rng, 10),
            pad: if pct(rng, 30) { rng.usize(..19_000) } else { rng.usize(..200) },
            http10,
            close,
        });
        if ask.closes() || http10 || close {
            break;
        }
    }
    let cancel = pct(rng, 22).then(|| Cancel {
        when: match rng.u8(..3) {
            0 => When::After(rng.u64(..500 * MILLISECOND)),
            1 => When::ResponseBytes(rng.usize(..3000)),
            _ => When::RequestBytes(rng.usize(..600)),
        },
        by_reset: rng.bool(),
    });
    let stall = pct(rng, if big { 60 } else { 10 }).then(|| Stall {
        after: rng.usize(..if big { 100_000 } else { 2000 }),
        lasts: pct(rng, 75).then(|| rng.u64(..8 * SECOND)),
    });
    let pieces = pct(rng, 25);
    ConnPlan {
        start_after: if pct(rng, 50) { 0 } else { rng.u64(..500 * MILLISECOND) },
        pipelined: pct(rng, 30),
        piece: if pieces { rng.usize(1..300) } else { usize::MAX },
        piece_gap: if pieces { rng.u64(..20 * MILLISECOND) } else { 0 },
        cancel,
        stall,
        reads: if pct(rng, 20) { rng.usize(200..5000) } else { usize::MAX },
        read_gap: if pct(rng, 15) { rng.u64(..20 * MILLISECOND) } else { 0 },
        close_after: if pct(rng, 80) { 0 } else { rng.u64(..100 * SECOND) },
        half_closes: !settings.half_close_abort && cancel.is_none() && pct(rng, 50),
        requests,
    }
}
