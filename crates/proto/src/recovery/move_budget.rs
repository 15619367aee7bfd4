//! How often lanes may be given other paths, which interrupts all traffic of the connection; and, in a ring whose members wait for each
//! other, that of all members.
//!
//! A connection judges each move by its speed before and after ([`crate::automatic_lanes::Speed`]). A search goes on while moves bring something, first after
//! a second, then ever more seldom. When several in a row have brought nothing it rests, for ever longer. All connections of a process on a card
//! together have some moves for the beginning, and a few in an hour after that.

use crate::automatic_lanes::Speed;
use crate::control::Time;
use std::time::Duration;

/// Time from the first move of a search to the second one. After each further one it is twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// It is no longer than this while moves bring something.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A move brings something if the connection is more than so much faster then.
const GAIN: (u64, u64) = (17, 16);
/// After so many moves in a row that have brought nothing, the connection rests.
const MOST_USELESS: u32 = 4;
/// How long it rests first. Each further rest is twice as long.
const FIRST_REST: Duration = Duration::from_secs(600);
/// It is no longer than this.
const LONGEST_REST: Duration = Duration::from_secs(8 * 3600);
/// A lane that is slow after no lane has been for so long, although one might have moved, begins another search.
const QUIET: Duration = Duration::from_secs(300);

/// Moves of all connections of a process on one card that may be made at any time.
const CARD_MOVES: u32 = 8;
/// How often there is one more of them.
const CARD_MOVE_EVERY: Duration = Duration::from_secs(600);

/// The moves of a connection so far.
#[derive(Debug, Default)]
pub struct MoveBudget {
    /// No lane moves before this.
    next: Time,
    /// How long was waited after the latest move, and in the latest rest.
    wait: Duration,
    rest: Duration,
    /// The speed before the latest move, if it was known, unless the move has been judged.
    unjudged: Option<Option<Speed>>,
    /// Moves in a row that have brought nothing.
    useless: u32,
}

impl MoveBudget {
    /// No lane moves before this.
    pub fn next(&self) -> Time {
        self.next
    }

    /// A lane is slow now, and the connection has this speed since it has its queue pairs, if that is known. Returns whether the lane moves.
    pub fn poll_move(&mut self, now: Time, speed: Option<Speed>) -> bool {
        if now < self.next {
            return false;
        }
        if let Some(before) = self.unjudged.take() {
            let is_gain = speed.zip(before).is_some_and(|(speed, before)| speed.is_gain(&before, GAIN));
            self.useless = if is_gain { 0 } else { self.useless + 1 };
            if self.useless >= MOST_USELESS {
                self.rest = (2 * self.rest).clamp(FIRST_REST, LONGEST_REST);
                self.next = now + self.rest;
                return false;
            }
        }
        if now >= self.next + QUIET {
            (self.wait, self.useless) = (Duration::ZERO, 0);
        }
        self.wait = (2 * self.wait).clamp(FIRST_WAIT, LONGEST_WAIT);
        (self.next, self.unjudged) = (now + self.wait, Some(speed));
        true
    }
}

/// The moves of all connections of a process on one card.
#[derive(Debug)]
pub struct CardMoves {
    /// So many may be made at the time `since`.
    left: u32,
    since: Time,
}

impl Default for CardMoves {
    fn default() -> Self {
        Self { left: CARD_MOVES, since: Time::ZERO }
    }
}

impl CardMoves {
    /// When the next one may be made.
    pub fn next(&self) -> Time {
        if self.left > 0 { self.since } else { self.since + CARD_MOVE_EVERY }
    }

    /// One is made now, after [`Self::next`].
    pub fn handle_move(&mut self, now: Time) {
        let more = now.saturating_sub(self.since).as_secs() / CARD_MOVE_EVERY.as_secs();
        let more = u32::try_from(more).unwrap_or(CARD_MOVES);
        self.left = self.left.saturating_add(more).min(CARD_MOVES);
        // Of all that may be made at once, the time until there is one more begins with the first one that is made.
        self.since = if self.left == CARD_MOVES { now } else { self.since + more * CARD_MOVE_EVERY };
        self.left = self.left.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(per_second: u64) -> Option<Speed> {
        Some(Speed { per_second, under_way: 1 << 20 })
    }

    /// The seconds from `from` to `to` in which a lane moves that is slow all the time, where the connection has `speed` after so many
    /// moves.
    fn moves(
        budget: &mut MoveBudget,
        (from, to): (u64, u64),
        mut speed: impl FnMut(usize) -> Option<Speed>,
    ) -> Vec<u64> {
        let mut moves = Vec::new();
        for second in from..to {
            if budget.poll_move(Time::from_secs(second), speed(moves.len())) {
                moves.push(second);
            }
        }
        moves
    }

    #[test]
    fn moves_that_bring_something_become_ever_more_seldom_down_to_one_a_minute() {
        let faster = |count: usize| at(1000 << count);
        let found = moves(&mut MoveBudget::default(), (0, 600), faster);
        assert_eq!(found, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363, 423, 483, 543]);
    }

    #[test]
    fn after_four_moves_without_gain_a_connection_rests_for_ever_longer() {
        const MINUTES: u64 = 60;
        const DAY: u64 = 24 * 60 * MINUTES;
        for speed in [at(1000), None] {
            let found = moves(&mut MoveBudget::default(), (0, 3 * DAY), |_| speed);
            assert_eq!(found[..4], [0, 1, 3, 7]);
            // Each is judged after a minute, and followed by a rest.
            let waits: Vec<u64> = found[3..].windows(2).map(|pair| (pair[1] - pair[0]) / MINUTES).collect();
            assert_eq!(waits[..6], [10, 20, 40, 81, 161, 321], "{found:?}");
            assert!(waits.len() > 8 && waits[6..].iter().all(|wait| *wait == 481), "{found:?}");
        }
    }

    #[test]
    fn a_move_that_brings_something_begins_the_count_of_those_that_do_not_again() {
        // The third and the sixth one do.
        let speed = |count: usize| at([1000, 1000, 1000, 1100, 1100, 1100, 1200][count.min(6)]);
        let found = moves(&mut MoveBudget::default(), (0, 900), speed);
        assert_eq!(found, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243], "four after the sixth, and a rest");
    }

    #[test]
    fn a_gain_is_more_than_a_sixteenth_and_not_since_more_is_under_way() {
        let is_judged = |after: Speed| {
            let mut budget = MoveBudget { useless: MOST_USELESS - 1, ..MoveBudget::default() };
            assert!(budget.poll_move(Time::ZERO, at(1600)));
            budget.poll_move(FIRST_WAIT, Some(after))
        };
        let more = |per_second, under_way| Speed { per_second, under_way };
        assert!(is_judged(more(1701, 1 << 20)) && !is_judged(more(1700, 1 << 20)));
        assert!(!is_judged(more(3200, 2 << 20)));
    }

    #[test]
    fn after_a_quiet_time_the_second_move_is_soon_again() {
        let mut budget = MoveBudget::default();
        assert_eq!(moves(&mut budget, (0, 500), |_| at(1000)), [0, 1, 3, 7]);
        let rested = budget.next();
        assert_eq!(rested, Time::from_secs(15) + FIRST_REST);
        let quiet = (rested + QUIET).as_secs();
        let found = moves(&mut budget, (quiet, quiet + 500), |_| at(1000));
        assert_eq!(found, [0, 1, 3, 7].map(|second| quiet + second));
        assert_eq!(budget.next(), Time::from_secs(quiet + 15) + 2 * FIRST_REST, "the next rest is longer");
    }

    #[test]
    fn all_connections_of_a_card_have_some_moves_and_then_six_in_an_hour() {
        let made = |from: u64, to: u64, moves: &mut CardMoves| {
            let mut made = Vec::new();
            for now in (from..to).map(Time::from_secs) {
                while now >= moves.next() {
                    moves.handle_move(now);
                    made.push(now.as_secs());
                }
            }
            made
        };
        let mut moves = CardMoves::default();
        let found = made(100, 100 + 7200, &mut moves);
        assert_eq!(found[..8], [100; 8]);
        assert_eq!(found[8..], (1..12).map(|n| 100 + 600 * n).collect::<Vec<_>>());
        // What is not made is kept, up to as many as there were.
        let found = made(50_000, 50_001, &mut moves);
        assert_eq!(found, [50_000; 8]);
        assert_eq!(moves.next(), Time::from_secs(50_600));
    }
}
