//! Bugs planted behind a test switch: the seeded simulation must find each of them, or it would not find a real one.
//!
//! `crate::planted!(Name)` is the constant `false` without the feature `simtest`; with it, it asks the thread which bug
//! was planted. A planted bug never compiles into a shipped binary.

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A late event of a closed connection reaches the connection that took its slot.
    GenerationIgnored,
    /// An in-flight count is given back twice.
    DoubleRelease,
    /// A client's leaving does not close the engine's connection.
    LostCancel,
    /// The engine's connection is not paused for a client that does not read.
    PauseLost,
    /// An engine's connection goes back to the pool before its response ended.
    EarlyReuse,
    /// A paused engine connection is never resumed.
    ResumeLost,
    /// The held tail of a stream is lost when the rest of its event arrives.
    TailDropped,
    /// A request is sent to another engine after its answer began to go to the client.
    RetryAfterCommit,
    /// The withheld usage chunk reaches the client, or another chunk is withheld.
    UsageLeak,
    /// An earlier deadline does not replace a later one.
    DeadlineNotRearmed,
    /// Held body bytes are not given back to the process's account.
    BufferNotReleased,
    /// Pipelined bytes that wait for the previous response are kept in the wrong order.
    PipelineOrder,
}

/// Every planted bug.
pub const ALL: &[Bug] = &[
    Bug::GenerationIgnored,
    Bug::DoubleRelease,
    Bug::LostCancel,
    Bug::PauseLost,
    Bug::EarlyReuse,
    Bug::ResumeLost,
    Bug::TailDropped,
    Bug::RetryAfterCommit,
    Bug::UsageLeak,
    Bug::DeadlineNotRearmed,
    Bug::BufferNotReleased,
    Bug::PipelineOrder,
];

/// Whether the bug is planted on this thread: `false`, a constant, without the feature `simtest`.
#[macro_export]
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::active($crate::planted::Bug::$bug)
    };
}

/// Always `false` in this build.
#[cfg(not(feature = "simtest"))]
#[inline(always)]
pub const fn active(_bug: Bug) -> bool {
    false
}

#[cfg(feature = "simtest")]
pub use switch::{active, plant};

#[cfg(feature = "simtest")]
mod switch {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Whether `bug` is planted on this thread.
    pub fn active(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Plants a bug on this thread, or none.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }
}
