//! What the two real drivers do alike when they send.

use super::Counters;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};
use std::io::IoSlice;

/// `UIO_MAXIOV`: the kernel refuses more slices in one call.
const MAX_SLICES: usize = 1024;

/// What came of sending.
pub(super) enum Sent {
    /// Everything was taken.
    All(usize),
    /// The socket is full, or the kernel is short of memory: it says when there is space.
    Short(usize),
    /// The connection takes nothing any more; `reset` unless only our own direction was closed.
    Failed { reset: bool },
}

/// Sends from `bufs` in order, as much as the socket takes now. A single slice goes out by the plain call, which is the
/// cheaper one.
pub(super) fn transmit(fd: &OwnedFd, bufs: &[IoSlice<'_>], counters: &mut Counters) -> Sent {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let mut sent = 0;
    for slices in bufs.chunks(MAX_SLICES) {
        counters.sends += 1;
        let (want, result) = match slices {
            [one] => (one.len(), send(fd, one, flags)),
            _ => {
                let want = slices.iter().map(|s| s.len()).sum();
                (want, sendmsg(fd, slices, &mut SendAncillaryBuffer::default(), flags))
            }
        };
        let took = match result {
            Ok(took) => took,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => 0,
            Err(errno) => return Sent::Failed { reset: errno != Errno::PIPE },
        };
        sent += took;
        counters.bytes_sent += u64::try_from(took).unwrap_or(0);
        if took < want {
            return Sent::Short(sent);
        }
    }
    Sent::All(sent)
}
