//! The sets of a run as rows, one per key, and as groups of rows.

use serde::{Deserialize, Serialize};

use crate::measure::metric::{Key, Metric};
use crate::measure::sample;
use crate::measure::turns::Turns;
use crate::results::judgement::{self, CHANCE, Finding, Judgement};
use crate::verbs::PortCounters;

/// A pair of processes with one set of connections of each side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Set {
    /// How long it ran; s.
    pub seconds: f64,
    /// What was measured.
    pub turns: Vec<Turns>,
    /// What the kernel's counters of the devices said, where there are any.
    pub traffic: Vec<PortCounters>,
}

/// One key over all sets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What.
    #[serde(flatten)]
    pub key: Key,
    /// The unit of the values.
    pub unit: String,
    /// The median of A's blocks.
    pub a: Option<f64>,
    /// The median of B's blocks.
    pub b: Option<f64>,
    /// B against A.
    #[serde(flatten)]
    pub judgement: Judgement,
}

/// The rows of a metric, judged together: the ratio of a set is the geometric mean of theirs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// In words.
    pub name: String,
    /// What they are rows of.
    pub metric: Metric,
    /// B against A.
    #[serde(flatten)]
    pub judgement: Judgement,
}

impl AsRef<Judgement> for Group {
    fn as_ref(&self) -> &Judgement {
        &self.judgement
    }
}

/// What is the same within this part is known well enough to stop.
const FINE: f64 = 0.02;

/// Whether more sets would change nothing that is worth their time.
pub fn is_known(group: &Group) -> bool {
    match group.judgement.finding {
        Finding::Better | Finding::Worse => true,
        Finding::Same => group.judgement.within.is_some_and(|within| within <= FINE),
        Finding::Undecided => false,
    }
}

/// The rows, in the order of measurement, and the groups, if there are two sides. A difference of
/// `find`, a fraction, must not be missed.
pub fn judged(sets: &[Set], find: f64) -> (Vec<Row>, Vec<Group>) {
    let mut keys: Vec<Key> = Vec::new();
    for turns in sets.iter().flat_map(|set| &set.turns) {
        if !keys.contains(&turns.key) {
            keys.push(turns.key);
        }
    }
    let metrics: Vec<Metric> = Metric::ALL
        .iter()
        .copied()
        .filter(|metric| keys.iter().any(|key| key.metric == *metric))
        .collect();
    let of_rows = CHANCE / 2.0 / keys.len().max(1) as f64;
    let of_groups = CHANCE / 2.0 / metrics.len().max(1) as f64;
    let judge = |keys: &[Key], chance: f64| {
        let logs: Vec<f64> = sets.iter().filter_map(|set| together(keys, set)).collect();
        judgement::judge(keys[0].metric.info().better, &logs, chance * part(&logs), find)
    };
    let row = |key: &Key| {
        let of = |side| {
            let turns = sets.iter().flat_map(|set| &set.turns).filter(|turns| turns.key == *key);
            sample::median(&mut turns.flat_map(|turns| turns.of(side)).collect::<Vec<f64>>())
        };
        Row {
            key: *key,
            unit: key.metric.info().unit.into(),
            a: of(b'A'),
            b: of(b'B'),
            judgement: judge(&[*key], of_rows),
        }
    };
    let group = |metric: &Metric| {
        let keys: Vec<Key> = keys.iter().copied().filter(|key| key.metric == *metric).collect();
        let name = match metric {
            Metric::SetupMany => keys[0].name(),
            _ => metric.info().name.into(),
        };
        Group { name, metric: *metric, judgement: judge(&keys, of_groups) }
    };
    let groups = metrics.iter().map(group).filter(|group| group.judgement.ratio.is_some());
    (keys.iter().map(row).collect(), groups.collect())
}

fn part(logs: &[f64]) -> f64 {
    judgement::part_of_look(logs.len())
}

/// The mean of the logarithms of B over A of all `keys` in one set, if it has them all.
fn together(keys: &[Key], set: &Set) -> Option<f64> {
    let log = |key: &Key| set.turns.iter().find(|turns| turns.key == *key)?.log_ratio();
    let logs: Option<Vec<f64>> = keys.iter().map(log).collect();
    Some(logs?.iter().sum::<f64>() / keys.len() as f64)
}

/// Blocks of messages of a side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// All that were measured.
    pub all: usize,
    /// Those in which the kernel took a processor away, at either end. A side's own threads may
    /// need it, or another program.
    pub disturbed: usize,
}

impl Blocks {
    /// Those of `side` in these sets. Set-ups wait for threads by themselves, and do not count.
    pub fn of(side: u8, sets: &[Set]) -> Self {
        let turns = sets.iter().flat_map(|set| &set.turns).filter(|turns| turns.key.bytes > 0);
        let blocks = turns.flat_map(|turns: &Turns| turns.order.bytes().zip(&turns.disturbed));
        let blocks = blocks.filter(|(letter, _)| *letter == side);
        blocks.fold(Self::default(), |count, (_, disturbed)| Self {
            all: count.all + 1,
            disturbed: count.disturbed + usize::from(*disturbed),
        })
    }

    /// The disturbed part.
    pub fn part(self) -> f64 {
        self.disturbed as f64 / self.all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::metric::Direction;

    fn key(bytes: u64) -> Key {
        Key { metric: Metric::Bandwidth, bytes, direction: Direction::Forward, depth: 8 }
    }

    fn set(values: &[(u64, [f64; 2])]) -> Set {
        let turns = values.iter().map(|(bytes, [a, b])| Turns {
            key: key(*bytes),
            order: "ABBA".into(),
            values: vec![*a, *b, *b, *a],
            disturbed: vec![false, false, false, true],
        });
        Set { seconds: 1.0, turns: turns.collect(), traffic: Vec::new() }
    }

    /// A group finds what its rows alone do not: what they have in common stands out of what they
    /// have not.
    #[test]
    fn a_group_finds_a_small_difference_that_its_rows_share() {
        let sizes = [64 << 10, 128 << 10, 256 << 10, 1 << 20];
        let luck = |place: usize| [0.9, 1.12, 0.97, 1.02][place % 4];
        let sets: Vec<Set> = (0..20)
            .map(|number| {
                let row = |place: usize| (sizes[place], [1.0, 1.05 * luck(place + number)]);
                set(&[row(0), row(1), row(2), row(3)])
            })
            .collect();
        let (rows, groups) = judged(&sets, 0.05);
        assert!(rows.iter().all(|row| row.judgement.finding == Finding::Undecided), "{rows:#?}");
        assert_eq!((rows[0].a, rows[0].unit.as_str()), (Some(1.0), "GB/s"));
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].judgement.finding, Finding::Better, "{groups:?}");
        let middle = groups[0].judgement.ratio.expect("sets").median;
        assert!((middle - 1.05).abs() < 0.01, "{middle}");
        assert!(is_known(&groups[0]));
        // The last block of `ABBA` is disturbed.
        assert_eq!(Blocks::of(b'A', &sets), Blocks { all: 160, disturbed: 80 });
        assert_eq!(Blocks::of(b'B', &sets), Blocks { all: 160, disturbed: 0 });
    }

    #[test]
    fn a_set_without_a_row_of_the_group_does_not_count() {
        let sets = [set(&[(8, [1.0, 2.0]), (64, [1.0, 2.0])]), set(&[(8, [1.0, 2.0])])];
        let (rows, groups) = judged(&sets, 0.05);
        assert_eq!((rows[0].judgement.sets, groups[0].judgement.sets), (2, 1));
        assert_eq!(groups[0].judgement.finding, Finding::Undecided);
        let one_sided: Vec<Set> = sets
            .iter()
            .cloned()
            .map(|mut set| {
                set.turns.iter_mut().for_each(|turns| turns.order = "AAAA".into());
                set
            })
            .collect();
        assert_eq!(judged(&one_sided, 0.05).0[0].b, None);
    }
}
