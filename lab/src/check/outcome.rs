//! How a point ends.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One of three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The transport keeps the point.
    Passed,
    /// It does not, or the point could not be carried out.
    Failed,
    /// It cannot be told here.
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
    /// It cannot be told here; `detail` says why.
    pub(crate) skipped: bool,
    /// What has to be in the log of this process.
    pub(crate) wanted: Vec<Wanted>,
    /// The most lines that the log of this process may have.
    pub(crate) most_lines: Option<usize>,
}

/// A line that has to be in a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    /// All of these are in it, in any case; of a word with `|` in it, one of its parts.
    pub(crate) words: Vec<String>,
    /// What it means if there is none.
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

    /// Not to be told.
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
            return Some(format!("no line of the log has {}: {}", wanted.words.join(" and "), wanted.otherwise));
        }
        let most = self.most_lines.filter(|most| log.len() > *most)?;
        Some(format!("the log is flooded: {} lines or more, {most} would do", log.len()))
    }
}

/// What became of a point.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_searched_and_measured() {
        let result = StepResult::passed("").logging(&["MEMLOCK|ulimit", "limit"], "it should be named").quiet(2);
        let log = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        assert_eq!(result.log_fault(&log(&["the limit", "the memlock limit is 64 KiB"])), None);
        let words = result.log_fault(&log(&["the limit", "memlock"])).expect("no line has both");
        assert!(words.ends_with("MEMLOCK|ulimit and limit: it should be named"), "{words}");
        assert!(result.log_fault(&log(&["memlock limit"; 3])).is_some_and(|words| words.contains("flooded")));
    }
}
