//! Events of one connection that have not been handled yet.

use crate::proto::QpIndex;
use crate::proto::frame::Frame;
use crate::proto::recovery::move_budget::Speed;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most events that may wait. A peer sends a few frames for each attempt, and then waits for
/// this end.
const MOST: usize = 1024;

/// An event.
#[derive(Debug)]
pub(super) enum Input {
    /// Something at this end has failed, for this reason.
    Fault(String),
    /// The peer has sent this frame.
    Frame(Frame),
    /// The control connection is back.
    Back,
    /// The peer is suspected to be dead.
    Doubted,
    /// The peer has gone.
    PeerGone,
    /// A port has changed.
    PortChanged,
    /// A port came up, or its addresses changed: what failed over it before may succeed now.
    PortReady,
    /// A queue pair of the device has failed, of this connection or another one.
    QueuePairFailed,
    /// This lane has stayed slow; the connection has this speed, if known.
    SlowLane(QpIndex, Option<Speed>),
    /// A fault: these lanes acknowledge nothing, as a bit mask of queue pairs.
    LaggingLanes(u32),
    /// More than [`MOST`] events.
    TooMuch,
}

impl Input {
    /// Whether both events lead to the same work.
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

/// The events in order.
#[derive(Debug, Default)]
pub(super) struct Inbox(Mutex<VecDeque<Input>>);

impl Inbox {
    /// Adds `input` unless an equal one waits already. Drops what exceeds the limit.
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

    /// Takes the oldest event out.
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
        // Slow lanes are reported repeatedly while none may move.
        (0..2 * MOST).for_each(|_| inbox.push(Input::SlowLane(QpIndex(1), None)));
        assert!(matches!(
            (inbox.pop(), inbox.pop()),
            (Some(Input::SlowLane(QpIndex(1), None)), None)
        ));
        (0..2 * MOST).for_each(|_| inbox.push(Input::Back));
        let taken: Vec<_> = std::iter::from_fn(|| inbox.pop()).collect();
        assert_eq!(taken.len(), MOST + 1);
        assert!(matches!(taken.last(), Some(Input::TooMuch)));
    }
}
