//! Finding a path that carries nothing although no device reports an error.
//!
//! A device resends for seconds before it reports that the peer does not acknowledge. A message that is the oldest one under way for
//! much longer than the data and its acknowledgement take shows that earlier. How long the acknowledgement takes is known once the
//! connection, or another one to the same port, has recovered, which tests its new queue pairs: on a path of a long round trip the first
//! suspicion is wrong, and there are no others. A wrong suspicion costs little: the connection recovers, and nothing is lost. Each
//! suspicion doubles the time until the next one, so that a fabric that pauses for long is not disturbed again and again. Each
//! quiet minute halves it again.

use std::time::{Duration, Instant};

/// Tests in vain from one look at the clock to the next: as many as an `u8` counts.
const LOOK_EVERY: u32 = 1 << u8::BITS;
/// Time without a suspicion after which the limit is halved.
const QUIET: Duration = Duration::from_secs(60);
/// Data may take this many times as long as at the rails' nominal speed.
const SLACK: u32 = 50;
/// An acknowledgement may take this many times as long as in the test of the queue pairs, beside the limit.
const ROUND_TRIPS: u32 = 2;
/// The limit is never more than this many times the first one.
const MAX_FACTOR: u32 = 8;

/// How long one message has been the oldest one under way.
#[derive(Debug)]
pub struct Stall {
    /// Tests in vain since the last time that [`Self::is_due`] said so.
    tests: u8,
    /// How often it has said so, modulo 2^32.
    looks: u32,
    oldest: Option<(u32, Instant)>,
    /// Time without an acknowledgement after which a path is suspected; zero: never.
    limit: Duration,
    /// Zero: it is not known.
    round_trip: Duration,
    factor: u32,
    /// When there was a suspicion last, or when the factor was halved.
    last: Instant,
}

impl Stall {
    /// A path is suspected after `limit_ms` milliseconds, and the time that the data and its acknowledgement take; 0: never. The
    /// `round_trip` is zero if it is not known.
    pub fn new(limit_ms: u64, round_trip: Duration) -> Self {
        let limit = Duration::from_millis(limit_ms);
        Self { tests: 0, looks: 0, oldest: None, limit, round_trip, factor: 1, last: Instant::now() }
    }

    /// To be called after each test in vain: whether it is time for [`Self::check`].
    #[inline(always)]
    pub fn is_due(&mut self) -> bool {
        self.tests = self.tests.wrapping_add(1);
        let is_due = self.tests == 0;
        if is_due {
            self.count_look();
        }
        is_due
    }

    /// What [`Self::is_due`] has returned last.
    pub fn was_due(&self) -> bool {
        self.tests == 0
    }

    #[cold]
    #[inline(never)]
    fn count_look(&mut self) {
        self.looks = self.looks.wrapping_add(1);
    }

    /// How often [`Self::is_due`] has been called, modulo 2^32.
    pub fn tests(&self) -> u32 {
        self.looks.wrapping_mul(LOOK_EVERY).wrapping_add(self.tests.into())
    }

    /// Message `oldest` is the oldest one under way `now`. Returns for how long, if that is suspicious. `data_time` is how long all data
    /// takes that is under way.
    pub fn check(&mut self, oldest: u32, data_time: Duration, now: Instant) -> Option<Duration> {
        let waited = self.waited(oldest, now)?;
        self.calm_down(now);
        if self.limit.is_zero() || waited < (self.patience() + SLACK * data_time) * self.factor {
            return None;
        }
        self.oldest = None;
        self.back_off(now);
        Some(waited)
    }

    /// There was a suspicion: the next one takes twice as long.
    pub fn back_off(&mut self, now: Instant) {
        self.factor = (self.factor * 2).min(MAX_FACTOR);
        self.last = now;
    }

    fn calm_down(&mut self, now: Instant) {
        if self.factor > 1 && now.saturating_duration_since(self.last) >= QUIET {
            self.factor /= 2;
            self.last = now;
        }
    }

    /// How long message `oldest` has been the oldest one under way; `None` when it is asked for the first time.
    pub fn waited(&mut self, oldest: u32, now: Instant) -> Option<Duration> {
        match self.oldest {
            Some((before, since)) if before == oldest => Some(now.saturating_duration_since(since)),
            _ => {
                self.oldest = Some((oldest, now));
                None
            }
        }
    }

    /// Time without an acknowledgement after which a path is suspected; zero: never.
    pub fn limit(&mut self, now: Instant) -> Duration {
        self.calm_down(now);
        if self.limit.is_zero() { Duration::ZERO } else { self.patience() * self.factor }
    }

    fn patience(&self) -> Duration {
        self.limit + ROUND_TRIPS * self.round_trip
    }

    /// There are new queue pairs, whose test has found this `round_trip`. What has been waited for so far does not count.
    pub fn reset(&mut self, round_trip: Duration) {
        (self.oldest, self.round_trip) = (None, round_trip);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_in_vain_is_counted_and_one_of_256_looks_at_the_clock() {
        let mut stall = Stall::new(0, Duration::ZERO);
        for count in 1..=1000 {
            assert_eq!(stall.is_due(), count % LOOK_EVERY == 0);
            assert_eq!(stall.was_due(), count % LOOK_EVERY == 0);
            assert_eq!(stall.tests(), count);
        }
    }

    const MS: Duration = Duration::from_millis(1);

    /// For how many ms message 7 is the oldest one until that is suspicious, from `begin` on. It is asked each ms.
    fn suspected_after(stall: &mut Stall, data_time: Duration, begin: Instant) -> Option<u32> {
        stall.reset(stall.round_trip);
        (0..100_000).find(|ms| match stall.check(7, data_time, begin + *ms * MS) {
            None => false,
            Some(waited) => {
                assert_eq!(waited, *ms * MS);
                true
            }
        })
    }

    #[test]
    fn a_message_that_is_the_oldest_one_for_long_is_suspicious_and_the_next_one_twice_as_late() {
        let (mut stall, now) = (Stall::new(100, Duration::ZERO), Instant::now());
        let limits = [100, 200, 400, 800, 800];
        assert_eq!(limits.map(|_| suspected_after(&mut stall, Duration::ZERO, now)), limits.map(Some));
        let mut stall = Stall::new(100, Duration::ZERO);
        assert_eq!(suspected_after(&mut stall, 2 * MS, now), Some(200), "50 times what the data takes");
        assert_eq!(suspected_after(&mut stall, 2 * MS, now), Some(400));
    }

    #[test]
    fn an_acknowledgement_has_two_round_trips_beside_the_limit() {
        let (mut stall, now) = (Stall::new(100, 80 * MS), Instant::now());
        assert_eq!(stall.limit(now), 260 * MS);
        assert_eq!(suspected_after(&mut stall, 2 * MS, now), Some(360));
        stall.reset(10 * MS);
        assert_eq!(suspected_after(&mut stall, Duration::ZERO, now), Some(240), "twice as late as the first");
        let mut never = Stall::new(0, 80 * MS);
        assert_eq!((never.limit(now), suspected_after(&mut never, Duration::ZERO, now)), (Duration::ZERO, None));
    }

    #[test]
    fn each_message_has_a_time_of_its_own_and_none_begins_with_a_reset() {
        let (mut stall, now) = (Stall::new(100, Duration::ZERO), Instant::now());
        let mut check = |oldest, ms| stall.check(oldest, Duration::ZERO, now + ms * MS);
        assert_eq!((check(1, 0), check(1, 99), check(2, 100), check(2, 199)), (None, None, None, None));
        assert_eq!(check(2, 200), Some(100 * MS));
        assert_eq!(check(2, 1000), None, "it begins anew");
        stall.reset(stall.round_trip);
        assert_eq!(stall.waited(2, now + 2000 * MS), None);
        assert_eq!(stall.waited(2, now + 2001 * MS), Some(MS));
    }

    #[test]
    fn a_quiet_minute_halves_the_limit_until_it_is_the_first_one() {
        let (mut stall, now) = (Stall::new(100, Duration::ZERO), Instant::now());
        for _ in 0..3 {
            stall.back_off(now);
        }
        let minute = Duration::from_secs(60);
        assert_eq!(stall.limit(now + minute - MS), 800 * MS);
        assert_eq!(stall.limit(now + minute), 400 * MS);
        assert_eq!(stall.limit(now + 2 * minute - MS), 400 * MS);
        assert_eq!([2, 3, 4].map(|minutes| stall.limit(now + minutes * minute)), [200 * MS, 100 * MS, 100 * MS]);
        stall.back_off(now + 4 * minute);
        assert_eq!(stall.limit(now + 5 * minute - MS), 200 * MS, "the minute begins with the last suspicion");
        stall.check(1, Duration::ZERO, now + 5 * minute);
        assert_eq!(
            suspected_after(&mut stall, Duration::ZERO, now + 5 * minute),
            Some(100),
            "a check looks at that as well"
        );
    }

    #[test]
    fn without_a_limit_nothing_is_suspicious() {
        let mut stall = Stall::new(0, Duration::ZERO);
        let now = Instant::now();
        assert_eq!(suspected_after(&mut stall, Duration::ZERO, now), None);
        assert_eq!(stall.limit(now), Duration::ZERO);
    }
}
