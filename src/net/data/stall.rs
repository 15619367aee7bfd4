//! Finding a path that carries nothing although no device reports an error.
//!
//! A device resends for seconds before it reports that the peer does not acknowledge. A request that is tested in vain for much longer
//! than its data takes shows that earlier. A wrong suspicion costs little: the connection recovers, and nothing is lost. Each
//! suspicion doubles the time until the next one, so that a fabric that pauses for long is not disturbed again and again.

use crate::proto::requests::RequestId;
use std::time::{Duration, Instant};

/// Tests in vain from one look at the clock to the next.
const LOOK_EVERY: u32 = 256;
/// The limit is never more than this many times the first one.
const MAX_FACTOR: u32 = 64;

/// How long one request has been tested in vain.
#[derive(Debug)]
pub struct Stall {
    tests: u32,
    awaited: Option<(RequestId, Instant)>,
    /// Time without an acknowledgement after which a path is suspected; zero: never.
    limit: Duration,
    factor: u32,
}

impl Stall {
    /// A path is suspected after `limit_ms` milliseconds, and the time that the data takes; 0: never.
    pub fn new(limit_ms: u64) -> Self {
        Self { tests: 0, awaited: None, limit: Duration::from_millis(limit_ms), factor: 1 }
    }

    /// To be called after each test in vain: whether it is time for [`Self::check`].
    #[inline(always)]
    pub fn is_due(&mut self) -> bool {
        self.tests = self.tests.wrapping_add(1);
        self.tests.is_multiple_of(LOOK_EVERY)
    }

    /// Request `awaited` has been tested in vain. Returns for how long, if that is suspicious; `data_time` returns how long all
    /// data takes that is under way.
    pub fn check(&mut self, awaited: RequestId, data_time: impl FnOnce() -> Duration) -> Option<Duration> {
        let waited = self.waited(awaited)?;
        if self.limit.is_zero() || waited < (self.limit + data_time()) * self.factor {
            return None;
        }
        self.awaited = None;
        self.back_off();
        Some(waited)
    }

    /// There was a suspicion: the next one takes twice as long.
    pub fn back_off(&mut self) {
        self.factor = (self.factor * 2).min(MAX_FACTOR);
    }

    /// How long request `awaited` has been tested in vain; `None` when it is tested for the first time.
    pub fn waited(&mut self, awaited: RequestId) -> Option<Duration> {
        let now = Instant::now();
        match self.awaited {
            Some((before, since)) if before == awaited => Some(now.saturating_duration_since(since)),
            _ => {
                self.awaited = Some((awaited, now));
                None
            }
        }
    }

    /// Time without an acknowledgement after which a path is suspected; zero: never.
    pub fn limit(&self) -> Duration {
        self.limit * self.factor
    }

    /// What has been waited for so far does not count.
    pub fn reset(&mut self) {
        self.awaited = None;
    }
}
