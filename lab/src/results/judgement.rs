//! What the repetitions of a comparison show, and how small a difference they could have shown.
//!
//! A ratio is claimed to differ from 1 if its interval excludes 1 and its median lies outside the
//! interval of A against itself. The intervals of all rows and all groups of a run together miss
//! with a chance of [`CHANCE`] at most. Where A differs from itself by more than chance explains,
//! nothing is claimed but what lies beyond all of that.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::measure::metric::Better;
use crate::measure::sample;
use crate::measure::sample::{Estimate, Key};

/// The chance that anything of a run is said to differ although it does not; half of it is for
/// rows, half for groups. The same for A against itself.
pub const CHANCE: f64 = 0.05;

/// How much more than half the width of an interval, in logarithms, is found in four of five runs
/// and not in half of them: 0.84 standard errors more, where half the width is 2.24 of them or
/// more.
const FOUR_OF_FIVE: f64 = 1.4;

/// What a row or a group shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// B is better than A.
    Better,
    /// B is worse than A.
    Worse,
    /// No difference was found; one of [`Judgement::least`] or more is excluded.
    Unclear,
    /// A differs from A, and B differs no more than that: nothing is claimed of B.
    Biased,
}

/// The ratios of a row or a group, and what follows from them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// B over the geometric mean of A's two sessions, per repetition.
    pub ratio: Option<Estimate>,
    /// The second session of A over the first, per repetition.
    pub noise: Option<Estimate>,
    /// What follows; null if the repetitions are too few for any claim.
    pub finding: Option<Finding>,
    /// The smallest difference that such repetitions find in four of five runs, as a fraction: 0.1
    /// is 10 %, in the direction that takes more. Null if none could. Where none was found, the
    /// whole interval is nearer to 1 than this too.
    pub least: Option<f64>,
}

impl Judgement {
    /// Whether nothing is claimed although the row's own interval excludes 1 and lies beyond the
    /// noise: alone it would be a finding, among all rows of the run it may be chance.
    pub fn is_likely(&self) -> bool {
        let (Some(ratio), Some(noise)) = (self.ratio, self.noise) else { return false };
        self.finding == Some(Finding::Unclear) && !ratio.holds(1.0) && !noise.holds(ratio.median)
    }

    /// Whether nothing was found although a difference of `fraction` would have been.
    pub fn excludes(&self, fraction: f64) -> bool {
        self.finding == Some(Finding::Unclear) && self.least.is_some_and(|least| least <= fraction)
    }
}

/// Judges one of `family` rows, or groups, by its ratios of each repetition.
pub fn judge(better: Better, ratios: &[f64], noises: &[f64], family: usize) -> Judgement {
    let (ratio, noise) = (sample::estimate(ratios), sample::estimate(noises));
    let level = 1.0 - CHANCE / 2.0 / family.max(1) as f64;
    let claim = sample::estimate_at(ratios, level).filter(|claim| claim.coverage >= level);
    let (Some(claim), Some(noise)) = (claim, noise.filter(|noise| noise.coverage >= sample::LEVEL))
    else {
        return Judgement { ratio, noise, finding: None, least: None };
    };
    let is_biased = sample::estimate_at(noises, level).is_some_and(|noise| !noise.holds(1.0));
    concluded(better, ratio, claim, noise, is_biased)
}

/// The ratios of B to A of a row or a group in one run, and those of A to itself.
#[derive(Debug, Clone, Copy)]
pub struct OfRun<'a> {
    /// B over the geometric mean of A's two sessions, per repetition.
    pub ratios: &'a [f64],
    /// The second session of A over the first, per repetition.
    pub noises: &'a [f64],
}

/// Judges how one of `family` rows, or groups, has changed from an earlier run to a later one: the
/// quotient of their medians of B/A. Nothing pairs repetitions of two runs, so each run has an
/// interval of its own that misses with half the chance, and the quotient lies between their ends.
/// [`Judgement::noise`] holds A/A of both runs.
pub fn judge_change(better: Better, then: OfRun<'_>, now: OfRun<'_>, family: usize) -> Judgement {
    let quotient = |level: f64| {
        let each = f64::midpoint(1.0, level);
        let [then, now] = [then.ratios, now.ratios].map(|ratios| sample::estimate_at(ratios, each));
        now?.over(&then?)
    };
    let level = 1.0 - CHANCE / 2.0 / family.max(1) as f64;
    let ratio = quotient(sample::LEVEL);
    let noise = [then.noises, now.noises].map(sample::estimate);
    let noise = if let [Some(then), Some(now)] = noise { Some(then.joined(&now)) } else { None };
    let claim = quotient(level).filter(|claim| claim.coverage >= level - 1e-12);
    let (Some(claim), Some(noise)) = (claim, noise.filter(|noise| noise.coverage >= sample::LEVEL))
    else {
        return Judgement { ratio, noise, finding: None, least: None };
    };
    let differs =
        |noises| sample::estimate_at(noises, level).is_some_and(|noise| !noise.holds(1.0));
    concluded(better, ratio, claim, noise, differs(then.noises) || differs(now.noises))
}

/// What follows from the interval that a claim is made by, and from that of A against itself.
fn concluded(
    better: Better,
    ratio: Option<Estimate>,
    claim: Estimate,
    noise: Estimate,
    is_biased: bool,
) -> Judgement {
    // A true ratio of so much would have been found above 1, or below.
    let up = (claim.median / claim.low).powf(FOUR_OF_FIVE).max(noise.high);
    let down = (claim.high / claim.median).powf(FOUR_OF_FIVE).max(1.0 / noise.low);
    // What differs by more than A could differ from itself, in either direction, is claimed all the
    // same.
    let far = noise.high.max(1.0 / noise.low);
    let is_beyond = claim.low > far || claim.high < 1.0 / far;
    let finding =
        if is_biased && !is_beyond { Finding::Biased } else { direction(better, claim, noise) };
    // What lies inside the interval may well be the true ratio, however narrow the interval is.
    let open = if finding == Finding::Unclear { claim.high.max(1.0 / claim.low) } else { 1.0 };
    Judgement {
        ratio,
        noise: Some(noise),
        finding: Some(finding),
        least: Some(up.max(down).max(open) - 1.0),
    }
}

fn direction(better: Better, claim: Estimate, noise: Estimate) -> Finding {
    let (above, below) = match better {
        Better::Higher => (Finding::Better, Finding::Worse),
        Better::Lower => (Finding::Worse, Finding::Better),
    };
    if claim.low > 1.0 && claim.median > noise.high {
        above
    } else if claim.high < 1.0 && claim.median < noise.low {
        below
    } else {
        Finding::Unclear
    }
}

/// What has changed since an earlier run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Earlier {
    /// Its `raw.json`.
    pub file: PathBuf,
    /// The version of this tool that made it.
    pub tool: String,
    /// When it started; seconds since 1970.
    pub started_unix: u64,
    /// What is not as it was, in words.
    pub differences: Vec<String>,
    /// The rows that both have.
    pub rows: Vec<ChangedRow>,
    /// Rows that are judged together.
    pub groups: Vec<ChangedGroup>,
}

/// A row that both runs have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChangedRow {
    /// What.
    #[serde(flatten)]
    pub key: Key,
    /// The median of B/A in both runs.
    #[serde(flatten)]
    pub medians: Medians,
    /// B/A of this run over that of the earlier one; `noise` holds A/A of both.
    #[serde(flatten)]
    pub judgement: Judgement,
}

/// Rows that are judged together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChangedGroup {
    /// In words.
    pub name: String,
    /// How many rows.
    pub rows: usize,
    /// The median of B/A in both runs.
    #[serde(flatten)]
    pub medians: Medians,
    /// As that of a row.
    #[serde(flatten)]
    pub judgement: Judgement,
}

/// Of B/A.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Medians {
    /// In the earlier run.
    pub then: f64,
    /// In this one.
    pub now: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` values evenly spread over `middle`, a fraction of `width` to each side.
    fn spread(middle: f64, width: f64, count: usize) -> Vec<f64> {
        (0..count)
            .map(|index| middle * (1.0 + width * (2.0 * index as f64 / (count - 1) as f64 - 1.0)))
            .collect()
    }

    #[test]
    fn a_finding_needs_more_than_the_noise() {
        let noise = spread(1.0, 0.04, 24);
        for (middle, higher, lower) in [
            (1.2, Finding::Better, Finding::Worse),
            (0.8, Finding::Worse, Finding::Better),
            (1.01, Finding::Unclear, Finding::Unclear),
            (0.99, Finding::Unclear, Finding::Unclear),
        ] {
            assert_eq!(
                judge(Better::Higher, &spread(middle, 0.03, 24), &noise, 40).finding,
                Some(higher)
            );
            assert_eq!(
                judge(Better::Lower, &spread(middle, 0.03, 24), &noise, 40).finding,
                Some(lower)
            );
        }
        // Far from 1 in itself, but no further than A is from A.
        let wide = spread(1.0, 0.4, 24);
        assert_eq!(
            judge(Better::Higher, &spread(1.1, 0.03, 24), &wide, 40).finding,
            Some(Finding::Unclear)
        );
    }

    #[test]
    fn where_a_differs_from_itself_nothing_is_claimed_but_what_differs_more() {
        for noise in [0.9, 1.1] {
            let noise = spread(noise, 0.04, 24);
            for (middle, expected) in [
                (0.9, Finding::Biased),
                (1.1, Finding::Biased),
                (0.5, Finding::Worse),
                (2.0, Finding::Better),
            ] {
                let found = judge(Better::Higher, &spread(middle, 0.03, 24), &noise, 40);
                assert_eq!(found.finding, Some(expected), "{middle}");
            }
        }
    }

    #[test]
    fn the_least_difference_is_one_that_is_found() {
        let noise = spread(1.0, 0.05, 24);
        for better in [Better::Higher, Better::Lower] {
            let at = |middle: f64| judge(better, &spread(middle, 0.08, 24), &noise, 40);
            let least = at(1.0).least.expect("enough repetitions");
            assert!((0.02..0.1).contains(&least), "{least}");
            for middle in [1.0 + least * 1.01, 1.0 / (1.0 + least * 1.01)] {
                assert_ne!(at(middle).finding, Some(Finding::Unclear), "{middle}");
            }
            assert_eq!(at(1.0 + least / 2.0).finding, Some(Finding::Unclear));
        }
    }

    /// The median is 5 % off and 1 is just inside: narrow, but 10 % is inside as well.
    #[test]
    fn what_the_interval_holds_is_not_excluded() {
        let noise = spread(1.0, 0.02, 24);
        for middle in [1.05, 1.0 / 1.05] {
            let found = judge(Better::Higher, &spread(middle, 0.12, 24), &noise, 1);
            let ratio = found.ratio.expect("enough repetitions");
            assert_eq!(found.finding, Some(Finding::Unclear), "{ratio:?}");
            let furthest = ratio.high.max(1.0 / ratio.low) - 1.0;
            assert!(furthest > 0.08 && !found.excludes(0.08) && found.excludes(0.15), "{found:?}");
        }
    }

    #[test]
    fn a_change_between_two_runs_takes_both_of_their_intervals() {
        let noises = spread(1.0, 0.02, 24);
        let change = |then: &[f64], now: &[f64]| {
            judge_change(
                Better::Higher,
                OfRun { ratios: then, noises: &noises },
                OfRun { ratios: now, noises: &noises },
                40,
            )
        };
        let at = |middle: f64| spread(middle, 0.05, 24);
        for (then, now, expected) in [
            (1.0, 0.8, Finding::Worse),
            (0.8, 1.0, Finding::Better),
            // B is worse than A in both, and as much.
            (0.5, 0.5, Finding::Unclear),
            // The interval of each alone does not hold the other's median.
            (1.0, 0.95, Finding::Unclear),
        ] {
            let found = change(&at(then), &at(now));
            assert_eq!(found.finding, Some(expected), "{then} {now} {found:?}");
            assert!(
                found.ratio.is_some_and(|ratio| (ratio.median - now / then).abs() < 1e-9),
                "{found:?}"
            );
        }
        // A that is not A in one of them is told.
        let biased = OfRun { ratios: &at(1.0), noises: &spread(1.1, 0.02, 24) };
        let now = OfRun { ratios: &at(1.0), noises: &noises };
        assert_eq!(judge_change(Better::Higher, biased, now, 40).finding, Some(Finding::Biased));
        assert_eq!(
            change(&at(1.0), &spread(0.1, 0.05, 9)).finding,
            None,
            "nine repetitions are too few for 40 rows"
        );
    }

    #[test]
    fn few_repetitions_find_nothing_and_say_so() {
        // A sign test of ten values cannot tell 0.025 / 40 apart; one of twelve can.
        for (count, family, told) in [
            (6, 1, false),
            (7, 1, true),
            (8, 5, false),
            (9, 5, true),
            (10, 40, false),
            (12, 40, true),
        ] {
            let found = judge(
                Better::Higher,
                &spread(10.0, 0.01, count),
                &spread(1.0, 0.01, count),
                family,
            );
            assert_eq!(found.finding.is_some(), told, "{count} repetitions, {family} rows");
            assert_eq!(found.least.is_some(), told);
            assert!(found.ratio.is_some_and(|ratio| (ratio.median - 10.0).abs() < 1e-9));
        }
    }

    /// Ratios of things that do not differ: of a thousand runs of 40 rows each, few say that one
    /// does.
    #[test]
    fn equal_sides_are_seldom_called_different() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut value = || 1.0 + 0.1 * (random.f64() + random.f64() + random.f64() - 1.5);
        let mut wrong_runs = 0;
        for _ in 0..1000 {
            let mut row = || {
                let sessions: Vec<[f64; 3]> =
                    (0..12).map(|_| [value(), value(), value()]).collect();
                let ratios: Vec<f64> =
                    sessions.iter().map(|[a, b, again]| b / (a * again).sqrt()).collect();
                let noises: Vec<f64> = sessions.iter().map(|[a, _, again]| again / a).collect();
                judge(Better::Higher, &ratios, &noises, 40).finding
            };
            let claims =
                (0..40).filter(|_| matches!(row(), Some(Finding::Better | Finding::Worse))).count();
            wrong_runs += usize::from(claims > 0);
        }
        assert!(wrong_runs <= 50, "{wrong_runs} of 1000");
    }
}
