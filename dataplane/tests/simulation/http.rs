//! A client's own reading of responses: nothing of the gateway's code, so that both cannot err together.

use llmgw_routing::Nanos;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Sized(usize),
    Chunked,
    UntilClose,
}

#[derive(Debug, Clone, Default)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub complete: bool,
    pub first_at: Nanos,
    pub done_at: Nanos,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub fn closes(&self) -> bool {
        self.header("connection") == Some("close")
    }
}

/// Reads responses one after the other. `Err` is a violation by the gateway.
#[derive(Default)]
pub struct Reader {
    buf: Vec<u8>,
    pub done: Vec<Response>,
    current: Option<(Response, Framing)>,
    pub continues: usize,
    /// The end of input was seen.
    pub ended: bool,
}

impl Reader {
    /// A response has begun and not ended.
    pub fn partial(&self) -> Option<&Response> {
        self.current.as_ref().map(|(response, _)| response)
    }

    pub fn leftover(&self) -> usize {
        self.buf.len()
    }

    pub fn push(&mut self, bytes: &[u8], now: Nanos, is_head: impl Fn(usize) -> bool) -> Result<(), String> {
        self.buf.extend_from_slice(bytes);
        loop {
            let progress = match &mut self.current {
                None => self.head(now, &is_head)?,
                Some(_) => self.body(now)?,
            };
            if !progress {
                return Ok(());
            }
        }
    }

    /// An orderly end of input.
    pub fn finish(&mut self, now: Nanos) {
        self.ended = true;
        if let Some((_, Framing::UntilClose)) = &self.current
            && let Some((mut response, _)) = self.current.take()
        {
            response.complete = true;
            response.done_at = now;
            self.done.push(response);
        }
    }

    fn head(&mut self, now: Nanos, is_head: &impl Fn(usize) -> bool) -> Result<bool, String> {
        let Some(end) = self.buf.windows(4).position(|w| w == b"\r\n\r\n") else { return Ok(false) };
        let text = String::from_utf8_lossy(&self.buf[..end]).into_owned();
        self.buf.drain(..end + 4);
        let mut lines = text.split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let Some(status) =
            status_line.strip_prefix("HTTP/1.1 ").and_then(|l| l.get(..3)?.parse::<u16>().ok())
        else {
            return Err(format!("not a status line: {:?}", &status_line[..status_line.len().min(60)]));
        };
        if status == 100 {
            self.continues += 1;
            return Ok(true);
        }
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let response = Response { status, headers, first_at: now, ..Response::default() };
        let framing = if is_head(self.done.len()) || status == 204 {
            Framing::Sized(0)
        } else if let Some(length) = response.header("content-length") {
            Framing::Sized(length.parse().map_err(|_| format!("content-length {length}"))?)
        } else if response.header("transfer-encoding") == Some("chunked") {
            Framing::Chunked
        } else {
            Framing::UntilClose
        };
        self.current = Some((response, framing));
        Ok(true)
    }

    fn body(&mut self, now: Nanos) -> Result<bool, String> {
        let Some((response, framing)) = &mut self.current else { return Ok(false) };
        let over = match framing {
            Framing::UntilClose => {
                response.body.append(&mut self.buf);
                return Ok(false);
            }
            Framing::Sized(left) => {
                let n = (*left).min(self.buf.len());
                response.body.extend(self.buf.drain(..n));
                *left -= n;
                if *left > 0 {
                    return Ok(false);
                }
                true
            }
            Framing::Chunked => {
                let Some(line) = self.buf.windows(2).position(|w| w == b"\r\n") else { return Ok(false) };
                let size = std::str::from_utf8(&self.buf[..line])
                    .ok()
                    .and_then(|s| usize::from_str_radix(s, 16).ok());
                let Some(size) = size else { return Err("a malformed chunk size".to_owned()) };
                if self.buf.len() < line + 2 + size + 2 {
                    return Ok(false);
                }
                response.body.extend_from_slice(&self.buf[line + 2..line + 2 + size]);
                if &self.buf[line + 2 + size..line + 4 + size] != b"\r\n" {
                    return Err("a chunk without its end".to_owned());
                }
                self.buf.drain(..line + 4 + size);
                size == 0
            }
        };
        if over && let Some((mut response, _)) = self.current.take() {
            response.complete = true;
            response.done_at = now;
            self.done.push(response);
        }
        Ok(true)
    }
}
