//! The duration of the steps of a connection's set-up, for the log.

use std::fmt;
use std::time::{Duration, Instant};

/// The steps of one end, in order.
#[derive(Debug, Clone)]
pub(super) struct Steps {
    /// When the latest step ended.
    last: Instant,
    taken: Vec<(&'static str, Duration)>,
}

impl Steps {
    /// Begins the first step.
    pub(super) fn begin() -> Self {
        Self { last: Instant::now(), taken: Vec::new() }
    }

    /// Ends step `name`, and begins the next one. A repeated step appears once, with the sum.
    pub(super) fn end(&mut self, name: &'static str) {
        let now = Instant::now();
        let took = now.duration_since(std::mem::replace(&mut self.last, now));
        self.add_step(name, took);
    }

    /// Adds the steps of another connection.
    pub(super) fn add(&mut self, other: &Self) {
        other.taken.iter().for_each(|(name, took)| self.add_step(name, *took));
    }

    /// The total duration.
    pub(super) fn total(&self) -> Duration {
        self.taken.iter().map(|(_, took)| *took).sum()
    }

    fn add_step(&mut self, name: &'static str, took: Duration) {
        match self.taken.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += took,
            None => self.taken.push((name, took)),
        }
    }

    /// Steps with these durations.
    #[cfg(test)]
    pub(super) fn of(taken: impl IntoIterator<Item = (&'static str, Duration)>) -> Self {
        Self { last: Instant::now(), taken: taken.into_iter().collect() }
    }
}

/// `dial 210 us, queue pairs 95 us`
impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, took)) in self.taken.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{name} {} us", took.as_micros())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_steps_are_reported_once() {
        let mut steps = Steps::begin();
        ["dial", "reply", "dial", "commit"].into_iter().for_each(|step| steps.end(step));
        let text = steps.to_string();
        let names: Vec<_> = text.split(", ").filter_map(|step| step.split(' ').next()).collect();
        assert_eq!(names, ["dial", "reply", "commit"], "{text}");
        assert!(text.ends_with(" us"), "{text}");
    }
}
