//! The doctor's report: lines of text, or JSON.

use std::fmt;
use std::path::Path;

use lab::system::output::plain;
use nccl_net::inspect::version;
use serde::{Deserialize, Serialize};

use crate::doctor::machine::Machine;

/// How good a fact is, in ascending order of what matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Verdict {
    #[serde(rename = "ok")]
    Ok,
    /// It could not be found out.
    #[serde(rename = "unknown")]
    Unknown,
    /// A job runs, but slower or less safely than it could.
    #[serde(rename = "warn")]
    Warn,
    /// A job does not run, or not over RDMA.
    #[serde(rename = "FAIL")]
    Fail,
}

impl Verdict {
    /// The terminal's number of its colour, if it has one.
    fn colour(self) -> Option<u8> {
        match self {
            Self::Fail => Some(31),
            Self::Warn => Some(33),
            Self::Ok => Some(32),
            Self::Unknown => None,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        })
    }
}

/// One fact about the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    pub(crate) verdict: Verdict,
    /// What it is about, such as `mlx5_0:1`; empty where it is about the machine or the process.
    pub(crate) subject: String,
    pub(crate) fact: String,
    /// What to do. `None`: nothing, or what the row says of all its findings.
    pub(crate) cure: Option<String>,
    /// The row whose failure this follows from.
    #[serde(skip)]
    pub(crate) follows: Option<&'static str>,
}

impl Finding {
    fn new(verdict: Verdict, subject: impl Into<String>, fact: impl Into<String>) -> Self {
        Self { verdict, subject: subject.into(), fact: fact.into(), cure: None, follows: None }
    }

    pub(crate) fn ok(subject: impl Into<String>, fact: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, subject, fact)
    }

    pub(crate) fn unknown(subject: impl Into<String>, fact: impl Into<String>) -> Self {
        Self::new(Verdict::Unknown, subject, fact)
    }

    pub(crate) fn warn(subject: impl Into<String>, fact: impl Into<String>) -> Self {
        Self::new(Verdict::Warn, subject, fact)
    }

    pub(crate) fn fail(subject: impl Into<String>, fact: impl Into<String>) -> Self {
        Self::new(Verdict::Fail, subject, fact)
    }

    /// For rows that ask libibverbs, where there is none.
    pub(crate) fn no_verbs() -> Vec<Self> {
        vec![Self::unknown("", "there is no libibverbs to ask")]
    }

    /// `fact` with the verdict of whether it `is_good`; else `other`.
    pub(crate) fn judge(
        is_good: bool,
        other: Verdict,
        subject: impl Into<String>,
        fact: impl Into<String>,
    ) -> Self {
        Self::new(if is_good { Verdict::Ok } else { other }, subject, fact)
    }

    /// The same, as a consequence of the failure of the row `name`: if that row is checked too, it
    /// reports the failure.
    pub(crate) fn follows(mut self, name: &'static str) -> Self {
        self.follows = Some(name);
        self
    }

    /// The same with a cure of its own.
    pub(crate) fn cure(mut self, cure: impl Into<String>) -> Self {
        self.cure = Some(cure.into());
        self
    }
}

/// What is looked at, why, and what to do if it is not as it should be.
pub(crate) struct Row {
    /// Its name, for `--only`.
    pub(crate) name: &'static str,
    /// What is looked at, and when it is no longer ok.
    pub(crate) what: &'static str,
    /// What goes wrong otherwise.
    pub(crate) why: &'static str,
    /// What to do, where a finding does not say better.
    pub(crate) cure: &'static str,
    /// The facts, with their verdicts. At least one.
    pub(crate) look: fn(&Machine) -> Vec<Finding>,
}

/// A row with what was found.
#[derive(Debug, Serialize)]
pub(crate) struct RowReport {
    name: &'static str,
    pub(crate) verdict: Verdict,
    findings: Vec<Finding>,
}

impl RowReport {
    /// Findings that warn or fail and have no cure of their own get that of the row; `plugin`
    /// stands where a cure names its path. A failure that follows from that of a row in `looked` is
    /// told there.
    pub(crate) fn new(
        row: &Row,
        mut findings: Vec<Finding>,
        plugin: Option<&Path>,
        looked: &[Self],
    ) -> Self {
        for finding in &mut findings {
            let has_failed = |name| {
                looked.iter().any(|other| other.name == name && other.verdict == Verdict::Fail)
            };
            if let Some(name) =
                finding.follows.filter(|name| finding.verdict == Verdict::Fail && has_failed(*name))
            {
                finding.verdict = Verdict::Unknown;
                finding.fact += &format!(" (see `{name}`)");
            }
        }
        let mut report = Self::named(row.name, row.cure, findings);
        if let Some(path) = plugin {
            let path = path.display().to_string();
            for cure in report.findings.iter_mut().filter_map(|finding| finding.cure.as_mut()) {
                *cure = cure.replace("/PATH/TO/libnccl-net.so", &path);
            }
        }
        report
    }

    /// The same for a row that is no [`Row`].
    pub(crate) fn named(name: &'static str, cure: &str, mut findings: Vec<Finding>) -> Self {
        for finding in findings
            .iter_mut()
            .filter(|finding| finding.verdict >= Verdict::Warn && !cure.is_empty())
        {
            finding.cure.get_or_insert_with(|| cure.into());
        }
        let verdict =
            findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Unknown);
        Self { name, verdict, findings }
    }

    /// A line for each finding, with the cure below it. Findings with the same cure have it once,
    /// below the last of them. Lines longer than `width` are continued below their fact. With
    /// `has_colours`, verdicts are coloured.
    pub(crate) fn text(&self, width: Option<usize>, has_colours: bool) -> String {
        let mut text = String::new();
        for (at, finding) in self.findings.iter().enumerate() {
            let subject = if finding.subject.is_empty() {
                String::new()
            } else {
                format!("{}: ", finding.subject)
            };
            let head = format!("{:<8} {:<15} ", finding.verdict, self.name);
            let fact = lines(&head, &plain(&format!("{subject}{}", finding.fact)), width);
            text += &match finding.verdict.colour().filter(|_| has_colours) {
                Some(colour) => format!("\x1b[{colour}m{}\x1b[0m{}", &fact[..8], &fact[8..]),
                None => fact,
            };
            let is_last = self.findings.get(at + 1).is_none_or(|next| next.cure != finding.cure);
            if let Some(cure) = finding.cure.as_ref().filter(|_| is_last) {
                text += &lines(&format!("{:<8} {:<15} -> ", "", ""), &plain(cure), width);
            }
        }
        text
    }
}

/// `words` behind `head`, in lines of `width` characters at most; a word that is longer has a line
/// of its own.
fn lines(head: &str, words: &str, width: Option<usize>) -> String {
    let width = width.unwrap_or(usize::MAX);
    let (mut text, mut at) = (head.to_owned(), head.len());
    for (number, word) in words.split(' ').enumerate() {
        if number > 0 && at + 1 + word.chars().count() > width {
            text += &format!("\n{:1$}", "", head.len());
            at = head.len();
        } else if number > 0 {
            text.push(' ');
            at += 1;
        }
        text += word;
        at += word.chars().count();
    }
    text + "\n"
}

/// `text` in lines of `width` characters at most; a longer one continues four characters further in.
pub(crate) fn fitted(text: &str, width: Option<usize>) -> String {
    let fit = |line: &str| {
        let words = line.trim_start();
        let indent = line.len() - words.len();
        // The head decides where the next line begins, and the first one begins further out.
        lines(&" ".repeat(indent + 4), words, width.map(|width| width.max(20)))[4..].to_owned()
    };
    text.lines().map(fit).collect()
}

/// The rows with failures first, then those with warnings; the others as they come.
pub(crate) fn worst_first(looked: &[RowReport]) -> Vec<&RowReport> {
    let place = |row: &&RowReport| match row.verdict {
        Verdict::Fail => 0,
        Verdict::Warn => 1,
        Verdict::Unknown | Verdict::Ok => 2,
    };
    let mut rows: Vec<&RowReport> = looked.iter().collect();
    rows.sort_by_key(place);
    rows
}

/// Rows with each verdict, and which build of this program has looked, in one line.
pub(crate) fn summary(looked: &[RowReport]) -> String {
    let count = |verdict| looked.iter().filter(|row| row.verdict == verdict).count();
    let [failed, warned, unknown, ok] =
        [Verdict::Fail, Verdict::Warn, Verdict::Unknown, Verdict::Ok].map(count);
    format!(
        "{failed} FAIL, {warned} warn, {unknown} unknown, {ok} ok; by ferrite {}\n",
        version::text()
    )
}

/// The worst verdict but for `unknown`, which does not count.
pub(crate) fn worst(looked: &[RowReport]) -> Verdict {
    let known = looked.iter().map(|row| row.verdict).filter(|verdict| *verdict != Verdict::Unknown);
    known.max().unwrap_or(Verdict::Ok)
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    /// The version of this program, with the commit.
    tool: &'static str,
    host: &'a str,
    verdict: Verdict,
    rows: &'a [RowReport],
}

/// The report as JSON: `schema` 1, the version of this program, the host, the worst verdict, and
/// the rows with their findings.
pub(crate) fn json(host: &str, looked: &[RowReport]) -> String {
    let document =
        Document { schema: 1, tool: version::text(), host, verdict: worst(looked), rows: looked };
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_no_control_characters() {
        let text = RowReport::named("x", "", vec![Finding::ok("a\u{1b}[2J", "one\ntwo\rthree")])
            .text(None, false);
        assert_eq!(
            text.split_whitespace().collect::<Vec<_>>().join(" "),
            "ok x a [2J: one; two three"
        );
        assert_eq!(text.chars().filter(|c| c.is_control()).count(), 1, "the line's end");
    }

    #[test]
    fn a_long_line_goes_on_below_its_fact() {
        let text = RowReport::named("x", "do this", vec![Finding::warn("", "one two three")])
            .text(Some(33), false);
        let pad = " ".repeat(25);
        assert_eq!(
            text,
            format!("warn     x               one two\n{pad}three\n{pad}-> do\n{pad}   this\n")
        );
    }

    #[test]
    fn a_text_fits_the_terminal_and_goes_as_it_is_to_a_file() {
        let text = "process 7: one two three four\n  mlx5_0: five six seven\n";
        assert_eq!(fitted(text, None), text);
        let narrow = fitted(text, Some(22));
        assert_eq!(narrow, "process 7: one two\n    three four\n  mlx5_0: five six\n      seven\n");
    }

    #[test]
    fn a_verdict_has_its_colour_where_there_are_colours() {
        let findings = vec![Finding::fail("", "broken"), Finding::unknown("", "as root only")];
        let row = RowReport::named("x", "", findings);
        let (plain, coloured) = (row.text(None, false), row.text(None, true));
        assert!(!plain.contains('\x1b'), "{plain:?}");
        assert_eq!(coloured, plain.replacen("FAIL    ", "\x1b[31mFAIL    \x1b[0m", 1));
    }

    #[test]
    fn a_failure_that_follows_from_another_row_is_told_there_and_failures_come_first() {
        let row = Row {
            name: "b",
            what: "",
            why: "",
            cure: "export /PATH/TO/libnccl-net.so",
            look: |_| Vec::new(),
        };
        let failure = || vec![Finding::fail("", "nothing").follows("a")];
        let cause = RowReport::named("a", "", vec![Finding::fail("", "broken")]);
        let (good, plugin) =
            (RowReport::named("a", "", vec![Finding::ok("", "whole")]), Some(Path::new("/x.so")));
        let followed = RowReport::new(&row, failure(), plugin, std::slice::from_ref(&cause));
        assert_eq!(
            (followed.verdict, followed.findings[0].fact.as_str()),
            (Verdict::Unknown, "nothing (see `a`)")
        );
        let by_itself = RowReport::new(&row, failure(), plugin, std::slice::from_ref(&good));
        assert_eq!(
            (by_itself.verdict, by_itself.findings[0].cure.as_deref()),
            (Verdict::Fail, Some("export /x.so"))
        );
        let looked = [good, followed, by_itself, cause];
        let order: Vec<Verdict> = worst_first(&looked).iter().map(|row| row.verdict).collect();
        assert_eq!(order, [Verdict::Fail, Verdict::Fail, Verdict::Ok, Verdict::Unknown]);
    }

    #[test]
    fn the_report_names_the_build_that_made_it() {
        let json: serde_json::Value = serde_json::from_str(&json("n-0007", &[])).expect("JSON");
        assert_eq!(
            (json["tool"].as_str(), json["schema"].as_u64()),
            (Some(version::text()), Some(1))
        );
    }

    #[test]
    fn a_cure_stands_below_the_last_finding_that_needs_it_and_unknown_is_no_failure() {
        let findings = vec![
            Finding::ok("a:1", "fast"),
            Finding::warn("a:2", "slow"),
            Finding::fail("a:3", "dead"),
        ];
        let looked = RowReport::named("ports", "plug it in", findings);
        let lines: Vec<Vec<String>> = looked
            .text(None, false)
            .lines()
            .map(|l| l.split_whitespace().map(str::to_owned).collect())
            .collect();
        assert_eq!(lines[0], ["ok", "ports", "a:1:", "fast"]);
        assert_eq!((lines.len(), lines[3].join(" ").as_str()), (4, "-> plug it in"));
        let unknown = RowReport::named("x", "", vec![Finding::unknown("", "as root only")]);
        assert_eq!(worst(&[looked]), Verdict::Fail);
        assert_eq!(worst(&[unknown]), Verdict::Ok);
    }
}
