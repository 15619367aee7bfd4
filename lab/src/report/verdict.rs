//! What a run showed, in one line and as one of three conclusions.

use crate::measure::metric::Label;
use crate::measure::sample::{Key, size_text};
use crate::report::judged::{Conclusion, Judged, Words};
use crate::report::text::{number, percent, repetitions};
use crate::results::changed::Earlier;
use crate::results::judgement::Finding;
use crate::results::record::Record;

/// Draws the conclusion: from B against A and, where an earlier run is named, from what has changed since.
pub(crate) fn conclusion(record: &Record) -> Conclusion {
    let now = if record.sides.len() < 2 { Conclusion::Good } else { against_a(record).conclusion() };
    let change = record.earlier.as_ref().map_or(Conclusion::Good, |earlier| since(record, earlier).conclusion());
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
        too_few: &|| format!("UNDECIDED: a change of {} might have been missed", percent(record.scope.find())),
        none: "no change found",
    };
    Some(format!("since the run of {}: {}", earlier.file.display(), since(record, earlier).line(&words)))
}

/// Names the rows in which A differs from itself, if there are any.
pub(crate) fn bias(record: &Record) -> Option<String> {
    let rows = record.rows.iter().filter(|row| row.judgement.finding == Some(Finding::Biased));
    let names: Vec<String> = rows
        .map(|row| match row.judgement.noise {
            Some(e) => format!("{} {:.2} [{:.2}, {:.2}]", key_name(&row.key), e.median, e.low, e.high),
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

/// Names the rows whose slowest times differ much, which nothing else judges, if there are any: a set-up may be as fast as another one by
/// its median and have a tail that is not.
pub(crate) fn tails(record: &Record) -> Option<String> {
    const TAIL: &str = "p99";
    /// So many times longer.
    const MUCH: f64 = 2.0;
    let rows = record.rows.iter().filter(|row| row.key.metric.info().shown.contains(&TAIL));
    let tails = rows.filter_map(|row| {
        let (a, b) = (*row.a.get(TAIL)?, *row.b.as_ref()?.get(TAIL)?);
        let times = (b / a).max(a / b);
        let unit = row.key.metric.info().unit;
        (times >= MUCH).then(|| format!("{} A {} {unit}, B {} {unit}", key_name(&row.key), number(a), number(b)))
    });
    let tails: Vec<String> = tails.collect();
    (!tails.is_empty())
        .then(|| format!("note: the slowest 1 % differs, which is shown and not judged: {}", tails.join("; ")))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::estimate::Estimate;
    use crate::report::sample_record::sample_record;
    use crate::report::table;
    use crate::results::changed::{ChangedGroup, Medians};
    use crate::results::judgement::Judgement;
    use crate::results::rows::Group;

    fn group(finding: Option<Finding>, least: f64) -> Group {
        let judgement = Judgement { finding, least: finding.map(|_| least), ..Judgement::default() };
        Group { name: "latency".into(), rows: 1, judgement }
    }

    #[test]
    fn no_difference_is_said_of_what_would_have_been_found_alone() {
        let mut record = sample_record();
        for (finding, least, expected, words) in [
            (Some(Finding::Unclear), 0.04, Conclusion::Good, "no difference found: latency (4.0 % would have been)"),
            (
                Some(Finding::Unclear),
                0.4,
                Conclusion::TooFew,
                "UNDECIDED: this machine is too noisy to tell a difference of 10 %",
            ),
            (Some(Finding::Unclear), 0.4, Conclusion::TooFew, "not told: latency (less than 40 % is missed)"),
            (Some(Finding::Better), 0.4, Conclusion::Good, "B is better than A, worse nowhere; better: latency"),
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
            assert_eq!(line.contains("no difference found: "), expected == Conclusion::Good && least < 0.1, "{line}");
        }
        record.groups.clear();
        assert_eq!(conclusion(&record), Conclusion::TooFew);
    }

    /// The interval that a reader sees excludes 1, and that of the claim, which holds for all rows of the run together, does not.
    #[test]
    fn a_likely_difference_is_not_called_noise() {
        let mut record = sample_record();
        let of = |median, low, high| Some(Estimate { median, low, high, coverage: 0.96 });
        let mut likely = group(Some(Finding::Unclear), 1.43);
        (likely.judgement.ratio, likely.judgement.noise) = (of(0.61, 0.55, 0.63), of(1.0, 0.92, 1.16));
        record.groups = vec![likely];
        record.rows.clear();
        let line = verdict(&record);
        assert!(line.starts_with("UNDECIDED: a difference is likely, but these runs do not prove it"), "{line}");
        assert!(
            line.contains("likely different, not sure: latency 0.61 [0.55, 0.63]") && !line.contains("nois"),
            "{line}"
        );
        let table = &table::tables(&record)[0];
        assert!(table.rows[0].contains(&"likely".to_owned()), "{table:?}");
        // One that is noisy beside it makes the machine too noisy; what is likely stays that.
        record.groups.push(group(Some(Finding::Unclear), 0.4));
        let line = verdict(&record);
        assert!(
            line.starts_with("UNDECIDED: this machine is too noisy") && line.contains("not sure: latency 0.61"),
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
            (Finding::Worse, 0.4, Conclusion::Worse, "B is worse against A than it was; worse: latency"),
            (
                Finding::Unclear,
                0.4,
                Conclusion::TooFew,
                "UNDECIDED: a change of 10 % might have been missed; not told: latency",
            ),
            (Finding::Unclear, 0.04, Conclusion::Good, "B is against A what it was; no change found: latency (4.0 %"),
            (Finding::Better, 0.4, Conclusion::Good, "B is better against A than it was, worse nowhere; better: "),
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
