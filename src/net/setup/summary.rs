//! A summary of connection set-up: one log line that NCCL shows by default, once no connection has
//! been set up for a while. A line for each connection would be thousands; `NCCL_DEBUG_SUBSYS=NET`
//! shows these.

use crate::error::Result;
use crate::net::background::notices::INIT;
use crate::net::background::periodic::PeriodicTask;
use crate::net::control::driver::ControlDriver;
use crate::net::device::nic::Nic;
use crate::stats::record::Direction;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The line is written after this time without a new connection.
const QUIET: Duration = Duration::from_millis(900);

static SUMMARY: LazyLock<Arc<Summary>> = LazyLock::new(Arc::default);

/// Records that an end of a connection on `nic` to `peer` has been set up in these `steps`. A
/// watcher writes the line.
///
/// # Errors
/// A watcher cannot be started, or the kernel has no memory for it.
pub(super) fn add(
    nic: &Nic,
    control: &Arc<ControlDriver>,
    direction: Direction,
    peer: impl ToString,
    steps: &Steps,
) -> Result<()> {
    SUMMARY.lock().add(direction, peer, steps, Instant::now());
    let task: Arc<dyn PeriodicTask> = Arc::clone(&*SUMMARY) as _;
    nic.watch_set_up(control, Some(&task))
}

/// The summary of this process, since the latest line.
#[derive(Debug, Default)]
struct Summary(Mutex<Sums>);

impl Summary {
    fn lock(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeriodicTask for Summary {
    fn run(&self) -> bool {
        let mut sums = self.lock();
        if !sums.are_quiet(Instant::now()) {
            return true;
        }
        let lines = std::mem::take(&mut *sums).lines();
        drop(sums);
        for line in lines {
            log::info!(target: INIT, "{line}");
        }
        false
    }
}

#[derive(Debug, Default)]
struct Sums(Vec<Sum>);

/// The summary of one direction.
#[derive(Debug)]
struct Sum {
    direction: Direction,
    count: usize,
    /// When the first one began, and when the latest one was complete.
    time: [Instant; 2],
    steps: Steps,
    /// The peer and the time of the slowest one.
    longest: (String, Duration),
}

impl Sums {
    fn add(&mut self, direction: Direction, peer: impl ToString, steps: &Steps, now: Instant) {
        let took = steps.total();
        let begun = now.checked_sub(took).unwrap_or(now);
        let Some(sum) = self.0.iter_mut().find(|sum| sum.direction == direction) else {
            let longest = (peer.to_string(), took);
            self.0.push(Sum {
                direction,
                count: 1,
                time: [begun, now],
                steps: steps.clone(),
                longest,
            });
            return;
        };
        sum.count += 1;
        sum.time = [sum.time[0].min(begun), now];
        sum.steps.add(steps);
        if took > sum.longest.1 {
            sum.longest = (peer.to_string(), took);
        }
    }

    fn are_quiet(&self, now: Instant) -> bool {
        self.0.iter().all(|sum| now.saturating_duration_since(sum.time[1]) >= QUIET)
    }

    fn lines(self) -> impl Iterator<Item = String> {
        self.0.into_iter().map(|Sum { direction, count, time: [begun, complete], steps, longest: (peer, most) }| {
            let (what, to) = match direction {
                Direction::Send => ("sending", "to"),
                Direction::Receive => ("receiving", "from"),
            };
            let (all, most) = (complete.duration_since(begun).as_millis(), most.as_millis());
            format!(
                "Ferrite: set up {count} connection(s) for {what} in {all} ms; their steps, which overlap, add up to: {steps}; \
                 the slowest took {most} ms, {to} {peer}"
            )
        })
    }
}

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

    #[test]
    fn it_is_looked_at_again_until_the_lines_are_written() {
        let summary = Summary::default();
        summary.lock().add(
            Direction::Send,
            "a",
            &Steps::of([]),
            Instant::now() + Duration::from_secs(3600),
        );
        assert!(summary.run());
        summary.lock().0[0].time[1] =
            Instant::now().checked_sub(QUIET).expect("the machine runs for longer");
        assert!(!summary.run());
        assert!(summary.lock().0.is_empty());
    }

    #[test]
    fn each_direction_has_a_line_with_sums_and_the_slowest_end() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let steps = |ms| {
            Steps::of([
                ("dial", Duration::from_millis(1)),
                ("handshake", Duration::from_millis(ms)),
            ])
        };
        let mut sums = Sums::default();
        sums.add(Direction::Send, "a", &steps(9), after(10));
        sums.add(Direction::Receive, "a", &steps(2), after(12));
        sums.add(Direction::Send, "b", &steps(29), after(40));
        sums.add(Direction::Send, "c", &steps(3), after(50));
        assert!(!sums.are_quiet(after(940)));
        assert!(sums.are_quiet(after(950)));
        let lines: Vec<_> = sums.lines().collect();
        let send = "Ferrite: set up 3 connection(s) for sending in 50 ms; their steps, which overlap, add up to: \
                    dial 3000 us, handshake 41000 us; the slowest took 30 ms, to b";
        let receive = "Ferrite: set up 1 connection(s) for receiving in 3 ms; their steps, which overlap, add up to: \
                       dial 1000 us, handshake 2000 us; the slowest took 3 ms, from a";
        assert_eq!(lines, [send, receive]);
    }
}
