//! What a run showed, in one line and as one of three conclusions.

use crate::measure::metric::Label;
use crate::measure::sample::{Key, size_text};
use crate::report::table::{number, percent, repetitions};
use crate::results::judgement::{Earlier, Finding, Judgement};
use crate::results::record::Record;

/// Draws the conclusion: from B against A and, where an earlier run is named, from what has changed
/// since.
pub(crate) fn conclusion(record: &Record) -> Conclusion {
    let now =
        if record.sides.len() < 2 { Conclusion::Good } else { against_a(record).conclusion() };
    let change = record
        .earlier
        .as_ref()
        .map_or(Conclusion::Good, |earlier| since(record, earlier).conclusion());
    match (now, change) {
        (Conclusion::Worse, _) | (_, Conclusion::Worse) => Conclusion::Worse,
        (Conclusion::TooFew, _) | (_, Conclusion::TooFew) => Conclusion::TooFew,
        _ => Conclusion::Good,
    }
}

fn against_a(record: &Record) -> Judged<'_> {
    Judged {
        find: record.scope.find(),
        fail: record.scope.fail(),
        groups: record.groups.iter().map(|group| (group.name.clone(), &group.judgement)).collect(),
        rows: record.rows.iter().map(|row| (key_name(&row.key), &row.judgement)).collect(),
    }
}

fn since<'r>(record: &Record, earlier: &'r Earlier) -> Judged<'r> {
    Judged {
        find: record.scope.find(),
        fail: record.scope.fail(),
        groups: earlier.groups.iter().map(|group| (group.name.clone(), &group.judgement)).collect(),
        rows: earlier.rows.iter().map(|row| (key_name(&row.key), &row.judgement)).collect(),
    }
}

/// The line itself.
pub(crate) fn verdict(record: &Record) -> String {
    let checked: u64 = record.sides.iter().map(|side| side.checked()).sum();
    let valid = format!("valid run, data right ({checked} messages checked byte by byte)");
    if record.sides.len() < 2 {
        return valid;
    }
    let words = Words {
        worse: "B is worse than A",
        better: "B is better than A, worse nowhere",
        alike: "B is as good as A",
        too_few: &|| against_a(record).undecided(&repetitions(record), "nine or more", "--reps"),
        none: "no difference found",
    };
    format!("{}; {valid}", against_a(record).line(&words))
}

/// The same of what has changed since an earlier run, if one is named.
pub(crate) fn change(record: &Record) -> Option<String> {
    let earlier = record.earlier.as_ref()?;
    let words = Words {
        worse: "B is worse against A than it was",
        better: "B is better against A than it was, worse nowhere",
        alike: "B is against A what it was",
        too_few: &|| {
            format!(
                "UNDECIDED: a change of {} might have been missed",
                percent(record.scope.find())
            )
        },
        none: "no change found",
    };
    Some(format!(
        "since the run of {}: {}",
        earlier.file.display(),
        since(record, earlier).line(&words)
    ))
}

/// Names the rows in which A differs from itself, if there are any.
pub(crate) fn bias(record: &Record) -> Option<String> {
    let rows = record.rows.iter().filter(|row| row.judgement.finding == Some(Finding::Biased));
    let names: Vec<String> = rows
        .map(|row| match row.judgement.noise {
            Some(e) => {
                format!("{} {:.2} [{:.2}, {:.2}]", key_name(&row.key), e.median, e.low, e.high)
            }
            None => key_name(&row.key),
        })
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "A differs from itself in {} of {} rows, which chance does to one run in 20, and nothing is claimed of B there: {}",
            names.len(),
            record.rows.len(),
            names.join("; ")
        )
    })
}

/// Names the rows whose slowest times differ much, which nothing else judges, if there are any: a
/// set-up may be as fast as another one by its median and have a tail that is not.
pub(crate) fn tails(record: &Record) -> Option<String> {
    const TAIL: &str = "p99";
    /// So many times longer.
    const MUCH: f64 = 2.0;
    let rows = record.rows.iter().filter(|row| row.key.metric.info().shown.contains(&TAIL));
    let tails = rows.filter_map(|row| {
        let (a, b) = (*row.a.get(TAIL)?, *row.b.as_ref()?.get(TAIL)?);
        let times = (b / a).max(a / b);
        let unit = row.key.metric.info().unit;
        (times >= MUCH).then(|| {
            format!("{} A {} {unit}, B {} {unit}", key_name(&row.key), number(a), number(b))
        })
    });
    let tails: Vec<String> = tails.collect();
    (!tails.is_empty()).then(|| {
        format!(
            "note: the slowest 1 % differs, which is shown and not judged: {}",
            tails.join("; ")
        )
    })
}

/// `bandwidth 1M 0->1`.
pub(super) fn key_name(key: &Key) -> String {
    let info = key.metric.info();
    let mut name = info.name.to_owned();
    for label in info.labels {
        match label {
            Label::Size => name += &format!(" {}", size_text(key.bytes)),
            Label::Direction => name += &format!(" {}", key.direction),
            Label::Wrong | Label::Connections | Label::AtOnce => {}
        }
    }
    name
}

/// What follows from a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conclusion {
    /// The data is right; and B is as good as it has to be, if there is a B.
    Good,
    /// B is worse in a row or in a group, by as much as fails.
    Worse,
    /// B is not found to be worse, and a difference of the size that was asked for might have been
    /// missed.
    TooFew,
}

/// Rows and groups with their names.
pub(super) struct Judged<'r> {
    /// The difference that must not be missed, as a fraction.
    pub(super) find: f64,
    /// What is no failure yet, as a fraction.
    pub(super) fail: f64,
    pub(super) groups: Vec<(String, &'r Judgement)>,
    pub(super) rows: Vec<(String, &'r Judgement)>,
}

/// What the line begins with for each conclusion, and what it calls a group without a difference.
pub(super) struct Words<'w> {
    pub(super) worse: &'w str,
    pub(super) better: &'w str,
    pub(super) alike: &'w str,
    pub(super) too_few: &'w dyn Fn() -> String,
    pub(super) none: &'w str,
}

/// What the line says of a group, if it is of some kind.
type Name<'f> = &'f dyn Fn(&str, &Judgement) -> Option<String>;
/// Whether a row is of some kind.
type IsIt<'f> = &'f dyn Fn(&Judgement) -> bool;

impl Judged<'_> {
    /// What follows from the rows and groups together.
    pub(super) fn conclusion(&self) -> Conclusion {
        if self.worse().any(|judgement| self.fails(judgement)) {
            return Conclusion::Worse;
        }
        let told = !self.groups.is_empty()
            && self.groups.iter().all(|(_, judgement)| self.tells(judgement));
        if told { Conclusion::Good } else { Conclusion::TooFew }
    }

    /// The verdict in one line, as it is printed and stands at the head of the report.
    pub(super) fn line(&self, words: &Words<'_>) -> String {
        let mut parts = self.groups(words.none);
        let any_better =
            self.groups.iter().any(|(_, judgement)| judgement.finding == Some(Finding::Better));
        let head = match self.conclusion() {
            Conclusion::Worse => words.worse.to_owned(),
            Conclusion::Good if self.worse().next().is_some() => {
                format!("{}, nowhere by {} or more", words.worse, percent(self.fail))
            }
            Conclusion::Good if any_better => words.better.into(),
            Conclusion::Good => words.alike.into(),
            Conclusion::TooFew => (words.too_few)(),
        };
        parts.push(self.row_counts());
        let worse_rows =
            self.rows.iter().filter(|(_, judgement)| judgement.finding == Some(Finding::Worse));
        let worse_rows: Vec<String> =
            worse_rows.map(|(name, judgement)| with_ratio(name, judgement)).collect();
        if !worse_rows.is_empty() {
            parts.push(format!("worse rows: {}", worse_rows.join(", ")));
        }
        format!("{head}; {}", parts.join("; "))
    }

    /// Why nothing is claimed of `run`, such as "12 repetitions"; `least` of them can tell
    /// something, and the option `more` gives more.
    pub(super) fn undecided(&self, run: &str, least: &str, more: &str) -> String {
        let groups = || self.groups.iter().map(|(_, judgement)| *judgement);
        let is_missed = |judgement: &Judgement| {
            judgement.finding == Some(Finding::Unclear) && !judgement.excludes(self.find)
        };
        let is_noisy = |judgement: &Judgement| is_missed(judgement) && !judgement.is_likely();
        let find = percent(self.find);
        let why = if self.groups.is_empty() || groups().any(|judgement| judgement.finding.is_none())
        {
            format!("too few runs to tell a difference of {find} ({run}, it takes {least})")
        } else if groups().any(is_missed) && !groups().any(is_noisy) {
            format!(
                "a difference is likely, but these runs do not prove it ({run}): use more {more}"
            )
        } else if groups().any(is_missed) {
            format!(
                "this machine is too noisy to tell a difference of {find} ({run}); run again when it is idle"
            )
        } else {
            "nothing can be told where A differs from A".into()
        };
        format!("UNDECIDED: {why}")
    }

    /// The rows and groups in which B is worse.
    fn worse(&self) -> impl Iterator<Item = &Judgement> {
        let all = self.rows.iter().chain(&self.groups).map(|(_, judgement)| *judgement);
        all.filter(|judgement| judgement.finding == Some(Finding::Worse))
    }

    /// Whether B, which is worse there, is so by as much as fails.
    fn fails(&self, worse: &Judgement) -> bool {
        worse.ratio.is_none_or(|ratio| ratio.median.max(1.0 / ratio.median) >= 1.0 + self.fail)
    }

    /// Whether a group differs, or a difference of the size that was asked for would have been
    /// found.
    fn tells(&self, judgement: &Judgement) -> bool {
        match judgement.finding {
            Some(Finding::Better | Finding::Worse) => true,
            Some(Finding::Unclear) => judgement.excludes(self.find),
            Some(Finding::Biased) | None => false,
        }
    }

    /// The groups by what was found of them.
    fn groups(&self, none: &str) -> Vec<String> {
        let unclear = |judgement: &Judgement| judgement.finding == Some(Finding::Unclear);
        let least = |judgement: &Judgement| judgement.least.map_or_else(|| "-".into(), percent);
        let named = |finding| {
            move |name: &str, judgement: &Judgement| {
                (judgement.finding == Some(finding)).then(|| with_ratio(name, judgement))
            }
        };
        let likely = |name: &str, judgement: &Judgement| {
            let likely = judgement.is_likely() && !judgement.excludes(self.find);
            likely.then(|| with_ratio(name, judgement))
        };
        let missed = |name: &str, judgement: &Judgement| {
            let missed =
                unclear(judgement) && !judgement.excludes(self.find) && !judgement.is_likely();
            missed.then(|| format!("{name} (less than {} is missed)", least(judgement)))
        };
        let excluded = |name: &str, judgement: &Judgement| {
            let excluded = judgement.excludes(self.find);
            excluded.then(|| format!("{name} ({} would have been)", least(judgement)))
        };
        let biased = |name: &str, judgement: &Judgement| {
            (judgement.finding == Some(Finding::Biased)).then(|| name.to_owned())
        };
        let kinds: [(&str, Name<'_>); 6] = [
            ("worse", &named(Finding::Worse)),
            ("better", &named(Finding::Better)),
            (none, &excluded),
            ("likely different, not sure", &likely),
            ("not told", &missed),
            ("A differs from A", &biased),
        ];
        let of_kind = |(kind, name): (&str, Name<'_>)| {
            let groups: Vec<String> =
                self.groups.iter().filter_map(|(group, found)| name(group, found)).collect();
            (!groups.is_empty()).then(|| format!("{kind}: {}", groups.join(", ")))
        };
        kinds.into_iter().filter_map(of_kind).collect()
    }

    /// `of 35 rows 3 better, 30 without a difference found, 2 where A differs from A`.
    fn row_counts(&self) -> String {
        let finding = |wanted| move |judgement: &Judgement| judgement.finding == wanted;
        let find = self.find;
        let unclear = finding(Some(Finding::Unclear));
        let parts: [(String, IsIt<'_>); 7] = [
            ("better".into(), &finding(Some(Finding::Better))),
            ("worse".into(), &finding(Some(Finding::Worse))),
            ("without a difference found".into(), &|judgement| judgement.excludes(find)),
            (format!("too noisy to find {}", percent(find)), &|judgement| {
                unclear(judgement) && !judgement.excludes(find) && !judgement.is_likely()
            }),
            ("likely different, not sure".into(), &|judgement| {
                judgement.is_likely() && !judgement.excludes(find)
            }),
            ("where A differs from A".into(), &finding(Some(Finding::Biased))),
            ("with too few runs".into(), &finding(None)),
        ];
        let counted = parts.into_iter().filter_map(|(words, is_it)| {
            let count = self.rows.iter().filter(|(_, judgement)| is_it(judgement)).count();
            (count > 0).then(|| format!("{count} {words}"))
        });
        format!("of {} rows {}", self.rows.len(), counted.collect::<Vec<_>>().join(", "))
    }
}

fn with_ratio(name: &str, judgement: &Judgement) -> String {
    let ratio = judgement.ratio.map(|e| format!(" {:.2} [{:.2}, {:.2}]", e.median, e.low, e.high));
    format!("{name}{}", ratio.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::sample::Estimate;
    use crate::report::sample_record::sample_record;
    use crate::report::table;
    use crate::results::judgement::{ChangedGroup, Medians};
    use crate::results::rows::Group;

    fn group(finding: Option<Finding>, least: f64) -> Group {
        let judgement =
            Judgement { finding, least: finding.map(|_| least), ..Judgement::default() };
        Group { name: "latency".into(), rows: 1, judgement }
    }

    #[test]
    fn no_difference_is_said_of_what_would_have_been_found_alone() {
        let mut record = sample_record();
        for (finding, least, expected, words) in [
            (
                Some(Finding::Unclear),
                0.04,
                Conclusion::Good,
                "no difference found: latency (4.0 % would have been)",
            ),
            (
                Some(Finding::Unclear),
                0.4,
                Conclusion::TooFew,
                "UNDECIDED: this machine is too noisy to tell a difference of 10 %",
            ),
            (
                Some(Finding::Unclear),
                0.4,
                Conclusion::TooFew,
                "not told: latency (less than 40 % is missed)",
            ),
            (
                Some(Finding::Better),
                0.4,
                Conclusion::Good,
                "B is better than A, worse nowhere; better: latency",
            ),
            (Some(Finding::Worse), 0.4, Conclusion::Worse, "B is worse than A; worse: latency"),
            (
                Some(Finding::Biased),
                0.01,
                Conclusion::TooFew,
                "UNDECIDED: nothing can be told where A differs from A; ",
            ),
            (Some(Finding::Biased), 0.01, Conclusion::TooFew, "A differs from A: latency"),
            (None, 0.0, Conclusion::TooFew, "UNDECIDED: too few runs"),
        ] {
            record.groups = vec![group(finding, least)];
            assert_eq!(conclusion(&record), expected, "{finding:?}");
            let line = verdict(&record);
            assert!(line.contains(words), "{line}");
            assert_eq!(line.starts_with("UNDECIDED: "), expected == Conclusion::TooFew, "{line}");
            assert_eq!(
                line.contains("no difference found: "),
                expected == Conclusion::Good && least < 0.1,
                "{line}"
            );
        }
        record.groups.clear();
        assert_eq!(conclusion(&record), Conclusion::TooFew);
    }

    /// The interval that a reader sees excludes 1, and that of the claim, which holds for all rows
    /// of the run together, does not.
    #[test]
    fn a_likely_difference_is_not_called_noise() {
        let mut record = sample_record();
        let of = |median, low, high| Some(Estimate { median, low, high, coverage: 0.96 });
        let mut likely = group(Some(Finding::Unclear), 1.43);
        (likely.judgement.ratio, likely.judgement.noise) =
            (of(0.61, 0.55, 0.63), of(1.0, 0.92, 1.16));
        record.groups = vec![likely];
        record.rows.clear();
        let line = verdict(&record);
        assert!(
            line.starts_with("UNDECIDED: a difference is likely, but these runs do not prove it"),
            "{line}"
        );
        assert!(
            line.contains("likely different, not sure: latency 0.61 [0.55, 0.63]")
                && !line.contains("nois"),
            "{line}"
        );
        let table = &table::tables(&record)[0];
        assert!(table.rows[0].contains(&"likely".to_owned()), "{table:?}");
        // One that is noisy beside it makes the machine too noisy; what is likely stays that.
        record.groups.push(group(Some(Finding::Unclear), 0.4));
        let line = verdict(&record);
        assert!(
            line.starts_with("UNDECIDED: this machine is too noisy")
                && line.contains("not sure: latency 0.61"),
            "{line}"
        );
    }

    #[test]
    fn a_tail_that_is_much_longer_is_told() {
        let mut record = sample_record();
        assert_eq!(tails(&record), None);
        record.rows[1].b.as_mut().expect("B").insert("p99".into(), 25.0);
        let told = tails(&record).expect("latency");
        assert!(told.ends_with(": latency 8 A 2.500 us, B 25.00 us"), "{told}");
        assert!(
            record.rows[0].b.as_mut().expect("B").insert("p99".into(), 99.0).is_some(),
            "a rate has none that is shown"
        );
        assert_eq!(tails(&record), Some(told));
    }

    #[test]
    fn one_bad_row_is_enough() {
        let mut record = sample_record();
        record.groups = vec![group(Some(Finding::Better), 0.01)];
        assert_eq!(conclusion(&record), Conclusion::Good);
        record.rows[0].judgement.finding = Some(Finding::Worse);
        assert_eq!(conclusion(&record), Conclusion::Worse);
        let line = verdict(&record);
        assert!(line.contains("; worse rows: bandwidth 1M 0->1 1.00 [0.95, 1.05]; "), "{line}");
    }

    #[test]
    fn a_loss_that_is_tolerated_is_told_and_is_no_failure() {
        let mut record = sample_record();
        record.groups = vec![group(Some(Finding::Better), 0.01)];
        record.rows[0].judgement.finding = Some(Finding::Worse);
        for (ratio, fail_percent, expected) in [
            (1.0 / 1.07, 6, Conclusion::Worse),
            (1.0 / 1.04, 5, Conclusion::Good),
            (1.04, 5, Conclusion::Good),
            (1.06, 5, Conclusion::Worse),
            (1.001, 0, Conclusion::Worse),
        ] {
            let estimate = record.rows[0].judgement.ratio.as_mut().expect("it has one");
            estimate.median = ratio;
            record.scope.fail_percent = fail_percent;
            assert_eq!(conclusion(&record), expected, "{ratio} {fail_percent}");
            let line = verdict(&record);
            assert!(line.contains("worse rows: bandwidth 1M"), "{line}");
            let is_told = line.starts_with("B is worse than A, nowhere by 5.0 % or more; ");
            assert_eq!(is_told, expected == Conclusion::Good, "{line}");
        }
    }

    #[test]
    fn rows_in_which_a_is_not_a_are_named() {
        let mut record = sample_record();
        assert_eq!(bias(&record), None);
        record.rows[0].judgement.finding = Some(Finding::Biased);
        let words = bias(&record).expect("there is one");
        assert!(words.starts_with("A differs from itself in 1 of 2 rows, which chance"), "{words}");
        assert!(words.ends_with(": bandwidth 1M 0->1 0.90 [0.85, 0.95]"), "{words}");
        assert!(verdict(&record).contains("1 where A differs from A"), "{}", verdict(&record));
    }

    #[test]
    fn what_has_become_worse_since_an_earlier_run_is_a_failure_too() {
        let mut record = sample_record();
        record.groups = vec![group(Some(Finding::Better), 0.01)];
        assert_eq!((conclusion(&record), change(&record)), (Conclusion::Good, None));
        for (finding, least, expected, words) in [
            (
                Finding::Worse,
                0.4,
                Conclusion::Worse,
                "B is worse against A than it was; worse: latency",
            ),
            (
                Finding::Unclear,
                0.4,
                Conclusion::TooFew,
                "UNDECIDED: a change of 10 % might have been missed; not told: latency",
            ),
            (
                Finding::Unclear,
                0.04,
                Conclusion::Good,
                "B is against A what it was; no change found: latency (4.0 %",
            ),
            (
                Finding::Better,
                0.4,
                Conclusion::Good,
                "B is better against A than it was, worse nowhere; better: ",
            ),
        ] {
            let medians = Medians { then: 1.0, now: 1.1 };
            let judgement = group(Some(finding), least).judgement;
            record.earlier = Some(Earlier {
                file: "old/raw.json".into(),
                tool: "0".into(),
                started_unix: 0,
                differences: Vec::new(),
                rows: Vec::new(),
                groups: vec![ChangedGroup { name: "latency".into(), rows: 1, medians, judgement }],
            });
            assert_eq!(conclusion(&record), expected, "{finding:?}");
            let line = change(&record).expect("an earlier run");
            assert!(line.starts_with(&format!("since the run of old/raw.json: {words}")), "{line}");
        }
    }
}
