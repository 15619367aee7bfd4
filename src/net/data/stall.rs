//! Finding a path that carries nothing although no device reports an error.
//!
//! A device resends for seconds before it reports that the peer does not acknowledge. A message that is the oldest one under way for
//! much longer than the data takes shows that earlier. A wrong suspicion costs little: the connection recovers, and nothing is lost. Each
//! suspicion doubles the time until the next one, so that a fabric that pauses for long is not disturbed again and again. Each
//! quiet minute halves it again.

use std::time::{Duration, Instant};

/// Tests in vain from one look at the clock to the next: as many as an `u8` counts.
const LOOK_EVERY: u32 = 1 << u8::BITS;
/// Time without a suspicion after which the limit is halved.
const QUIET: Duration = Duration::from_secs(60);
/// Data may take this many times as long as at the rails' nominal speed.
const SLACK: u32 = 50;
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
    factor: u32,
    /// When there was a suspicion last, or when the factor was halved.
    last: Instant,
}

impl Stall {
    /// A path is suspected after `limit_ms` milliseconds, and the time that the data takes; 0: never.
    pub fn new(limit_ms: u64) -> Self {
        Self {
            tests: 0,
            looks: 0,
            oldest: None,
            limit: Duration::from_millis(limit_ms),
            factor: 1,
            last: Instant::now(),
        }
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

    /// Message `oldest` is the oldest one under way. Returns for how long, if that is suspicious. `data_time` is how long all data takes
    /// that is under way.
    pub fn check(&mut self, oldest: u32, data_time: Duration) -> Option<Duration> {
        let waited = self.waited(oldest)?;
        self.calm_down();
        if self.limit.is_zero() || waited < (self.limit + SLACK * data_time) * self.factor {
            return None;
        }
        self.oldest = None;
        self.back_off();
        Some(waited)
    }

    /// There was a suspicion: the next one takes twice as long.
    pub fn back_off(&mut self) {
        self.factor = (self.factor * 2).min(MAX_FACTOR);
        self.last = Instant::now();
    }

    fn calm_down(&mut self) {
        if self.factor > 1 && self.last.elapsed() >= QUIET {
            self.factor /= 2;
            self.last = Instant::now();
        }
    }

    /// How long message `oldest` has been the oldest one under way; `None` when it is asked for the first time.
    pub fn waited(&mut self, oldest: u32) -> Option<Duration> {
        let now = Instant::now();
        match self.oldest {
            Some((before, since)) if before == oldest => Some(now.saturating_duration_since(since)),
            _ => {
                self.oldest = Some((oldest, now));
                None
            }
        }
    }

    /// Time without an acknowledgement after which a path is suspected; zero: never.
    pub fn limit(&mut self) -> Duration {
        self.calm_down();
        self.limit * self.factor
    }

    /// What has been waited for so far does not count.
    pub fn reset(&mut self) {
        self.oldest = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_in_vain_is_counted_and_one_of_256_looks_at_the_clock() {
        let mut stall = Stall::new(0);
        for count in 1..=1000 {
            assert_eq!(stall.is_due(), count % LOOK_EVERY == 0);
            assert_eq!(stall.tests(), count);
        }
    }
}
