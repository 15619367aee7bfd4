//! The time for everything whose order matters: the data path, faults and recovery. A simulator
//! sets it for its thread.

use std::time::{Duration, Instant};

/// Now.
#[inline(always)]
pub fn now() -> Instant {
    #[cfg(feature = "simulator")]
    if let Some(now) = simulated::now() {
        return now;
    }
    Instant::now()
}

/// The time since `then`; zero if that is yet to come.
pub fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// Waits.
pub fn sleep(pause: Duration) {
    #[cfg(feature = "simulator")]
    if simulated::advance(pause) {
        return;
    }
    std::thread::sleep(pause);
}

/// The time of a simulator.
#[cfg(feature = "simulator")]
pub mod simulated {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    thread_local! {
        static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
        static TICK: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// From now on it is `now` on this thread; `None`: the time passes again.
    #[inline]
    pub fn set(now: Option<Instant>) {
        NOW.set(now);
    }

    /// From now on that much time passes on this thread with each look at the clock.
    pub fn set_tick(tick: Duration) {
        TICK.set(tick);
    }

    /// The time on this thread, if it is simulated.
    #[inline]
    pub fn now() -> Option<Instant> {
        let now = NOW.get();
        let tick = TICK.get();
        if !tick.is_zero() {
            NOW.set(now.map(|now| now + tick));
        }
        now
    }

    /// If the time of this thread is simulated, lets `pause` pass at once and returns true.
    #[inline]
    pub fn advance(pause: Duration) -> bool {
        NOW.set(NOW.get().map(|now| now + pause));
        NOW.get().is_some()
    }
}
