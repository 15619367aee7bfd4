//! What runs have found, as JSON, one file a run; and all of them together as tables.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::ecmp::report;
use crate::ecmp::scenario::Row;
use crate::error::{Error, Result};
use crate::pair::message::json_error;

/// What [`Outcome::schema`] is.
pub(crate) const SCHEMA: &str = "ferrite-ecmp/1";

/// What one run has found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) schema: String,
    /// The command line, but for the program.
    #[serde(default)]
    pub(crate) arguments: Vec<String>,
    /// In one line.
    pub(crate) scenario: String,
    pub(crate) rows: Vec<Row>,
}

/// What one run has found, and with which arguments.
///
/// # Errors
/// [`Error::Unreadable`] if a number has no JSON.
pub(crate) fn json(outcome: &Outcome) -> Result<String> {
    serde_json::to_string_pretty(outcome).map(|text| text + "\n").map_err(|e| json_error(&e))
}

/// Runs of one job, with the name of their files.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) outcomes: Vec<Outcome>,
}

impl Named {
    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.outcomes.iter().flat_map(|outcome| &outcome.rows)
    }
}

/// The name of a job by that of a file: `2-one-slow-link.moves.json` is of `one slow link`, and second.
fn name_of(file: &Path) -> String {
    let stem = file.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let job = stem.split('.').next().unwrap_or_default();
    job.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches('-').replace('-', " ")
}

/// Reads what `ferrite ecmp --json` has written. Files of the same job that follow each other belong together.
///
/// # Errors
/// A file cannot be read, or is something else.
pub(crate) fn read(files: &[PathBuf]) -> Result<Vec<Named>> {
    let mut all: Vec<Named> = Vec::new();
    for file in files {
        let unreadable = |why: String| Error::Unreadable(format!("{}: {why}", file.display()));
        let text =
            std::fs::read_to_string(file).map_err(|e| Error::io(format!("cannot read {}", file.display()), e))?;
        let outcome: Outcome = serde_json::from_str(&text).map_err(|e| unreadable(e.to_string()))?;
        if outcome.schema != SCHEMA {
            return Err(unreadable(format!("the schema is {} and not {SCHEMA}", outcome.schema)));
        }
        let name = name_of(file);
        match all.last_mut().filter(|last| last.name == name) {
            Some(last) => last.outcomes.push(outcome),
            None => all.push(Named { name, outcomes: vec![outcome] }),
        }
    }
    Ok(all)
}

/// One line for each job with what each policy reaches, then all that was found, job by job.
pub(crate) fn text(all: &[Named]) -> String {
    let run = |outcome: &Outcome| {
        let command = outcome.arguments.join(" ");
        format!("\n```\nferrite {command}\n```\n\n{}", report::text(&outcome.scenario, &outcome.rows))
    };
    let section = |job: &Named| format!("\n## {}\n{}", job.name, job.outcomes.iter().map(run).collect::<String>());
    [summary(all)].into_iter().chain(all.iter().map(section)).collect()
}

/// The slowest group of each policy, with the mean of all in brackets.
fn summary(all: &[Named]) -> String {
    let mut policies: Vec<&str> = Vec::new();
    for row in all.iter().flat_map(Named::rows) {
        if !policies.contains(&row.policy.as_str()) {
            policies.push(&row.policy);
        }
    }
    let heads: String = policies.iter().map(|policy| format!(" `{policy}` |")).collect();
    let mut text = format!("| |{heads}\n|---|{}\n", "---|".repeat(policies.len()));
    for job in all {
        let cell = |policy: &&str| {
            let row = job.rows().find(|row| row.policy == **policy);
            row.map_or_else(|| " |".to_owned(), |row| format!(" {:.2} ({:.2}) |", row.slowest, row.mean))
        };
        text += &format!("| {} |{}\n", job.name, policies.iter().map(cell).collect::<String>());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_job_have_its_name() {
        for (file, name) in [
            ("model/1-ring.json", "ring"),
            ("2-one-slow-link.moves.json", "one slow link"),
            ("x", "x"),
            ("10-a-b.json", "a b"),
        ] {
            assert_eq!(name_of(Path::new(file)), name);
        }
    }
}
