//! How often lanes of a connection may be given another path, which interrupts all of its traffic.

use crate::proto::control::Time;
use std::time::Duration;

/// Time from the first move to the second one. After each further one it is twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// It is no longer than this.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A connection that has had no move for so long begins with the first wait again.
const MEMORY: Duration = Duration::from_secs(300);

/// The moves of a connection so far.
#[derive(Debug, Default)]
pub struct MoveBudget {
    /// The latest one, and how long the next one waits after it.
    latest: Option<(Time, Duration)>,
}

impl MoveBudget {
    /// Whether a lane may move now.
    pub fn allows(&self, now: Time) -> bool {
        self.latest.is_none_or(|(at, wait)| now >= at + wait)
    }

    /// A lane moves now. Returns when the next one may.
    pub fn handle_move(&mut self, now: Time) -> Time {
        let wait = match self.latest {
            Some((at, wait)) if now < at + MEMORY => (2 * wait).min(LONGEST_WAIT),
            _ => FIRST_WAIT,
        };
        self.latest = Some((now, wait));
        now + wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_become_ever_more_seldom_down_to_one_a_minute() {
        let mut budget = MoveBudget::default();
        let mut moves = Vec::new();
        for second in 0..600 {
            let now = Time::from_secs(second);
            if budget.allows(now) {
                budget.handle_move(now);
                moves.push(second);
            }
        }
        assert_eq!(moves, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363, 423, 483, 543]);
    }

    #[test]
    fn after_a_quiet_time_the_second_move_is_soon_again() {
        let mut budget = MoveBudget::default();
        (0..100).for_each(|_| assert!(budget.handle_move(Time::ZERO) <= LONGEST_WAIT));
        assert!(!budget.allows(Time::from_secs(59)) && budget.allows(Time::from_secs(60)));
        budget.handle_move(MEMORY);
        assert!(!budget.allows(MEMORY) && budget.allows(MEMORY + FIRST_WAIT));
    }
}
