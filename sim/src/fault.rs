//! What the engine can be told to do wrong, how it is written, and which request it strikes.
//!
//! Written `NAME[=ARG][,count=N][,p=P]`: at most N requests are struck, each with probability P. Faults strike
//! generation requests (chat, completions, embeddings); `refuse` closes the listener and `slow` slows the engine.

use std::fmt;
use std::time::Duration;

use crate::args::parse_duration;

/// One kind of failure.
#[derive(Clone, Debug, PartialEq)]
pub enum FaultKind {
    /// `refuse[=D]`: nobody can connect, idle connections are closed; for a time or until cleared.
    Refuse(Option<Duration>),
    /// `hang`: the request is read and never answered.
    Hang,
    /// `429[=S]`, `503[=S]`, `500`, ...: that status, with Retry-After where given.
    Status(u16, Option<u64>),
    /// `reset-before-head`: RST once the request is read.
    ResetBeforeHead,
    /// `reset-after=N`: RST after N tokens.
    ResetAfter(u32),
    /// `no-terminator[=all|done|chunk]`: the answer ends without its end: neither finish chunk, `[DONE]` nor last chunk
    /// (all, the default); only `[DONE]` missing; or only the last chunk missing.
    NoTerminator(Missing),
    /// `malformed-head[=status|length|both|nul]`: a head that is not HTTP.
    MalformedHead(BadHead),
    /// `bad-chunk[=N]`: after N tokens (1) a chunk size that is no number.
    BadChunk(u32),
    /// `split-bytes`: each byte of the answer in its own write.
    SplitBytes,
    /// `two-events`: events leave in pairs, two a chunk.
    TwoEvents,
    /// `stall=N`: silence after N tokens, the connection stays open.
    Stall(u32),
    /// `slow=F`: the whole engine takes F times as long.
    Slow(f64),
}

/// What `no-terminator` leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Finish chunk, `[DONE]` and the last chunk.
    All,
    /// `[DONE]`.
    Done,
    /// The last chunk.
    Chunk,
}

/// What is wrong with the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHead {
    /// The status code is no number.
    Status,
    /// Two lengths that differ.
    Length,
    /// A length and chunked at once.
    Both,
    /// A NUL within a field.
    Nul,
}

/// A fault that is set.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// As it was written.
    pub text: String,
    /// What goes wrong.
    pub kind: FaultKind,
    /// Requests still to strike; None without bound.
    pub count: Option<u64>,
    /// Share of requests that are struck.
    pub probability: f64,
}

/// A fault that was not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFault(String);

impl fmt::Display for BadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; faults are refuse[=D], hang, 429[=S], 503[=S], 500, reset-before-head, reset-after=N, \
             no-terminator[=all|done|chunk], malformed-head[=status|length|both|nul], bad-chunk[=N], split-bytes, \
             two-events, stall=N, slow=F, each with ,count=N ,p=P",
            self.0
        )
    }
}

impl std::error::Error for BadFault {}

impl Fault {
    /// Reads `NAME[=ARG][,count=N][,p=P]`.
    ///
    /// # Errors
    /// [`BadFault`] with what was not understood.
    pub fn parse(text: &str) -> Result<Self, BadFault> {
        let mut parts = text.split(',');
        let head = parts.next().unwrap_or_default();
        let (name, arg) = match head.split_once('=') {
            Some((name, arg)) => (name, Some(arg)),
            None => (head, None),
        };
        let mut fault = Self { text: text.to_owned(), kind: kind(name, arg)?, count: None, probability: 1.0 };
        for part in parts {
            match part.split_once('=') {
                Some(("count", "0")) => return Err(BadFault("count=0 would never strike".to_owned())),
                Some(("count", n)) => fault.count = Some(number(part, n)?),
                Some(("p", p)) => fault.probability = probability(part, p)?,
                _ => return Err(BadFault(format!("{part:?} is neither count=N nor p=P"))),
            }
        }
        Ok(fault)
    }
}

fn kind(name: &str, arg: Option<&str>) -> Result<FaultKind, BadFault> {
    let needs = || BadFault(format!("{name} needs a number, as in {name}=3"));
    let unknown = |what: &str| BadFault(format!("{name}={what} is unknown"));
    let kind = match name {
        "refuse" => FaultKind::Refuse(
            arg.map(parse_duration).transpose().map_err(|error| BadFault(error.to_string()))?,
        ),
        "hang" => FaultKind::Hang,
        "reset-before-head" => FaultKind::ResetBeforeHead,
        "reset-after" => FaultKind::ResetAfter(number(name, arg.ok_or_else(needs)?)?),
        "no-terminator" => FaultKind::NoTerminator(match arg.unwrap_or("all") {
            "all" => Missing::All,
            "done" => Missing::Done,
            "chunk" => Missing::Chunk,
            other => return Err(unknown(other)),
        }),
        "malformed-head" => FaultKind::MalformedHead(match arg.unwrap_or("status") {
            "status" => BadHead::Status,
            "length" => BadHead::Length,
            "both" => BadHead::Both,
            "nul" => BadHead::Nul,
            other => return Err(unknown(other)),
        }),
        "bad-chunk" => FaultKind::BadChunk(number(name, arg.unwrap_or("1"))?),
        "split-bytes" => FaultKind::SplitBytes,
        "two-events" => FaultKind::TwoEvents,
        "stall" => FaultKind::Stall(number(name, arg.ok_or_else(needs)?)?),
        "slow" => {
            let factor: f64 = number(name, arg.ok_or_else(needs)?)?;
            if !(0.001..=1e6).contains(&factor) {
                return Err(BadFault(format!("slow={factor} is not between 0.001 and 1000000")));
            }
            FaultKind::Slow(factor)
        }
        status => match status.parse() {
            Ok(code @ 400..=599) => FaultKind::Status(code, arg.map(|arg| number(name, arg)).transpose()?),
            _ => return Err(BadFault(format!("unknown fault {name:?}"))),
        },
    };
    Ok(kind)
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, BadFault> {
    text.parse().map_err(|_| BadFault(format!("{name}: {text:?} is not a number it takes")))
}

fn probability(name: &str, text: &str) -> Result<f64, BadFault> {
    let p: f64 = number(name, text)?;
    if (0.0..=1.0).contains(&p) { Ok(p) } else { Err(BadFault(format!("{name} is not between 0 and 1"))) }
}

/// What one request will suffer.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Never answer.
    pub hang: bool,
    /// Answer with this status and Retry-After.
    pub status: Option<(u16, Option<u64>)>,
    /// RST before the head.
    pub reset_before_head: bool,
    /// RST after so many tokens.
    pub reset_after: Option<u32>,
    /// End without the end.
    pub missing: Option<Missing>,
    /// Send a bad head.
    pub bad_head: Option<BadHead>,
    /// Send a bad chunk after so many tokens.
    pub bad_chunk: Option<u32>,
    /// Write byte by byte.
    pub split_bytes: bool,
    /// Two events a chunk.
    pub two_events: bool,
    /// Go silent after so many tokens.
    pub stall: Option<u32>,
    /// The faults that struck, as they were written.
    pub struck: Vec<String>,
}

/// The faults that are set.
#[derive(Clone, Debug, Default)]
pub struct FaultSet {
    faults: Vec<Fault>,
    /// Requests struck so far.
    pub injected: u64,
}

impl FaultSet {
    /// Adds a fault.
    pub fn set(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.faults.clear();
    }

    /// Those that are set and not used up.
    pub fn active(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter()
    }

    /// The engine's slowness, in thousandths of normal time.
    pub fn slow_permille(&self) -> u64 {
        let factor = self.faults.iter().rev().find_map(|fault| match fault.kind {
            FaultKind::Slow(factor) => Some(factor),
            _ => None,
        });
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        // parse bounds the factor to 0.001..1e6
        factor.map_or(1000, |factor| (factor * 1000.0) as u64)
    }

    /// The `refuse` in force, if any.
    pub fn refusing(&self) -> Option<Option<Duration>> {
        self.faults.iter().find_map(|fault| match fault.kind {
            FaultKind::Refuse(time) => Some(time),
            _ => None,
        })
    }

    /// Takes back every `refuse`.
    pub fn stop_refusing(&mut self) {
        self.faults.retain(|fault| !matches!(fault.kind, FaultKind::Refuse(_)));
    }

    /// Draws what the next request suffers, and uses up the counts.
    pub fn draw(&mut self, rng: &mut fastrand::Rng) -> Plan {
        let mut plan = Plan::default();
        for fault in &mut self.faults {
            if matches!(fault.kind, FaultKind::Refuse(_) | FaultKind::Slow(_)) {
                continue;
            }
            if fault.probability < 1.0 && rng.f64() >= fault.probability {
                continue;
            }
            if let Some(count) = &mut fault.count {
                *count = count.saturating_sub(1);
            }
            plan.apply(&fault.kind);
            plan.struck.push(fault.text.clone());
        }
        self.faults.retain(|fault| fault.count != Some(0));
        if !plan.struck.is_empty() {
            self.injected += 1;
        }
        plan
    }
}

impl Plan {
    fn apply(&mut self, kind: &FaultKind) {
        match kind {
            FaultKind::Refuse(_) | FaultKind::Slow(_) => {}
            FaultKind::Hang => self.hang = true,
            FaultKind::Status(code, retry_after) => self.status = Some((*code, *retry_after)),
            FaultKind::ResetBeforeHead => self.reset_before_head = true,
            FaultKind::ResetAfter(n) => self.reset_after = Some(*n),
            FaultKind::NoTerminator(missing) => self.missing = Some(*missing),
            FaultKind::MalformedHead(bad) => self.bad_head = Some(*bad),
            FaultKind::BadChunk(n) => self.bad_chunk = Some(*n),
            FaultKind::SplitBytes => self.split_bytes = true,
            FaultKind::TwoEvents => self.two_events = true,
            FaultKind::Stall(n) => self.stall = Some(*n),
        }
    }
}

#[cfg(test)]
mod tests;
