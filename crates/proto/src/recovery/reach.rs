//! How long tests of new queue pairs wait for the peer's device.
//!
//! The length of the path is unknown at first: a dead path acknowledges nothing, and neither does
//! one longer than the wait. So the wait grows by half with each failed attempt, up to more than
//! any path takes. The first acknowledgement gives the round trip, and no later wait is shorter
//! than a few round trips.
//!
//! The sender decides: it counts the attempts until one succeeds at both ends, and sends the wait
//! to the receiver. If each end counted its own failures, their long waits would rarely coincide.

use super::super::codec::{Reader, Writer};
use crate::Violation;
use std::time::Duration;

/// The first wait for an unknown path.
const FIRST_LIMIT: Duration = Duration::from_millis(30);
/// The longest wait for an unknown path.
const LONGEST_LIMIT: Duration = Duration::from_secs(2);
/// The number of failures after which the wait stops growing.
const MOST_GROWTH: u32 = 11;
/// A test waits for at least this many round trips.
const ROUND_TRIPS: u32 = 4;
/// The longest wait, whatever the peer requests: the sender first waits 5 s for the result of the
/// receiver's test.
const MOST: Duration = Duration::from_secs(4);

/// The sender's parameters for the receiver's test, after its own test has succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Reach {
    /// How long to wait, in whole microseconds.
    pub limit: Duration,
    /// The time from a write to its acknowledgement, in whole microseconds.
    pub round_trip: Duration,
}

impl Reach {
    pub(super) fn emit(self, to: &mut Writer) {
        let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        to.u32(micros(self.limit));
        to.u32(micros(self.round_trip));
    }

    /// # Errors
    /// It is too short.
    pub(super) fn parse(from: &mut Reader<'_>) -> Result<Self, Violation> {
        let mut time = || Ok(Duration::from_micros(from.u32()?.into()));
        Ok(Self { limit: time()?, round_trip: time()? })
    }
}

/// What one end knows of the path.
#[derive(Debug, Clone, Copy, Default)]
pub struct PathTimes {
    /// Failed attempts since the connection last ran, or since its ports changed.
    failures: u32,
    /// The round trip, if known.
    round_trip: Duration,
}

impl PathTimes {
    /// A path that may have this `round_trip`; zero if unknown.
    pub fn new(round_trip: Duration) -> Self {
        Self { failures: 0, round_trip }
    }

    /// How long a test of this end waits.
    pub fn limit(self) -> Duration {
        let growing =
            (0..self.failures.min(MOST_GROWTH)).fold(FIRST_LIMIT, |limit, _| limit * 3 / 2);
        growing.min(LONGEST_LIMIT).max(self.round_trip.saturating_mul(ROUND_TRIPS)).min(MOST)
    }

    /// How long the receiver's test waits, given the sender's report.
    pub fn limit_reported(self, reach: Reach) -> Duration {
        self.limit().max(reach.limit).min(MOST)
    }

    /// The sender's report for the receiver.
    pub fn reach(self) -> Reach {
        Reach { limit: self.limit(), round_trip: self.round_trip }
    }

    /// The number of failed attempts.
    pub fn failures(self) -> u32 {
        self.failures
    }

    /// The round trip; zero if unknown.
    pub fn round_trip(self) -> Duration {
        self.round_trip
    }

    /// A test of either end has failed, or the peer is behind this end.
    pub fn handle_failed_test(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// A test has succeeded, and the peer's device has acknowledged after this time.
    pub fn handle_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = Duration::from_micros(round_trip.as_micros() as u64);
    }

    /// The connection runs, or its ports have changed.
    pub fn forget_failures(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_test_waits_half_as_long_again_after_each_failure_and_for_some_known_round_trips() {
        let mut times = PathTimes::default();
        let mut limits = Vec::new();
        for _ in 0..13 {
            limits.push(times.limit().as_millis());
            times.handle_failed_test();
        }
        assert_eq!(limits, [30, 45, 67, 101, 151, 227, 341, 512, 768, 1153, 1729, 2000, 2000]);
        times.handle_round_trip(900 * MS);
        assert_eq!(times.limit(), 3600 * MS, "longer than for a path of which nothing is known");
        times.forget_failures();
        assert_eq!((times.failures(), times.limit()), (0, 3600 * MS), "the round trip stays known");
        times.handle_round_trip(MS);
        assert_eq!(times.limit(), 30 * MS);
        assert_eq!(PathTimes::new(20 * MS).limit(), 80 * MS);
    }

    #[test]
    fn the_receiver_waits_as_long_as_the_sender_says_and_never_for_ever() {
        let mut sender = PathTimes::default();
        (0..3).for_each(|_| sender.handle_failed_test());
        sender.handle_round_trip(50 * MS);
        assert_eq!(sender.reach(), Reach { limit: 200 * MS, round_trip: 50 * MS });
        let receiver = PathTimes::default();
        assert_eq!(receiver.limit_reported(sender.reach()), 200 * MS);
        assert_eq!(receiver.limit_reported(Reach::default()), 30 * MS);
        assert_eq!(receiver.limit_reported(Reach { limit: Duration::MAX, round_trip: MS }), MOST);
    }

    /// For any round trip within a test's range, all failed attempts before it take only a few
    /// round trips together.
    #[test]
    fn what_is_waited_before_the_path_is_known_is_a_few_round_trips() {
        for round_trip in (1..=1900).map(|ms| ms * MS) {
            let (mut times, mut waited) = (PathTimes::default(), Duration::ZERO);
            while times.limit() <= round_trip {
                waited += times.limit();
                times.handle_failed_test();
            }
            assert!(waited < 3 * round_trip, "{waited:?} for {round_trip:?}");
        }
    }
}
