//! A blocking HTTP client that shows framing as it came.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::tokens::TokenChecker;
use crate::{Config, Engine};

pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn engine(change: impl FnOnce(&mut Config)) -> Engine {
    let mut config = Config { model: "m".into(), ..Config::default() };
    change(&mut config);
    Engine::start(config).unwrap()
}

/// Waits for something another thread will bring about.
#[allow(clippy::disallowed_methods)] // a bound on a test that would otherwise never end
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never came true: {what}");
        std::thread::yield_now();
    }
}

pub struct Client {
    pub sock: TcpStream,
    buf: Vec<u8>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    /// The chunks as framed; one for a sized body.
    pub chunks: Vec<Vec<u8>>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8(self.chunks.concat()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.chunks.concat()).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.split_once(": ").filter(|(n, _)| *n == name).map(|(_, v)| v))
    }

    /// The data lines of a stream.
    pub fn events(&self) -> Vec<String> {
        self.text().split("\n\n").filter_map(|e| e.strip_prefix("data: ").map(str::to_owned)).collect()
    }

    /// The chunks of a stream, without `[DONE]`.
    pub fn objects(&self) -> Vec<Value> {
        let events = self.events();
        events.iter().filter(|e| *e != "[DONE]").map(|e| serde_json::from_str(e).unwrap()).collect()
    }

    /// Checks the tokens of a chat or completion stream; how many came.
    pub fn tokens(&self, tag: &str) -> u32 {
        let mut checker = TokenChecker::new(tag);
        for object in self.objects() {
            let choice = &object["choices"][0];
            let text = choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
            checker.push(text).unwrap();
        }
        checker.finish(None).unwrap()
    }
}

impl Client {
    pub fn new(addr: SocketAddr) -> Self {
        let sock = TcpStream::connect(addr).unwrap();
        sock.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { sock, buf: Vec::new() }
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.sock.write_all(bytes).unwrap();
    }

    pub fn send(&mut self, method: &str, path: &str, fields: &str, body: &str) {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\n{fields}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.raw(request.as_bytes());
    }

    pub fn fill(&mut self) -> io::Result<()> {
        let mut piece = [0; 4096];
        let n = self.sock.read(&mut piece)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.buf.extend_from_slice(&piece[..n]);
        Ok(())
    }

    fn until(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = memchr::memmem::find(&self.buf, end) {
                let rest = self.buf.split_off(at + end.len());
                return Ok(std::mem::replace(&mut self.buf, rest));
            }
            self.fill()?;
        }
    }

    fn take(&mut self, n: usize) -> io::Result<Vec<u8>> {
        while self.buf.len() < n {
            self.fill()?;
        }
        let rest = self.buf.split_off(n);
        Ok(std::mem::replace(&mut self.buf, rest))
    }

    pub fn head(&mut self) -> io::Result<Answer> {
        let head = String::from_utf8(self.until(b"\r\n\r\n")?).unwrap();
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        Ok(Answer { status, head, chunks: Vec::new() })
    }

    /// One chunk; empty at the end.
    pub fn chunk(&mut self) -> io::Result<Vec<u8>> {
        let line = self.until(b"\r\n")?;
        let line = std::str::from_utf8(&line).unwrap().trim_end();
        let size = usize::from_str_radix(line, 16)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("chunk size {line:?}")))?;
        let mut data = self.take(size + 2)?;
        data.truncate(size);
        Ok(data)
    }

    /// The whole answer, or what came of it and why no more did.
    pub fn answer(&mut self) -> Result<Answer, (Option<Answer>, io::Error)> {
        let mut answer = self.head().map_err(|error| (None, error))?;
        let result = if answer.field("transfer-encoding") == Some("chunked") {
            loop {
                match self.chunk() {
                    Ok(chunk) if chunk.is_empty() => break Ok(()),
                    Ok(chunk) => answer.chunks.push(chunk),
                    Err(error) => break Err(error),
                }
            }
        } else {
            let size = answer.field("content-length").and_then(|size| size.parse().ok()).unwrap_or(0);
            self.take(size).map(|body| answer.chunks.push(body))
        };
        match result {
            Ok(()) => Ok(answer),
            Err(error) => Err((Some(answer), error)),
        }
    }

    pub fn ask(&mut self, method: &str, path: &str, body: &str) -> Answer {
        self.send(method, path, "", body);
        self.answer().unwrap()
    }

    /// Nothing comes any more; the connection has ended.
    pub fn ended(&mut self) -> io::Error {
        self.fill().unwrap_err()
    }
}

/// A chat request with the tag in its prompt.
pub fn chat(tag: &str, rest: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hello [[{tag}]]"}}]{rest}}}"#)
}

/// A streamed chat of `n` tokens.
pub fn stream(tag: &str, n: u32) -> String {
    chat(tag, &format!(r#","stream":true,"max_tokens":{n}"#))
}

pub const CHAT: &str = "/v1/chat/completions";
