//! Time in a stream: since its start, since its last progress, and how a process waits.

use std::time::{Duration, Instant};

/// Calls that find nothing before the process sleeps for a moment, so that both processes make progress where they share processors.
const POLLS: u32 = 64;
const NAP: Duration = Duration::from_micros(50);

/// The clock of one end.
#[derive(Debug)]
pub(super) struct Pace {
    start: Instant,
    progress: Instant,
    limit: Duration,
    polls: u32,
}

impl Pace {
    /// The stream begins now; an end without progress for `limit_ms` counts as hung.
    pub(super) fn start(limit_ms: u64) -> Self {
        let start = Instant::now();
        Self { start, progress: start, limit: Duration::from_millis(limit_ms), polls: 0 }
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
        self.progress = Instant::now();
        self.polls = 0;
    }

    /// Nothing was found: waits a moment; true past the limit.
    pub(super) fn idle(&mut self) -> bool {
        self.polls = self.polls.saturating_add(1);
        if self.polls < POLLS {
            std::thread::yield_now();
            return false;
        }
        std::thread::sleep(NAP);
        self.progress.elapsed() > self.limit
    }
}
