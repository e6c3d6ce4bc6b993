//! A server of the OpenAI surface that answers rightly, or wrongly in one chosen way; a thread a connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)] // each test binary uses some
pub enum Manner {
    Good,
    GoodBytewise,
    /// Right, and closes each connection after its answer without having said so.
    GoodOnce,
    LostToken,
    LostLastToken,
    RepeatedToken,
    ForeignToken,
    ForeignStream,
    MissingDone,
    AfterDone,
    BadJson,
    ErrorEvent,
    NotAStream,
    CloseInBody,
    CloseBeforeHead,
    MalformedHead,
    Status(u16),
    /// Never answers.
    Silent,
}

pub struct FakeServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    /// Requests read so far.
    #[allow(dead_code)] // each test binary uses some
    pub requests: Arc<AtomicU64>,
}

impl FakeServer {
    pub fn start(manner: Manner) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let stop = Arc::new(AtomicBool::new(false));
        let requests = Arc::new(AtomicU64::new(0));
        let (stopping, counter) = (stop.clone(), requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stopping.load(Ordering::Acquire) {
                    return;
                }
                let counter = counter.clone();
                std::thread::spawn(move || serve(stream, manner, &counter));
            }
        });
        FakeServer { address, stop, requests }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.address); // wakes the listener's thread
    }
}

fn serve(stream: TcpStream, manner: Manner, counter: &AtomicU64) {
    let _ = stream.set_nodelay(true);
    let Ok(mut out) = stream.try_clone() else { return };
    let mut input = BufReader::new(stream);
    while let Some(request) = read_request(&mut input) {
        counter.fetch_add(1, Ordering::Relaxed);
        if answer(&mut out, &request, manner).is_none() {
            return;
        }
    }
}

struct Request {
    path: String,
    id: String,
    stream: bool,
    max_tokens: u64,
}

fn read_request(input: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    input.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let (mut length, mut id) = (0, String::new());
    loop {
        let mut field = String::new();
        input.read_line(&mut field).ok().filter(|n| *n > 0)?;
        match field.trim_end().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().ok()?,
            Some(("x-request-id", value)) => value.clone_into(&mut id),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body).ok()?;
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let stream = body["stream"].as_bool().unwrap_or(false);
    Some(Request { path, id, stream, max_tokens: body["max_tokens"].as_u64().unwrap_or(1) })
}

/// None when the connection is to be closed.
fn answer(out: &mut TcpStream, request: &Request, manner: Manner) -> Option<()> {
    match manner {
        _ if request.path == "/v1/models" => {
            return whole(out, "200 OK", r#"{"data":[{"id":"fake"}]}"#);
        }
        Manner::CloseBeforeHead => return None,
        Manner::MalformedHead => {
            out.write_all(b"HTTP/1.1 2OO OK\r\n\r\n").ok()?;
            return None;
        }
        Manner::Status(code) => return whole(out, &format!("{code} No"), r#"{"error":{"message":"no"}}"#),
        Manner::Silent => {
            let _ = out.read(&mut [0]); // until the client leaves
            return None;
        }
        _ => {}
    }
    let numbers: Vec<u64> = (0..request.max_tokens)
        .filter(|n| !(manner == Manner::LostToken && *n == 1))
        .filter(|n| !(manner == Manner::LostLastToken && *n + 1 == request.max_tokens))
        .flat_map(|n| vec![n; if manner == Manner::RepeatedToken && n == 1 { 2 } else { 1 }])
        .collect();
    let token = |n: u64| match manner {
        Manner::ForeignStream => format!("other:{n} "),
        Manner::ForeignToken if n == 2 => format!("other:{n} "),
        _ => format!("{}:{n} ", request.id),
    };
    if !request.stream || manner == Manner::NotAStream {
        let text: String = numbers.iter().map(|n| token(*n)).collect();
        let body = format!(
            r#"{{"choices":[{{"index":0,"message":{{"content":"{text}"}},"finish_reason":"length"}}]}}"#
        );
        if manner == Manner::CloseInBody {
            out.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{{", body.len()).as_bytes())
                .ok()?;
            return None;
        }
        whole(out, "200 OK", &body)?;
        return (manner != Manner::GoodOnce).then_some(());
    }
    let mut events = vec![r#"{"choices":[{"index":0,"delta":{"role":"assistant"}}]}"#.to_owned()];
    for n in numbers {
        events.push(format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{}"}}}}]}}"#, token(n)));
    }
    if manner == Manner::BadJson {
        events.insert(2, "{\"choices\":[".to_owned());
    }
    if manner == Manner::ErrorEvent {
        events.truncate(3);
        events.push(
            r#"{"error":{"message":"engine died","type":"server_error","param":null,"code":null}}"#
                .to_owned(),
        );
    } else if manner == Manner::CloseInBody {
        events.truncate(3);
    } else {
        events.push(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}"#.to_owned());
        if manner != Manner::MissingDone {
            events.push("[DONE]".to_owned());
        }
        if manner == Manner::AfterDone {
            events.push(r#"{"choices":[]}"#.to_owned());
        }
    }
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    out.write_all(head.as_bytes()).ok()?;
    for event in events {
        let text = format!("data: {event}\n\n");
        let step = if manner == Manner::GoodBytewise { 1 } else { text.len() };
        for piece in text.as_bytes().chunks(step) {
            let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
            for part in chunk.chunks(if step == 1 { 1 } else { chunk.len() }) {
                out.write_all(part).ok()?;
            }
        }
    }
    if matches!(manner, Manner::CloseInBody | Manner::ErrorEvent) {
        return None;
    }
    out.write_all(b"0\r\n\r\n").ok()?;
    (manner != Manner::GoodOnce).then_some(())
}

fn whole(out: &mut TcpStream, status: &str, body: &str) -> Option<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    out.write_all([head.as_bytes(), body.as_bytes()].concat().as_slice()).ok()
}
