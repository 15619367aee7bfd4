//! Judgements of rows and groups as a conclusion and a line.

use crate::report::text::percent;
use crate::results::judgement::{Finding, Judgement};

/// What follows from a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conclusion {
    /// The data is right; and B is as good as it has to be, if there is a B.
    Good,
    /// B is worse in a row or in a group, by as much as fails.
    Worse,
    /// B is not found to be worse, and a difference of the size that was asked for might have been missed.
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
        let told = !self.groups.is_empty() && self.groups.iter().all(|(_, judgement)| self.tells(judgement));
        if told { Conclusion::Good } else { Conclusion::TooFew }
    }

    /// The verdict in one line, as it is printed and stands at the head of the report.
    pub(super) fn line(&self, words: &Words<'_>) -> String {
        let mut parts = self.groups(words.none);
        let any_better = self.groups.iter().any(|(_, judgement)| judgement.finding == Some(Finding::Better));
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
        let worse_rows = self.rows.iter().filter(|(_, judgement)| judgement.finding == Some(Finding::Worse));
        let worse_rows: Vec<String> = worse_rows.map(|(name, judgement)| with_ratio(name, judgement)).collect();
        if !worse_rows.is_empty() {
            parts.push(format!("worse rows: {}", worse_rows.join(", ")));
        }
        format!("{head}; {}", parts.join("; "))
    }

    /// Why nothing is claimed of `run`, such as "12 repetitions"; `least` of them can tell something, and the option `more` gives more.
    pub(super) fn undecided(&self, run: &str, least: &str, more: &str) -> String {
        let groups = || self.groups.iter().map(|(_, judgement)| *judgement);
        let is_missed =
            |judgement: &Judgement| judgement.finding == Some(Finding::Unclear) && !judgement.excludes(self.find);
        let is_noisy = |judgement: &Judgement| is_missed(judgement) && !judgement.is_likely();
        let find = percent(self.find);
        let why = if self.groups.is_empty() || groups().any(|judgement| judgement.finding.is_none()) {
            format!("too few runs to tell a difference of {find} ({run}, it takes {least})")
        } else if groups().any(is_missed) && !groups().any(is_noisy) {
            format!("a difference is likely, but these runs do not prove it ({run}): use more {more}")
        } else if groups().any(is_missed) {
            format!("this machine is too noisy to tell a difference of {find} ({run}); run again when it is idle")
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

    /// Whether a group differs, or a difference of the size that was asked for would have been found.
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
            let missed = unclear(judgement) && !judgement.excludes(self.find) && !judgement.is_likely();
            missed.then(|| format!("{name} (less than {} is missed)", least(judgement)))
        };
        let excluded = |name: &str, judgement: &Judgement| {
            let excluded = judgement.excludes(self.find);
            excluded.then(|| format!("{name} ({} would have been)", least(judgement)))
        };
        let biased =
            |name: &str, judgement: &Judgement| (judgement.finding == Some(Finding::Biased)).then(|| name.to_owned());
        let kinds: [(&str, Name<'_>); 6] = [
            ("worse", &named(Finding::Worse)),
            ("better", &named(Finding::Better)),
            (none, &excluded),
            ("likely different, not sure", &likely),
            ("not told", &missed),
            ("A differs from A", &biased),
        ];
        let of_kind = |(kind, name): (&str, Name<'_>)| {
            let groups: Vec<String> = self.groups.iter().filter_map(|(group, found)| name(group, found)).collect();
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
            ("likely different, not sure".into(), &|judgement| judgement.is_likely() && !judgement.excludes(find)),
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
