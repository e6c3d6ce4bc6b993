//! Waiting until an instant, to some tens of microseconds.
//!
//! The runtime's own timers count whole milliseconds, which would show up in every latency measured from a due time; a
//! timer descriptor is as exact as the kernel's clock.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::units::now;

/// One timer, for one waiter at a time.
#[derive(Debug)]
pub struct Pacer(AsyncFd<OwnedFd>);

impl Pacer {
    /// Makes the timer; needs a running runtime.
    pub fn new() -> io::Result<Pacer> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // Deprecated for types whose descriptor may change under the reactor; an OwnedFd's never does. Its successor
        // differs in being `unsafe` alone.
        #[allow(deprecated)]
        let timer = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Pacer(timer))
    }

    /// Returns once `due` has come; at once if it has passed.
    pub async fn wait_until(&self, due: Instant) -> io::Result<()> {
        loop {
            let left = due.saturating_duration_since(now());
            if left.is_zero() {
                return Ok(());
            }
            let value = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
            timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
            let mut ready = self.0.readable().await?;
            let mut expirations = [0_u8; 8];
            match rustix::io::read(self.0.get_ref(), &mut expirations) {
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => {}
                Err(e) => return Err(e.into()),
            }
            ready.clear_ready();
        }
    }
}
