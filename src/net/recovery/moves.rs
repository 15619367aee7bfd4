//! Other lanes, and other paths for lanes, although nothing has failed: new queue pairs replace those in use.

use super::changes::LaneTurn;
use super::conn::{ConnRecovery, Work};
use super::inbox::Input;
use super::log_lines;
use crate::net::qp::reach::Silent;
use crate::proto::QpIndex;
use crate::proto::automatic_lanes::Wish;
use std::sync::atomic::Ordering;

impl ConnRecovery {
    /// Sender: the lane of queue pair `qp` has stayed slow while others have not.
    pub fn report_slow_lane(&self, qp: QpIndex) {
        // While none may move, no thread is woken.
        if self.now().as_millis() as u64 >= self.next_move_ms.load(Ordering::Relaxed) {
            self.put_or_wait(Input::SlowLane(qp));
        }
    }

    /// Sender: the connection is to have another number of queue pairs.
    pub fn report_wish(&self, wish: Wish) {
        self.put_or_wait(Input::Lanes(wish));
    }

    /// Lanes are to be taken, or given up.
    pub(super) fn change_lanes(&self, work: &mut Work, wish: Wish) {
        work.changes.wished = Some(wish);
    }

    /// Begins that, if it is wished, this connection's turn, and nothing else is under way.
    pub(super) fn begin_change(&self, work: &mut Work) {
        let Some(wish) = work.changes.wished else { return };
        let Some(turn) = LaneTurn::take() else { return };
        if work.machine.handle_wish(self.now(), cause_of_change(wish)) {
            work.new_qps.wish_for(wish.per_rail);
            (work.changes.wished, work.changes.turn) = (None, Some(turn));
            log_lines::log_lanes(&self.nic, &self.peer, wish);
        }
    }

    /// Gives a slow lane another path, if none has been given lately.
    pub(super) fn move_lane(&self, work: &mut Work, qp: QpIndex) {
        let now = self.now();
        // While something else is under way, the queue pairs are about to be others.
        let cause = || format!("to give lane {}, which stays slow, another path", qp.0);
        if work.changes.budget.allows(now) && work.machine.handle_wish(now, cause()) {
            let next = work.changes.budget.handle_move(now);
            self.next_move_ms.store(next.as_millis() as u64, Ordering::Relaxed);
            work.new_qps.leave_paths(Silent(1_u32.wrapping_shl(qp.0.into())));
            log_lines::log_move(&self.nic, &self.peer, qp);
        }
    }
}

/// For messages: why a connection takes other queue pairs, by this wish.
fn cause_of_change(Wish { per_rail, why }: Wish) -> String {
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
        let cause = |per_rail, why| cause_of_change(Wish { per_rail, why });
        assert_eq!(cause(4, "large messages"), "to take 4 lanes per rail: large messages");
        assert_eq!(cause(1, "all lanes have carried as much"), "to give lanes up: all lanes have carried as much");
    }
}
