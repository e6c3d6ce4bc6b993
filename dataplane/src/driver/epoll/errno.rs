//! What the kernel's errors mean to a shard.

use super::ConnError;
use rustix::io::Errno;

/// No connection can be accepted now, rather than that one is gone.
pub(in crate::driver) fn cannot_accept_now(errno: Errno) -> bool {
    use Errno as E;
    !matches!(
        errno,
        E::CONNABORTED
            | E::INTR
            | E::PROTO
            | E::NETDOWN
            | E::NOPROTOOPT
            | E::HOSTDOWN
            | E::NONET
            | E::HOSTUNREACH
            | E::OPNOTSUPP
            | E::NETUNREACH
            | E::PERM
            | E::TIMEDOUT
    )
}

pub(in crate::driver) fn connect_error(errno: Errno) -> ConnError {
    match errno {
        Errno::CONNREFUSED => ConnError::Refused,
        Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED => ConnError::Reset,
        _ if is_local(errno) => ConnError::Local,
        _ => ConnError::Unreachable,
    }
}

pub(in crate::driver) fn reset_error(errno: Errno) -> ConnError {
    match errno {
        Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NETDOWN => ConnError::Unreachable,
        _ if is_local(errno) => ConnError::Local,
        _ => ConnError::Reset,
    }
}

fn is_local(errno: Errno) -> bool {
    use Errno as E;
    matches!(
        errno,
        E::ADDRNOTAVAIL | E::ADDRINUSE | E::MFILE | E::NFILE | E::NOBUFS | E::NOMEM | E::NOSPC | E::AGAIN
    )
}
