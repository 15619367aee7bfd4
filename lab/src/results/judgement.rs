//! What the ratios of a comparison show, and how small a difference they could have shown.
//!
//! A value is the logarithm of B over A in one set: fresh processes with fresh connections, in
//! which both sides took turns ([`crate::measure::turns`]). Within a set it is the median over
//! pairs of neighbouring blocks, since a busy machine makes outliers of some. Blocks of one set are
//! not independent: they share the addresses of queues, code and pages. So a set is one value,
//! however many blocks it has, and many short sets say more than few long ones.
//!
//! Over the sets, the estimate is that of Hodges and Lehmann with the interval of Wilcoxon's signed
//! ranks ([`sample::signed_ranks`]). It assumes no distribution: it holds where a value lies as far
//! above the true one as below it, by the same chance. For two sides that are alike, the experiment
//! itself sees to that: chance decides which side is loaded, connected and measured first. So
//! exchanging A and B only changes the sign of a value. That holds on a busy machine, on one that
//! drifts, and for whatever neighbouring sets have in common. A single outlier would widen the
//! t-interval of a mean, and a sign test needs half as many sets again.
//!
//! One rule for all. If the interval lies beyond [`NOTHING`] on one side of 1, B is better or
//! worse. If it lies within the difference that must not be missed, they are the same within its
//! further end. Otherwise it is undecided.

use serde::{Deserialize, Serialize};

use crate::measure::metric::Better;
use crate::measure::sample;
use crate::measure::sample::Estimate;

/// A smaller difference counts as none: the addresses of code in memory cause as much.
pub const NOTHING: f64 = 0.01;
/// If the sides do not differ: the chance that a run finds any difference, half of it for rows and
/// half for groups.
pub const CHANCE: f64 = 0.005;
/// A difference of the interval's half width, in logarithms, is found in half of all runs; one of
/// so many times that, in four of five. Half the width is 3.5 standard errors or more.
const FOUR_OF_FIVE: f64 = 1.25;

/// What a row or a group shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// B is better than A.
    Better,
    /// B is worse than A.
    Worse,
    /// They are the same within [`Judgement::within`].
    Same,
    /// A difference that must not be missed could have been.
    #[default]
    Undecided,
}

/// The ratio of a row or a group, and what follows from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// B over A, with the interval that the finding follows from.
    pub ratio: Option<Estimate>,
    /// Over so many sets.
    pub sets: usize,
    /// What follows.
    pub finding: Finding,
    /// How far from 1 the interval reaches, as a fraction: 0.1 is 10 %.
    pub within: Option<f64>,
    /// The smallest difference that such values find in four of five runs. Null if none could.
    pub visible: Option<f64>,
}

impl Judgement {
    /// How many times as good B is, from, to: the interval in the direction of the metric.
    pub fn speeds(&self, better: Better) -> Option<(f64, f64, f64)> {
        let Estimate { median, low, high, .. } = self.ratio?;
        let [middle, one, other] = [median, low, high].map(|ratio| better.speed(ratio));
        Some((middle, one.min(other), one.max(other)))
    }
}

/// Judges the logarithms of B over A, one of each set. A difference is claimed of what does not
/// differ by `chance` or less; one of `find` must not be missed.
pub fn judge(better: Better, logs: &[f64], chance: f64, find: f64) -> Judgement {
    let level = 1.0 - chance;
    let Some(logs_at) = sample::signed_ranks(logs, level) else { return Judgement::default() };
    let [median, low, high] = [logs_at.median, logs_at.low, logs_at.high].map(f64::exp);
    let ratio = Some(Estimate { median, low, high, coverage: logs_at.coverage });
    // Too few values for any claim by this chance.
    if logs_at.coverage < level {
        return Judgement { ratio, sets: logs.len(), ..Judgement::default() };
    }
    let within = high.max(1.0 / low) - 1.0;
    let visible = NOTHING.ln_1p() + FOUR_OF_FIVE * (logs_at.high - logs_at.low) / 2.0;
    let (slowest, fastest) = match better {
        Better::Higher => (low, high),
        Better::Lower => (1.0 / high, 1.0 / low),
    };
    let finding = if slowest > 1.0 + NOTHING {
        Finding::Better
    } else if fastest < 1.0 / (1.0 + NOTHING) {
        Finding::Worse
    } else if within <= find {
        Finding::Same
    } else {
        Finding::Undecided
    };
    Judgement {
        ratio,
        sets: logs.len(),
        finding,
        within: Some(within.max(NOTHING)),
        visible: Some(visible.exp_m1()),
    }
}

/// So many sets are looked at first; the next look comes at half as many again.
const FIRST_LOOK: usize = 16;

/// Whether results are looked at after `sets` sets, to find out whether they suffice.
pub fn is_look(sets: usize) -> bool {
    looks().take_while(|look| *look <= sets).any(|look| look == sets)
}

/// The part of a chance that a look after so many sets may take: the first one a half, the second
/// one a sixth, and all together the whole. So it does no harm to look often and to stop early.
pub fn part_of_look(sets: usize) -> f64 {
    let number = 1 + looks().take_while(|look| *look < sets).count();
    1.0 / (number * (number + 1)) as f64
}

fn looks() -> impl Iterator<Item = usize> {
    std::iter::successors(Some(FIRST_LOOK), |look| Some(look + look / 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::metric::Metric;
    use crate::measure::metric::{Direction, Key};
    use crate::measure::turns::Turns;
    use crate::results::rows::{self, Set};

    /// `count` values evenly spread over `middle`, by `width` to each side, in logarithms.
    fn spread(middle: f64, width: f64, count: usize) -> Vec<f64> {
        (0..count)
            .map(|at| middle.ln() + width * (2.0 * at as f64 / (count - 1) as f64 - 1.0))
            .collect()
    }

    #[test]
    fn the_finding_follows_from_the_interval_alone() {
        for (middle, width, higher, lower) in [
            (1.2, 0.03, Finding::Better, Finding::Worse),
            (0.8, 0.03, Finding::Worse, Finding::Better),
            (1.01, 0.01, Finding::Same, Finding::Same),
            (0.99, 0.01, Finding::Same, Finding::Same),
            // It differs from 1, and by nothing that counts.
            (1.005, 0.001, Finding::Same, Finding::Same),
            (1.0, 0.5, Finding::Undecided, Finding::Undecided),
        ] {
            for (better, expected) in [(Better::Higher, higher), (Better::Lower, lower)] {
                let found = judge(better, &spread(middle, width, 30), 1e-3, 0.05);
                let ratio = found.ratio.expect("values");
                assert_eq!(found.finding, expected, "{middle} {width} {ratio:?}");
                let is_beyond = ratio.low > 1.01 || ratio.high < 1.0 / 1.01;
                let is_claim = matches!(expected, Finding::Better | Finding::Worse);
                assert_eq!(is_claim, is_beyond, "{ratio:?}");
            }
        }
    }

    #[test]
    fn few_sets_find_nothing_and_say_so() {
        for (count, is_told) in [(1, false), (10, false), (11, true)] {
            let found = judge(Better::Higher, &vec![1.0; count], 1e-3, 0.05);
            assert_eq!(found.finding == Finding::Better, is_told, "{count}");
            assert_eq!(found.visible.is_some(), is_told);
            assert!(found.ratio.is_some());
        }
        assert_eq!(judge(Better::Higher, &[], 0.1, 0.05), Judgement::default());
    }

    #[test]
    fn the_looks_together_take_no_more_than_the_chance() {
        let looks: Vec<usize> = (1..2000).filter(|sets| is_look(*sets)).collect();
        assert_eq!(looks[..5], [16, 24, 36, 54, 81]);
        // The last one comes when the time is over, between two.
        let last = looks.last().expect("some") + 1;
        let parts = looks.iter().copied().chain([last]).map(part_of_look);
        let sum: f64 = parts.sum();
        assert!(sum <= 1.0 && part_of_look(5) == 0.5 && part_of_look(17) == part_of_look(24));
    }

    /// A machine in a simulation: what it does to the times of blocks.
    struct Machine {
        random: fastrand::Rng,
        /// What all blocks have in common now: it wanders and swings.
        drift: f64,
        /// By how much from one block to the next.
        swing: f64,
        /// How wild blocks are, and how often.
        wild: (f64, f64),
        /// How much a side's connections differ from one set to the next.
        luck: f64,
    }

    impl Machine {
        fn new(seed: u64, (wild, luck, swing): Kind) -> Self {
            Self { random: fastrand::Rng::with_seed(seed), drift: 0.0, swing, wild, luck }
        }

        /// By Box and Muller.
        fn normal(&mut self) -> f64 {
            let [one, other] = [self.random.f64(), self.random.f64()];
            (-2.0 * (1.0 - one).ln()).sqrt() * (std::f64::consts::TAU * other).cos()
        }

        /// A set of one row, with B's times so many times as long.
        fn set(&mut self, slower: f64) -> Set {
            let luck = [self.luck * self.normal(), self.luck * self.normal()];
            let (mut order, mut values, mut disturbed) = (String::new(), Vec::new(), Vec::new());
            // A disturbance lasts for some blocks.
            let mut left = 0;
            for _ in 0..4 {
                order += if self.random.bool() { "ABBA" } else { "BAAB" };
            }
            for letter in order.bytes() {
                self.drift = 0.95 * self.drift + self.swing * self.normal();
                if left == 0 && self.random.f64() < self.wild.1 {
                    left = self.random.usize(1..4);
                }
                let mut log = self.drift + 0.01 * self.normal();
                if left > 0 {
                    left -= 1;
                    // As heavy as a Cauchy tail.
                    log += self.wild.0 * (1.0 / (1.0 - self.random.f64())).ln().exp().min(50.0);
                }
                log += luck[usize::from(letter == b'B')];
                values.push((log + if letter == b'B' { slower.ln() } else { 0.0 }).exp());
                // Half of what is wild is seen by the kernel.
                disturbed.push(left > 0 && self.random.bool());
            }
            let key =
                Key { metric: Metric::Latency, bytes: 8, direction: Direction::Both, depth: 1 };
            let turns = vec![Turns { key, order, values, disturbed }];
            Set { seconds: 1.0, turns, traffic: Vec::new() }
        }

        /// The values of so many sets.
        fn logs(&mut self, slower: f64, sets: usize) -> Vec<f64> {
            (0..sets).filter_map(|_| self.set(slower).turns[0].log_ratio()).collect()
        }
    }

    /// How wild blocks are and how often; the luck of a set; the swing from block to block.
    type Kind = ((f64, f64), f64, f64);

    /// Quiet; busy; very busy; and one in which nearly everything lies in the luck of a set.
    const MACHINES: [Kind; 4] = [
        ((0.0, 0.0), 0.003, 0.01),
        ((0.2, 0.1), 0.01, 0.05),
        ((1.0, 0.4), 0.02, 0.1),
        ((0.0, 0.0), 0.08, 0.01),
    ];

    #[test]
    fn the_interval_covers_the_true_ratio_as_often_as_it_says() {
        const RUNS: usize = 1500;
        for (index, kind) in MACHINES.into_iter().enumerate() {
            for (sets, slower) in [(8, 1.0), (16, 1.05), (30, 1.0)] {
                let mut machine = Machine::new(7 + index as u64, kind);
                let covered = (0..RUNS)
                    .filter(|_| {
                        let found = sample::signed_ranks(&machine.logs(slower, sets), 0.95);
                        let found = found.expect("values");
                        (found.low..=found.high).contains(&slower.ln())
                    })
                    .count();
                // 0.95 less four standard errors.
                assert!(covered as f64 >= 0.927 * RUNS as f64, "{kind:?} {sets} sets: {covered}");
            }
        }
    }

    /// Whole runs, which look at their results and stop early.
    fn run(machine: &mut Machine, slower: f64, most: usize) -> (Finding, usize) {
        let mut sets = Vec::new();
        loop {
            sets.push(machine.set(slower));
            let is_last = sets.len() == most;
            if is_look(sets.len()) || is_last {
                let (_, groups) = rows::judged(&sets, 0.05);
                if is_last || rows::is_known(&groups[0]) {
                    return (groups[0].judgement.finding, sets.len());
                }
            }
        }
    }

    #[test]
    fn nothing_is_claimed_of_sides_that_are_alike() {
        for (index, kind) in MACHINES.into_iter().enumerate() {
            let mut machine = Machine::new(70 + index as u64, kind);
            let claims = (0..500)
                .filter(|_| {
                    let (found, _) = run(&mut machine, 1.0, 40);
                    matches!(found, Finding::Better | Finding::Worse)
                })
                .count();
            // A quarter of a per cent, as half of the chance is for rows: 1.25 are expected.
            assert!(claims <= 5, "{kind:?}: {claims} of 500");
        }
    }

    #[test]
    fn a_small_difference_is_found_and_on_a_quiet_machine_early() {
        for (machine, slower, most) in [(0, 1.03, 24), (0, 1.0 / 1.03, 24), (1, 1.05, 100)] {
            let mut machine = Machine::new(700, MACHINES[machine]);
            let expected = if slower > 1.0 { Finding::Worse } else { Finding::Better };
            for _ in 0..100 {
                let (found, sets) = run(&mut machine, slower, most);
                assert!(found == expected && sets <= most, "{slower}: {found:?}, {sets} sets");
            }
        }
    }
}
