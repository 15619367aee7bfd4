//! What a process of a pair sends to the process that started it.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A message from a worker process to its parent: one JSON object a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum WorkerMessage {
    /// It is about to do this.
    Begin {
        /// In words, for the progress line and for a report of a hang.
        what: String,
    },
    /// It has this to report.
    Value {
        /// Whatever the two sides agreed upon.
        value: serde_json::Value,
    },
    /// It could not go on.
    Failed {
        /// Why.
        message: String,
        /// The reason lies with the peer, which has a better one.
        peer_gone: bool,
        /// The transport did the wrong thing, see [`Error::is_wrong`].
        wrong: bool,
    },
    /// It is done.
    Done,
}

pub(crate) fn to_json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| json_error(&e))
}

pub(crate) fn json_error(problem: &serde_json::Error) -> Error {
    Error::Unreadable(format!("not the JSON that was expected: {problem}"))
}
