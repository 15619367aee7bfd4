//! The clock for measured times: the processor's time stamp counter where the kernel uses it as its
//! clock source, else the kernel's monotonic clock.
//!
//! Each timed message reads it a few times. Reading the counter takes one instruction.

#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How to read the clock, and what a tick is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    is_counter: bool,
    start: Instant,
    /// Nanoseconds per tick, times 2^32.
    scale: u64,
}

/// How long the counter is calibrated against the kernel's clock, once per process. Each reading is
/// off by some 50 ns.
const COMPARED: Duration = Duration::from_micros(200);
/// Two readings at most this many ticks apart count as the same moment: about a microsecond.
const UNEQUAL: u64 = 2_000;
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

impl Clock {
    /// The clock of this process. The first call takes 0.2 ms.
    pub(super) fn get() -> Self {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        *CLOCK.get_or_init(Self::new)
    }

    fn new() -> Self {
        let start = Instant::now();
        let kernel = Self { is_counter: false, start, scale: 1 << 32 };
        let is_counter = cfg!(target_arch = "x86_64")
            && std::fs::read_to_string(CLOCK_SOURCE).is_ok_and(|name| name.trim() == "tsc");
        if !is_counter {
            return kernel;
        }
        let first = both(start);
        while start.elapsed() < COMPARED {}
        let second = both(start);
        let (ns, ticks) = (second.0 - first.0, second.1.saturating_sub(first.1));
        match (ns << 32).checked_div(ticks) {
            Some(scale) => Self { is_counter, start, scale },
            None => kernel,
        }
    }

    /// The time in ticks.
    pub(super) fn now(&self) -> u64 {
        if self.is_counter { counter() } else { self.start.elapsed().as_nanos() as u64 }
    }

    /// The time in ticks, and the kernel's monotonic clock in nanoseconds, read less than
    /// [`UNEQUAL`] ticks later unless the thread is interrupted three times.
    pub(super) fn now_and_monotonic(&self) -> (u64, u64) {
        let mut before = self.now();
        let mut attempts = 1;
        loop {
            let ns = monotonic();
            let after = self.now();
            if after.wrapping_sub(before) < UNEQUAL || attempts == 3 {
                return (before, ns);
            }
            (before, attempts) = (after, attempts + 1);
        }
    }

    /// The time from `earlier` to `later`, both in ticks, in nanoseconds. 0 if they are in the
    /// wrong order: the counters of two processors may differ a little.
    pub(super) fn ns_between(&self, earlier: u64, later: u64) -> u64 {
        let ticks = later.saturating_sub(earlier);
        ((u128::from(ticks) * u128::from(self.scale)) >> 32) as u64
    }
}

/// The kernel's monotonic clock in nanoseconds.
pub(super) fn monotonic() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // The C library's function: rustix's does not work under valgrind. SAFETY: a valid place for
    // the time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The kernel's time since `start` in nanoseconds, and the counter at that moment. Takes the
/// fastest of several readings, since the thread may be interrupted during one.
fn both(start: Instant) -> (u64, u64) {
    let read = |_| {
        let before = counter();
        let ns = start.elapsed().as_nanos() as u64;
        let took = counter().saturating_sub(before);
        (took, (ns, before + took / 2))
    };
    (0..10).map(read).min().unwrap_or_default().1
}

#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_as_long_as_the_kernel_says() {
        let clock = Clock::get();
        let (start, first) = (Instant::now(), clock.now());
        std::thread::sleep(Duration::from_millis(20));
        let inner = clock.ns_between(first, clock.now());
        let outer = start.elapsed().as_nanos() as u64;
        assert!((19_900_000..outer + outer / 200).contains(&inner), "{inner} of {outer} ns");
        assert_eq!(clock.ns_between(5, 3), 0);
    }

    #[test]
    fn a_moment_by_the_monotonic_clock_is_between_those_before_and_after() {
        let clock = Clock::get();
        let (first, before) = (clock.now(), monotonic());
        let (ticks, ns) = clock.now_and_monotonic();
        assert!((before..=monotonic()).contains(&ns));
        assert!((first..=clock.now()).contains(&ticks));
    }
}
