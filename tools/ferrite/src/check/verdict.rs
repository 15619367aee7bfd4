//! How a point ends.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One of three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
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
pub struct Finding {
    /// In a sentence; empty for the process that only helped.
    pub detail: String,
    /// It cannot be told here; `detail` says why.
    pub skipped: bool,
    /// What has to be in the log of this process.
    pub wanted: Vec<Wanted>,
    /// The most lines that the log of this process may have.
    pub most_lines: Option<usize>,
}

/// A line that has to be in a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// All of these are in it, in any case; of a word with `|` in it, one of its parts.
    pub words: Vec<String>,
    /// What it means if there is none.
    pub otherwise: String,
}

impl Wanted {
    fn is_in(&self, line: &str) -> bool {
        let line = line.to_lowercase();
        self.words.iter().all(|word| word.to_lowercase().split('|').any(|part| line.contains(part)))
    }
}

impl Finding {
    /// No fault.
    pub fn passed(detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..Self::default() }
    }

    /// Not to be told.
    pub fn skipped(why: impl Into<String>) -> Self {
        Self { detail: why.into(), skipped: true, ..Self::default() }
    }

    /// Helped.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// A line with all `words` has to be in this process's log.
    #[must_use]
    pub fn logging(mut self, words: &[&str], otherwise: impl Into<String>) -> Self {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        self.wanted.push(Wanted { words, otherwise: otherwise.into() });
        self
    }

    /// This process's log has at most so many lines.
    #[must_use]
    pub fn quiet(mut self, lines: usize) -> Self {
        self.most_lines = Some(lines);
        self
    }

    /// What is wrong with the process's log.
    pub fn objection(&self, log: &[String]) -> Option<String> {
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
pub struct Outcome {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// What it claims.
    pub claim: String,
    /// How it ended.
    pub verdict: Verdict,
    /// Why, in a sentence.
    pub detail: String,
    /// How long it took.
    pub seconds: f64,
    /// The last lines of the processes, after a failure.
    pub log: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_searched_and_measured() {
        let finding = Finding::passed("").logging(&["MEMLOCK|ulimit", "limit"], "it should be named").quiet(2);
        let log = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        assert_eq!(finding.objection(&log(&["the limit", "the memlock limit is 64 KiB"])), None);
        let words = finding.objection(&log(&["the limit", "memlock"])).expect("no line has both");
        assert!(words.ends_with("MEMLOCK|ulimit and limit: it should be named"), "{words}");
        assert!(finding.objection(&log(&["memlock limit"; 3])).is_some_and(|words| words.contains("flooded")));
    }
}
