//! What a run showed: in a line, in a line for each group, and as one of three conclusions.

use crate::measure::metric::Metric;
use crate::report::table::{Named, change, host_of, number, percent};
use crate::results::judgement::Finding;
use crate::results::record::{Record, Side};
use crate::results::rows::Group;
use crate::verbs::Verbs;

/// Draws the conclusion from B against A.
pub(crate) fn conclusion(record: &Record) -> Conclusion {
    if record.sides.len() < 2 { Conclusion::Good } else { of_record(record).conclusion() }
}

fn of_record(record: &Record) -> Judged<'_> {
    let group = |group: &'_ Group| (group.name.clone(), group.metric.info().better);
    Judged {
        fail: record.scope.fail(),
        groups: record.groups.iter().map(|of| Named::new(group(of), &of.judgement)).collect(),
        rows: record
            .rows
            .iter()
            .filter(|row| row.b.is_some())
            .map(|row| Named::new((row.key.name(), row.key.metric.info().better), &row.judgement))
            .collect(),
    }
}

/// The verdict, in one line.
pub(crate) fn verdict(record: &Record) -> String {
    if record.sides.len() < 2 {
        return "valid run, data right".into();
    }
    let line = of_record(record).line();
    match (&record.problem, record.complete) {
        (Some(_), _) => format!("ENDED EARLY; until then: {line}"),
        (None, false) => format!("INTERRUPTED; until then: {line}"),
        (None, true) => line,
    }
}

/// Columns of a terminal.
const WIDTH: usize = 80;
/// Columns of the name of a group.
const NAME: usize = 17;

/// The output at the end of a run: the verdict, then at most eight lines, including the one that
/// the caller adds.
pub(crate) fn first_screen(record: &Record) -> String {
    let mut lines = vec![verdict(record)];
    let title = |side: &Side| format!("{} = {}", side.label, side.short_title());
    let titles = match &record.sides[..] {
        [a, b] if a.sha256 == b.sha256 => format!("A = {}, the same file", title(b)),
        sides => sides.iter().map(title).collect::<Vec<_>>().join(", "),
    };
    lines.push(format!("  {titles}, {}", place(record)));
    lines.push(format!("  {:<NAME$}{}", "data", data(record)));
    if record.sides.len() < 2 {
        lines.extend(record.rows.iter().map(|row| {
            let value = row.a.map_or_else(|| "-".into(), number);
            format!("  {:<26}{value} {}", row.key.name(), row.unit)
        }));
    } else {
        let judged = of_record(record);
        lines.extend(judged.groups.iter().map(|group| {
            let row = judged.worst_row(group, record);
            format!("  {:<NAME$}{}{row}", group.name, group.words())
        }));
    }
    lines.iter().map(|line| fit(line) + "\n").collect()
}

/// A line that is cut where the terminal ends.
fn fit(line: &str) -> String {
    match line.char_indices().nth(WIDTH) {
        Some(_) => line.chars().take(WIDTH - 1).chain(['…']).collect(),
        None => line.into(),
    }
}

/// `softrnic0 and softrnic1`, with the hosts if these are two.
fn place(record: &Record) -> String {
    let Some(side) = record.sides.first() else { return String::new() };
    let [zero, one] = &side.devices;
    let (zero, one) =
        (host_of(record, 0) + zero.name.as_str(), host_of(record, 1) + one.name.as_str());
    let software = matches!(record.verbs, Verbs::Softrnic { .. });
    format!("{zero} to {one}{}", if software { " (software)" } else { "" })
}

/// What was checked and measured.
pub(super) fn data(record: &Record) -> String {
    let checked: u64 = record.sides.iter().map(|side| side.checked()).sum();
    let count = record.sets.len();
    let parts = record.sides.iter().map(|side| (&side.label, side.blocks.part()));
    let disturbed = if parts.clone().all(|(_, part)| part < 0.005) {
        String::new()
    } else {
        let parts = parts.map(|(label, part)| format!("{label} {:.0}", part * 100.0));
        format!("; disturbed {} %", parts.collect::<Vec<_>>().join(", "))
    };
    format!(
        "{checked} messages right; {count} set{}, {:.0} s{disturbed}",
        if count == 1 { "" } else { "s" },
        record.seconds
    )
}

/// For the progress line: `latency 2 % faster, message rate ?`.
pub(crate) fn in_short(groups: &[Group]) -> String {
    let word = |group: &Group| {
        let better = group.metric.info().better;
        let words = match group.judgement.finding {
            Finding::Better | Finding::Worse => {
                group.judgement.speeds(better).map_or_else(String::new, |(speed, ..)| change(speed))
            }
            Finding::Same => "same".into(),
            Finding::Undecided => "?".into(),
        };
        format!("{} {words}", group.name)
    };
    groups.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// The conclusion from a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conclusion {
    /// The data is right; and B is as good as it has to be, if there is a B.
    Good,
    /// B is worse in a row or in a group, by as much as fails.
    Worse,
    /// B is not found to be worse, and a difference that must not be missed could have been.
    Undecided,
}

/// Rows and groups with their names.
pub(super) struct Judged<'r> {
    /// A smaller loss is no failure; a fraction.
    pub(super) fail: f64,
    pub(super) groups: Vec<Named<'r>>,
    pub(super) rows: Vec<Named<'r>>,
}

impl Judged<'_> {
    /// What follows from the rows and groups together.
    pub(super) fn conclusion(&self) -> Conclusion {
        let all = || self.rows.iter().chain(&self.groups);
        if all().any(|one| self.fails(one)) {
            return Conclusion::Worse;
        }
        match self.groups.iter().any(|group| group.judgement.finding == Finding::Undecided) {
            false if !self.groups.is_empty() => Conclusion::Good,
            _ => Conclusion::Undecided,
        }
    }

    /// The verdict in one line.
    pub(super) fn line(&self) -> String {
        let of = |groups: &[Named<'_>], finding| -> Vec<String> {
            let all = groups.iter().filter(|one| one.judgement.finding == finding);
            all.map(|one| one.name.clone()).collect()
        };
        let better = of(&self.groups, Finding::Better);
        let undecided = of(&self.groups, Finding::Undecided);
        // A row says more than its group does where the group is not worse.
        let mut worse = of(&self.groups, Finding::Worse);
        for row in of(&self.rows, Finding::Worse) {
            if !worse.iter().any(|group| row.starts_with(group.as_str())) {
                worse.push(row);
            }
        }
        let count = self.groups.len();
        let of_all = |names: &[String]| match names {
            [name] => name.clone(),
            names => format!("{} of {count} groups", names.len()),
        };
        let same = self.groups.iter().filter_map(|group| group.judgement.within);
        let same = percent(same.fold(0.0, f64::max));
        let nowhere = if worse.is_empty() { "worse nowhere" } else { "" };
        match self.conclusion() {
            Conclusion::Worse => format!("B is WORSE than A: {}", worse.join(", ")),
            Conclusion::Undecided if undecided.is_empty() => "UNDECIDED: nothing measured".into(),
            Conclusion::Undecided => {
                let found = match (better.is_empty(), worse.is_empty()) {
                    (_, false) => format!("; worse: {}", worse.join(", ")),
                    (false, true) => format!("; better in {}, {nowhere}", of_all(&better)),
                    (true, true) => format!("; {nowhere}"),
                };
                format!("UNDECIDED in {}{found}", of_all(&undecided))
            }
            Conclusion::Good if !worse.is_empty() => {
                let fail = percent(self.fail);
                format!("B is worse than A, nowhere by {fail} or more: {}", worse.join(", "))
            }
            Conclusion::Good if better.is_empty() => {
                format!("B is as good as A: the same within {same}")
            }
            Conclusion::Good => format!("B is BETTER than A in {}, {nowhere}", of_all(&better)),
        }
    }

    /// Whether it is worse by as much as fails.
    fn fails(&self, one: &Named<'_>) -> bool {
        let speed = one.judgement.speeds(one.better).map_or(0.0, |(speed, ..)| speed);
        one.judgement.finding == Finding::Worse && 1.0 / speed >= 1.0 + self.fail
    }

    /// The row that is worse in a group that is not.
    fn worst_row(&self, group: &Named<'_>, record: &Record) -> String {
        if group.judgement.finding == Finding::Worse {
            return String::new();
        }
        let is_of_group = |name: &str| {
            record.rows.iter().any(|row| {
                let metric: Metric = row.key.metric;
                row.key.name() == name && metric.info().name == group.name
            })
        };
        let worse = self.rows.iter().filter(|row| row.judgement.finding == Finding::Worse);
        let names: Vec<&str> = worse
            .filter(|row| is_of_group(&row.name))
            .map(|row| row.name.trim_start_matches(&group.name).trim_start())
            .collect();
        if names.is_empty() { String::new() } else { format!("; slower: {}", names.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample_record::{judgement, sample_record};
    use crate::results::rows::Blocks;

    #[test]
    fn the_conclusion_follows_from_the_findings() {
        let mut record = sample_record();
        let same = judgement(Finding::Same, 0.99, 1.02);
        for (latency, rate, fail, expected, line) in [
            (same, same, 0, Conclusion::Good, "B is as good as A: the same within 2.0 %"),
            (
                judgement(Finding::Better, 0.8, 0.9),
                same,
                0,
                Conclusion::Good,
                "B is BETTER than A in latency, worse nowhere",
            ),
            (
                judgement(Finding::Better, 0.8, 0.9),
                judgement(Finding::Worse, 0.8, 0.9),
                0,
                Conclusion::Worse,
                "B is WORSE than A: bandwidth",
            ),
            (
                same,
                judgement(Finding::Worse, 0.96, 0.98),
                5,
                Conclusion::Good,
                "B is worse than A, nowhere by 5.0 % or more: bandwidth",
            ),
            (
                judgement(Finding::Better, 0.8, 0.9),
                judgement(Finding::Undecided, 0.8, 1.2),
                0,
                Conclusion::Undecided,
                "UNDECIDED in bandwidth; better in latency, worse nowhere",
            ),
        ] {
            record.scope.fail_percent = fail;
            record.groups[0].judgement = latency;
            record.groups[1].judgement = rate;
            assert_eq!((conclusion(&record), verdict(&record).as_str()), (expected, line));
            assert!(
                verdict(&Record { complete: false, ..record.clone() }).starts_with("INTERRUPTED")
            );
        }
        record.groups.clear();
        assert_eq!(conclusion(&record), Conclusion::Undecided);
    }

    #[test]
    fn a_row_that_is_worse_is_worse_whatever_its_group_is() {
        let mut record = sample_record();
        record.rows[1].judgement = judgement(Finding::Worse, 0.7, 0.8);
        assert_eq!(conclusion(&record), Conclusion::Worse);
        assert_eq!(verdict(&record), "B is WORSE than A: bandwidth 1M 0->1");
        let screen = first_screen(&record);
        assert!(screen.contains("; slower: 1M 0->1\n"), "{screen}");
    }

    #[test]
    fn the_first_screen_has_the_verdict_first_and_fits() {
        let mut record = sample_record();
        record.sides[1].blocks = Blocks { all: 100, disturbed: 6 };
        assert!(first_screen(&record).contains("; disturbed A 0, B 6 %\n"));
        record.sides[1].version = Some("1".repeat(200));
        let screen = first_screen(&record);
        assert!(screen.starts_with(&verdict(&record)), "{screen}");
        assert!(screen.lines().count() <= 8, "{screen}");
        assert!(screen.lines().all(|line| line.chars().count() <= WIDTH), "{screen}");
    }
}
