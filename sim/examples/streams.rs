//! Opens many streams on an engine and reports how well it keeps its pace. Ten thousand streams of a token each 200 ms,
//! the engine on one core and this client on the other:
//!
//! ```text
//! cargo build --release -p llmgw-sim --examples
//! taskset -c 0 target/release/examples/engine --listen 127.0.0.1:9001 --model m --ttft 0ms --itl 200ms
//! --itl-growth 0 \     --max-seqs 10000 --kv-blocks 200000 &
//! taskset -c 1 target/release/examples/streams --addr 127.0.0.1:9001 --streams 10000 --tokens 100 --itl-ms
//! 200 --pid $!
//! ```
//
//!//
//!//!//!
//! Measured on a busy two-core virtual machine, `--tokens 75 --ramp 2500`: 49,999 tokens/s while all 10,000
//! streams were
//! open, lateness p50 0.6 ms, p99 12 ms, p99.9 18 ms, the engine at 49 % of a core (a sixth of it user time)
//! and 131 MB.
//
//!//!
//! Every token of every stream is checked. Lateness is how long after `first token + i * itl` token `i` is
//! read here, so it contains this client's own delay.
#![allow(clippy::print_stdout, clippy::disallowed_methods)] // a tool that measures and prints

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Parser;
use tokio::net::TcpStream;

#[derive(Parser)]
struct Cli {
    /// The engine
    #[arg(long)]
    addr: SocketAddr,
    /// Streams at once
    #[arg(long, default_value_t = 10_000)]
    streams: u32,
    /// Tokens a stream
    #[arg(long, default_value_t = 100)]
    tokens: u32,
    /// The engine's interval, in milliseconds
    #[arg(long, default_value_t = 200)]
    itl_ms: u64,
    /// Streams opened a second
    #[arg(long, default_value_t = 5000)]
    ramp: u32,
    /// The engine's process, for its CPU time
    #[arg(long)]
    pid: Option<u32>,
}

#[derive(Default)]
struct Seen {
    lateness_us: Vec<u64>,
    open: u32,
    /// First and last token read while all streams were open.
    steady: Option<(Instant, Instant)>,
    steady_tokens: u64,
    cpu_at: Option<(Instant, f64)>,
    cpu_end: Option<(Instant, f64)>,
    failed: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let cli = Rc::new(Cli::parse());
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, most);
    let seen = Rc::new(RefCell::new(Seen::default()));
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let mut tasks = Vec::new();
            let start = tokio::time::Instant::now();
            for i in 0..cli.streams {
                let (seen, ramp) = (Rc::clone(&seen), cli.ramp);
                let cli = Rc::clone(&cli);
                tasks.push(tokio::task::spawn_local(async move {
                    if let Err(error) = stream(i, &cli, &seen).await {
                        seen.borrow_mut().failed.push(format!("stream {i}: {error}"));
                    }
                }));
                if i % 50 == 49 {
                    tokio::time::sleep_until(start + Duration::from_secs(1) * (i + 1) / ramp).await;
                }
            }
            for task in tasks {
                let _ = task.await;
            }
        })
        .await;
    report(&cli, &mut seen.borrow_mut());
}

async fn stream(i: u32, cli: &Cli, seen: &Rc<RefCell<Seen>>) -> Result<(), String> {
    let sock = TcpStream::connect(cli.addr).await.map_err(|e| e.to_string())?;
    let body = format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":"[[s{i}]]hello"}}],"stream":true,"max_tokens":{}}}"#,
        cli.tokens
    );
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    sock.try_write(request.as_bytes()).map_err(|e| e.to_string())?;
    let mut buf = Vec::new();
    let mut next = 0;
    let mut first = None;
    let interval = Duration::from_millis(cli.itl_ms);
    while next < cli.tokens {
        sock.readable().await.map_err(|e| e.to_string())?;
        buf.reserve(1024);
        match sock.try_read_buf(&mut buf) {
            Ok(0) => return Err(format!("ended at token {next}")),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error.to_string()),
        }
        let now = Instant::now();
        let mut used = 0;
        while let Some(end) = memchr::memmem::find(&buf[used..], b"\n\n") {
            let event = &buf[used..used + end];
            used += end + 2;
            let Some(at) = memchr::memmem::find(event, b"{\"content\":\"s") else { continue };
            let expected = format!("{{\"content\":\"s{i}:{next} \"");
            if !event[at..].starts_with(expected.as_bytes()) {
                return Err(format!("not {expected}: {}", String::from_utf8_lossy(event)));
            }
            let first = *first.get_or_insert_with(|| {
                begin(cli, &mut seen.borrow_mut(), now);
                now
            });
            note(cli, &mut seen.borrow_mut(), now, first + interval * next);
            next += 1;
        }
        buf.drain(..used);
    }
    let mut seen = seen.borrow_mut();
    if seen.open == cli.streams && seen.cpu_end.is_none() {
        seen.cpu_end = cli.pid.and_then(cpu_seconds).map(|cpu| (Instant::now(), cpu));
    }
    seen.open -= 1;
    Ok(())
}

fn begin(cli: &Cli, seen: &mut Seen, now: Instant) {
    seen.open += 1;
    if seen.open == cli.streams {
        seen.steady = Some((now, now));
        seen.cpu_at = cli.pid.and_then(cpu_seconds).map(|cpu| (now, cpu));
    }
}

fn note(cli: &Cli, seen: &mut Seen, now: Instant, due: Instant) {
    if seen.open < cli.streams {
        return;
    }
    if let Some((_, last)) = &mut seen.steady {
        *last = now;
    }
    seen.steady_tokens += 1;
    let late = now.saturating_duration_since(due);
    seen.lateness_us.push(u64::try_from(late.as_micros()).unwrap_or(u64::MAX));
}

/// User and system time of a process, in seconds.
fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    Some(ticks / 100.0)
}

fn report(cli: &Cli, seen: &mut Seen) {
    for line in seen.failed.iter().take(5) {
        println!("{line}");
    }
    println!("streams {} failed {}", cli.streams, seen.failed.len());
    if let Some((from, to)) = seen.steady {
        let seconds = (to - from).as_secs_f64().max(1e-9);
        let tokens = u32::try_from(seen.steady_tokens).map_or(f64::MAX, f64::from);
        println!("all open for {seconds:.1} s, {:.0} tokens/s", tokens / seconds);
    }
    seen.lateness_us.sort_unstable();
    let at = |permille: usize| {
        seen.lateness_us.get(seen.lateness_us.len() * permille / 1001).copied().unwrap_or(0)
    };
    println!("lateness us: p50 {} p99 {} p99.9 {} max {}", at(500), at(990), at(999), at(1000));
    if let (Some((from, cpu)), Some((to, end))) = (seen.cpu_at, seen.cpu_end) {
        println!("engine CPU {:.0} % of a core", 100.0 * (end - cpu) / (to - from).as_secs_f64());
    }
}
