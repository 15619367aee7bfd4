//! What a step returns and how a point ends: for people, and for programs.

use std::fmt;

use nccl_net::inspect::version;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// One of three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The transport keeps the point.
    Passed,
    /// It does not, or the point could not be carried out.
    Failed,
    /// It cannot be tested here.
    Skipped,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Passed => "pass",
            Self::Failed => "FAIL",
            Self::Skipped => "skipped",
        })
    }
}

/// What one process of a point has found, when it has found no fault.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StepResult {
    /// In a sentence; empty for the process that only helped.
    pub(crate) detail: String,
    /// It cannot be tested here; `detail` says why.
    pub(crate) skipped: bool,
    /// Lines that the log of this process must have.
    pub(crate) wanted: Vec<Wanted>,
    /// The most lines that the log of this process may have.
    pub(crate) most_lines: Option<usize>,
}

/// A line that has to be in a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    /// All of these are in it, in any case; of a word with `|` in it, one of its parts.
    pub(crate) words: Vec<String>,
    /// The meaning of a missing line.
    pub(crate) otherwise: String,
}

impl Wanted {
    fn is_in(&self, line: &str) -> bool {
        let line = line.to_lowercase();
        self.words.iter().all(|word| word.to_lowercase().split('|').any(|part| line.contains(part)))
    }
}

impl StepResult {
    /// No fault.
    pub(crate) fn passed(detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..Self::default() }
    }

    /// It cannot be tested here.
    pub(crate) fn skipped(why: impl Into<String>) -> Self {
        Self { detail: why.into(), skipped: true, ..Self::default() }
    }

    /// Helped.
    pub(crate) fn nothing() -> Self {
        Self::default()
    }

    /// A line with all `words` has to be in this process's log.
    #[must_use]
    pub(crate) fn logging(mut self, words: &[&str], otherwise: impl Into<String>) -> Self {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        self.wanted.push(Wanted { words, otherwise: otherwise.into() });
        self
    }

    /// This process's log has at most so many lines.
    #[must_use]
    pub(crate) fn quiet(mut self, lines: usize) -> Self {
        self.most_lines = Some(lines);
        self
    }

    /// What is wrong with the process's log.
    pub(crate) fn log_fault(&self, log: &[String]) -> Option<String> {
        let missing = self.wanted.iter().find(|wanted| !log.iter().any(|line| wanted.is_in(line)));
        if let Some(wanted) = missing {
            return Some(format!(
                "no line of the log has {}: {}",
                wanted.words.join(" and "),
                wanted.otherwise
            ));
        }
        let most = self.most_lines.filter(|most| log.len() > *most)?;
        Some(format!("the log is flooded: {} lines or more, {most} would do", log.len()))
    }
}

/// The result of a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Its number.
    pub(crate) number: u32,
    /// Its name.
    pub(crate) name: String,
    /// What it claims.
    pub(crate) claim: String,
    /// How it ended.
    pub(crate) verdict: Verdict,
    /// Why, in a sentence.
    pub(crate) detail: String,
    /// How long it took.
    pub(crate) seconds: f64,
    /// The last lines of the processes, after a failure.
    pub(crate) log: Vec<String>,
}

/// One line, and the last words of the processes after a failure.
pub(crate) fn line(outcome: &Outcome) -> String {
    let Outcome { number, name, verdict, detail, seconds, log, .. } = outcome;
    let mut text = match verdict {
        Verdict::Skipped => format!("{number:>2}  {name:<26}  skipped: {detail}\n"),
        _ => format!("{number:>2}  {name:<26}  {verdict:<4}  {detail} [{seconds:.1} s]\n"),
    };
    for line in log.iter().rev().take(8).rev() {
        text += &format!("        | {line}\n");
    }
    text
}

/// Everything in one line.
pub(crate) fn summary(title: &str, outcomes: &[Outcome]) -> String {
    let [passed, failed, skipped] = counts(outcomes);
    let seconds: f64 = outcomes.iter().map(|outcome| outcome.seconds).sum();
    format!(
        "{title}: {} checks, {passed} passed, {failed} failed, {skipped} skipped, {seconds:.0} s\n",
        outcomes.len()
    )
}

/// Passed, failed, skipped.
pub(crate) fn counts(outcomes: &[Outcome]) -> [usize; 3] {
    [Verdict::Passed, Verdict::Failed, Verdict::Skipped]
        .map(|verdict| outcomes.iter().filter(|outcome| outcome.verdict == verdict).count())
}

#[derive(Serialize)]
struct Json<'a> {
    tool: &'static str,
    title: &'a str,
    passed: usize,
    failed: usize,
    skipped: usize,
    checks: &'a [Outcome],
}

/// As JSON: `tool` (this program's version with the commit), `title`, the counts, and `checks`. Each
/// check has number, name, claim, verdict, detail, seconds and log.
///
/// # Errors
/// [`Error::Unreadable`] if it cannot be written down.
pub(crate) fn json(title: &str, outcomes: &[Outcome]) -> Result<String> {
    let [passed, failed, skipped] = counts(outcomes);
    let json = Json { tool: version::text(), title, passed, failed, skipped, checks: outcomes };
    serde_json::to_string_pretty(&json)
        .map_err(|problem| Error::Unreadable(format!("no JSON: {problem}")))
}

/// The whole file.
pub(crate) fn xml(title: &str, outcomes: &[Outcome]) -> String {
    let [_, failed, skipped] = counts(outcomes);
    let seconds: f64 = outcomes.iter().map(|outcome| outcome.seconds).sum();
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{failed}\" \
         skipped=\"{skipped}\" time=\"{seconds:.3}\">\n",
        escaped(title),
        outcomes.len()
    );
    for Outcome { number, name, claim, verdict, detail, seconds, log } in outcomes {
        text += &format!(
            "  <testcase classname=\"{number:02}\" name=\"{name}\" time=\"{seconds:.3}\">\n"
        );
        match verdict {
            Verdict::Passed => {
                text += &format!("    <system-out>{}</system-out>\n", escaped(detail))
            }
            Verdict::Skipped => {
                text += &format!("    <skipped message=\"{}\"/>\n", escaped(detail))
            }
            Verdict::Failed => {
                let log = format!("{claim}\n{}", log.join("\n"));
                text += &format!(
                    "    <failure message=\"{}\">{}</failure>\n",
                    escaped(detail),
                    escaped(&log)
                );
            }
        }
        text += "  </testcase>\n";
    }
    text + "</testsuite>\n"
}

fn escaped(text: &str) -> String {
    let mut safe = String::new();
    for character in text.chars() {
        match character {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\n' | '\t' => safe.push(character),
            other if other.is_control() => safe.push('?'),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_searched_and_measured() {
        let result = StepResult::passed("")
            .logging(&["MEMLOCK|ulimit", "limit"], "it should be named")
            .quiet(2);
        let log = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        assert_eq!(result.log_fault(&log(&["the limit", "the memlock limit is 64 KiB"])), None);
        let words = result.log_fault(&log(&["the limit", "memlock"])).expect("no line has both");
        assert!(words.ends_with("MEMLOCK|ulimit and limit: it should be named"), "{words}");
        assert!(
            result
                .log_fault(&log(&["memlock limit"; 3]))
                .is_some_and(|words| words.contains("flooded"))
        );
    }

    fn outcome(verdict: Verdict, detail: &str) -> Outcome {
        let (name, claim) = ("a-name".into(), "a claim".into());
        Outcome {
            number: 7,
            name,
            claim,
            verdict,
            detail: detail.into(),
            seconds: 0.25,
            log: vec!["last".into()],
        }
    }

    #[test]
    fn lines_say_number_name_and_verdict() {
        assert!(
            line(&outcome(Verdict::Failed, "no"))
                .starts_with(" 7  a-name                      FAIL  no [0.2 s]\n")
        );
        assert!(line(&outcome(Verdict::Skipped, "needs a GPU")).contains("skipped: needs a GPU"));
        let all = [
            outcome(Verdict::Passed, ""),
            outcome(Verdict::Failed, ""),
            outcome(Verdict::Failed, ""),
        ];
        assert_eq!(summary("x", &all), "x: 3 checks, 1 passed, 2 failed, 0 skipped, 1 s\n");
    }

    #[test]
    fn json_has_counts_and_verdicts() {
        let all = [outcome(Verdict::Failed, "no"), outcome(Verdict::Skipped, "why")];
        let json: serde_json::Value =
            serde_json::from_str(&json("t", &all).expect("JSON")).expect("JSON");
        assert_eq!(json["tool"], version::text());
        assert_eq!(
            (json["failed"].as_u64(), json["checks"][1]["verdict"].as_str()),
            (Some(1), Some("skipped"))
        );
    }

    #[test]
    fn xml_is_escaped_and_counted() {
        let all =
            [outcome(Verdict::Failed, "1 < 2 & \"so\u{1b}\""), outcome(Verdict::Skipped, "why")];
        let text = xml("t", &all);
        assert!(text.contains("tests=\"2\" failures=\"1\" skipped=\"1\""), "{text}");
        assert!(text.contains("message=\"1 &lt; 2 &amp; &quot;so?&quot;\""), "{text}");
    }
}
