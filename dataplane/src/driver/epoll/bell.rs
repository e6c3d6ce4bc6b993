//! The doorbell: an eventfd that is written only when the shard sleeps.
//!
//! One word holds who is where. The shard goes from awake to asleep just before it waits and back after; a ringer
//! swaps in rung and writes the eventfd only if it took the place of asleep. A ring can neither be lost (the shard
//! does not wait if it cannot go from awake to asleep) nor cost a system call while the shard is awake.

use super::super::Bell;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const RUNG: u8 = 2;

/// Shared by the driver and whoever rings.
#[derive(Debug)]
pub(in crate::driver) struct EventfdBell {
    state: AtomicU8,
    eventfd: OwnedFd,
}

impl EventfdBell {
    pub(in crate::driver) fn new() -> Result<Self, rustix::io::Errno> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(EventfdBell { state: AtomicU8::new(AWAKE), eventfd })
    }

    /// Registered edge-triggered, so that it need never be read: each write is an edge.
    pub(in crate::driver) fn fd(&self) -> &OwnedFd {
        &self.eventfd
    }

    /// Tells ringers to write the eventfd from now on; `false` if it was rung already, and the shard must not wait.
    pub(in crate::driver) fn fall_asleep(&self) -> bool {
        self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether it was rung since the last call. What a ringer wrote before it rang is visible after this.
    pub(in crate::driver) fn wake_up(&self) -> bool {
        self.state.swap(AWAKE, Ordering::AcqRel) == RUNG
    }
}

impl Bell for EventfdBell {
    fn ring(&self) {
        // Always a swap, never a load first: the ringer's earlier writes must be released even if it is not the first.
        if self.state.swap(RUNG, Ordering::AcqRel) == ASLEEP {
            // Fails only if the counter is full: then the descriptor is readable already.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }
}
