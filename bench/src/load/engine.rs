//! Three lean engines: small answers, large answers, and streams whose events are spread evenly in time.

use super::stage::gap;
use super::wire::{Answers, Kind, parse_request};
use super::world::drain;
use rustix::event::epoll::EventFlags;
use std::io::Write;
use std::net::{TcpListener, TcpStream};

/// Groups of streams.
const GROUPS: usize = 100;
/// The most that events may lag behind, in nanoseconds; beyond it they are left out.
const LAG_MAX: u64 = 5_000_000;

struct Conn {
    stream: TcpStream,
    /// Of an incomplete request.
    input: Vec<u8>,
    /// Of a large answer that is under way.
    sent: Option<usize>,
    streams: bool,
}

/// All engines.
pub struct Engines {
    listeners: Vec<TcpListener>,
    answers: Answers,
    conns: Vec<Option<Conn>>,
    free: Vec<usize>,
    groups: Vec<Vec<usize>>,
    /// The group whose streams get events, and the mean distance of two events of the group in nanoseconds.
    active: Option<(usize, f64)>,
    cursor: usize,
    next_ns: u64,
    /// Events sent since [`Engines::activate`].
    pub emitted: u64,
    /// Events left out because this side could not keep up, or a stream was not read.
    pub left_out: u64,
}

impl Engines {
    /// Over bound listeners.
    pub fn new(listeners: Vec<TcpListener>) -> Self {
        Engines {
            listeners,
            answers: Answers::new(),
            conns: Vec::new(),
            free: Vec::new(),
            groups: vec![Vec::new(); GROUPS],
            active: None,
            cursor: 0,
            next_ns: 0,
            emitted: 0,
            left_out: 0,
        }
    }

    /// Takes a connection from a listener; it is to be registered under the index.
    pub fn accept(&mut self, listener: usize) -> Option<(usize, &TcpStream)> {
        let (stream, _) = self.listeners[listener].accept().ok()?;
        let index = self.free.pop().unwrap_or_else(|| {
            self.conns.push(None);
            self.conns.len() - 1
        });
        let conn = Conn { stream, input: Vec::new(), sent: None, streams: false };
        Some((index, &self.conns[index].insert(conn).stream))
    }

    /// From now on, events go to this group, each of its streams getting one every `interval_ns`; none stops them.
    pub fn activate(&mut self, group: Option<u8>, interval_ns: u64, now: u64) {
        self.active = group.map(|group| {
            let count = u32::try_from(self.groups[usize::from(group)].len().max(1)).unwrap_or(u32::MAX);
            #[allow(clippy::cast_precision_loss)] // milliseconds
            let interval = interval_ns as f64;
            (usize::from(group), interval / f64::from(count))
        });
        self.next_ns = now;
        (self.emitted, self.left_out) = (0, 0);
    }

    /// Sends the events that are due.
    pub fn emit(&mut self, now: u64) {
        let Some((group, mean_ns)) = self.active else { return };
        if now.saturating_sub(self.next_ns) > LAG_MAX {
            self.left_out += 1;
            self.next_ns = now;
        }
        while self.next_ns <= now {
            self.next_ns += gap(mean_ns);
            let streams = &mut self.groups[group];
            if streams.is_empty() {
                return;
            }
            self.cursor = if self.cursor + 1 < streams.len() { self.cursor + 1 } else { 0 };
            let Some(conn) = &self.conns[streams[self.cursor]] else { continue };
            match (&conn.stream).write(&self.answers.event) {
                Ok(n) if n == self.answers.event.len() => self.emitted += 1,
                // A stream that nobody reads is beyond what is measured here.
                _ => self.left_out += 1,
            }
        }
    }

    /// A connection has news.
    pub fn ready(&mut self, index: usize, flags: EventFlags, scratch: &mut [u8]) {
        let Some(mut conn) = self.conns.get_mut(index).and_then(Option::take) else { return };
        let ended = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        let mut open = conn.flush(&self.answers);
        if open && (ended || flags.contains(EventFlags::IN)) {
            let Conn { stream, input, sent, streams } = &mut conn;
            let (answers, groups) = (&self.answers, &mut self.groups);
            open = drain(stream, scratch, ended, |bytes| {
                let whole = if input.is_empty() { parse_request(bytes) } else { None };
                let asked = match whole {
                    Some((kind, length)) if length == bytes.len() => Some(kind),
                    _ => {
                        input.extend_from_slice(bytes);
                        parse_request(input).map(|(kind, length)| {
                            input.drain(..length);
                            kind
                        })
                    }
                };
                let Some(kind) = asked else { return true };
                let answer = match kind {
                    Kind::Json => &answers.json,
                    Kind::Other => &answers.other,
                    Kind::Large => {
                        *sent = Some(0);
                        return true;
                    }
                    Kind::Stream(group) => {
                        *streams = true;
                        groups[usize::from(group).min(GROUPS - 1)].push(index);
                        &answers.stream_start
                    }
                };
                matches!((&*stream).write(answer), Ok(n) if n == answer.len())
            }) && conn.flush(&self.answers);
        }
        if open {
            self.conns[index] = Some(conn);
        } else {
            if conn.streams {
                self.groups.iter_mut().for_each(|group| group.retain(|other| *other != index));
            }
            self.free.push(index);
        }
    }
}

impl Conn {
    /// Goes on with a large answer. False when the connection is gone.
    fn flush(&mut self, answers: &Answers) -> bool {
        while let Some(sent) = self.sent {
            match (&self.stream).write(&answers.large[sent..]) {
                Ok(n) => self.sent = (sent + n < answers.large.len()).then_some(sent + n),
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
        true
    }
}
