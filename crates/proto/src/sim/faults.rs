//! The faults of a run.

use super::control::Cause;
use super::fabric::{End, Status};
use super::plan::Plan;
use crate::QpIndex;
use crate::random::Random;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A port goes down, and comes back before a queue pair has used up its retries.
    PortFlaps(End, usize),
    /// The control connection is reset. It can be dialled again.
    ControlLost,
    /// A port goes down for good.
    PortDown(End, usize),
    /// One end of a queue pair goes to the error state, whatever it has under way.
    QpFails(End, QpIndex),
    /// No acknowledgement reaches this end of a queue pair any more: what is delivered is reported as failed.
    AcksLost(End, QpIndex),
    /// The process of an end is killed; its kernel closes its connections.
    Killed(End),
    /// The host of an end fails, without a word to the other.
    HostFails(End),
}

impl Fault {
    /// One that the connection outlives.
    pub(super) fn survivable(random: &mut Random, plan: &Plan) -> Self {
        let end = any_end(random);
        if random.one_in(2) { Self::PortFlaps(end, random.index(plan.rails())) } else { Self::ControlLost }
    }

    /// One that ends the connection, if it is not finished by then.
    pub(super) fn fatal(random: &mut Random, plan: &Plan) -> Self {
        let end = any_end(random);
        let qp = QpIndex(random.index(plan.qps()) as u8);
        match random.below(5) {
            0 => Self::PortDown(end, random.index(plan.rails())),
            1 => Self::QpFails(end, qp),
            2 => Self::AcksLost(end, qp),
            3 => Self::Killed(end),
            _ => Self::HostFails(end),
        }
    }

    pub(super) fn is_fatal(self) -> bool {
        !matches!(self, Self::PortFlaps(..) | Self::ControlLost)
    }

    /// Whether `end` reports `cause` after this fault, according to the documentation.
    pub(super) fn explains(self, end: End, cause: Cause) -> bool {
        let is_own = |cause| matches!(cause, Cause::WorkRequest(Status::RetryExceeded | Status::Flushed));
        match self {
            Self::PortFlaps(..) | Self::ControlLost => false,
            // A remote error also comes of a write to a region that the other end has deregistered after its own failure.
            Self::PortDown(..) | Self::AcksLost(..) | Self::QpFails(..) => {
                is_own(cause)
                    || cause == Cause::WorkRequest(Status::RemoteError)
                    || cause == Cause::PeerFailed
                    || cause == Cause::PeerClosed
            }
            Self::Killed(killed) => end != killed && (is_own(cause) || cause == Cause::PeerDied),
            // Nothing is heard of a host that has failed, but from the device that does not get an answer.
            Self::HostFails(failed) => end != failed && is_own(cause),
        }
    }
}

fn any_end(random: &mut Random) -> End {
    if random.one_in(2) { End::Sender } else { End::Receiver }
}
