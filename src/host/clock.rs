//! The clock of the data path. A simulator may set it for its thread.

use std::time::Instant;

/// Now.
#[inline(always)]
pub fn now() -> Instant {
    #[cfg(test)]
    if let Some(now) = SIMULATED.get() {
        return now;
    }
    Instant::now()
}

#[cfg(test)]
thread_local! {
    static SIMULATED: std::cell::Cell<Option<Instant>> = const { std::cell::Cell::new(None) };
}

/// Sets the time on this thread to `now`; `None`: the real time.
#[cfg(test)]
pub fn simulate(now: Option<Instant>) {
    SIMULATED.set(now);
}
