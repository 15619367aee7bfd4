//! Voluntary changes of queue pairs: more or fewer lanes, and other paths for slow lanes.

use super::changes::{Change, LaneTurn};
use super::conn::{ConnRecovery, Work};
use super::inbox::Input;
use super::log_lines;
use crate::net::qp::reach::Silent;
use crate::proto::QpIndex;
use crate::proto::automatic_lanes::{LaneChange, Speed};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl ConnRecovery {
    /// Sender: reports that the lane of queue pair `qp` has stayed slow while others have not.
    /// `speed` is that of the connection, if known.
    pub fn report_slow_lane(&self, qp: QpIndex, speed: Option<Speed>) {
        // Wakes no thread while no lane may move.
        if self.now().as_millis() as u64 >= self.next_move_ms.load(Ordering::Relaxed) {
            self.put_or_wait(Input::SlowLane(qp, speed));
        }
    }

    /// Sender: requests another number of queue pairs.
    pub fn request_lane_change(&self, change: LaneChange) {
        self.put_or_wait(Input::Lanes(change));
    }

    /// Records a request to add or drop lanes.
    pub(super) fn change_lanes(&self, work: &mut Work, change: LaneChange) {
        work.changes.requested = Some(change);
    }

    /// Sends a requested change to the peer, if it is this connection's turn and nothing else is in
    /// progress. Waits while the control connection is lost: the peer would not receive it, and the
    /// present queue pairs are healthy.
    pub(super) fn ask_for_change(&self, work: &mut Work) {
        if work.changes.asked.is_some() && !work.machine.is_about_to_change() {
            match work.machine.is_running() {
                true => work.changes.give_up(),
                // The change or another one has begun.
                false => work.changes.asked = None,
            }
        }
        let Some(change) = work.changes.requested.filter(|_| self.peer.state().is_open()) else {
            return;
        };
        let Some(turn) = LaneTurn::take() else { return };
        if work.machine.handle_change_request(self.now(), cause_of_change(change)) {
            (work.changes.requested, work.changes.turn) = (None, Some(turn));
            work.changes.asked = Some(Change::Lanes(change));
        }
    }

    /// The peer has answered: applies the change to the next attempt.
    pub(super) fn begin_change(&self, work: &mut Work) {
        match work.changes.asked {
            None => {}
            Some(Change::Lanes(change)) => {
                work.new_qps.request(change.per_rail);
                log_lines::log_lanes(&self.nic, &self.peer, change);
            }
            Some(Change::Move(qp)) => {
                work.new_qps.leave_paths(Silent(1_u32.wrapping_shl(qp.0.into())));
                log_lines::log_move(&self.nic, &self.peer, qp);
            }
        }
    }

    /// Moves a slow lane to another path, within the budgets of the connection and the card.
    pub(super) fn move_lane(&self, work: &mut Work, qp: QpIndex, speed: Option<Speed>) {
        let now = self.now();
        let Some(rail) = work.rails.port(work.new_qps.rail_of(qp).into()).map(Arc::clone) else {
            return;
        };
        // Anything else in progress is about to replace the queue pairs. For the control
        // connection, see [`Self::ask_for_change`].
        if !work.machine.is_running() || !self.peer.state().is_open() {
            return;
        }
        let Work { machine, changes, .. } = work;
        let mut is_begun = false;
        let none_for = rail.card.move_lane(|| {
            let cause = || format!("to move slow lane {} to another path", qp.0);
            is_begun =
                changes.budget.poll_move(now, speed) && machine.handle_change_request(now, cause());
            is_begun
        });
        let next = none_for.map_or_else(|| changes.budget.next(), |none_for| now + none_for);
        // Rounded up, so that threads are not woken before the time has come.
        self.next_move_ms.store(next.as_millis() as u64 + 1, Ordering::Relaxed);
        if is_begun {
            work.changes.asked = Some(Change::Move(qp));
        }
    }
}

/// Why a connection replaces its queue pairs, for messages.
fn cause_of_change(LaneChange { per_rail, why }: LaneChange) -> String {
    match per_rail {
        1 => format!("to drop lanes: {why}"),
        count => format!("to use {count} lanes per rail: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_of_a_change_says_whether_lanes_begin_or_end() {
        let cause = |per_rail, why| cause_of_change(LaneChange { per_rail, why });
        assert_eq!(cause(4, "large messages"), "to use 4 lanes per rail: large messages");
        assert_eq!(
            cause(1, "all lanes have carried as much"),
            "to drop lanes: all lanes have carried as much"
        );
    }
}
