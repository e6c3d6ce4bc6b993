//! A raw HTTP client: what is sent and what is received are bytes, with as much parsing as assertions need.

use crate::PATIENCE;
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

/// A connection.
pub struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    /// The last answer's head said `connection: close`.
    last: bool,
}

/// How an answer's body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As its framing says.
    Whole,
    /// The connection was closed in the middle of it.
    Cut,
    /// The connection was reset in the middle of it.
    Reset,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
    pub end: End,
}

impl Answer {
    /// A field's value; several are joined.
    pub fn header(&self, name: &str) -> Option<String> {
        let values = self.head.lines().skip(1).filter_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        });
        let values: Vec<String> = values.collect();
        (!values.is_empty()).then(|| values.join(", "))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// `error.code`, once the body is known to be an error of OpenAI's shape and nothing else.
    pub fn error_code(&self) -> String {
        let json = self.json();
        let error = json["error"].as_object().unwrap_or_else(|| panic!("no error: {}", self.text()));
        let mut keys: Vec<&str> = error.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["code", "message", "param", "type"], "{json}");
        assert_eq!(json.as_object().map(serde_json::Map::len), Some(1), "{json}");
        error["code"].as_str().unwrap_or("none").to_owned()
    }

    /// Events of a stream, each without its blank line.
    pub fn events(&self) -> Vec<String> {
        events(&self.text())
    }

    /// Asserts the status and hands the answer on.
    #[track_caller]
    pub fn expect(self, status: u16) -> Answer {
        assert_eq!(self.status, status, "{}{}", self.head, self.text());
        self
    }
}

/// Events of a stream, each without its blank line; what follows the last is an event of its own.
pub fn events(text: &str) -> Vec<String> {
    text.split("\n\n").filter(|event| !event.is_empty()).map(str::to_owned).collect()
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("a connection to the gateway");
        stream.set_read_timeout(Some(PATIENCE)).expect("a read timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a write timeout");
        stream.set_nodelay(true).expect("no delay");
        Client { stream, input: Vec::new(), last: false }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the gateway takes bytes");
    }

    /// Sends what the gateway may have stopped reading.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) {
        // A gateway that has answered and closed is fine: the answer tells.
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Sends a POST with a length.
    pub fn post(&mut self, path: &str, fields: &str, body: &str) {
        self.send(post(path, fields, body));
    }

    /// Ends the sending side.
    pub fn half_close(&self) {
        self.stream.shutdown(Shutdown::Write).expect("a FIN");
    }

    /// Reads more; `None` once nothing will come.
    fn fill(&mut self) -> Option<End> {
        let mut buffer = [0; 64 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) => Some(End::Cut),
            Ok(n) => {
                self.input.extend_from_slice(&buffer[..n]);
                None
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Some(End::Reset),
            Err(error) => {
                panic!("nothing came: {error}; unread: {:?}", String::from_utf8_lossy(&self.input))
            }
        }
    }

    /// Reads a head alone, interim ones included.
    #[track_caller]
    pub fn head(&mut self) -> Answer {
        let end = loop {
            if let Some(at) = self.input.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            if let Some(end) = self.fill() {
                panic!("{end:?} before a head: {:?}", String::from_utf8_lossy(&self.input));
            }
        };
        let head = String::from_utf8(self.input.drain(..end).collect()).expect("an ASCII head");
        let status = head.get(9..12).and_then(|digits| digits.parse().ok()).expect("a status");
        let answer = Answer { status, head, body: Vec::new(), end: End::Whole };
        self.last = answer.header("connection").as_deref() == Some("close");
        answer
    }

    /// Reads an answer to anything but HEAD.
    #[track_caller]
    pub fn answer(&mut self) -> Answer {
        let head = self.head();
        self.body(head)
    }

    /// Reads the body that belongs to a head.
    #[track_caller]
    pub fn body(&mut self, mut answer: Answer) -> Answer {
        if answer.header("transfer-encoding").is_some() {
            loop {
                match self.chunk() {
                    Ok(chunk) if chunk.is_empty() => return answer,
                    Ok(chunk) => answer.body.extend_from_slice(&chunk),
                    Err(end) => {
                        answer.end = end;
                        return answer;
                    }
                }
            }
        }
        let length = answer.header("content-length").map(|n| n.parse::<usize>().expect("a length"));
        let none = matches!(answer.status, 100..200 | 204 | 304);
        while !none && length.is_none_or(|length| self.input.len() < length) {
            if let Some(end) = self.fill() {
                answer.end = if length.is_none() && end == End::Cut { End::Whole } else { end };
                answer.body = std::mem::take(&mut self.input);
                return answer;
            }
        }
        let length = if none { 0 } else { length.unwrap_or(0) };
        answer.body = self.input.drain(..length).collect();
        answer
    }

    /// Reads one chunk's payload; the last chunk's is empty.
    pub fn chunk(&mut self) -> Result<Vec<u8>, End> {
        loop {
            if let Some(at) = self.input.windows(2).position(|w| w == b"\r\n") {
                let line = std::str::from_utf8(&self.input[..at]).expect("a chunk size");
                let size = usize::from_str_radix(line, 16).unwrap_or_else(|_| panic!("chunk size {line:?}"));
                if self.input.len() >= at + 2 + size + 2 {
                    let chunk = self.input[at + 2..at + 2 + size].to_vec();
                    assert_eq!(&self.input[at + 2 + size..at + 4 + size], b"\r\n", "the end of a chunk");
                    self.input.drain(..at + 4 + size);
                    return Ok(chunk);
                }
            }
            if let Some(end) = self.fill() {
                return Err(end);
            }
        }
    }

    /// Reads whatever comes, to the connection's end.
    pub fn drain(&mut self) {
        while self.fill().is_none() {}
    }

    /// Whether the gateway has said that it will not answer on this connection again.
    pub fn over(&self) -> bool {
        self.last
    }

    /// Whether the gateway ends the connection without another byte.
    #[track_caller]
    pub fn ends(&mut self) -> bool {
        while self.input.is_empty() {
            if self.fill().is_some() {
                return true;
            }
        }
        panic!("more came: {:?}", String::from_utf8_lossy(&self.input));
    }
}

/// A POST with a length.
pub fn post(path: &str, fields: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: gw\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         {fields}\r\n{body}"
    )
}

pub const CHAT: &str = "/v1/chat/completions";

/// The body of a chat with model `m`; `more` begins with a comma where it is not empty.
pub fn chat(more: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hello"}}]{more}}}"#)
}

/// The body of a streamed chat of so many tokens.
pub fn streamed(tokens: u32) -> String {
    chat(&format!(r#","stream":true,"max_tokens":{tokens},"ignore_eos":true"#))
}
