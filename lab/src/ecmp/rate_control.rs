//! How fast a card lets a queue pair send: DCQCN, in which switches mark packets when a queue is long, the receiver answers marked packets
//! with a CNP, and the sender cuts its rate and raises it again.
//!
//! The constants and where they come from: docs/paths.md. Where queues are short, nothing is marked, and the rate is the port's.

use std::str::FromStr;

use crate::ecmp::hash::Random;

/// Microseconds between two CNPs of a queue pair.
const CNP_US: f64 = 50.0;
/// Microseconds of the timers that raise the rate and lower alpha.
const TIMER_US: f64 = 55.0;
/// Bytes after which the rate is raised, too.
const COUNTER_BYTES: f64 = 10e6;
const G: f64 = 1.0 / 256.0;
const FAST_STEPS: u32 = 5;
/// Bytes in a microsecond.
const ADDITIVE: f64 = 50.0;
const HYPER: f64 = 10.0 * ADDITIVE;
const LEAST: f64 = 12.5;
const PACKET: f64 = 4096.0;
/// Bytes of a queue above which packets are marked, and above which all are.
const MARK_FROM: f64 = 800e3;
const MARK_ALL: f64 = 3.2e6;
/// The share of packets that are marked just below that.
const MOST_MARKED: f64 = 0.2;

/// What decides how fast queue pairs send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RateControl {
    /// Rates are max-min fair at once; queues are always empty.
    Fair,
    /// Each sends as fast as its port, and queues fill.
    None,
    Dcqcn,
}

impl RateControl {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fair => "fair",
            Self::None => "none",
            Self::Dcqcn => "dcqcn",
        }
    }
}

impl FromStr for RateControl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Fair, Self::None, Self::Dcqcn];
        let wrong = || format!("{text} is no rate control; fair, none and dcqcn are");
        all.into_iter().find(|control| control.name() == text).ok_or_else(wrong)
    }
}

/// The share of packets that a switch marks whose queue has so many bytes.
pub(super) fn marked(queue: f64) -> f64 {
    if queue >= MARK_ALL { 1.0 } else { ((queue - MARK_FROM) / (MARK_ALL - MARK_FROM)).max(0.0) * MOST_MARKED }
}

/// The rate of one queue pair, in bytes in a microsecond.
#[derive(Debug, Clone)]
pub(super) struct Rate {
    line: f64,
    /// As fast as it may send.
    current: f64,
    target: f64,
    /// How congested its path is held to be: 0 to 1.
    alpha: f64,
    /// How often the timer and the byte counter have raised it since it was cut.
    stages: [u32; 2],
    timer: f64,
    alpha_timer: f64,
    bytes: f64,
    /// Since CNPs were last possible; us, and packets that are marked of those sent since then, on average.
    cnp_timer: f64,
    marks: f64,
}

impl Rate {
    /// A new queue pair at a port of this speed.
    pub(super) fn new(line: f64) -> Self {
        Self {
            line,
            current: line,
            target: line,
            alpha: 1.0,
            stages: [0; 2],
            timer: 0.0,
            alpha_timer: 0.0,
            bytes: 0.0,
            cnp_timer: 0.0,
            marks: 0.0,
        }
    }

    pub(super) fn current(&self) -> f64 {
        self.current
    }

    /// `step` microseconds have passed, in which `sent` bytes took a path on which this share of the packets is marked.
    pub(super) fn advance(&mut self, step: f64, sent: f64, marked: f64, random: &mut Random) {
        self.marks += sent / PACKET * marked;
        self.cnp_timer += step;
        self.timer += step;
        self.alpha_timer += step;
        self.bytes += sent;
        if self.cnp_timer >= CNP_US {
            self.cnp_timer = 0.0;
            let marks = std::mem::take(&mut self.marks);
            // None of many packets is marked with this chance.
            let none = (-marks).exp();
            if marks > 0.0 && random.below(1 << 20) as f64 >= none * f64::from(1 << 20) {
                return self.cut();
            }
        }
        if self.alpha_timer >= TIMER_US {
            self.alpha_timer = 0.0;
            self.alpha *= 1.0 - G;
        }
        if self.timer >= TIMER_US {
            self.timer = 0.0;
            self.raise(0);
        }
        if self.bytes >= COUNTER_BYTES {
            self.bytes = 0.0;
            self.raise(1);
        }
    }

    /// A CNP has come.
    fn cut(&mut self) {
        self.target = self.current;
        self.current = (self.current * (1.0 - self.alpha / 2.0)).max(LEAST);
        self.alpha = (1.0 - G) * self.alpha + G;
        self.stages = [0; 2];
        (self.timer, self.alpha_timer, self.bytes) = (0.0, 0.0, 0.0);
    }

    fn raise(&mut self, stage: usize) {
        self.stages[stage] += 1;
        let (least, most) = (self.stages[0].min(self.stages[1]), self.stages[0].max(self.stages[1]));
        if least > FAST_STEPS {
            self.target += HYPER;
        } else if most > FAST_STEPS {
            self.target += ADDITIVE;
        }
        self.target = self.target.min(self.line);
        self.current = (self.current + self.target) / 2.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: f64 = 50_000.0;

    fn after(rate: &mut Rate, time: f64, marked: f64) -> f64 {
        let mut random = Random::new(1);
        (0..time as u64).for_each(|_| rate.advance(1.0, rate.current(), marked, &mut random));
        rate.current()
    }

    #[test]
    fn packets_are_marked_above_a_threshold_and_all_far_above_it() {
        assert_eq!([marked(0.0), marked(MARK_FROM), marked(MARK_ALL)], [0.0, 0.0, 1.0]);
        assert!((marked(2e6) - 0.1).abs() < 1e-9);
    }

    /// By hand: at first alpha is 1, so that the first CNP halves the rate. Five steps of the timer and one after 10 MB halve what it lacks
    /// six times, to a 128th.
    #[test]
    fn a_cnp_halves_the_rate_of_a_new_queue_pair_and_without_more_it_comes_back() {
        let mut rate = Rate::new(LINE);
        assert_eq!(after(&mut rate, 49.0, 1.0), LINE);
        assert_eq!(after(&mut rate, 1.0, 1.0), LINE / 2.0);
        let recovered = after(&mut rate, 5.0 * TIMER_US, 0.0);
        assert!((recovered - LINE * (1.0 - 1.0 / 128.0)).abs() < 1.0, "{recovered}");
        assert!(after(&mut rate, 3000.0, 0.0) > LINE * 0.999);
    }

    #[test]
    fn marks_without_end_bring_the_rate_down_to_a_packet_for_each_cnp() {
        let mut rate = Rate::new(LINE);
        let low = after(&mut rate, 5000.0, 1.0);
        assert!((LEAST..4.0 * PACKET / CNP_US).contains(&low), "{low}");
    }
}
