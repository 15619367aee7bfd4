//! Queues in switches: what waits at each link, how fast it leaves, and which links are paused.
//!
//! A fluid still: at each link a queue pair has so many bytes, and a link that cannot carry all of them in a step of time carries the same
//! share of each. What it carries is at the next link in the next step. With pauses, a switch at which too much waits that has come over
//! one link stops that link, as PFC does for a priority, and with it all that would take it, wherever that goes.
//!
//! The constants and where they come from: docs/paths.md. The NICs' own queues hold what they may send in one step, and mark nothing.

use crate::ecmp::fair::{MAX_HOPS, Path};
use crate::ecmp::hash::Random;
use crate::ecmp::rate_control::{Rate, RateControl, marked};

/// Bytes from one link that a switch holds before it stops it, and before it lets it go on.
const STOP: f64 = 1e6;
const GO_ON: f64 = 0.5e6;

/// What is held of all queue pairs at all links.
#[derive(Debug)]
pub(super) struct Queues {
    has_rate_control: bool,
    has_pauses: bool,
    /// The speed of a port, in bytes in a microsecond.
    line: f64,
    /// By queue pair: its rate, what it has at each link of its path, and what arrived in the latest step; bytes.
    rates: Vec<Rate>,
    held: Vec<[f64; MAX_HOPS]>,
    pub(super) arrived: Vec<f64>,
    /// By link: what waits for it, and which share of that it carries in this step.
    waiting: Vec<f64>,
    carried: Vec<f64>,
    /// By link: the share of packets that are marked there.
    marked: Vec<f64>,
    /// By link: what has come over it and waits at its end, and whether it is stopped for that.
    beyond: Vec<f64>,
    is_stopped: Vec<bool>,
    /// Steps in which a link was stopped, over all links.
    pub(super) stops: u64,
    random: Random,
}

impl Queues {
    pub(super) fn new(control: RateControl, has_pauses: bool, line: f64, random: Random) -> Self {
        Self {
            has_rate_control: control == RateControl::Dcqcn,
            has_pauses,
            line,
            rates: Vec::new(),
            held: Vec::new(),
            arrived: Vec::new(),
            waiting: Vec::new(),
            carried: Vec::new(),
            marked: Vec::new(),
            beyond: Vec::new(),
            is_stopped: Vec::new(),
            stops: 0,
            random,
        }
    }

    /// Queue pair `number` is new: nothing of it is under way.
    pub(super) fn replace(&mut self, number: usize) {
        if let (Some(rate), Some(held)) = (self.rates.get_mut(number), self.held.get_mut(number)) {
            *rate = Rate::new(self.line);
            *held = [0.0; MAX_HOPS];
        }
    }

    /// Goes on by `step` microseconds: queue pairs with these `paths` have so many bytes left to send (`left`), which includes what is
    /// under way. Capacities are in parts of a port's speed. What has arrived is in `arrived` then.
    pub(super) fn advance(&mut self, capacities: &[f64], paths: &[Path], left: &[f64], step: f64) {
        self.rates.resize_with(paths.len(), || Rate::new(self.line));
        self.held.resize(paths.len(), [0.0; MAX_HOPS]);
        self.arrived.resize(paths.len(), 0.0);
        self.is_stopped.resize(capacities.len(), false);
        self.inject(left, step);
        self.plan(capacities, paths, step);
        for (number, path) in paths.iter().enumerate() {
            self.carry(number, path, step);
        }
        if self.has_pauses {
            self.pause();
        }
    }

    /// Each queue pair gives its NIC what its rate allows in this step, if it has as much.
    fn inject(&mut self, left: &[f64], step: f64) {
        for ((held, rate), left) in self.held.iter_mut().zip(&self.rates).zip(left) {
            let under_way: f64 = held.iter().sum();
            held[0] += (rate.current() * step - held[0]).min(left - under_way).max(0.0);
        }
    }

    /// What each link carries of what waits for it, and what it marks.
    fn plan(&mut self, capacities: &[f64], paths: &[Path], step: f64) {
        self.waiting.clear();
        self.waiting.resize(capacities.len(), 0.0);
        for (path, held) in paths.iter().zip(&self.held) {
            path.links().zip(held).for_each(|(link, bytes)| self.waiting[link] += bytes);
        }
        let all = capacities.iter().zip(&self.waiting).zip(&self.is_stopped);
        self.carried.clear();
        self.carried.extend(all.map(|((capacity, waiting), is_stopped)| match *is_stopped || *waiting <= 0.0 {
            true => 0.0,
            false => (capacity * self.line * step / waiting).min(1.0),
        }));
        self.marked.clear();
        self.marked
            .extend(self.waiting.iter().zip(&self.carried).map(|(waiting, share)| marked(waiting * (1.0 - share))));
        self.beyond.clear();
        self.beyond.resize(capacities.len(), 0.0);
    }

    /// Takes what there is of one queue pair one link further.
    fn carry(&mut self, number: usize, path: &Path, step: f64) {
        let held = &mut self.held[number];
        let (mut coming, mut sent, mut marked) = (0.0, 0.0, 0.0);
        let mut before: Option<usize> = None;
        for (hop, link) in path.links().enumerate() {
            let leaving = held[hop] * self.carried[link];
            held[hop] += coming - leaving;
            match before {
                None => sent = leaving,
                Some(before) => {
                    self.beyond[before] += held[hop];
                    marked += self.marked[link];
                }
            }
            (coming, before) = (leaving, Some(link));
        }
        self.arrived[number] = coming;
        if self.has_rate_control {
            self.rates[number].advance(step, sent, marked.min(1.0), &mut self.random);
        }
    }

    fn pause(&mut self) {
        for (is_stopped, beyond) in self.is_stopped.iter_mut().zip(&self.beyond) {
            *is_stopped = *beyond > if *is_stopped { GO_ON } else { STOP };
            self.stops += u64::from(*is_stopped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: f64 = 50_000.0;

    /// What arrives of each queue pair in a step, as a share of a port's speed, on average over the second half of the time.
    fn shares(queues: &mut Queues, capacities: &[f64], paths: &[&[usize]], steps: usize) -> Vec<f64> {
        let paths: Vec<Path> = paths.iter().map(|links| Path::new(links)).collect();
        let mut sum = vec![0.0; paths.len()];
        for step in 0..steps {
            queues.advance(capacities, &paths, &vec![1e9; paths.len()], 2.0);
            let counts = f64::from(u8::from(step >= steps / 2));
            sum.iter_mut().zip(&queues.arrived).for_each(|(sum, arrived)| *sum += counts * arrived);
        }
        sum.iter().map(|sum| sum / (LINE * 2.0 * (steps - steps / 2) as f64)).collect()
    }

    fn queues(control: RateControl, has_pauses: bool) -> Queues {
        Queues::new(control, has_pauses, LINE, Random::new(4))
    }

    #[test]
    fn a_queue_pair_alone_is_as_fast_as_its_narrowest_link() {
        for control in [RateControl::None, RateControl::Dcqcn] {
            let share = shares(&mut queues(control, true), &[1.0, 0.25, 1.0], &[&[0, 1, 2]], 20_000)[0];
            assert!((0.2..=0.2501).contains(&share), "{control:?}: {share}");
        }
    }

    /// What is given to the NIC arrives, and nothing more.
    #[test]
    fn every_byte_arrives_once() {
        let mut queues = queues(RateControl::Dcqcn, true);
        let paths = [[0, 2, 3], [1, 2, 4]].map(|links| Path::new(&links));
        let mut left = [3e6, 5e6];
        for _ in 0..20_000 {
            queues.advance(&[1.0, 1.0, 0.5, 1.0, 1.0], &paths, &left, 2.0);
            left.iter_mut().zip(&queues.arrived).for_each(|(left, arrived)| *left -= arrived);
        }
        assert!(left.iter().all(|left| left.abs() < 1.0), "{left:?}");
    }

    /// Two go over link 2, which is full; the third comes from the same NIC as the first and goes elsewhere. Where links are stopped, it
    /// waits behind the first one; rate control keeps the queue short, so that it need not.
    #[test]
    fn a_stopped_link_makes_others_wait_and_rate_control_avoids_it() {
        let capacities = [1.0, 1.0, 0.5, 1.0, 1.0, 1.0];
        let paths: [&[usize]; 3] = [&[0, 2, 4], &[1, 2, 5], &[0, 3, 4]];
        let victim = |control, has_pauses| {
            let mut queues = queues(control, has_pauses);
            (shares(&mut queues, &capacities, &paths, 30_000)[2], queues.stops)
        };
        let (paused, stops) = victim(RateControl::None, true);
        assert!(paused < 0.3 && stops > 0, "{paused} {stops}");
        let (controlled, _) = victim(RateControl::Dcqcn, true);
        assert!(controlled > 1.5 * paused, "{controlled} {paused}");
    }

    #[test]
    fn the_same_seed_gives_the_same_rates() {
        let run = || shares(&mut queues(RateControl::Dcqcn, true), &[1.0, 1.0, 0.5], &[&[0, 2], &[1, 2]], 5000);
        assert_eq!(run(), run());
    }
}
