//! A run against an earlier one of the same processor and form of measurement: whether they can be
//! compared, what differs, what has changed.
//!
//! Absolute times of different days say little: machines are busy, warm, and set up anew. So B/A of
//! one run is held against B/A of the other, where A is the same in both. What a machine does to B
//! and not to A from one day to the next is in no interval.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::measure::plan::Scope;
use crate::measure::sample;
use crate::measure::sample::Key;
use crate::results::judgement::{ChangedGroup, ChangedRow, Earlier, Medians, OfRun, judge_change};
use crate::results::record::{Machine, Record, Run, SCHEMA, Side, differing};
use crate::results::rows::{grouped, ratios};
use crate::verbs::Verbs;

/// What is known of this run before it measures.
#[derive(Debug, Clone, Copy)]
pub struct ThisRun<'a> {
    /// How thorough it is.
    pub scope: &'a Scope,
    /// The libibverbs.
    pub verbs: &'a Verbs,
    /// Where rank 0 runs.
    pub machine: &'a Machine,
    /// Where rank 1 runs, if that is another host.
    pub other_machine: Option<&'a Machine>,
    /// A and B, verified.
    pub sides: &'a [Side],
}

/// An earlier run that this one is to be compared with.
#[derive(Debug, Clone)]
pub struct EarlierRun {
    file: PathBuf,
    record: Record,
}

impl EarlierRun {
    /// Reads a `raw.json`.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Refused`] if it is none, or of one transport alone.
    pub fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file)
            .map_err(|e| Error::io(format!("cannot read {}", file.display()), e))?;
        let refused = |why: String| Error::Refused(format!("{}: {why}", file.display()));
        let record: Record = serde_json::from_str(&text)
            .map_err(|e| refused(format!("no raw.json of `ferrite compare`: {e}")))?;
        if record.schema != SCHEMA {
            return Err(refused(format!(
                "its form is {}, and {SCHEMA} is understood",
                record.schema
            )));
        }
        if record.sides.len() != 2 {
            return Err(refused(
                "it is of one transport alone, and times of different days are not compared".into(),
            ));
        }
        Ok(Self { file: file.into(), record })
    }

    /// What differs between the two runs, in words.
    ///
    /// # Errors
    /// [`Error::Refused`] with everything that keeps them from being compared.
    pub fn differences(&self, now: &ThisRun<'_>) -> Result<Vec<String>> {
        let (told, refused) = differences(&self.record, now);
        match refused.is_empty() {
            true => Ok(told),
            false => Err(Error::Refused(format!(
                "this run is not compared with that of {}: {}",
                self.file.display(),
                refused.join("; ")
            ))),
        }
    }

    /// What has changed, of the rows that both have.
    ///
    /// # Errors
    /// [`Error::Refused`] if they have none in common.
    pub fn changes(
        &self,
        sessions: &[Run],
        keys: &[Key],
        mut differences: Vec<String>,
    ) -> Result<Earlier> {
        let then = &self.record;
        let has = |key: &&Key| then.rows.iter().any(|row| row.key == **key);
        let common: Vec<Key> = keys.iter().filter(has).copied().collect();
        if common.is_empty() {
            return Err(Error::Refused(format!(
                "{} has no row in common with this run",
                self.file.display()
            )));
        }
        let alone = then.rows.len().max(keys.len()) - common.len();
        if alone > 0 {
            differences.push(format!("{alone} rows are of one run alone, and left out"));
        }
        let judged = |keys: &[Key], family: usize| {
            let (then_ratios, then_noises) = ratios(keys, &then.sessions);
            let (now_ratios, now_noises) = ratios(keys, sessions);
            let judgement = judge_change(
                keys[0].metric.info().better,
                OfRun { ratios: &then_ratios, noises: &then_noises },
                OfRun { ratios: &now_ratios, noises: &now_noises },
                family,
            );
            let [then, now] = [then_ratios, now_ratios].map(|mut all| sample::median(&mut all));
            Some((Medians { then: then?, now: now? }, judgement))
        };
        let row = |key: &Key| {
            let (medians, judgement) = judged(&[*key], common.len())?;
            Some(ChangedRow { key: *key, medians, judgement })
        };
        let groups = grouped(&common);
        let group = |(name, keys): &(&str, Vec<Key>)| {
            let (medians, judgement) = judged(keys, groups.len())?;
            Some(ChangedGroup { name: (*name).into(), rows: keys.len(), medians, judgement })
        };
        Ok(Earlier {
            file: self.file.clone(),
            tool: then.tool.clone(),
            started_unix: then.started_unix,
            differences,
            rows: common.iter().filter_map(row).collect(),
            groups: groups.iter().filter_map(group).collect(),
        })
    }
}

/// What differs and is told, and what keeps the two from being compared.
fn differences(then: &Record, now: &ThisRun<'_>) -> (Vec<String>, Vec<String>) {
    let (mut told, mut refused) = (Vec::new(), Vec::new());
    let was = |what: &str, then: &dyn std::fmt::Display, now: &dyn std::fmt::Display| {
        let (then, now) = (then.to_string(), now.to_string());
        (then != now).then(|| format!("{what} was {then} and is {now}"))
    };
    let (a, scope) = (&now.sides[0], now.scope);
    refused.extend(was("--verbs", &then.verbs.name(), &now.verbs.name()));
    refused.extend(was("A", &then.sides[0].title(), &a.title()));
    if then.sides[0].sha256 != a.sha256 {
        refused.push("the library of A is another one".into());
    }
    refused.extend(was("--slice", &then.scope.slice_ms, &scope.slice_ms));
    refused.extend(was("--streams", &then.scope.streams, &scope.streams));
    refused.extend(was("--connections", &then.scope.connections, &scope.connections));
    refused.extend(was(
        "the number of connections one by one",
        &then.scope.singles,
        &scope.singles,
    ));
    let hosts = |is_two: bool| if is_two { "two hosts" } else { "one host" };
    refused.extend(was(
        "it",
        &hosts(then.other_machine.is_some()),
        &hosts(now.other_machine.is_some()),
    ));
    let machines = [
        (Some(&then.machine), Some(now.machine)),
        (then.other_machine.as_ref(), now.other_machine),
    ];
    for (rank, pair) in machines.iter().enumerate() {
        let (Some(then), Some(now)) = pair else { continue };
        refused.extend(was(
            &format!("the processor of rank {rank}"),
            &then.processor,
            &now.processor,
        ));
        // Records of earlier versions have no name.
        if !then.host.is_empty() {
            told.extend(was(&format!("the host of rank {rank}"), &then.host, &now.host));
        }
        told.extend(was(&format!("the kernel of rank {rank}"), &then.kernel, &now.kernel));
        told.extend(was(&format!("the number of CPUs of rank {rank}"), &then.cpus, &now.cpus));
        let value = |value: Option<&String>| {
            value.map_or_else(|| "unset".into(), |value| format!("{value:?}"))
        };
        for (name, then, now) in differing(&then.environment, &now.environment) {
            told.extend(was(&format!("{name} of rank {rank}"), &value(then), &value(now)));
        }
    }
    for (rank, (then, now)) in then.sides[0].devices.iter().zip(&a.devices).enumerate() {
        refused.extend(was(
            &format!("the speed of rank {rank}'s device"),
            &then.speed_mbps,
            &now.speed_mbps,
        ));
        let device =
            |name: &str, port: i32, guid: u64| format!("{name} port {port} (guid {guid:#x})");
        let [then, now] = [then, now].map(|of| device(&of.name, of.port, of.guid));
        told.extend(was(&format!("rank {rank}'s device"), &then, &now));
    }
    for (then, now) in then.sides.iter().zip(now.sides) {
        let variables = |side: &Side| {
            side.variables.iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>().join(" ")
        };
        let text = |side: &Side| format!("`{}`", variables(side));
        let words = was(&format!("--set-{}", now.label.to_lowercase()), &text(then), &text(now));
        if now.label == "A" {
            refused.extend(words)
        } else {
            told.extend(words)
        }
        if then.cpus != now.cpus {
            told.push(format!(
                "the CPUs of {} were {:?} and are {:?}",
                now.label, then.cpus, now.cpus
            ));
        }
    }
    told.extend(was("B", &then.sides[1].title(), &now.sides[1].title()));
    if !then.complete {
        told.push("the earlier run was interrupted".into());
    }
    (told, refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a committed comparison, with all that this one would know of itself if it were the same.
    fn committed() -> EarlierRun {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/comparison/raw.json");
        EarlierRun::read(&file).expect("a record")
    }

    fn against(then: &EarlierRun, now: &Record) -> Result<Vec<String>> {
        then.differences(&ThisRun {
            scope: &now.scope,
            verbs: &now.verbs,
            machine: &now.machine,
            other_machine: now.other_machine.as_ref(),
            sides: &now.sides,
        })
    }

    #[test]
    fn a_run_against_itself_has_not_changed() {
        let then = committed();
        let now = &then.record;
        assert_eq!(against(&then, now).expect("the same"), Vec::<String>::new());
        let keys: Vec<Key> = now.rows.iter().map(|row| row.key).collect();
        let changes = then.changes(&now.sessions, &keys, Vec::new()).expect("rows in common");
        assert_eq!((changes.rows.len(), changes.groups.len()), (now.rows.len(), now.groups.len()));
        for row in &changes.rows {
            assert!(
                row.judgement.ratio.is_some_and(|ratio| (ratio.median - 1.0).abs() < 1e-9),
                "{row:?}"
            );
            assert_eq!(row.medians.then, row.medians.now);
        }
    }

    #[test]
    fn what_differs_is_told_and_what_cannot_be_compared_is_refused() {
        type Change = fn(&mut Record);
        let told: [(Change, &str); 4] = [
            (|now| now.sides[1].sha256 = "f".repeat(64), "B was Ferrite"),
            (|now| now.machine.kernel = "9.9".into(), "the kernel of rank 0 was "),
            (
                |now| drop(now.machine.environment.insert("NCCL_IB_TC".into(), "7".into())),
                "NCCL_IB_TC of rank 0 was unset and is \"7\"",
            ),
            (|now| now.sides[0].devices[1].name = "mlx5_9".into(), "rank 1's device was softrnic"),
        ];
        let refused: [(Change, &str); 6] = [
            (|now| now.sides[0].sha256 = "f".repeat(64), "the library of A is another one"),
            (|now| now.scope.slice_ms = 1, "--slice was 40 and is 1"),
            (|now| now.verbs = Verbs::System, "--verbs was softrnic and is system"),
            (|now| now.machine.processor = "Z80".into(), "and is Z80"),
            (|now| now.sides[0].devices[0].speed_mbps = 7, "the speed of rank 0's device was "),
            (
                |now| now.other_machine = Some(now.machine.clone()),
                "it was one host and is two hosts",
            ),
        ];
        let then = committed();
        let with = |change: Change| {
            let mut now = then.record.clone();
            change(&mut now);
            against(&then, &now)
        };
        for (change, words) in told {
            let said = with(change).expect("told only");
            assert!(said.len() == 1 && said[0].starts_with(words), "{words}: {said:?}");
        }
        for (change, words) in refused {
            let said = with(change).expect_err("refused").to_string();
            assert!(
                said.contains("this run is not compared with that of ") && said.contains(words),
                "{words}: {said}"
            );
        }
    }

    #[test]
    fn a_file_that_is_no_comparison_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("raw.json");
        let mut alone = committed().record;
        alone.sides.pop();
        let mut old = committed().record;
        old.schema = "ferrite-run/1".into();
        let text = |record: &Record| serde_json::to_string(record).expect("JSON");
        for (text, words) in [
            ("{]".into(), "no raw.json of `ferrite compare`"),
            (text(&alone), "of one transport alone"),
            (text(&old), "its form is ferrite-run/1"),
        ] {
            std::fs::write(&file, text).expect("a file");
            let said = EarlierRun::read(&file).expect_err("no comparison").to_string();
            assert!(said.contains(words), "{said}");
        }
    }
}
