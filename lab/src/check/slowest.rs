//! How long calls take, whatever other processes do.

use std::time::{Duration, Instant};

/// The longest of some calls, less the time in which others had the processors.
#[derive(Debug, Default)]
pub(crate) struct Slowest(pub(crate) Duration);

impl Slowest {
    pub(crate) fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let (waited, start) = (waited_for_a_processor(), Instant::now());
        let result = call();
        let (taken, waited) = (start.elapsed(), waited_for_a_processor().saturating_sub(waited));
        self.0 = self.0.max(taken.saturating_sub(waited));
        result
    }
}

/// How long this thread has been ready to run while others had the processors, in all; 0 where the kernel does not tell (the second number of
/// `schedstat` in proc(5), nanoseconds).
fn waited_for_a_processor() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_sleeps_is_slow() {
        let mut slowest = Slowest::default();
        slowest.time(|| std::thread::sleep(Duration::from_millis(20)));
        slowest.time(|| ());
        assert!(slowest.0 >= Duration::from_millis(10), "{slowest:?}");
    }
}
