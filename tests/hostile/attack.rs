//! Crowds of attackers: what each costs in memory, and what clients that behave notice of them.

use crate::client::{CHAT, Client, chat, post};
use crate::engine::{Scripted, Then, endpoints, sim};
use crate::gateway::Gateway;
use crate::limits::{clean, flood};
use crate::raw::Raw;
use llmgw_sim::Engine;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Attackers at a time.
const CROWD: usize = 300;
/// Requests timed between two looks at the clock of an attack.
const TIMED: usize = 150;
/// Most rounds of quiet and attack; one that is good enough ends them.
const ROUNDS: usize = 8;
/// What a p99 below a millisecond varies by itself.
const NOISE: Duration = Duration::from_millis(1);

const CONFIG: &str = "
limits:
  max_header: 32KiB
  max_body: 1MiB
  max_connections: 2000
  max_connections_per_client: 2000
  buffered_total: 64MiB
timeouts: { header: 60s, idle: 60s, body_idle: 60s }";

/// What an attacker does first, so that the gateway holds as much as it will for it.
struct Attack {
    name: &'static str,
    /// Most KiB of resident memory for each, over epoll and over io_uring.
    most_kib: [f64; 2],
    begin: fn(&Gateway) -> Raw,
}

const ATTACKS: [Attack; 6] = [
    Attack { name: "connects", most_kib: [4.0, 4.0], begin: |gateway| Raw::connect(gateway.address) },
    Attack {
        name: "slow head of 31 KiB",
        most_kib: [48.0, 96.0],
        begin: |gateway| {
            let mut raw = Raw::connect(gateway.address);
            raw.send(
                format!("GET /v1/models HTTP/1.1\r\nhost: gw\r\nx: {}", "y".repeat(31 * 1024)).as_bytes(),
            );
            raw
        },
    },
    Attack {
        name: "slow body of 16 KiB",
        most_kib: [48.0, 64.0],
        begin: |gateway| {
            let mut raw = Raw::connect(gateway.address);
            raw.send(
                format!("POST {CHAT} HTTP/1.1\r\nhost: gw\r\ncontent-length: 1000000\r\n\r\n").as_bytes(),
            );
            raw.send(&[b' '; 16 * 1024]);
            raw
        },
    },
    Attack {
        name: "slow read of a long stream",
        most_kib: [256.0, 1152.0],
        begin: |gateway| {
            let mut raw = Raw::connect(gateway.address);
            let body = chat(r#","stream":true"#).replace(r#""m""#, r#""flood""#);
            raw.send(post(CHAT, "", &body).as_bytes());
            raw
        },
    },
    Attack {
        name: "pipelines without reading",
        most_kib: [256.0, 1280.0],
        begin: |gateway| {
            let mut raw = Raw::connect(gateway.address);
            raw.pour("GET /v1/models HTTP/1.1\r\nhost: gw\r\n\r\n".repeat(500).as_bytes(), 1 << 20);
            raw
        },
    },
    Attack {
        name: "pipelines behind a stream",
        most_kib: [256.0, 1280.0],
        begin: |gateway| {
            let mut raw = Raw::connect(gateway.address);
            let body = chat(r#","stream":true"#).replace(r#""m""#, r#""flood""#);
            raw.send(post(CHAT, "", &body).as_bytes());
            raw.pour("GET /v1/models HTTP/1.1\r\nhost: gw\r\n\r\n".repeat(500).as_bytes(), 1 << 19);
            raw
        },
    },
];

/// A gateway before an engine that answers at once (`m`), and one that floods (`flood`).
fn gateway(engine: &Engine, driver: &str) -> Gateway {
    let flooding = Scripted::start(|wire, request| {
        flood(wire, request);
        Then::Close
    });
    let mut endpoints = endpoints([engine]);
    endpoints.push(flooding.endpoint("e1").replace("model: m,", "model: flood,"));
    Gateway::start(&endpoints, &format!("driver: {driver}{CONFIG}"))
}

/// Resident memory of the gateway, KiB.
fn resident(gateway: &Gateway) -> f64 {
    let file = format!("/proc/{}/status", gateway.pid().as_raw_nonzero());
    let status = std::fs::read_to_string(file).expect("the process lives");
    let row = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its resident size");
    row.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number")
}

/// Waits until it has done what there is to do: neither its memory nor what it has sent changes any more.
fn settled(gateway: &Gateway) {
    let (mut last, mut same) = ((0.0, 0.0), 0);
    while same < 20 {
        // A look at the metrics is a moment's rest.
        let now = (resident(gateway), gateway.metric("llmgw_client_bytes_total"));
        same = if (now.0 - last.0).abs() < 64.0 && now.1 == last.1 { same + 1 } else { 0 };
        last = now;
    }
}

#[test]
#[allow(clippy::print_stdout)] // the figures that the threat model quotes
fn a_hostile_connection_costs_bounded_memory() {
    for (at, attack) in (0..2).flat_map(|at| ATTACKS.iter().map(move |attack| (at, attack))) {
        // Where there is no io_uring, `auto` is epoll, which needs less.
        let (driver, most) = (["epoll", "auto"][at], attack.most_kib[at]);
        let engine = sim();
        let gateway = gateway(&engine, driver);
        // The first ones also pay for what all share.
        let crowd = |n: usize| -> Vec<Raw> { (0..n).map(|_| (attack.begin)(&gateway)).collect() };
        let open = |n: usize| {
            gateway.wait_metric("llmgw_connections{side=\"client\"", |have| have >= n as f64);
        };
        let few = crowd(10);
        open(10);
        settled(&gateway);
        let before = resident(&gateway);
        let many = crowd(CROWD / 3);
        open(CROWD / 3 + 10);
        settled(&gateway);
        #[allow(clippy::cast_precision_loss)] // hundreds
        let each = (resident(&gateway) - before).max(0.0) / (CROWD / 3) as f64;
        println!("{driver}, {}: {each:.1} KiB each", attack.name);
        assert!(each <= most, "{driver}, {}: {each:.1} KiB each, at most {most}", attack.name);
        drop((few, many));
        clean(&gateway);
    }
}

/// The 99th percentile of `TIMED` requests on one connection.
#[allow(clippy::disallowed_methods)] // real time, of real requests
fn p99(gateway: &Gateway) -> Duration {
    let mut client = Client::connect(gateway.address);
    let request = post(CHAT, "", &chat(r#","max_tokens":1"#));
    let mut took: Vec<Duration> = (0..TIMED)
        .map(|_| {
            let begun = Instant::now();
            client.send(&request);
            client.answer().expect(200);
            begun.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[TIMED * 99 / 100]
}

/// Attackers that keep at it while clients that behave are timed, in turn with quiet. Whatever else the machine does
/// disturbs a round; what the attack does would disturb them all.
#[test]
#[allow(clippy::print_stdout)] // as above
fn clients_that_behave_notice_little() {
    let engine = sim();
    let gateway = gateway(&engine, "auto");
    p99(&gateway);
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        let quiet = p99(&gateway);
        let stop = AtomicBool::new(false);
        let attacked = std::thread::scope(|scope| {
            // Each kind waits where it hurts, while one more comes and goes all the time.
            let waiting: Vec<Raw> =
                (0..CROWD).map(|n| (ATTACKS[n % ATTACKS.len()].begin)(&gateway)).collect();
            settled(&gateway);
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let mut raw = Raw::connect_from(9, gateway.address);
                    raw.send(b"GET / HTTP/1.1\r\nx: ");
                    raw.hear(Duration::from_millis(1));
                }
            });
            let attacked = p99(&gateway);
            stop.store(true, Ordering::Relaxed);
            drop(waiting);
            attacked
        });
        clean(&gateway);
        println!("p99 {quiet:?} in quiet, {attacked:?} under attack");
        seen.push((quiet, attacked));
        let best = |of: fn(&(Duration, Duration)) -> Duration| seen.iter().map(of).min().unwrap_or_default();
        if best(|round| round.1) <= best(|round| round.0) * 2 + NOISE {
            return;
        }
    }
    panic!("p99 in quiet and under attack: {seen:?}");
}
