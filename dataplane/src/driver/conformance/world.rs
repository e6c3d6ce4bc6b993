//! A harness whose every event is checked against the contract.

use super::{Harness, PeerRead};
use crate::driver::{ConnError, Driver, Event, MAX_LATE_BYTES, SendError, Token};
use llmgw_routing::{MILLISECOND, Nanos, SECOND};
use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::net::SocketAddr;

type SocketOf<H> = <<H as Harness>::Driver as Driver>::Socket;

/// How long (in the driver's time) a case waits for what must come.
const PATIENCE_NS: Nanos = 20 * SECOND;
/// How far ahead the deadlines of polls are.
const STEP_NS: Nanos = 2 * MILLISECOND;

/// What was told of a connection so far.
#[derive(Debug, Default, Clone)]
pub(crate) struct Conn {
    /// All bytes.
    pub(crate) data: Vec<u8>,
    /// Connected was told.
    pub(crate) connected: bool,
    /// The connect failed.
    pub(crate) failed: Option<ConnError>,
    /// Eof was told.
    pub(crate) eof: bool,
    /// Hangup was told.
    pub(crate) hangup: bool,
    /// Reset was told.
    pub(crate) reset: Option<ConnError>,
    /// Writables told.
    pub(crate) writables: usize,
    /// Sends that came short.
    pub(crate) shorts: usize,
    /// A send came short and no Writable was told since.
    pub(crate) armed: bool,
    /// Paused, with the bytes told since.
    pub(crate) paused: Option<usize>,
    connecting: bool,
}

/// The other end, with what it has read.
pub(crate) struct Peer<H: Harness> {
    /// The connection.
    pub(crate) inner: H::Peer,
    /// All bytes.
    pub(crate) data: Vec<u8>,
    /// `Eof` or `Reset` once seen.
    pub(crate) end: Option<PeerRead>,
}

/// What a single event was, for the cases that look at the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Queued in `World::sockets`.
    Accepted,
    /// No descriptors.
    AcceptFailed,
    /// Of a connection that is closed.
    Stale,
    /// So many bytes.
    Data(Token, usize),
    /// Anything else about a connection.
    Other(Token),
    /// The doorbell.
    Doorbell,
}

/// See the module.
pub(crate) struct World<H: Harness> {
    /// The harness.
    pub(crate) h: H,
    /// Accepted, not adopted.
    pub(crate) sockets: VecDeque<SocketOf<H>>,
    /// Doorbells told.
    pub(crate) doorbells: usize,
    open: BTreeMap<Token, Conn>,
    generations: BTreeMap<u32, u32>,
    free: Vec<u32>,
}

impl<H: Harness> World<H> {
    /// A new world, accepting.
    pub(crate) fn new(seed: u64) -> Self {
        let mut h = H::new(seed);
        h.driver().resume_accept();
        World {
            h,
            sockets: VecDeque::new(),
            doorbells: 0,
            open: BTreeMap::new(),
            generations: BTreeMap::new(),
            free: Vec::new(),
        }
    }

    // === driver calls ===

    /// A token never used before, its index the one freed last.
    pub(crate) fn token(&mut self) -> Token {
        let index = self.free.pop().unwrap_or_else(|| u32::try_from(self.generations.len()).unwrap());
        let generation = self.generations.entry(index).or_insert(0);
        *generation += 1;
        Token::new(index, *generation)
    }

    /// Adopts the socket accepted first.
    pub(crate) fn adopt(&mut self) -> Token {
        let socket = self.sockets.pop_front().expect("an accepted socket");
        let token = self.token();
        self.open.insert(token, Conn { connected: true, ..Conn::default() });
        self.h.driver().adopt(token, socket);
        token
    }

    /// Connects.
    pub(crate) fn connect(&mut self, address: SocketAddr) -> Token {
        let token = self.token();
        self.open.insert(token, Conn { connecting: true, ..Conn::default() });
        self.h.driver().connect(token, address);
        token
    }

    /// Sends one slice.
    pub(crate) fn send(&mut self, token: Token, bytes: &[u8]) -> Result<usize, SendError> {
        self.send_slices(token, &[IoSlice::new(bytes)])
    }

    /// Sends.
    pub(crate) fn send_slices(&mut self, token: Token, slices: &[IoSlice<'_>]) -> Result<usize, SendError> {
        let want: usize = slices.iter().map(|s| s.len()).sum();
        let sent = self.h.driver().send(token, slices)?;
        assert!(sent <= want, "sent {sent} of {want}");
        let conn = self.open.get_mut(&token).expect("open");
        assert!(conn.failed.is_none() && conn.reset.is_none(), "sent on a dead connection {token:?}");
        if sent < want {
            conn.armed = true;
            conn.shorts += 1;
        }
        Ok(sent)
    }

    /// Pauses.
    pub(crate) fn pause(&mut self, token: Token) {
        self.open.get_mut(&token).expect("open").paused.get_or_insert(0);
        self.h.driver().pause(token);
    }

    /// Resumes.
    pub(crate) fn resume(&mut self, token: Token) {
        self.open.get_mut(&token).expect("open").paused = None;
        self.h.driver().resume(token);
    }

    /// Closes; the index is used again next.
    pub(crate) fn close(&mut self, token: Token, abort: bool) -> Conn {
        self.h.driver().close(token, abort);
        self.free.push(token.index());
        self.open.remove(&token).expect("open")
    }

    /// What was told of a connection.
    pub(crate) fn conn(&self, token: Token) -> &Conn {
        &self.open[&token]
    }

    /// Every open connection.
    pub(crate) fn open_tokens(&self) -> Vec<Token> {
        self.open.keys().copied().collect()
    }

    // === events ===

    /// The driver's time.
    pub(crate) fn now(&mut self) -> Nanos {
        self.h.driver().now()
    }

    /// Polls without taking events.
    pub(crate) fn poll(&mut self, ahead_ns: Nanos) {
        let deadline = self.now() + ahead_ns;
        self.h.driver().poll(Some(deadline));
    }

    /// Polls and takes every event.
    pub(crate) fn pass(&mut self, ahead_ns: Nanos) -> Vec<Seen> {
        self.poll(ahead_ns);
        std::iter::from_fn(|| self.next()).collect()
    }

    /// Passes until `done`; fails if that takes too long.
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = self.now() + PATIENCE_NS;
        while !done(self) {
            self.pass(STEP_NS);
            assert!(self.now() < limit, "waited in vain for: {what}; open: {:?}", self.brief());
        }
    }

    /// Passes for a while in which nothing in particular must happen.
    pub(crate) fn idle(&mut self, ns: Nanos) {
        let limit = self.now() + ns;
        while self.now() < limit {
            self.pass(STEP_NS);
        }
    }

    /// Takes the next event and checks it.
    pub(crate) fn next(&mut self) -> Option<Seen> {
        let event = self.h.driver().next_event()?;
        let token = match &event {
            Event::Accepted { .. } | Event::AcceptFailed | Event::Doorbell => None,
            Event::Connected(t)
            | Event::ConnectFailed(t, _)
            | Event::Data(t, _)
            | Event::Eof(t)
            | Event::Hangup(t)
            | Event::Reset(t, _)
            | Event::Writable(t) => Some(*t),
        };
        let Some(token) = token else { return Some(self.take(event)) };
        let newest = self.generations.get(&token.index()).copied().unwrap_or(0);
        assert!(token.generation() <= newest, "{token:?} was never given out");
        if !self.open.contains_key(&token) {
            if let Event::Data(_, lent) = event {
                self.h.driver().recycle(lent);
            }
            return Some(Seen::Stale);
        }
        Some(self.check(token, event))
    }

    fn take(&mut self, event: EventOf<H>) -> Seen {
        match event {
            Event::Accepted { socket, peer } => {
                assert!(!peer.is_unspecified());
                self.sockets.push_back(socket);
                Seen::Accepted
            }
            Event::Doorbell => {
                self.doorbells += 1;
                Seen::Doorbell
            }
            _ => Seen::AcceptFailed,
        }
    }

    /// The contract, for an event of an open connection.
    fn check(&mut self, token: Token, event: EventOf<H>) -> Seen {
        let conn = self.open.get_mut(&token).expect("open");
        assert!(conn.reset.is_none(), "{token:?}: something follows Reset");
        assert!(conn.failed.is_none(), "{token:?}: something follows ConnectFailed");
        if conn.connecting {
            let answer = matches!(event, Event::Connected(_) | Event::ConnectFailed(..));
            assert!(answer, "{token:?}: an event before the connect was answered");
        }
        match event {
            Event::Connected(_) => {
                assert!(conn.connecting, "{token:?}: connected twice");
                conn.connecting = false;
                conn.connected = true;
            }
            Event::ConnectFailed(_, error) => {
                assert!(conn.connecting, "{token:?}: connect failed after it succeeded");
                conn.failed = Some(error);
            }
            Event::Data(_, lent) => {
                assert!(!conn.eof, "{token:?}: bytes after Eof");
                assert!(!lent.is_empty() && lent.len() <= MAX_LATE_BYTES, "{} bytes lent", lent.len());
                if let Some(late) = &mut conn.paused {
                    *late += lent.len();
                    assert!(*late <= MAX_LATE_BYTES, "{token:?}: {late} bytes after the pause");
                }
                conn.data.extend_from_slice(&lent);
                let len = lent.len();
                self.h.driver().recycle(lent);
                return Seen::Data(token, len);
            }
            Event::Eof(_) => {
                assert!(!conn.eof, "{token:?}: Eof twice");
                conn.eof = true;
            }
            Event::Hangup(_) => {
                assert!(!conn.hangup, "{token:?}: Hangup twice");
                assert!(!conn.eof, "{token:?}: Hangup after Eof");
                conn.hangup = true;
            }
            Event::Reset(_, error) => conn.reset = Some(error),
            Event::Writable(_) => {
                assert!(conn.armed, "{token:?}: Writable without a short send");
                conn.armed = false;
                conn.writables += 1;
            }
            Event::Accepted { .. } | Event::AcceptFailed | Event::Doorbell => {}
        }
        Seen::Other(token)
    }

    fn brief(&self) -> Vec<String> {
        let brief = |(t, c): (&Token, &Conn)| {
            let data = c.data.len();
            format!("{t:?}: {:?}, {data} bytes", Conn { data: Vec::new(), ..c.clone() })
        };
        self.open.iter().map(brief).collect()
    }

    // === the other end ===

    /// A peer that connects, and the token it was adopted under.
    pub(crate) fn client(&mut self) -> (Peer<H>, Token) {
        let peer = self.peer_connect();
        self.until("accept", |w| !w.sockets.is_empty());
        (peer, self.adopt())
    }

    /// A connection the driver made, and the other end.
    pub(crate) fn upstream(&mut self) -> (Peer<H>, Token) {
        let address = self.h.peer_address();
        let token = self.connect(address);
        let mut peer = None;
        self.until("connect", |w| {
            peer = peer.take().or_else(|| w.peer_accept());
            peer.is_some() && w.conn(token).connected
        });
        (peer.expect("accepted"), token)
    }

    /// A peer starts to connect.
    pub(crate) fn peer_connect(&mut self) -> Peer<H> {
        Peer { inner: self.h.peer_connect(), data: Vec::new(), end: None }
    }

    /// The next connection made by the driver.
    pub(crate) fn peer_accept(&mut self) -> Option<Peer<H>> {
        Some(Peer { inner: self.h.peer_accept()?, data: Vec::new(), end: None })
    }

    /// Sends all of `bytes`, passing meanwhile.
    pub(crate) fn peer_send_all(&mut self, peer: &mut Peer<H>, bytes: &[u8]) {
        let mut sent = 0;
        self.until("peer sends", |w| {
            sent += w.h.peer_send(&mut peer.inner, &bytes[sent..]);
            sent == bytes.len()
        });
    }

    /// Reads what is there, once.
    pub(crate) fn peer_read(&mut self, peer: &mut Peer<H>) {
        if peer.end.is_none() {
            let read = self.h.peer_read(&mut peer.inner, &mut peer.data);
            peer.end = matches!(read, PeerRead::Eof | PeerRead::Reset).then_some(read);
        }
    }

    /// Waits until the peer has read so many bytes.
    pub(crate) fn until_peer_has(&mut self, peer: &mut Peer<H>, len: usize) {
        self.until("peer receives", |w| {
            w.peer_read(peer);
            peer.data.len() >= len
        });
    }

    /// Waits until the peer has seen the end.
    pub(crate) fn until_peer_end(&mut self, peer: &mut Peer<H>) -> PeerRead {
        self.until("peer sees the end", |w| {
            w.peer_read(peer);
            peer.end.is_some()
        });
        peer.end.expect("seen")
    }
}

type EventOf<H> = Event<SocketOf<H>, <<H as Harness>::Driver as Driver>::Lent>;

/// Bytes in which a lost, repeated or foreign one shows.
pub(crate) fn pattern(stream: u64, offset: usize, len: usize) -> Vec<u8> {
    let at = |i: usize| {
        let word =
            (u64::try_from(i / 8).unwrap() ^ stream.rotate_left(40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (word ^ (word >> 29)).to_le_bytes()[i % 8]
    };
    (offset..offset + len).map(at).collect()
}
