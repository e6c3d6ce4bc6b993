//! One suite for every driver.
//!
//! A driver's author writes a [`Harness`] (how to make a driver, and how to act as the machine at the other end), and
//! in a test module of the driver:
//!
//! ```ignore
//! crate::driver::conformance::suite!(MyHarness);
//! ```
//!
//! which makes a `#[test]` of every case. The cases look at nothing but events and what peers see, and [`World`]
//! checks the contract of `driver/mod.rs` on every event of every case, whatever the case is about.
//!
//! Peers never block: an operation does what can be done now. Cases poll the driver in between, with deadlines a few
//! milliseconds ahead, so that a simulated network moves its virtual clock on exactly by being polled.

pub(crate) mod cases;
pub(crate) mod churn;
pub(crate) mod over_epoll;
pub(crate) mod world;

use super::Driver;
use std::net::SocketAddr;

/// What a peer finds when it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerRead {
    /// So many bytes were appended.
    Bytes(usize),
    /// Nothing there now.
    Nothing,
    /// Orderly end of input.
    Eof,
    /// The connection was reset.
    Reset,
}

/// A driver with one listener, and the machine at the other end.
pub(crate) trait Harness: Sized {
    /// The driver under test.
    type Driver: Driver;
    /// A connection's other end. Dropping it closes it.
    type Peer;
    /// Time passes by itself and other threads run: the cases about sleeping and waking are meaningful.
    const REAL_TIME: bool;

    /// A new driver. `seed` decides what chance decides, if anything.
    fn new(seed: u64) -> Self;
    /// The driver.
    fn driver(&mut self) -> &mut Self::Driver;

    /// The peer starts to connect to the driver's listener.
    fn peer_connect(&mut self) -> Self::Peer;
    /// An address where the peer listens.
    fn peer_address(&mut self) -> SocketAddr;
    /// An address where nobody listens.
    fn refusing_address(&mut self) -> SocketAddr;
    /// A connection the driver made to [`Harness::peer_address`], in the order made; `None` if none came yet.
    fn peer_accept(&mut self) -> Option<Self::Peer>;
    /// The peer sends what its socket takes now. 0 if it is full or dead.
    fn peer_send(&mut self, peer: &mut Self::Peer, bytes: &[u8]) -> usize;
    /// The peer reads at most 64 KiB of what has arrived.
    fn peer_read(&mut self, peer: &mut Self::Peer, into: &mut Vec<u8>) -> PeerRead;
    /// The peer sends FIN after what it sent.
    fn peer_shutdown(&mut self, peer: &mut Self::Peer);
    /// The peer resets the connection.
    fn peer_reset(&mut self, peer: Self::Peer);
    /// Descriptors open in this process, where that can be told and no other test disturbs the count.
    fn descriptors(&self) -> Option<usize> {
        None
    }
}

/// Makes a test of every case for one harness.
macro_rules! suite {
    ($harness:ty) => {
        $crate::driver::conformance::suite!(@cases $harness;
            accept_data_eof, adopt_by_token, dropped_socket_closes, large_transfer_both_ways,
            pause_stops_and_resume_loses_nothing, hangup_while_paused, pause_after_the_peer_closed, reset,
            reset_while_paused, reset_after_unread_bytes, connect_ok, connect_refused,
            send_before_connected, send_after_peer_reset, shutdown_write_keeps_receiving, close_is_orderly,
            close_with_abort_is_a_reset, empty_send, many_slices,
            stale_events_never_reach_the_next_generation, doorbell_is_coalesced, doorbell_wakes_a_sleeper,
            deadline_is_not_early, fairness, no_wait_while_bytes_are_queued,
            accept_pauses_and_listeners_close
        );
        #[test]
        fn churn() {
            for seed in 1..=4 {
                $crate::driver::conformance::churn::churn::<$harness>(seed);
            }
        }
    };
    (@cases $harness:ty; $($case:ident),+) => {
        $(
            #[test]
            fn $case() {
                $crate::driver::conformance::cases::$case::<$harness>();
            }
        )+
    };
}
pub(crate) use suite;

mod epoll {
    super::suite!(super::over_epoll::EpollHarness);
}
