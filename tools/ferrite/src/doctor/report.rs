//! The doctor's report: lines of text, or JSON.

use serde::Serialize;

use nccl_net::inspect::version;

use crate::doctor::finding::{Finding, Verdict};
use crate::doctor::row::Row;
use crate::system::output::plain;

/// A row with what was found.
#[derive(Debug, Serialize)]
pub(crate) struct RowReport {
    name: &'static str,
    pub(crate) verdict: Verdict,
    findings: Vec<Finding>,
}

impl RowReport {
    /// Findings that warn or fail and have no cure of their own get that of the row.
    pub(crate) fn new(row: &Row, findings: Vec<Finding>) -> Self {
        Self::named(row.name, row.cure, findings)
    }

    /// The same for a row that is no [`Row`].
    pub(crate) fn named(name: &'static str, cure: &str, mut findings: Vec<Finding>) -> Self {
        for finding in findings.iter_mut().filter(|finding| finding.verdict >= Verdict::Warn && !cure.is_empty()) {
            finding.cure.get_or_insert_with(|| cure.into());
        }
        let verdict = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Unknown);
        Self { name, verdict, findings }
    }

    /// A line for each finding, the cure below it; of findings that have the same cure, below the last of them.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (at, finding) in self.findings.iter().enumerate() {
            let subject = if finding.subject.is_empty() { String::new() } else { format!("{}: ", finding.subject) };
            text +=
                &format!("{:<8} {:<15} {}\n", finding.verdict, self.name, plain(&format!("{subject}{}", finding.fact)));
            let is_last = self.findings.get(at + 1).is_none_or(|next| next.cure != finding.cure);
            if let Some(cure) = finding.cure.as_ref().filter(|_| is_last) {
                text += &format!("{:<8} {:<15} -> {cure}\n", "", "");
            }
        }
        text
    }
}

/// Rows with each verdict, and which build of this program has looked, in one line.
pub(crate) fn summary(looked: &[RowReport]) -> String {
    let count = |verdict| looked.iter().filter(|row| row.verdict == verdict).count();
    let [failed, warned, unknown, ok] = [Verdict::Fail, Verdict::Warn, Verdict::Unknown, Verdict::Ok].map(count);
    format!("{failed} FAIL, {warned} warn, {unknown} unknown, {ok} ok; by ferrite {}\n", version::text())
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

/// The report as JSON: `schema` 1, the version of this program, the host, the worst verdict, and the rows with their findings.
pub(crate) fn json(host: &str, looked: &[RowReport]) -> String {
    let document = Document { schema: 1, tool: version::text(), host, verdict: worst(looked), rows: looked };
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_no_control_characters() {
        let text = RowReport::named("x", "", vec![Finding::ok("a\u{1b}[2J", "one\ntwo\rthree")]).text();
        assert_eq!(text.split_whitespace().collect::<Vec<_>>().join(" "), "ok x a [2J: one; two three");
        assert_eq!(text.chars().filter(|c| c.is_control()).count(), 1, "the line's end");
    }

    #[test]
    fn the_report_names_the_build_that_made_it() {
        let json: serde_json::Value = serde_json::from_str(&json("n-0007", &[])).expect("JSON");
        assert_eq!((json["tool"].as_str(), json["schema"].as_u64()), (Some(version::text()), Some(1)));
    }

    #[test]
    fn a_cure_stands_below_the_last_finding_that_needs_it_and_unknown_is_no_failure() {
        let findings = vec![Finding::ok("a:1", "fast"), Finding::warn("a:2", "slow"), Finding::fail("a:3", "dead")];
        let looked = RowReport::named("ports", "plug it in", findings);
        let lines: Vec<Vec<String>> =
            looked.text().lines().map(|l| l.split_whitespace().map(str::to_owned).collect()).collect();
        assert_eq!(lines[0], ["ok", "ports", "a:1:", "fast"]);
        assert_eq!((lines.len(), lines[3].join(" ").as_str()), (4, "-> plug it in"));
        let unknown = RowReport::named("x", "", vec![Finding::unknown("", "as root only")]);
        assert_eq!(worst(&[looked]), Verdict::Fail);
        assert_eq!(worst(&[unknown]), Verdict::Ok);
    }
}
