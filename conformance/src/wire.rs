//! A client's reading of answers and an engine's reading of requests, written for these tests alone.

/// A request as the engine read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Method.
    pub method: String,
    /// Target as sent.
    pub target: String,
    /// Names in lower case, values trimmed.
    pub headers: Vec<(String, String)>,
    /// Decoded body.
    pub body: Vec<u8>,
}

/// An answer as the client read it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// Status.
    pub status: u16,
    /// Names in lower case, values trimmed.
    pub headers: Vec<(String, String)>,
    /// Decoded body.
    pub body: Vec<u8>,
    /// Its end was seen.
    pub complete: bool,
}

/// What one run of a case showed.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Interim and final answers, in order.
    pub answers: Vec<Answer>,
    /// The gateway ended the connection, in order or by a reset.
    pub closed: bool,
    /// Requests that the engine read.
    pub engine: Vec<Message>,
    /// What the engine could not read, or what was left over.
    pub engine_error: Option<String>,
    /// What came to the engine, by connection.
    pub captures: Vec<Vec<u8>>,
}

/// First line, fields, and bytes of a head.
type Head = (String, Vec<(String, String)>, usize);

fn split_head(bytes: &[u8]) -> Option<Head> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text: String = bytes[..end].iter().map(|&b| char::from(b)).collect();
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default().to_owned();
    let fields = lines.filter_map(|line| line.split_once(':'));
    let headers = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
    Some((first, headers, end))
}

fn find<'h>(headers: &'h [(String, String)], name: &str) -> Option<&'h str> {
    headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
}

/// Decoded body and bytes used; `Ok(None)` while incomplete.
fn dechunk(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>, String> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let Some(line) = bytes[at..].windows(2).position(|window| window == b"\r\n") else { return Ok(None) };
        let text = String::from_utf8_lossy(&bytes[at..at + line]).into_owned();
        let size = text.split(';').next().unwrap_or_default();
        let size = usize::from_str_radix(size, 16).map_err(|_| format!("chunk size {text:?}"))?;
        at += line + 2;
        if size == 0 {
            // Trailers up to the empty line.
            loop {
                let rest = &bytes[at..];
                let Some(line) = rest.windows(2).position(|window| window == b"\r\n") else {
                    return Ok(None);
                };
                at += line + 2;
                if line == 0 {
                    return Ok(Some((body, at)));
                }
            }
        }
        if bytes.len() < at.saturating_add(size).saturating_add(2) {
            return Ok(None);
        }
        body.extend_from_slice(&bytes[at..at + size]);
        if &bytes[at + size..at + size + 2] != b"\r\n" {
            return Err("a chunk without its end".to_owned());
        }
        at += size + 2;
    }
}

/// `bytes` begin with a head whose sender waits for 100.
pub fn waits_for_continue(bytes: &[u8]) -> bool {
    split_head(bytes).is_some_and(|(_, headers, used)| {
        used == bytes.len()
            && find(&headers, "expect").is_some_and(|v| v.eq_ignore_ascii_case("100-continue"))
    })
}

/// The next request in `bytes` and how long it is; `Ok(None)` while incomplete.
pub fn read_request(bytes: &[u8]) -> Result<Option<(Message, usize)>, String> {
    let Some((first, headers, mut used)) = split_head(bytes) else { return Ok(None) };
    let words: Vec<&str> = first.split(' ').collect();
    let [method, target, "HTTP/1.1" | "HTTP/1.0"] = words[..] else {
        return Err(format!("request line {first:?}"));
    };
    let mut message =
        Message { method: method.to_owned(), target: target.to_owned(), headers, body: Vec::new() };
    let lengths: Vec<&str> =
        message.headers.iter().filter(|(n, _)| n == "content-length").map(|(_, v)| v.as_str()).collect();
    let coding = find(&message.headers, "transfer-encoding").map(str::to_ascii_lowercase);
    match (&lengths[..], coding.as_deref()) {
        ([], None) => {}
        ([length], None) => {
            let length: usize = length.parse().map_err(|_| format!("content-length {length:?}"))?;
            let Some(body) = bytes.get(used..used.saturating_add(length)) else { return Ok(None) };
            message.body = body.to_vec();
            used += length;
        }
        ([], Some("chunked")) => {
            let Some((body, length)) = dechunk(&bytes[used..])? else { return Ok(None) };
            message.body = body;
            used += length;
        }
        (lengths, coding) => return Err(format!("lengths {lengths:?} and coding {coding:?}")),
    }
    Ok(Some((message, used)))
}

/// Reads all that came from the gateway, in order. `heads`: the first final answer has no body.
pub fn read_answers(bytes: &[u8], head: bool, closed: bool) -> Vec<Answer> {
    let (mut answers, mut at) = (Vec::new(), 0);
    let mut bodiless = head;
    while let Some((first, headers, used)) = split_head(&bytes[at..]) {
        let status = first.strip_prefix("HTTP/1.").and_then(|line| line.get(2..5)?.parse().ok()).unwrap_or(0);
        at += used;
        let mut answer = Answer { status, headers, body: Vec::new(), complete: true };
        let rest = &bytes[at..];
        if status >= 200 && status != 204 && status != 304 && !std::mem::take(&mut bodiless) {
            if find(&answer.headers, "transfer-encoding") == Some("chunked") {
                match dechunk(rest) {
                    Ok(Some((body, used))) => {
                        answer.body = body;
                        at += used;
                    }
                    _ => answer.complete = false,
                }
            } else if let Some(length) = find(&answer.headers, "content-length") {
                let length = length.parse().unwrap_or(usize::MAX);
                answer.complete = rest.len() >= length;
                answer.body = rest[..length.min(rest.len())].to_vec();
                at += answer.body.len();
            } else {
                answer.body = rest.to_vec();
                at = bytes.len();
                answer.complete = closed;
            }
        }
        let complete = answer.complete;
        answers.push(answer);
        if !complete {
            return answers;
        }
    }
    if at < bytes.len() {
        // Bytes that begin no answer.
        answers.push(Answer::default());
    }
    answers
}

/// The scripted engine's ordinary answer: it says which of the known prompts the request held.
pub fn ordinary_answer(message: &Message) -> Vec<u8> {
    let told = |word: &str| message.body.windows(word.len()).any(|window| window == word.as_bytes());
    let word = ["probe", "evil"].into_iter().find(|word| told(word)).unwrap_or("case");
    let body = format!(r#"{{"id":"1","object":"text_completion","choices":[{{"text":"{word}"}}]}}"#);
    let length = body.len();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
    format!("{head}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

/// The probe's answer is the last of these.
pub fn probe_answered(answers: &[Answer]) -> bool {
    let probe =
        |answer: &Answer| answer.status == 200 && answer.complete && holds(&answer.body, b"\"probe\"");
    answers.last().is_some_and(probe)
}

/// `part` occurs in `bytes`.
pub fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
