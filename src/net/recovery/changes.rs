//! Changes of a connection's queue pairs that no fault asks for: lanes that it takes, gives up or moves to other paths.
//!
//! One connection of a process at a time takes lanes, or gives them up. A connection has no queue pairs between the end of the old ones and the
//! beginning of the new ones. Were there many such connections, those that take more than they had could leave none to others, where a
//! card is short of queue pairs; and each would wait for the commands of all.

use crate::proto::QpIndex;
use crate::proto::automatic_lanes::LaneChange;
use crate::proto::recovery::move_budget::MoveBudget;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a connection that waits for its turn asks for it.
const TURN_EVERY: Duration = Duration::from_millis(100);

/// A change.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    /// Another number of queue pairs.
    Lanes(LaneChange),
    /// Another path for the lane of this queue pair.
    Move(QpIndex),
}

/// The changes of one connection.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Of lanes that get other paths.
    pub(super) budget: MoveBudget,
    /// Another number of queue pairs is wanted, and the peer is not asked.
    pub(super) requested: Option<LaneChange>,
    /// The peer is asked for that, and it has not begun.
    pub(super) asked: Option<Change>,
    /// Held while the connection changes the number of its queue pairs.
    pub(super) turn: Option<LaneTurn>,
}

impl Changes {
    /// The change of lanes is over: another connection may begin one.
    pub(super) fn end_turn(&mut self) {
        self.turn = None;
    }

    /// Nothing has come of what the peer was asked for: lanes are asked for again, and another lane may be slow by then.
    pub(super) fn give_up(&mut self) {
        self.end_turn();
        if let Some(Change::Lanes(change)) = self.asked.take() {
            self.requested.get_or_insert(change);
        }
    }

    /// When the turn is to be asked for again.
    pub(super) fn next_try(&self, now: Instant) -> Option<Instant> {
        self.requested.map(|_| now + TURN_EVERY)
    }
}

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// While it lives, no other connection of this process has one.
#[derive(Debug)]
pub(super) struct LaneTurn(());

impl LaneTurn {
    /// `None`: another connection has it.
    pub(super) fn take() -> Option<Self> {
        // `then`, not `then_some`: a value that is made and dropped would free the other connection's turn.
        (!IS_TAKEN.swap(true, Ordering::AcqRel)).then(|| Self(()))
    }
}

impl Drop for LaneTurn {
    fn drop(&mut self) {
        IS_TAKEN.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_at_a_time() {
        let turn = LaneTurn::take();
        assert!(turn.is_some() && LaneTurn::take().is_none());
        assert!(LaneTurn::take().is_none(), "what was not had is not given back");
        drop(turn);
        assert!(LaneTurn::take().is_some());
    }
}
