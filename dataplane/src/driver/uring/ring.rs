//! The ring itself: entries that carry no pointers go in, completions come out, and every operation is accounted.
//!
//! **Invariants**
//!
//! * An operation is in flight from [`Ring::push`] until its completion without `F_MORE` was taken by [`Ring::next`].
//! * No entry names memory of this process: addresses are the kernel's copies, received bytes go to the provided
//!   buffers. So the buffers are all that must outlive the operations, and the ring holds them.

#![allow(unsafe_code)] // the crate's interface

use super::pool::Pool;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use llmgw_routing::Nanos;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::time::Duration;

/// The one buffer group.
const GROUP: u16 = 0;
/// `SOCK_CLOEXEC | SOCK_NONBLOCK`
#[allow(clippy::cast_possible_wrap)] // small constants
const ACCEPT_FLAGS: i32 =
    (rustix::net::SocketFlags::CLOEXEC.bits() | rustix::net::SocketFlags::NONBLOCK.bits()) as i32;

/// Sizes of a ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Entries that may be queued before they are submitted.
    pub(super) submissions: u32,
    /// Completions that may wait before the kernel keeps them aside.
    pub(super) completions: u32,
    /// Provided buffers, a power of two.
    pub(super) buffers: u16,
    /// Bytes of each.
    pub(super) buffer_bytes: u32,
}

/// What to begin on a descriptor.
#[derive(Debug, Clone, Copy)]
pub(super) enum Op {
    /// Receive into provided buffers until told otherwise.
    ReceiveMany,
    /// Receive into one provided buffer.
    ReceiveOne,
    /// Accept until told otherwise.
    AcceptMany,
    /// Wait once for a readiness of `poll(2)`; errors and hang-ups always count.
    Poll(u32),
    /// The same again and again, told at each edge.
    PollMany(u32),
}

/// What the kernel says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Completion {
    pub(super) user_data: u64,
    /// A count, a descriptor, a mask, or an error.
    pub(super) result: Result<u32, Errno>,
    /// The provided buffer it comes with.
    pub(super) buffer: Option<u16>,
    /// More completions of the same operation follow.
    pub(super) more: bool,
}

/// See the module.
pub(super) struct Ring {
    /// Closed before the buffers may go.
    uring: ManuallyDrop<IoUring>,
    pool: ManuallyDrop<Rc<Pool>>,
    in_flight: usize,
    overflows: u64,
}

impl Ring {
    /// A ring of the calling thread's, with its buffers.
    pub(super) fn new(sizes: Sizes) -> io::Result<Ring> {
        let uring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_clamp()
            .setup_submit_all()
            .setup_cqsize(sizes.completions)
            .dontfork()
            .build(sizes.submissions)?;
        let pool = Pool::new(sizes.buffers, sizes.buffer_bytes)?;
        // SAFETY: the entries are at the start of the pool's mapping, `count` of them, and stay until the group is
        // unregistered or the ring is gone: `Ring` holds the pool and sees to the order when dropped.
        unsafe {
            uring.submitter().register_buf_ring_with_flags(pool.ring_address(), pool.count(), GROUP, 0)?;
        }
        pool.fill();
        let (uring, pool) = (ManuallyDrop::new(uring), ManuallyDrop::new(pool));
        Ok(Ring { uring, pool, in_flight: 0, overflows: 0 })
    }

    pub(super) fn pool(&self) -> &Rc<Pool> {
        &self.pool
    }

    /// Operations whose last completion was not taken yet.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Times that completions were found not to fit.
    pub(super) fn overflows(&self) -> u64 {
        self.overflows
    }

    /// Begins an operation; submitted with the next [`Ring::enter`].
    pub(super) fn push(&mut self, fd: BorrowedFd<'_>, op: Op, user_data: u64) {
        let fd = Fd(fd.as_raw_fd());
        let entry = match op {
            Op::ReceiveMany => opcode::RecvMulti::new(fd, GROUP).build(),
            Op::ReceiveOne => opcode::Recv::new(fd, std::ptr::null_mut(), self.pool.buffer_bytes())
                .buf_group(GROUP)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT),
            Op::AcceptMany => opcode::AcceptMulti::new(fd).flags(ACCEPT_FLAGS).build(),
            Op::Poll(mask) => opcode::PollAdd::new(fd, mask).build(),
            Op::PollMany(mask) => opcode::PollAdd::new(fd, mask).multi(true).build(),
        };
        self.push_entry(&entry.user_data(user_data));
    }

    /// Asks the kernel to end the operation that was pushed with `target`; answered under `user_data`.
    pub(super) fn push_cancel(&mut self, target: u64, user_data: u64) {
        self.push_entry(&opcode::AsyncCancel::new(target).build().user_data(user_data));
    }

    /// Asks the kernel to end all operations.
    pub(super) fn push_cancel_all(&mut self, user_data: u64) {
        let any = io_uring::types::CancelBuilder::any();
        self.push_entry(&opcode::AsyncCancel2::new(any).build().user_data(user_data));
    }

    fn push_entry(&mut self, entry: &squeue::Entry) {
        self.in_flight += 1;
        // SAFETY: the entry holds no pointer (see the module), so nothing must be kept valid for it.
        while unsafe { self.uring.submission().push(entry) }.is_err() {
            self.enter(Some(0));
        }
    }

    /// Submits what was pushed and lets the kernel do what it put off. Waits until a completion is there, for at
    /// most `timeout_ns`; 0 does not wait, and does not even enter the kernel when there is nothing to do.
    ///
    /// # Panics
    ///
    /// When the kernel refuses or has lost completions: see [`Ring::try_enter`]. The shard cannot go on then.
    pub(super) fn enter(&mut self, timeout_ns: Option<Nanos>) {
        if let Err(errno) = self.try_enter(timeout_ns) {
            panic!("the ring cannot be used any more: io_uring_enter: {errno}");
        }
    }

    /// The same, for where the ring is not relied on.
    ///
    /// # Errors
    ///
    /// The call is refused, or (`EBADR`) the kernel had no memory for a completion: operations are lost, and so is
    /// what they concern.
    pub(super) fn try_enter(&mut self, timeout_ns: Option<Nanos>) -> Result<(), Errno> {
        let (queued, overflow, deferred) = {
            let queue = self.uring.submission();
            (queue.len(), queue.cq_overflow(), queue.taskrun())
        };
        self.overflows += u64::from(overflow);
        let wait = timeout_ns != Some(0);
        if !wait && queued == 0 && !overflow && !deferred {
            return Ok(());
        }
        let timeout = Timespec::from(Duration::from_nanos(timeout_ns.unwrap_or(0)));
        let mut args = SubmitArgs::new();
        if wait && timeout_ns.is_some() {
            args = args.timespec(&timeout);
        }
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        let queued = u32::try_from(queued).unwrap_or(u32::MAX);
        // SAFETY: `args` and the time it points to live until the call returns.
        let entered =
            unsafe { self.uring.submitter().enter(queued, u32::from(wait), flags.bits(), Some(&args)) };
        match entered.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)) {
            // Busy and again: completions must be taken first, or memory is short: the next call goes on.
            Ok(_) | Err(Errno::INTR | Errno::TIME | Errno::BUSY | Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Takes what an accept's completion names.
    pub(super) fn accepted(descriptor: u32) -> OwnedFd {
        let descriptor = i32::try_from(descriptor).unwrap_or(-1);
        assert!(descriptor >= 0, "the kernel names descriptor {descriptor}");
        // SAFETY: the kernel just opened it for us and tells of it once.
        unsafe { OwnedFd::from_raw_fd(descriptor) }
    }

    /// Completions did not fit and the kernel holds them: enter again.
    pub(super) fn overflowed(&mut self) -> bool {
        self.uring.submission().cq_overflow()
    }

    /// The next completion.
    pub(super) fn next(&mut self) -> Option<Completion> {
        let entry = self.uring.completion().next()?;
        let (result, flags) = (entry.result(), entry.flags());
        let more = cqueue::more(flags);
        if !more {
            debug_assert!(self.in_flight > 0);
            self.in_flight -= 1;
        }
        let result = u32::try_from(result).map_err(|_| Errno::from_raw_os_error(result.saturating_neg()));
        Some(Completion { user_data: entry.user_data(), result, buffer: cqueue::buffer_select(flags), more })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let unregistered = self.uring.submitter().unregister_buf_ring(GROUP);
        let settled = self.in_flight == 0 && unregistered.is_ok();
        // SAFETY: dropped here only, and not used after.
        unsafe { ManuallyDrop::drop(&mut self.uring) };
        if settled {
            // SAFETY: as above. Nothing is in flight, so the kernel writes to no buffer any more.
            unsafe { ManuallyDrop::drop(&mut self.pool) };
        }
        // Otherwise the kernel ends what is left in its own time, and the buffers stay until the process ends.
    }
}
