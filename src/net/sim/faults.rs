//! The faults of a run.

use super::control::Cause;
use super::fabric::{End, FLUSHED, REMOTE_ACCESS_ERROR};
use crate::proto::random::Random;
use crate::verbs::status::Status;

/// A rail or a queue pair is any of the connection's: the number is taken modulo how many it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A port goes down, and comes back before a queue pair has used up its retries.
    PortFlaps(End, usize),
    /// The control connection is reset. It can be dialled again.
    ControlLost,
    /// A port goes down for good.
    PortDown(End, usize),
    /// One end of a queue pair goes to the error state, whatever it has under way.
    QpFails(End, usize),
    /// No acknowledgement reaches this end of a queue pair any more: what is delivered is reported
    /// as failed.
    AcksLost(End, usize),
    /// The process of an end is killed; its kernel closes its connections.
    Killed(End),
    /// The host of an end fails, without a word to the other.
    HostFails(End),
}

impl Fault {
    /// One that the connection outlives.
    pub(super) fn survivable(random: &mut Random) -> Self {
        let end = any_end(random);
        if random.one_in(2) { Self::PortFlaps(end, random.index(64)) } else { Self::ControlLost }
    }

    /// One that ends the connection, if it is not finished by then.
    pub(super) fn fatal(random: &mut Random) -> Self {
        let end = any_end(random);
        let which = random.index(64);
        match random.below(5) {
            0 => Self::PortDown(end, which),
            1 => Self::QpFails(end, which),
            2 => Self::AcksLost(end, which),
            3 => Self::Killed(end),
            _ => Self::HostFails(end),
        }
    }

    pub(super) fn is_fatal(self) -> bool {
        !matches!(self, Self::PortFlaps(..) | Self::ControlLost)
    }

    /// Whether `end` reports `cause` after this fault, according to the documentation.
    pub(super) fn explains(self, end: End, cause: Cause) -> bool {
        let is_own = [Status::RETRY_EXCEEDED, FLUSHED].map(Cause::WorkRequest).contains(&cause);
        match self {
            Self::PortFlaps(..) | Self::ControlLost => false,
            // A remote error also comes of a write to a region that the other end has deregistered
            // after its own failure.
            Self::PortDown(..) | Self::AcksLost(..) | Self::QpFails(..) => {
                let others =
                    [Cause::WorkRequest(REMOTE_ACCESS_ERROR), Cause::PeerFailed, Cause::PeerClosed];
                is_own || others.contains(&cause)
            }
            Self::Killed(killed) => end != killed && (is_own || cause == Cause::PeerDied),
            // Nothing is heard of a host that has failed, but from the device that does not get an
            // answer.
            Self::HostFails(failed) => end != failed && is_own,
        }
    }
}

fn any_end(random: &mut Random) -> End {
    if random.one_in(2) { End::Sender } else { End::Receiver }
}
