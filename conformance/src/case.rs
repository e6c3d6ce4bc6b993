//! The cases of `h1.toml`: what is sent, by whom, and what may come of it.

use serde::Deserialize;
use std::collections::HashSet;

/// The standard request body, `<body>` in the file.
pub const BODY: &str = r#"{"model":"m","prompt":"case"}"#;
/// Body of the request that follows every case on its connection.
pub const PROBE_BODY: &str = r#"{"model":"m","prompt":"probe"}"#;
/// Body of the request that a case may try to smuggle.
pub const EVIL_BODY: &str = r#"{"model":"m","prompt":"evil"}"#;
/// The standard head up to its framing fields, `<post>` in the file.
pub const POST: &str = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n";

/// Who sends a case's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// A client.
    #[default]
    Request,
    /// An engine, as its answer.
    Response,
}

/// What asks for the outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A MUST of the RFCs, or their grammar.
    #[default]
    Must,
    /// The RFCs allow more; the gateway takes the strict choice, or bounds what they leave open.
    Strict,
    /// The gateway's own surface; another proxy has no such rule.
    Own,
}

/// What the sender does after its last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// Leaves the connection open.
    #[default]
    Keep,
    /// Ends its side in order.
    Close,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    id: String,
    section: String,
    family: String,
    title: String,
    #[serde(default)]
    level: Level,
    #[serde(default)]
    side: Side,
    #[serde(default)]
    source: String,
    #[serde(default)]
    differs: String,
    send: OneOrMore,
    #[serde(default)]
    request: Option<String>,
    #[serde(default)]
    end: End,
    #[serde(default = "yes")]
    probe: bool,
    allow: Vec<String>,
    #[serde(default)]
    engine: Option<Vec<String>>,
    #[serde(default)]
    engine_has: Vec<String>,
    #[serde(default)]
    engine_lacks: Vec<String>,
    #[serde(default)]
    answer: Option<String>,
}

fn yes() -> bool {
    true
}

/// One rule.
#[derive(Debug, Clone)]
pub struct Case {
    /// Unique.
    pub id: String,
    /// Where the rule stands.
    pub section: String,
    /// Group in the table of counts.
    pub family: String,
    /// The rule in a few words.
    pub title: String,
    /// What asks for the outcome.
    pub level: Level,
    /// Who sends the bytes.
    pub side: Side,
    /// The published bug or test that it comes from; may be empty.
    pub source: String,
    /// Why the verdict is not what the RFC would have; mostly empty.
    pub differs: String,
    /// The writes, in order. A later one waits until something was answered.
    pub writes: Vec<Vec<u8>>,
    /// The client's request in front of an engine's answer.
    pub request: Vec<u8>,
    /// What the sender does after its last byte.
    pub end: End,
    /// The probe request follows on the same connection.
    pub probe: bool,
    /// Verdicts that are allowed, see [`crate::judge::verdict`].
    pub allow: Vec<String>,
    /// Bodies that must have reached the engine, in order, without the probe's.
    pub engine: Vec<Vec<u8>>,
    /// Header lines, in lower case, that the first request at the engine must have.
    pub engine_has: Vec<String>,
    /// Header names, in lower case, that it must not have.
    pub engine_lacks: Vec<String>,
    /// The body that the client must get.
    pub answer: Option<Vec<u8>>,
}

impl Case {
    /// All bytes of the sender.
    pub fn bytes(&self) -> Vec<u8> {
        self.writes.concat()
    }

    /// Where to split: at each byte up to 2 KiB; in a longer case at each of the first and last 512 bytes and at
    /// some between.
    pub fn cuts(&self) -> Vec<usize> {
        const EACH_BYTE_MAX: usize = 2048;
        const EDGE: usize = 512;
        let length = self.bytes().len();
        let wanted =
            |&at: &usize| length <= EACH_BYTE_MAX || at < EDGE || at + EDGE > length || at % 997 == 0;
        (1..length).filter(wanted).collect()
    }

    /// Every allowed verdict is a refusal.
    pub fn refused(&self) -> bool {
        self.allow.iter().all(|verdict| refuses(verdict))
    }

    fn new(raw: Raw) -> Result<Case, String> {
        let fail = |why: String| format!("{}: {why}", raw.id);
        let text = |source: &str| unescape(source).map_err(fail);
        let writes = match &raw.send {
            OneOrMore::One(one) => vec![text(one)?],
            OneOrMore::More(more) => more.iter().map(|one| text(one)).collect::<Result<_, _>>()?,
        };
        if raw.allow.is_empty() || writes.iter().any(Vec::is_empty) {
            return Err(fail("allows nothing or writes nothing".to_owned()));
        }
        let standard = format!("{POST}Content-Length: {}\r\n\r\n{BODY}", BODY.len());
        let request = raw.request.as_deref().map(text).transpose()?.unwrap_or(standard.into_bytes());
        let accepted = raw.allow.iter().any(|verdict| verdict.split(' ').any(|word| word == "200"));
        let posts = writes[0].starts_with(b"POST ") || raw.side == Side::Response;
        let engine = match &raw.engine {
            Some(bodies) => bodies.iter().map(|body| text(body)).collect::<Result<_, _>>()?,
            None if raw.side == Side::Response || accepted && posts => vec![BODY.as_bytes().to_vec()],
            None => Vec::new(),
        };
        let answer = raw.answer.as_deref().map(text).transpose()?;
        Ok(Case {
            id: raw.id,
            section: raw.section,
            family: raw.family,
            title: raw.title,
            level: raw.level,
            side: raw.side,
            source: raw.source,
            differs: raw.differs,
            writes,
            request,
            end: raw.end,
            probe: raw.probe,
            allow: raw.allow,
            engine,
            engine_has: raw.engine_has,
            engine_lacks: raw.engine_lacks,
            answer,
        })
    }
}

/// The verdict begins with an error, has an answer cut, or is no answer at all.
pub fn refuses(verdict: &str) -> bool {
    verdict.starts_with(['4', '5', 'c', 'w']) || verdict.contains("cut")
}

/// The request that follows a case.
pub fn probe() -> Vec<u8> {
    format!("{POST}Content-Length: {}\r\n\r\n{PROBE_BODY}", PROBE_BODY.len()).into_bytes()
}

/// The cases of the checked-in file.
pub fn all() -> Result<Vec<Case>, String> {
    parse(include_str!("../h1.toml"))
}

/// Reads cases; an error names the case.
pub fn parse(text: &str) -> Result<Vec<Case>, String> {
    #[derive(Deserialize)]
    struct Document {
        case: Vec<Raw>,
    }
    let document: Document = toml::from_str(text).map_err(|error| error.to_string())?;
    let cases: Vec<Case> = document.case.into_iter().map(Case::new).collect::<Result<_, _>>()?;
    let mut ids = HashSet::new();
    match cases.iter().find(|case| !ids.insert(case.id.clone())) {
        Some(twice) => Err(format!("{}: the id occurs twice", twice.id)),
        None => Ok(cases),
    }
}

/// Line breaks of the file are layout; `\r \n \t \0 \\ \xHH` are bytes; `<name>` and `<text*count>` are macros.
fn unescape(source: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let mut chars = source.chars();
    while let Some(c) = chars.next() {
        match c {
            '\n' => {}
            '\\' => match chars.next() {
                Some('r') => out.push(b'\r'),
                Some('n') => out.push(b'\n'),
                Some('t') => out.push(b'\t'),
                Some('0') => out.push(0),
                Some('\\') => out.push(b'\\'),
                Some('x') => {
                    let hex: String = chars.by_ref().take(2).collect();
                    out.push(u8::from_str_radix(&hex, 16).map_err(|_| format!("\\x{hex}"))?);
                }
                other => return Err(format!("unknown escape {other:?}")),
            },
            '<' => {
                let name: String = chars.by_ref().take_while(|&c| c != '>').collect();
                out.extend(expand(&name).ok_or_else(|| format!("unknown macro <{name}>"))?);
            }
            c => out.extend(c.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    Ok(out)
}

fn expand(name: &str) -> Option<Vec<u8>> {
    let text = match name {
        "body" => BODY.to_owned(),
        "len" => BODY.len().to_string(),
        "hex" => format!("{:x}", BODY.len()),
        "post" => POST.to_owned(),
        "chunk" => format!("{:x}\r\n{BODY}\r\n", BODY.len()),
        "chunked" => format!("{:x}\r\n{BODY}\r\n0\r\n\r\n", BODY.len()),
        "evil" => format!("{POST}Content-Length: {}\r\n\r\n{EVIL_BODY}", EVIL_BODY.len()),
        "evilbody" => EVIL_BODY.to_owned(),
        "fields" => (0..101).map(|i| format!("x-{i}: v\r\n")).collect(),
        "lt" => "<".to_owned(),
        "gt" => ">".to_owned(),
        _ => {
            let (text, count) = name.rsplit_once('*')?;
            return Some(unescape(text).ok()?.repeat(count.parse().ok()?));
        }
    };
    Some(text.into_bytes())
}
