//! The sessions of a run as rows, one per key, and as groups of rows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::measure::metric::{GroupOfRows, Metric};
use crate::measure::sample;
use crate::measure::sample::Key;
use crate::results::judgement::{Judgement, judge};
use crate::results::record::Run;

/// One key over all repetitions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What.
    #[serde(flatten)]
    pub key: Key,
    /// The unit of the values.
    pub unit: String,
    /// The value that ratios are made of.
    pub headline: String,
    /// Medians of A's values over all of its sessions.
    pub a: BTreeMap<String, f64>,
    /// Medians of B's values.
    pub b: Option<BTreeMap<String, f64>>,
    /// B against A.
    #[serde(flatten)]
    pub judgement: Judgement,
}

/// Rows that are judged together: the ratio of a repetition is the geometric mean of theirs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// In words.
    pub name: String,
    /// How many rows.
    pub rows: usize,
    /// B against A.
    #[serde(flatten)]
    pub judgement: Judgement,
}

/// The ratios of a key in one repetition.
#[derive(Debug, Clone, Copy)]
struct Ratios {
    /// B over the geometric mean of both A.
    ratio: f64,
    /// The second A over the first.
    noise: f64,
}

/// One row per key, in the order of measurement; and the groups, if there are two sides.
pub fn rows(sessions: &[Run]) -> (Vec<Row>, Vec<Group>) {
    let mut keys: Vec<Key> = Vec::new();
    for sample in sessions.iter().flat_map(|run| &run.samples) {
        if !keys.contains(&sample.key) {
            keys.push(sample.key);
        }
    }
    let rows = keys.iter().filter_map(|key| row(*key, sessions, keys.len())).collect();
    (rows, groups(&keys, sessions))
}

fn row(key: Key, sessions: &[Run], family: usize) -> Option<Row> {
    Some(Row {
        key,
        unit: key.metric.info().unit.into(),
        headline: key.metric.info().headline.into(),
        a: medians(key, sessions, &["A", "A2"])?,
        b: medians(key, sessions, &["B"]),
        judgement: judgement(&[key], sessions, family),
    })
}

fn groups(keys: &[Key], sessions: &[Run]) -> Vec<Group> {
    let groups = grouped(keys);
    let judged = groups.iter().map(|(name, keys)| Group {
        name: (*name).into(),
        rows: keys.len(),
        judgement: judgement(keys, sessions, groups.len()),
    });
    judged.filter(|group| group.judgement.ratio.is_some()).collect()
}

/// The keys that are judged together, with a name.
pub(super) fn grouped(keys: &[Key]) -> Vec<(&'static str, Vec<Key>)> {
    let groups = Metric::ALL.iter().filter_map(|metric| {
        let GroupOfRows { name, sizes: (least, greatest) } = metric.info().group?;
        let is_member =
            |key: &&Key| key.metric == *metric && (least..=greatest).contains(&key.bytes);
        let keys: Vec<Key> = keys.iter().filter(is_member).copied().collect();
        (!keys.is_empty()).then_some((name, keys))
    });
    groups.collect()
}

/// What the repetitions say of these keys together, which are of one metric.
fn judgement(keys: &[Key], sessions: &[Run], family: usize) -> Judgement {
    let (ratios, noises) = ratios(keys, sessions);
    if sessions.is_empty() {
        Judgement::default()
    } else {
        judge(keys[0].metric.info().better, &ratios, &noises, family)
    }
}

/// B/A and A/A of these keys together, of each repetition.
pub(super) fn ratios(keys: &[Key], sessions: &[Run]) -> (Vec<f64>, Vec<f64>) {
    let last = sessions.iter().map(|run| run.repetition + 1).max().unwrap_or(0);
    let all = (0..last).filter_map(|repetition| together(keys, sessions, repetition));
    all.map(|ratios| (ratios.ratio, ratios.noise)).unzip()
}

/// The geometric means of the ratios of all `keys` in one repetition, if all of its three sessions
/// have run.
fn together(keys: &[Key], sessions: &[Run], repetition: usize) -> Option<Ratios> {
    let headline = |side: &str, key: &Key| {
        let run = sessions.iter().find(|run| run.side == side && run.repetition == repetition)?;
        run.samples.iter().find(|sample| sample.key == *key)?.headline()
    };
    let (mut ratio, mut noise) = (0.0, 0.0);
    for key in keys {
        let (a, b, again) =
            (headline("A", key)?.ln(), headline("B", key)?.ln(), headline("A2", key)?.ln());
        ratio += b - (a + again) / 2.0;
        noise += again - a;
    }
    let mean = |sum: f64| (sum / keys.len() as f64).exp();
    let ratios = Ratios { ratio: mean(ratio), noise: mean(noise) };
    (ratios.ratio.is_normal() && ratios.noise.is_normal()).then_some(ratios)
}

fn medians(key: Key, sessions: &[Run], sides: &[&str]) -> Option<BTreeMap<String, f64>> {
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for run in sessions.iter().filter(|run| sides.contains(&run.side.as_str())) {
        for sample in run.samples.iter().filter(|sample| sample.key == key) {
            for (name, value) in &sample.values {
                values.entry(name.clone()).or_default().push(*value);
            }
        }
    }
    let medians: BTreeMap<String, f64> = values
        .into_iter()
        .filter_map(|(name, mut values)| Some((name, sample::median(&mut values)?)))
        .collect();
    (!medians.is_empty()).then_some(medians)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::plan::Direction;
    use crate::measure::sample::Sample;
    use crate::results::judgement::Finding;

    fn key(bytes: u64) -> Key {
        Key { metric: Metric::Bandwidth, bytes, direction: Direction::Forward, depth: 8 }
    }

    fn run(side: &str, repetition: usize, values: &[(u64, f64)]) -> Run {
        let samples = values
            .iter()
            .map(|(bytes, value)| Sample::new(key(*bytes), &[("typ", *value)]))
            .collect();
        Run { side: side.into(), repetition, seconds: 1.0, samples, traffic: Vec::new() }
    }

    #[test]
    fn rows_pair_the_repetitions() {
        let mut sessions = Vec::new();
        for (side, repetition, value) in [
            ("A", 0, 1.0),
            ("B", 0, 2.0),
            ("A2", 0, 1.0),
            ("A2", 1, 9.0),
            ("B", 1, 30.0),
            ("A", 1, 16.0),
        ] {
            sessions.push(run(side, repetition, &[(8, value)]));
        }
        let (few, none) = rows(&sessions);
        assert_eq!((few.len(), none.len()), (1, 0));
        let ratio = few[0].judgement.ratio.expect("B ran");
        assert!((ratio.low - 2.0).abs() < 1e-9 && (ratio.high - 2.5).abs() < 1e-9, "{ratio:?}");
        let noise = few[0].judgement.noise.expect("A ran twice");
        assert!((noise.low - 0.5625).abs() < 1e-9 && (noise.high - 1.0).abs() < 1e-9, "{noise:?}");
        assert_eq!(few[0].a["typ"], 5.0);
        assert_eq!(few[0].judgement.finding, None, "two repetitions show nothing");
        for repetition in 2..8 {
            for (side, value) in [("A", 10.0), ("B", 20.0), ("A2", 10.0 + repetition as f64 / 10.0)]
            {
                sessions.push(run(side, repetition, &[(8, value)]));
            }
        }
        sessions.push(run("B", 8, &[(8, 1e9)]));
        let found = rows(&sessions).0[0].judgement;
        assert_eq!(found.finding, Some(Finding::Better));
        assert!(
            found.ratio.is_some_and(|ratio| ratio.high < 3.0),
            "a repetition without an A counts"
        );
    }

    /// A group finds what its rows alone do not: what they have in common stands out of what they
    /// have not.
    #[test]
    fn a_group_finds_a_small_difference_that_its_rows_share() {
        let sizes = [64 << 10, 128 << 10, 256 << 10, 1 << 20];
        let mut sessions = Vec::new();
        for repetition in 0..12 {
            let noise = |place: usize, salt: usize| {
                let parts = [0.9, 1.12, 0.97, 1.02];
                parts[(place + repetition + salt) % 4]
            };
            for (side, salt, factor) in [("A", 0, 1.0), ("B", 1, 1.05), ("A2", 2, 1.0)] {
                let values: Vec<(u64, f64)> = sizes
                    .iter()
                    .enumerate()
                    .map(|(place, bytes)| (*bytes, factor * noise(place, salt)))
                    .collect();
                sessions.push(run(side, repetition, &values));
            }
        }
        let (rows, groups) = rows(&sessions);
        assert!(
            rows.iter().all(|row| row.judgement.finding == Some(Finding::Unclear)),
            "{rows:#?}"
        );
        assert_eq!(
            (groups.len(), groups[0].rows, groups[0].judgement.finding),
            (1, 4, Some(Finding::Better))
        );
        assert!(groups[0].judgement.ratio.is_some_and(|ratio| (ratio.median - 1.05).abs() < 1e-6));
    }
}
