//! How often lanes may move to other paths. A move interrupts all traffic of the connection. In a
//! ring whose members wait for each other, it interrupts that of all members.
//!
//! A connection judges each move by its speed before and after ([`Speed`]). A search continues
//! while moves help, first after a second, then ever less often. After several useless moves in a
//! row it rests, longer each time. All connections of a process on a card share a few moves for the
//! beginning, and a few per hour after that.

use crate::control::Time;
use std::time::Duration;

/// Time between the first two moves of a search. It doubles after each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait while moves help.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A move helps if the connection is faster by more than this ratio.
const GAIN: (u64, u64) = (17, 16);
/// Useless moves in a row after which the connection rests.
const MOST_USELESS: u32 = 4;
/// The first rest. Each further rest is twice as long.
const FIRST_REST: Duration = Duration::from_secs(600);
/// The longest rest.
const LONGEST_REST: Duration = Duration::from_secs(8 * 3600);
/// A slow lane starts a new search if no lane was slow for this long, although one might have
/// moved.
const QUIET: Duration = Duration::from_secs(300);

/// Moves that all connections of a process on one card may make at any time.
const CARD_MOVES: u32 = 8;
/// Interval at which one of these moves is returned.
const CARD_MOVE_EVERY: Duration = Duration::from_secs(600);

/// The moves of a connection so far.
#[derive(Debug, Default)]
pub struct MoveBudget {
    /// No lane moves before this time.
    next: Time,
    /// The wait after the latest move, and the latest rest.
    wait: Duration,
    rest: Duration,
    /// The speed before the latest move, if known, until the move is judged.
    unjudged: Option<Option<Speed>>,
    /// Useless moves in a row.
    useless: u32,
}

impl MoveBudget {
    /// No lane moves before this time.
    pub fn next(&self) -> Time {
        self.next
    }

    /// Reports a slow lane at `now`. `speed` is that of the connection over its present queue
    /// pairs, if known. Returns whether the lane moves.
    pub fn poll_move(&mut self, now: Time, speed: Option<Speed>) -> bool {
        if now < self.next {
            return false;
        }
        if let Some(before) = self.unjudged.take() {
            let is_gain = speed.zip(before).is_some_and(|(speed, before)| speed.is_gain(&before));
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
    /// The moves that were available at the time `since`.
    left: u32,
    since: Time,
}

impl Default for CardMoves {
    fn default() -> Self {
        Self { left: CARD_MOVES, since: Time::ZERO }
    }
}

impl CardMoves {
    /// When the next move may be made.
    pub fn next(&self) -> Time {
        if self.left > 0 { self.since } else { self.since + CARD_MOVE_EVERY }
    }

    /// Counts a move at `now`, which is not before [`Self::next`].
    pub fn handle_move(&mut self, now: Time) {
        let more = now.saturating_sub(self.since).as_secs() / CARD_MOVE_EVERY.as_secs();
        let more = u32::try_from(more).unwrap_or(CARD_MOVES);
        self.left = self.left.saturating_add(more).min(CARD_MOVES);
        // If all moves are available, the time until the next one is returned begins with the first
        // move.
        self.since =
            if self.left == CARD_MOVES { now } else { self.since + more * CARD_MOVE_EVERY };
        self.left = self.left.saturating_sub(1);
    }
}

/// Measurements per speed. The median counts, so a few slow ones change nothing.
const MEASUREMENTS: usize = 16;

/// How fast the network carries a sender's data in flight, independent of the application.
///
/// A measurement lasts from the posting of a message to its acknowledgement. In this time the
/// network has carried everything that was in flight at its beginning. Pauses of the application
/// between messages are not included: sending less does not look like a slower network.
///
/// The more is in flight, the smaller the part of latency in the time. That alone increases a
/// speed, by at most the factor by which more is in flight. So a higher speed is only a gain if it
/// grew by more than the data in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes in flight at its beginning.
    pub bytes: u64,
    /// How long they took.
    pub ns: u64,
}

/// The speed from a number of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Speed {
    /// Bytes per second: the median.
    pub per_second: u64,
    /// Bytes in flight: the median.
    pub under_way: u64,
}

/// The latest measurements.
#[derive(Debug, Clone, Default)]
pub struct Speeds {
    carried: [Carried; MEASUREMENTS],
    count: usize,
}

impl Speeds {
    /// Adds a measurement; it replaces the oldest one if there are enough.
    pub fn add(&mut self, carried: Carried) {
        self.carried[self.count % MEASUREMENTS] = carried;
        self.count += 1;
    }

    /// The speed, if there are enough measurements.
    pub fn speed(&self) -> Option<Speed> {
        let median = |of: fn(&Carried) -> u64| {
            let mut all = self.carried.each_ref().map(of);
            all.sort_unstable();
            all[MEASUREMENTS / 2]
        };
        (self.count >= MEASUREMENTS).then(|| Speed {
            per_second: median(Carried::per_second),
            under_way: median(|carried| carried.bytes),
        })
    }
}

impl Carried {
    fn per_second(&self) -> u64 {
        let speed = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.ns.max(1));
        u64::try_from(speed).unwrap_or(u64::MAX)
    }
}

impl Speed {
    /// Whether it is faster than `before` by more than [`GAIN`], and not because more is in flight.
    fn is_gain(&self, before: &Self) -> bool {
        let (most, least) = GAIN;
        let times = |value: u64, factor: u64| u128::from(value) * u128::from(factor);
        times(self.per_second, least) > times(before.per_second, most)
            && times(self.under_way, least) <= times(before.under_way, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(per_second: u64) -> Option<Speed> {
        Some(Speed { per_second, under_way: 1 << 20 })
    }

    /// The seconds from `from` to `to` in which a lane moves that is slow all the time, where the
    /// connection has `speed` after so many moves.
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
            let waits: Vec<u64> =
                found[3..].windows(2).map(|pair| (pair[1] - pair[0]) / MINUTES).collect();
            assert_eq!(waits[..6], [10, 20, 40, 81, 161, 321], "{found:?}");
            assert!(waits.len() > 8 && waits[6..].iter().all(|wait| *wait == 481), "{found:?}");
        }
    }

    #[test]
    fn a_move_that_brings_something_begins_the_count_of_those_that_do_not_again() {
        // The third and the sixth one do.
        let speed = |count: usize| at([1000, 1000, 1000, 1100, 1100, 1100, 1200][count.min(6)]);
        let found = moves(&mut MoveBudget::default(), (0, 900), speed);
        assert_eq!(
            found,
            [0, 1, 3, 7, 15, 31, 63, 123, 183, 243],
            "four after the sixth, and a rest"
        );
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
        assert_eq!(
            budget.next(),
            Time::from_secs(quiet + 15) + 2 * FIRST_REST,
            "the next rest is longer"
        );
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

    /// The speed of a path with this latency in ns, this bandwidth in bytes per ns, and this many
    /// bytes in flight.
    fn speed(latency: u64, bandwidth: u64, under_way: u64) -> Speed {
        let mut speeds = Speeds::default();
        (0..MEASUREMENTS).for_each(|_| {
            speeds.add(Carried { bytes: under_way, ns: latency + under_way / bandwidth })
        });
        speeds.speed().expect("enough")
    }

    #[test]
    fn there_is_a_speed_after_enough_measurements_and_long_ones_do_not_count() {
        let mut speeds = Speeds::default();
        for number in 0..MEASUREMENTS {
            assert_eq!(speeds.speed(), None, "{number} measurements");
            let ns = if number % 3 == 0 { 1_000_000_000 } else { 1000 };
            speeds.add(Carried { bytes: 1 << 20, ns });
        }
        assert_eq!(
            speeds.speed(),
            Some(Speed { per_second: (1 << 20) * 1_000_000, under_way: 1 << 20 })
        );
        (0..MEASUREMENTS).for_each(|_| speeds.add(Carried { bytes: 1 << 20, ns: 2000 }));
        assert_eq!(
            speeds.speed().map(|speed| speed.per_second),
            Some((1 << 20) * 500_000),
            "the latest ones count"
        );
        (0..MEASUREMENTS).for_each(|_| speeds.add(Carried { bytes: u64::MAX, ns: 0 }));
        assert_eq!(speeds.speed().map(|speed| speed.per_second), Some(u64::MAX));
    }

    /// Twice as much in flight is nearly twice as fast if latency is most of the time.
    #[test]
    fn that_more_is_under_way_is_no_gain() {
        for (latency, bandwidth) in [(10_000, 50), (100_000, 50), (1000, 1)] {
            for (before, after) in
                [(64 << 10, 128 << 10), (64 << 10, 512 << 10), (512 << 10, 590 << 10)]
            {
                let (before, after) =
                    (speed(latency, bandwidth, before), speed(latency, bandwidth, after));
                assert!(!after.is_gain(&before), "{before:?}, then {after:?}");
            }
        }
        assert!(
            speed(10_000, 50, 128 << 10).per_second
                > speed(10_000, 50, 64 << 10).per_second * 17 / 16
        );
        assert!(
            speed(10_000, 200, 512 << 10).is_gain(&speed(10_000, 50, 512 << 10)),
            "a faster network is"
        );
        assert!(
            speed(1000, 200, 256 << 10).is_gain(&speed(1000, 50, 512 << 10)),
            "with less under way, too"
        );
    }
}
