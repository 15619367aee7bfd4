//! Other lanes, and other paths for lanes, although nothing has failed: new queue pairs replace those in use.

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
    /// Sender: the lane of queue pair `qp` has stayed slow while others have not, and the connection has this speed, if that is known.
    pub fn report_slow_lane(&self, qp: QpIndex, speed: Option<Speed>) {
        // While none may move, no thread is woken.
        if self.now().as_millis() as u64 >= self.next_move_ms.load(Ordering::Relaxed) {
            self.put_or_wait(Input::SlowLane(qp, speed));
        }
    }

    /// Sender: the connection is to have another number of queue pairs.
    pub fn request_lane_change(&self, change: LaneChange) {
        self.put_or_wait(Input::Lanes(change));
    }

    /// Lanes are to be taken, or given up.
    pub(super) fn change_lanes(&self, work: &mut Work, change: LaneChange) {
        work.changes.requested = Some(change);
    }

    /// Asks the peer for that, if it is requested, this connection's turn, and nothing else is under way. Not while the control connection is
    /// lost: the peer would not hear of it, and the queue pairs in use are healthy.
    pub(super) fn ask_for_change(&self, work: &mut Work) {
        if work.changes.asked.is_some() && !work.machine.is_about_to_change() {
            match work.machine.is_running() {
                true => work.changes.give_up(),
                // It has begun, or something else has.
                false => work.changes.asked = None,
            }
        }
        let Some(change) = work.changes.requested.filter(|_| self.peer.state().is_open()) else { return };
        let Some(turn) = LaneTurn::take() else { return };
        if work.machine.handle_change_request(self.now(), cause_of_change(change)) {
            (work.changes.requested, work.changes.turn) = (None, Some(turn));
            work.changes.asked = Some(Change::Lanes(change));
        }
    }

    /// The peer has answered: the next attempt has what it was asked for.
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

    /// Gives a slow lane another path, if the connection and the card have not had too many.
    pub(super) fn move_lane(&self, work: &mut Work, qp: QpIndex, speed: Option<Speed>) {
        let now = self.now();
        let Some(rail) = work.rails.port(work.new_qps.rail_of(qp).into()).map(Arc::clone) else { return };
        // While something else is under way, the queue pairs are about to be others. As to the control connection, see above.
        if !work.machine.is_running() || !self.peer.state().is_open() {
            return;
        }
        let Work { machine, changes, .. } = work;
        let mut is_begun = false;
        let none_for = rail.card.move_lane(|| {
            let cause = || format!("to give lane {}, which stays slow, another path", qp.0);
            is_begun = changes.budget.poll_move(now, speed) && machine.handle_change_request(now, cause());
            is_begun
        });
        let next = none_for.map_or_else(|| changes.budget.next(), |none_for| now + none_for);
        // Rounded up: else threads would be woken until the time has come.
        self.next_move_ms.store(next.as_millis() as u64 + 1, Ordering::Relaxed);
        if is_begun {
            work.changes.asked = Some(Change::Move(qp));
        }
    }
}

/// For messages: why a connection takes other queue pairs, by this request.
fn cause_of_change(LaneChange { per_rail, why }: LaneChange) -> String {
    match per_rail {
        1 => format!("to give lanes up: {why}"),
        count => format!("to take {count} lanes per rail: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_of_a_change_says_whether_lanes_begin_or_end() {
        let cause = |per_rail, why| cause_of_change(LaneChange { per_rail, why });
        assert_eq!(cause(4, "large messages"), "to take 4 lanes per rail: large messages");
        assert_eq!(cause(1, "all lanes have carried as much"), "to give lanes up: all lanes have carried as much");
    }
}
