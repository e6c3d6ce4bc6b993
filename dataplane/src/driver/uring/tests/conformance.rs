//! The suite, over a ring of the usual sizes and over one in which everything runs out all the time.

use crate::driver::conformance::over_epoll::{EpollHarness, OverLoopback};
use crate::driver::conformance::suite;
use crate::driver::uring::UringDriver;
use rustix::fd::OwnedFd;

impl OverLoopback for UringDriver {
    fn open(listener: OwnedFd) -> Self {
        UringDriver::new(vec![listener]).unwrap()
    }
}

mod usual {
    use super::*;
    suite!(EpollHarness<UringDriver>);
}
