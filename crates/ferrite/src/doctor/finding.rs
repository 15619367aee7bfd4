//! What a row of the doctor's table reports: facts, each with a verdict and, where something is to be done, a cure.

use std::fmt;

use serde::{Deserialize, Serialize};

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
    pub(crate) fn judge(is_good: bool, other: Verdict, subject: impl Into<String>, fact: impl Into<String>) -> Self {
        Self::new(if is_good { Verdict::Ok } else { other }, subject, fact)
    }

    /// The same, as what follows from the failure of the row `name`: where that one is looked at too, the failure is told there.
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
