//! Time in a stream: since its start, since its last progress, and how a process waits.

use std::time::{Duration, Instant};

/// Calls that find nothing before the process sleeps for a moment, so that both processes make progress where they share processors.
const POLLS: u32 = 64;
const NAP: Duration = Duration::from_micros(50);
/// From one look to the next no more than this counts as waiting: in the rest this process was stopped, or the whole machine, and the
/// other end may have been as well.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// The clock of one end.
#[derive(Debug)]
pub(super) struct Pace {
    start: Instant,
    /// Since the last progress.
    waited: Duration,
    looked: Instant,
    limit: Duration,
    polls: u32,
}

impl Pace {
    /// The stream begins now; an end without progress for `limit_ms` counts as hung.
    pub(super) fn start(limit_ms: u64) -> Self {
        let start = Instant::now();
        Self { start, waited: Duration::ZERO, looked: start, limit: Duration::from_millis(limit_ms), polls: 0 }
    }

    /// How long an end may be without progress.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Since the start; ms.
    pub(super) fn now_ms(&self) -> f64 {
        self.start.elapsed().as_secs_f64() * 1e3
    }

    /// Whether so many microseconds have passed since the start.
    pub(super) fn is_past(&self, microseconds: u64) -> bool {
        self.start.elapsed() >= Duration::from_micros(microseconds)
    }

    /// Something was found.
    pub(super) fn progress(&mut self) {
        (self.waited, self.looked) = (Duration::ZERO, Instant::now());
        self.polls = 0;
    }

    /// Nothing was found: waits a moment; true past the limit.
    pub(super) fn idle(&mut self) -> bool {
        self.polls = self.polls.saturating_add(1);
        let is_napping = self.polls >= POLLS;
        if is_napping {
            std::thread::sleep(NAP);
        } else {
            std::thread::yield_now();
        }
        let now = Instant::now();
        self.waited += now.saturating_duration_since(self.looked).min(LONGEST_LOOK);
        self.looked = now;
        is_napping && self.waited > self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks, and finds nothing, so long after the last time.
    fn look_after(pace: &mut Pace, time: Duration) -> bool {
        pace.looked = pace.looked.checked_sub(time).expect("the machine has been up for longer");
        pace.idle()
    }

    #[test]
    fn the_time_in_which_a_process_was_stopped_is_not_waited() {
        let mut pace = Pace { polls: POLLS, ..Pace::start(5000) };
        assert!(!look_after(&mut pace, Duration::from_secs(20)), "it was stopped for as long");
        assert!(pace.waited >= LONGEST_LOOK);
        assert!((0..30).any(|_| look_after(&mut pace, Duration::from_millis(900))), "it has looked again and again");
        pace.progress();
        assert_eq!((pace.waited, pace.polls), (Duration::ZERO, 0));
    }
}
