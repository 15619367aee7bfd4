//! The one bounded wait.

use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

/// What no wait of a test takes, however slow the machine: beyond it something hangs. Longer than
/// the minute after which a hang report that was not right yet is followed by the next one. Less
/// than the time after which a process of a pair that is silent is given up, so that a process says
/// itself what it waits for.
pub const LIMIT: Duration = Duration::from_secs(150);
/// A condition is tried again and again without a pause for so long: most come true within
/// microseconds.
const BUSY: Duration = Duration::from_millis(2);
/// Between two attempts afterwards. Not longer with time: a condition may be what makes things go
/// on.
const PAUSE: Duration = Duration::from_micros(200);

/// What a condition says: not yet, or what was waited for.
pub trait Condition {
    /// What was waited for.
    type Found;
    /// It, once it is there.
    fn found(self) -> Option<Self::Found>;
}

impl Condition for bool {
    type Found = ();
    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Condition for Option<T> {
    type Found = T;
    fn found(self) -> Self {
        self
    }
}

/// Tries `condition` until it is true or has found something, which is returned.
#[track_caller]
pub fn wait_until<C: Condition>(what: impl Display, condition: impl FnMut() -> C) -> C::Found {
    match wait_within(LIMIT, condition) {
        Some(found) => found,
        None => panic!("waited {LIMIT:?} for {what}, without success"),
    }
}

/// As [`wait_until`], for what may not come: `None` after `limit`.
pub fn wait_within<C: Condition>(
    limit: Duration,
    mut condition: impl FnMut() -> C,
) -> Option<C::Found> {
    let start = Instant::now();
    loop {
        // Looked at before the condition: that is tried at least once after the limit, however late
        // this thread gets to run.
        let elapsed = start.elapsed();
        if let Some(found) = condition().found() {
            return Some(found);
        }
        if elapsed > limit {
            return None;
        }
        if elapsed < BUSY { thread::yield_now() } else { thread::sleep(PAUSE) }
    }
}
