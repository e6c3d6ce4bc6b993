//! `llmgw demo`: a fleet in one process, and one chat streamed through it.

use crate::Failure;
use crate::server::{Server, stop_signals};
use llmgw_controlplane::config::Config;
use llmgw_dataplane::http1::{Chunk, Decoder, find_head_end};
use llmgw_dataplane::sse::{EventKind, Framer, Piece, parse_event};
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const MODEL: &str = "demo";
const ENGINES: usize = 3;

/// Runs the demonstration; with `once`, ends after the chat.
#[allow(clippy::print_stdout)] // it is what this command is for
pub fn main(once: bool) -> Result<(), Failure> {
    let engines = (0..ENGINES).map(|_| start_engine()).collect::<Result<Vec<_>, _>>()?;
    let mut yaml = String::from(
        "listen: 127.0.0.1:0\nhealth_listen: 127.0.0.1:0\nadmin_listen: 127.0.0.1:0\nregistry_listen: 127.0.0.1:0\n\
         auth: { required: false }\nlog: { level: error }\n\
         limits: { max_connections: 1024 }\n\
         router: { policy: least_outstanding }\nendpoints:\n",
    );
    for (i, engine) in engines.iter().enumerate() {
        let address = engine.local_addr();
        yaml.push_str(&format!(
            "  - {{ id: sim-{i}, model: {MODEL}, url: \"http://{address}\", engine: sim }}\n"
        ));
    }
    let loaded = Config::parse("demo", &yaml, []).map_err(Failure::run)?;
    let mut signals = stop_signals().map_err(Failure::run)?;
    let server = Server::start(loaded, None)?;
    let (gateway, health, admin) = (server.address(), server.health_address(), server.admin_address());
    println!("three simulated engines and a gateway are up; one chat, streamed through them:\n");
    let said = chat(gateway).map_err(|error| Failure::run(format!("the chat failed: {error}")))?;
    println!("\n\n({} pieces from {})\n", said.pieces, said.replica);
    println!("  API      http://{gateway}/v1");
    println!("  health   http://{health}/readyz");
    println!("  metrics  http://{health}/metrics");
    println!("  admin    llmgw ctl --admin http://{admin} workers");
    for (i, engine) in engines.iter().enumerate() {
        println!("  sim-{i}    http://{}/sim/state", engine.local_addr());
    }
    println!(
        "\ntry:\n  curl -N http://{gateway}/v1/chat/completions -H 'content-type: application/json' \\\n    \
         -d '{{\"model\":\"{MODEL}\",\"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}]}}'\n"
    );
    if !once {
        println!("Ctrl-C ends it.");
        let _ = signals.forever().next();
    }
    server.stop_now();
    engines.into_iter().for_each(llmgw_sim::Engine::shutdown);
    Ok(())
}

fn start_engine() -> Result<llmgw_sim::Engine, Failure> {
    let mut config = llmgw_sim::Config { model: MODEL.into(), ..llmgw_sim::Config::default() };
    config.engine.itl_ns = 40_000_000;
    config.default_tokens = 24;
    llmgw_sim::Engine::start(config).map_err(Failure::run)
}

/// What the chat showed.
struct Said {
    pieces: usize,
    replica: String,
}

/// Asks for a streamed chat and prints its text as it arrives.
fn chat(gateway: SocketAddr) -> io::Result<Said> {
    let messages = r#"[{"role":"user","content":"Count for me. [[token]]"}]"#;
    let body = format!(r#"{{"model":"{MODEL}","stream":true,"messages":{messages}}}"#);
    let mut stream = TcpStream::connect(gateway)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {gateway}\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
    let head_end = loop {
        if let Some(end) = find_head_end(&received, 0) {
            break end;
        }
        read_some(&mut stream, &mut buffer, &mut received)?;
    };
    let head = String::from_utf8_lossy(&received[..head_end]).into_owned();
    if !head.starts_with("HTTP/1.1 200") {
        return Err(io::Error::other(head.lines().next().unwrap_or_default().to_owned()));
    }
    let replica = head.lines().find_map(|line| line.strip_prefix("x-llmgw-replica: ")).unwrap_or("an engine");
    let mut said = Said { pieces: 0, replica: replica.to_owned() };
    received.drain(..head_end);
    let (mut decoder, mut framer, mut done) = (Decoder::new(), Framer::new(), false);
    while !done {
        match decoder.decode(&received).map_err(io::Error::other)? {
            Chunk::Data { start, end, consumed } => {
                framer.push(&received[start..end], |piece| {
                    if let Piece::Event(event) = piece {
                        done |= print_event(event, &mut said);
                    }
                });
                received.drain(..consumed);
            }
            Chunk::More { consumed } => {
                received.drain(..consumed);
                read_some(&mut stream, &mut buffer, &mut received)?;
            }
            Chunk::End { .. } => return Err(io::Error::other("the stream ended without [DONE]")),
        }
    }
    Ok(said)
}

fn read_some(stream: &mut TcpStream, buffer: &mut [u8], received: &mut Vec<u8>) -> io::Result<()> {
    loop {
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                received.extend_from_slice(&buffer[..n]);
                return Ok(());
            }
            // A read with a timeout ends at whatever interrupts this process.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Prints an event's text; `true` at the terminator.
#[allow(clippy::print_stdout)] // it is what this command is for
fn print_event(event: &[u8], said: &mut Said) -> bool {
    match parse_event(event).kind {
        EventKind::Done => true,
        EventKind::Comment => false,
        EventKind::Data(json) => {
            let value: Value = serde_json::from_slice(&json).unwrap_or_default();
            if let Some(text) = value["choices"][0]["delta"]["content"].as_str()
                && !text.is_empty()
            {
                said.pieces += 1;
                print!("{text}");
                let _ = io::stdout().flush();
            }
            false
        }
    }
}
