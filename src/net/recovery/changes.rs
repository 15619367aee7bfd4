//! Changes of a connection's queue pairs without a fault: adding, dropping or moving lanes.
//!
//! One connection of a process at a time changes its number of lanes. A connection has no queue
//! pairs between destroying the old ones and creating the new ones. If many connections changed at
//! once, the growing ones could leave none to others on a card that is short of queue pairs. Each
//! would also wait for the commands of all.

use crate::proto::QpIndex;
use crate::proto::automatic_lanes::LaneChange;
use crate::proto::recovery::move_budget::MoveBudget;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a waiting connection tries to get its turn.
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
    /// Budget for lane moves.
    pub(super) budget: MoveBudget,
    /// A requested number of queue pairs that the peer has not been asked for yet.
    pub(super) requested: Option<LaneChange>,
    /// The change that the peer was asked for and that has not begun.
    pub(super) asked: Option<Change>,
    /// Held while the connection changes its number of queue pairs.
    pub(super) turn: Option<LaneTurn>,
}

impl Changes {
    /// Ends the change of lanes, so that another connection may begin one.
    pub(super) fn end_turn(&mut self) {
        self.turn = None;
    }

    /// Forgets an unanswered change: a change of lanes is requested again, a move is not, as
    /// another lane may be slow by then.
    pub(super) fn give_up(&mut self) {
        self.end_turn();
        if let Some(Change::Lanes(change)) = self.asked.take() {
            self.requested.get_or_insert(change);
        }
    }

    /// When to try again to get the turn.
    pub(super) fn next_try(&self, now: Instant) -> Option<Instant> {
        self.requested.map(|_| now + TURN_EVERY)
    }
}

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// While it lives, no other connection of this process has the turn.
#[derive(Debug)]
pub(super) struct LaneTurn(());

impl LaneTurn {
    /// Takes the turn; `None` if another connection has it.
    pub(super) fn take() -> Option<Self> {
        // `then`, not `then_some`, which would create a value and free the other connection's turn
        // on its drop.
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
