//! Engines of this process: simulated ones, and scripted ones whose every byte a test decides.

use crate::PATIENCE;
use crate::gateway::endpoint;
use llmgw_sim::{Config, Engine};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A simulated engine of model `m`.
pub fn sim() -> Engine {
    Engine::start(Config { model: "m".into(), ..Config::default() }).expect("a simulated engine")
}

/// A simulated engine whose tokens come so many milliseconds apart.
pub fn paced(itl_ms: u64) -> Engine {
    let mut config = Config { model: "m".into(), ..Config::default() };
    config.engine.itl_ns = itl_ms * 1_000_000;
    Engine::start(config).expect("a simulated engine")
}

/// Endpoints `e0`, `e1`, ... for these engines.
pub fn endpoints<'a>(engines: impl IntoIterator<Item = &'a Engine>) -> Vec<String> {
    let numbered = engines.into_iter().enumerate();
    numbered.map(|(i, engine)| endpoint(&format!("e{i}"), &engine.url())).collect()
}

/// A field of an engine's state.
pub fn count(engine: &Engine, field: &str) -> u64 {
    engine.state()[field].as_u64().unwrap_or_else(|| panic!("{field} in {}", engine.state()))
}

/// A header of a request as an engine received it.
pub fn received<'a>(request: &'a Value, name: &str) -> Option<&'a str> {
    let fields = request["headers"].as_array()?;
    fields.iter().find(|field| field[0] == name).and_then(|field| field[1].as_str())
}

/// A scripted engine: a script answers each generation request; health pages are answered by themselves.
pub struct Scripted {
    pub address: SocketAddr,
    requests: Arc<AtomicUsize>,
}

/// A connection as a script sees it.
pub struct Wire {
    stream: TcpStream,
    input: Vec<u8>,
    /// Number of the connection, among those that carried generation requests.
    pub connection: usize,
    /// Number of the request over all connections, from 0.
    pub request: usize,
}

/// A request as a script sees it.
pub struct Request {
    pub head: String,
    pub body: Vec<u8>,
}

/// What becomes of a connection after the script.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Then {
    Keep,
    Close,
    Reset,
}

impl Scripted {
    pub fn start(script: impl Fn(&mut Wire, &Request) -> Then + Send + Sync + 'static) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        Scripted::on(listener, script)
    }

    /// On a listener that exists already.
    pub fn on(
        listener: TcpListener,
        script: impl Fn(&mut Wire, &Request) -> Then + Send + Sync + 'static,
    ) -> Scripted {
        let address = listener.local_addr().expect("its address");
        let requests = Arc::new(AtomicUsize::new(0));
        let (script, counted) = (Arc::new(script), Arc::clone(&requests));
        let connections = Arc::new(AtomicUsize::new(0));
        // Ends with the process of the test.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (script, counted) = (Arc::clone(&script), Arc::clone(&counted));
                let connections = Arc::clone(&connections);
                std::thread::spawn(move || serve(stream, &*script, &counted, &connections));
            }
        });
        Scripted { address, requests }
    }

    /// An engine that answers before it has read a body.
    pub fn early(answer: &'static str) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut start = [0; 4];
                if stream.read_exact(&mut start).is_err() {
                    continue;
                }
                let probe = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                let answer = if &start == b"GET " { probe } else { answer };
                // The FIN comes before the reset that closing with unread bytes is.
                let _ = stream.write_all(answer.as_bytes());
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let mut sink = Vec::new();
                let _ = stream.take(1 << 20).read_to_end(&mut sink);
            }
        });
        Scripted { address, requests: Arc::default() }
    }

    pub fn endpoint(&self, id: &str) -> String {
        endpoint(id, &format!("http://{}", self.address))
    }

    /// Generation requests that arrived.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn serve(
    stream: TcpStream,
    script: &dyn Fn(&mut Wire, &Request) -> Then,
    counted: &AtomicUsize,
    connections: &AtomicUsize,
) {
    stream.set_nodelay(true).expect("no delay");
    let mut wire = Wire { stream, input: Vec::new(), connection: usize::MAX, request: 0 };
    while let Some(request) = wire.read_request() {
        if request.head.starts_with("GET ") {
            wire.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            return;
        }
        if wire.connection == usize::MAX {
            wire.connection = connections.fetch_add(1, Ordering::SeqCst);
        }
        wire.request = counted.fetch_add(1, Ordering::SeqCst);
        match script(&mut wire, &request) {
            Then::Keep => {}
            Then::Close => return,
            Then::Reset => return wire.reset(),
        }
    }
}

impl Wire {
    /// Sends; a gateway that hung up is no error here.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Sends the head of a chunked event stream.
    pub fn stream_head(&mut self) {
        self.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
    }

    /// Sends one chunk.
    pub fn chunk(&mut self, payload: &str) -> bool {
        self.send(format!("{:x}\r\n{payload}\r\n", payload.len()))
    }

    /// Sends an event with a piece of text.
    pub fn event(&mut self, text: &str) -> bool {
        self.chunk(&format!("data: {}\n\n", event(text)))
    }

    /// Sends `[DONE]` and the last chunk.
    pub fn done(&mut self) -> bool {
        self.chunk("data: [DONE]\n\n") && self.send("0\r\n\r\n")
    }

    /// Answers with a whole JSON body.
    pub fn json(&mut self, status: &str, fields: &str, body: &str) -> Then {
        let length = body.len();
        self.send(format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{fields}\r\n{body}"
        ));
        Then::Keep
    }

    /// Whether the gateway ends the connection.
    pub fn ended(&mut self) -> bool {
        self.stream.set_read_timeout(Some(PATIENCE)).expect("a read timeout");
        let ended = match self.stream.read(&mut [0; 1024]) {
            Ok(n) => n == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        };
        self.stream.set_read_timeout(None).expect("no read timeout");
        ended
    }

    fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(std::time::Duration::ZERO))
            .expect("linger");
    }

    fn read_request(&mut self) -> Option<Request> {
        let end = loop {
            if let Some(at) = self.input.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            self.fill()?;
        };
        let head = String::from_utf8(self.input.drain(..end).collect()).ok()?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.map_or(0, |n| n.parse().expect("a length"));
        while self.input.len() < length {
            self.fill()?;
        }
        let body = self.input.drain(..length).collect();
        Some(Request { head, body })
    }

    fn fill(&mut self) -> Option<()> {
        let mut buffer = [0; 16 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) | Err(_) => None,
            Ok(n) => {
                self.input.extend_from_slice(&buffer[..n]);
                Some(())
            }
        }
    }
}

/// The data of an event with a piece of text.
pub fn event(text: &str) -> String {
    format!(
        r#"{{"object":"chat.completion.chunk","choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}"#
    )
}
