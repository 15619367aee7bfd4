//! What a run showed, in one line and as one of three conclusions.

use crate::measure::metric::Label;
use crate::measure::sample::size_text;
use crate::report::text::{percent, repetitions, repetitions_run};
use crate::results::judgement::{Finding, Judgement};
use crate::results::record::Record;
use crate::results::rows::{Group, Row};

/// What follows from a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conclusion {
    /// The data is right; and B is as good as A or better, if there is a B.
    Good,
    /// B is worse in a row or in a group, by as much as fails.
    Worse,
    /// B is not found to be worse, and a difference of the size that was asked for might have been missed.
    TooFew,
}

/// Draws it.
pub(crate) fn conclusion(record: &Record) -> Conclusion {
    if record.sides.len() < 2 {
        return Conclusion::Good;
    }
    if worse(record).any(|judgement| fails(record, judgement)) {
        return Conclusion::Worse;
    }
    let told = !record.groups.is_empty() && record.groups.iter().all(|group| tells(record, group));
    if told { Conclusion::Good } else { Conclusion::TooFew }
}

/// The rows and groups in which B is worse.
fn worse(record: &Record) -> impl Iterator<Item = &Judgement> {
    let rows = record.rows.iter().map(|row| &row.judgement);
    let all = rows.chain(record.groups.iter().map(|group| &group.judgement));
    all.filter(|judgement| judgement.finding == Some(Finding::Worse))
}

/// Whether B, which is worse there, is so by as much as fails.
fn fails(record: &Record, worse: &Judgement) -> bool {
    let least = 1.0 + record.scope.fail();
    worse.ratio.is_none_or(|ratio| ratio.median.max(1.0 / ratio.median) >= least)
}

/// Whether the group differs, or a difference of the size that was asked for would have been found.
fn tells(record: &Record, group: &Group) -> bool {
    match group.judgement.finding {
        Some(Finding::Better | Finding::Worse) => true,
        Some(Finding::Unclear) => group.judgement.excludes(record.scope.find()),
        Some(Finding::Biased) | None => false,
    }
}

/// What the line says of a group, if it is of some kind.
type Name<'f> = &'f dyn Fn(&Group) -> Option<String>;
/// Whether a row is of some kind.
type IsIt<'f> = &'f dyn Fn(&Judgement) -> bool;

/// The line itself.
pub(crate) fn verdict(record: &Record) -> String {
    let checked: u64 = record.sides.iter().map(|side| side.checked()).sum();
    let valid = format!("valid run, data right ({checked} messages checked byte by byte)");
    if record.sides.len() < 2 {
        return valid;
    }
    let find = record.scope.find();
    let unclear = |group: &Group| group.judgement.finding == Some(Finding::Unclear);
    let least = |group: &Group| group.judgement.least.map_or_else(|| "-".into(), percent);
    let named = |finding| {
        move |group: &Group| {
            (group.judgement.finding == Some(finding)).then(|| with_ratio(&group.name, &group.judgement))
        }
    };
    let missed = |group: &Group| {
        let missed = unclear(group) && !group.judgement.excludes(find);
        missed.then(|| format!("{} (less than {} is missed)", group.name, least(group)))
    };
    let excluded = |group: &Group| {
        let excluded = group.judgement.excludes(find);
        excluded.then(|| format!("{} ({} would have been)", group.name, least(group)))
    };
    let kinds: [(&str, Name<'_>); 5] = [
        ("worse", &named(Finding::Worse)),
        ("better", &named(Finding::Better)),
        ("no difference found", &excluded),
        ("not told", &missed),
        ("A differs from A", &|group| (group.judgement.finding == Some(Finding::Biased)).then(|| group.name.clone())),
    ];
    let mut parts: Vec<String> = Vec::new();
    for (kind, name) in kinds {
        let groups: Vec<String> = record.groups.iter().filter_map(name).collect();
        if !groups.is_empty() {
            parts.push(format!("{kind}: {}", groups.join(", ")));
        }
    }
    let any_better = record.groups.iter().any(|group| group.judgement.finding == Some(Finding::Better));
    let head = match conclusion(record) {
        Conclusion::Worse => "B is worse than A".to_owned(),
        Conclusion::Good if worse(record).next().is_some() => {
            format!("B is worse than A, nowhere by {} or more", percent(record.scope.fail()))
        }
        Conclusion::Good if any_better => "B is better than A, worse nowhere".into(),
        Conclusion::Good => "B is as good as A".into(),
        Conclusion::TooFew => too_few(record),
    };
    parts.push(row_counts(record));
    let worse_rows = record.rows.iter().filter(|row| row.judgement.finding == Some(Finding::Worse));
    let worse_rows: Vec<String> = worse_rows.map(|row| with_ratio(&row_name(row), &row.judgement)).collect();
    if !worse_rows.is_empty() {
        parts.push(format!("worse rows: {}", worse_rows.join(", ")));
    }
    format!("{head}; {}; {valid}", parts.join("; "))
}

fn with_ratio(name: &str, judgement: &Judgement) -> String {
    let ratio = judgement.ratio.map(|e| format!(" {:.2} [{:.2}, {:.2}]", e.median, e.low, e.high));
    format!("{name}{}", ratio.unwrap_or_default())
}

/// `of 35 rows 3 better, 30 without a difference found, 2 where A differs from A`.
fn row_counts(record: &Record) -> String {
    let finding = |wanted| move |judgement: &Judgement| judgement.finding == wanted;
    let find = record.scope.find();
    let unclear = finding(Some(Finding::Unclear));
    let biased = "where A differs from A";
    let parts: [(String, IsIt<'_>); 6] = [
        ("better".into(), &finding(Some(Finding::Better))),
        ("worse".into(), &finding(Some(Finding::Worse))),
        ("without a difference found".into(), &|judgement| judgement.excludes(find)),
        (format!("too noisy to find {}", percent(find)), &|judgement| unclear(judgement) && !judgement.excludes(find)),
        (biased.into(), &finding(Some(Finding::Biased))),
        ("with too few runs".into(), &finding(None)),
    ];
    let counted = parts.into_iter().filter_map(|(words, is_it)| {
        let count = record.rows.iter().filter(|row| is_it(&row.judgement)).count();
        (count > 0).then(|| format!("{count} {words}"))
    });
    format!("of {} rows {}", record.rows.len(), counted.collect::<Vec<_>>().join(", "))
}

/// Names the rows in which A differs from itself, if there are any.
pub(crate) fn bias(record: &Record) -> Option<String> {
    let rows = record.rows.iter().filter(|row| row.judgement.finding == Some(Finding::Biased));
    let names: Vec<String> = rows
        .map(|row| match row.judgement.noise {
            Some(e) => format!("{} {:.2} [{:.2}, {:.2}]", row_name(row), e.median, e.low, e.high),
            None => row_name(row),
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

/// `bandwidth 1M 0->1`.
fn row_name(row: &Row) -> String {
    let info = row.key.metric.info();
    let mut name = info.name.to_owned();
    for label in info.labels {
        match label {
            Label::Size => name += &format!(" {}", size_text(row.key.bytes)),
            Label::Direction => name += &format!(" {}", row.key.direction),
            Label::Wrong | Label::Connections | Label::AtOnce => {}
        }
    }
    name
}

/// What is missing, and how many repetitions might do.
fn too_few(record: &Record) -> String {
    let wanted = record.scope.find();
    let run = repetitions_run(record);
    // Widths shrink with the square root of the number.
    let needs = record.groups.iter().filter(|group| group.judgement.finding == Some(Finding::Unclear));
    let needs = needs.filter_map(|group| group.judgement.least);
    let worst = needs.fold(0.0_f64, f64::max);
    let advice = if worst > wanted {
        let many = run as f64 * (worst.ln_1p() / wanted.ln_1p()).powi(2);
        format!(", some {} might do", (many / 6.0).ceil() * 6.0)
    } else if record.groups.iter().any(|group| group.judgement.finding.is_none()) || record.groups.is_empty() {
        ", it takes nine or more".into()
    } else {
        String::new()
    };
    if record.groups.iter().any(|group| group.judgement.finding == Some(Finding::Biased)) && worst <= wanted {
        return "nothing can be told where A differs from A".into();
    }
    format!("too few runs to tell a difference of {} ({}{advice})", percent(wanted), repetitions(record))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample_record::sample_record;

    fn group(finding: Option<Finding>, least: f64) -> Group {
        let judgement = Judgement { finding, least: finding.map(|_| least), ..Judgement::default() };
        Group { name: "latency".into(), rows: 1, judgement }
    }

    #[test]
    fn no_difference_is_said_of_what_would_have_been_found_alone() {
        let mut record = sample_record();
        for (finding, least, expected, words) in [
            (Some(Finding::Unclear), 0.04, Conclusion::Good, "no difference found: latency (4.0 % would have been)"),
            (Some(Finding::Unclear), 0.4, Conclusion::TooFew, "too few runs to tell a difference of 10 %"),
            (Some(Finding::Unclear), 0.4, Conclusion::TooFew, "not told: latency (less than 40 % is missed)"),
            (Some(Finding::Better), 0.4, Conclusion::Good, "B is better than A, worse nowhere; better: latency"),
            (Some(Finding::Worse), 0.4, Conclusion::Worse, "B is worse than A; worse: latency"),
            (Some(Finding::Biased), 0.01, Conclusion::TooFew, "A differs from A: latency"),
            (None, 0.0, Conclusion::TooFew, "it takes nine or more"),
        ] {
            record.groups = vec![group(finding, least)];
            assert_eq!(conclusion(&record), expected, "{finding:?}");
            let line = verdict(&record);
            assert!(line.contains(words), "{line}");
            assert_eq!(line.contains("no difference found: "), expected == Conclusion::Good && least < 0.1, "{line}");
        }
        record.groups.clear();
        assert_eq!(conclusion(&record), Conclusion::TooFew);
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
}
