//! What has happened to one connection and has not been handled yet.

use crate::proto::QpIndex;
use crate::proto::automatic_lanes::{LaneChange, Speed};
use crate::proto::frame::Frame;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// So much may wait. A peer says a few things for each attempt, and then waits for this end.
const MOST: usize = 1024;

/// What has happened.
#[derive(Debug)]
pub(super) enum Input {
    /// Something of this end has failed, for this reason.
    Fault(String),
    /// The peer has sent this.
    Frame(Frame),
    /// There is a control connection again.
    Back,
    /// It is doubted that the peer lives.
    Doubted,
    /// The peer has gone.
    PeerGone,
    /// Something has changed at a port.
    PortChanged,
    /// A port came up, or its addresses changed: what failed over it before may succeed now.
    PortReady,
    /// A queue pair of the device has failed, of this connection or another one.
    QueuePairFailed,
    /// This lane has stayed slow, and the connection has this speed, if that is known.
    SlowLane(QpIndex, Option<Speed>),
    /// The sender is to have another number of queue pairs.
    Lanes(LaneChange),
    /// Over these lanes, as a bit mask of queue pairs, nothing has been acknowledged, which is a fault.
    LaggingLanes(u32),
    /// More than [`MOST`] of these.
    TooMuch,
}

impl Input {
    /// Whether it is one that is there already.
    fn is_like(&self, other: &Self) -> bool {
        matches!(
            (self, other),
            (Self::PortChanged, Self::PortChanged)
                | (Self::PortReady, Self::PortReady)
                | (Self::QueuePairFailed, Self::QueuePairFailed)
                | (Self::SlowLane(..), Self::SlowLane(..))
        )
    }
}

/// What has happened, in order.
#[derive(Debug, Default)]
pub(super) struct Inbox(Mutex<VecDeque<Input>>);

impl Inbox {
    /// Adds `input`, unless it asks for a look that is to be taken already. What is too much is not kept.
    pub(super) fn push(&self, input: Input) {
        let mut inputs = self.lock();
        if inputs.back().is_some_and(|last| last.is_like(&input)) {
            return;
        }
        if inputs.len() < MOST {
            inputs.push_back(input);
        } else if inputs.len() == MOST {
            inputs.push_back(Input::TooMuch);
        }
    }

    /// Takes the oldest out.
    pub(super) fn pop(&self) -> Option<Input> {
        self.lock().pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Input>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_asked_for_once_and_what_is_too_much_is_said_once() {
        let inbox = Inbox::default();
        [Input::PortChanged, Input::PortChanged, Input::QueuePairFailed]
            .into_iter()
            .for_each(|input| inbox.push(input));
        let taken: Vec<_> = std::iter::from_fn(|| inbox.pop()).collect();
        assert!(matches!(taken[..], [Input::PortChanged, Input::QueuePairFailed]), "{taken:?}");
        // Lanes are named again and again while none may move.
        (0..2 * MOST).for_each(|_| inbox.push(Input::SlowLane(QpIndex(1), None)));
        assert!(matches!((inbox.pop(), inbox.pop()), (Some(Input::SlowLane(QpIndex(1), None)), None)));
        (0..2 * MOST).for_each(|_| inbox.push(Input::Back));
        let taken: Vec<_> = std::iter::from_fn(|| inbox.pop()).collect();
        assert_eq!(taken.len(), MOST + 1);
        assert!(matches!(taken.last(), Some(Input::TooMuch)));
    }
}
