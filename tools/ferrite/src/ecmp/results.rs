//! What runs have found, kept as JSON, one file a run: all of them together as tables.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::ecmp::report;
use crate::ecmp::scenario::Row;
use crate::error::{Error, Result};

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

/// A run with the name of its file.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
}

/// Reads what `ferrite ecmp --json` has written.
///
/// # Errors
/// A file cannot be read, or is something else.
pub(crate) fn read(files: &[PathBuf]) -> Result<Vec<Named>> {
    let unreadable = |file: &Path, why: String| Error::Unreadable(format!("{}: {why}", file.display()));
    let one = |file: &PathBuf| {
        let text =
            std::fs::read_to_string(file).map_err(|e| Error::io(format!("cannot read {}", file.display()), e))?;
        let outcome: Outcome = serde_json::from_str(&text).map_err(|e| unreadable(file, e.to_string()))?;
        if outcome.schema != SCHEMA {
            return Err(unreadable(file, format!("the schema is {} and not {SCHEMA}", outcome.schema)));
        }
        let name = file.file_stem().map(|stem| stem.to_string_lossy().replace('-', " ")).unwrap_or_default();
        Ok(Named { name, outcome })
    };
    files.iter().map(one).collect()
}

/// One line for each run with what each policy reaches, then all that was found, run by run.
pub(crate) fn text(all: &[Named]) -> String {
    let sections = all.iter().map(|Named { name, outcome }| {
        let command = outcome.arguments.join(" ");
        format!("\n## {name}\n\n```\nferrite {command}\n```\n\n{}", report::text(&outcome.scenario, &outcome.rows))
    });
    [summary(all)].into_iter().chain(sections).collect()
}

/// The slowest group of each policy, with the mean of all in brackets.
fn summary(all: &[Named]) -> String {
    let mut policies: Vec<&str> = Vec::new();
    for row in all.iter().flat_map(|named| &named.outcome.rows) {
        if !policies.contains(&row.policy.as_str()) {
            policies.push(&row.policy);
        }
    }
    let heads: String = policies.iter().map(|policy| format!(" `{policy}` |")).collect();
    let mut text = format!("| |{heads}\n|---|{}\n", "---|".repeat(policies.len()));
    for Named { name, outcome } in all {
        let cell = |policy: &&str| {
            let row = outcome.rows.iter().find(|row| row.policy == **policy);
            row.map_or(" |".to_owned(), |row| format!(" {:.2} ({:.2}) |", row.slowest, row.mean))
        };
        text += &format!("| {name} |{}\n", policies.iter().map(cell).collect::<String>());
    }
    text
}
