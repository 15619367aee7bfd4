//! What has changed since an earlier run.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::measure::sample::Key;
use crate::results::judgement::Judgement;

/// What has changed since an earlier run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Earlier {
    /// Its `raw.json`.
    pub file: PathBuf,
    /// The version of this tool that made it.
    pub tool: String,
    /// When it started; seconds since 1970.
    pub started_unix: u64,
    /// What is not as it was, in words.
    pub differences: Vec<String>,
    /// The rows that both have.
    pub rows: Vec<ChangedRow>,
    /// Rows that are judged together.
    pub groups: Vec<ChangedGroup>,
}

/// A row that both runs have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChangedRow {
    /// What.
    #[serde(flatten)]
    pub key: Key,
    /// The median of B/A in both runs.
    #[serde(flatten)]
    pub medians: Medians,
    /// B/A of this run over that of the earlier one; `noise` holds A/A of both.
    #[serde(flatten)]
    pub judgement: Judgement,
}

/// Rows that are judged together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChangedGroup {
    /// In words.
    pub name: String,
    /// How many rows.
    pub rows: usize,
    /// The median of B/A in both runs.
    #[serde(flatten)]
    pub medians: Medians,
    /// As that of a row.
    #[serde(flatten)]
    pub judgement: Judgement,
}

/// Of B/A.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Medians {
    /// In the earlier run.
    pub then: f64,
    /// In this one.
    pub now: f64,
}
