//! Drivers move bytes; the shard decides. One interface, so that the same shard runs over epoll, over io_uring and
//! over a simulated network with a virtual clock.
//!
//! # Contract
//!
//! * The shard names connections by [`Token`]: a slot index and a generation. An index may be given to a new
//!   connection (with a higher generation) as soon as [`Driver::close`] returned.
//! * A driver may deliver events that were under way when the shard closed, paused or shut down a connection: late,
//!   or in another order between connections. It never delivers bytes of one connection under another's token, and
//!   never reorders the bytes of one. The shard ignores events whose generation is not current.
//! * Received bytes are lent ([`Driver::Lent`]): the shard uses them during the event and gives them back with
//!   [`Driver::recycle`]; it never owns a read buffer, so an idle connection holds none.
//! * [`Driver::send`] takes what the socket takes now and says how much. If that is less than all, exactly one
//!   [`Event::Writable`] follows once more can be taken. The shard keeps the rest.
//! * After [`Driver::pause`], at most [`MAX_LATE_BYTES`] more may be delivered for a connection until
//!   [`Driver::resume`]. [`Event::Hangup`] is delivered even while paused.
//! * End of input is delivered once: [`Event::Eof`] after all bytes, or [`Event::Reset`]. A `Reset` may also follow an
//!   `Eof`: the connection died in the sending direction. Nothing follows a `Reset`.
//! * A connection reset while paused is told at once: by `Reset`, or, if bytes are unread (they may be the whole
//!   answer), by `Hangup`, and then `Reset` after the bytes once resumed.
//! * Every failure of an established connection is an event, never a panic: `send` on a dead connection answers
//!   [`SendError`].

use llmgw_routing::Nanos;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;

pub mod clock;
pub mod epoll;
pub mod listen;
pub mod sim;
mod transmit;
pub mod uring;

#[cfg(test)]
mod conformance;

/// Most bytes that may still be delivered for a connection after it was paused: one read buffer.
pub const MAX_LATE_BYTES: usize = 32 * 1024;

/// Names a connection of a shard: slot index in the low 32 bits, generation in the high 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

impl Token {
    /// Builds a token.
    pub fn new(index: u32, generation: u32) -> Self {
        Token(u64::from(generation) << 32 | u64::from(index))
    }
    /// Slot index.
    #[allow(clippy::cast_possible_truncation)] // the low half is the index
    pub fn index(self) -> u32 {
        self.0 as u32
    }
    /// Generation.
    #[allow(clippy::cast_possible_truncation)] // the high half is the generation
    pub fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Why a connection failed, as far as a decision depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnError {
    /// Nobody listens there.
    Refused,
    /// The peer reset the connection.
    Reset,
    /// No route, network down, host unreachable, or the kernel's own connect timeout.
    Unreachable,
    /// Out of descriptors, ports or memory on this side.
    Local,
}

/// What a driver did since it was made, for metrics. Counts only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Waits that returned, those that did not wait included.
    pub wakeups: u64,
    /// Calls to receive.
    pub recvs: u64,
    /// Calls to send.
    pub sends: u64,
    /// Calls to accept, those that found nothing included.
    pub accept_calls: u64,
    /// Connections accepted.
    pub accepts: u64,
    /// Connects begun.
    pub connects: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Bytes the kernel took.
    pub bytes_sent: u64,
}

/// The connection takes no more. What it delivered before, and its end ([`Event::Eof`] or [`Event::Reset`]) if that was
/// not told yet, still follow: an early answer may lie behind a failed write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendError;

/// What happened.
#[derive(Debug)]
pub enum Event<S, L> {
    /// A client connected. The shard adopts the socket, hands it to another shard, or drops it (closing it).
    Accepted {
        /// Not yet read from.
        socket: S,
        /// The client's address.
        peer: IpAddr,
    },
    /// Accepting failed for want of descriptors or memory; the driver has paused accepting by itself for a moment.
    AcceptFailed,
    /// A [`Driver::connect`] succeeded.
    Connected(Token),
    /// A [`Driver::connect`] failed; the token is dead, and the shard still calls [`Driver::close`].
    ConnectFailed(Token, ConnError),
    /// Bytes, in order.
    Data(Token, L),
    /// The peer sent FIN and every byte before it was delivered.
    Eof(Token),
    /// The peer is seen to have closed its side while bytes before the FIN are still unread (the connection is
    /// paused). Delivered at most once; `Eof` still follows after a resume.
    Hangup(Token),
    /// The connection is dead.
    Reset(Token, ConnError),
    /// More can be sent.
    Writable(Token),
    /// [`Bell::ring`] was called at least once since the last.
    Doorbell,
}

/// Wakes a shard from another thread. Cheap when the shard is already awake.
pub trait Bell: Send + Sync {
    /// Makes the driver deliver [`Event::Doorbell`].
    fn ring(&self);
}

/// One shard's I/O. Not `Sync`; lives on the shard's thread.
pub trait Driver {
    /// An accepted socket that no shard has adopted yet; dropping it closes it.
    type Socket: Send + 'static;
    /// Lent bytes.
    type Lent: Deref<Target = [u8]>;

    /// Monotonic time; advances only in [`Driver::poll`] as far as the shard is concerned (one reading a wake-up).
    fn now(&self) -> Nanos;
    /// Unix time in nanoseconds at the same reading, for records and headers.
    fn wall(&self) -> u64;
    /// What was done so far.
    fn counters(&self) -> Counters {
        Counters::default()
    }
    /// Handle to wake this driver.
    fn bell(&self) -> Arc<dyn Bell>;

    /// Waits until something happens or `deadline` (monotonic) passes; `None` waits for an event only. A deadline in
    /// the past polls without waiting.
    fn poll(&mut self, deadline: Option<Nanos>);
    /// Takes the next event gathered by the last [`Driver::poll`]; `None` when there is none left. Fair: no
    /// connection gets more than one read buffer's worth before others had their turn.
    fn next_event(&mut self) -> Option<Event<Self::Socket, Self::Lent>>;
    /// Gives lent bytes back.
    fn recycle(&mut self, lent: Self::Lent);

    /// Starts to accept again. A new driver accepts.
    fn resume_accept(&mut self);
    /// Stops accepting; connections wait in the kernel's backlog.
    fn pause_accept(&mut self);
    /// Closes the listeners for good.
    fn close_listeners(&mut self);

    /// Takes an accepted socket under a token and starts receiving.
    fn adopt(&mut self, token: Token, socket: Self::Socket);
    /// Starts to connect; [`Event::Connected`] or [`Event::ConnectFailed`] follows, never before this returned.
    /// Receiving starts by itself once connected.
    fn connect(&mut self, token: Token, address: SocketAddr);
    /// Sends from `bufs` in order. See the contract.
    fn send(&mut self, token: Token, bufs: &[IoSlice<'_>]) -> Result<usize, SendError>;
    /// Stops delivering bytes.
    fn pause(&mut self, token: Token);
    /// Delivers bytes again.
    fn resume(&mut self, token: Token);
    /// Sends FIN after what was sent; receiving goes on.
    fn shutdown_write(&mut self, token: Token);
    /// Closes. With `abort`, the peer sees a reset rather than an orderly end where the transport can say so.
    fn close(&mut self, token: Token, abort: bool);
}
