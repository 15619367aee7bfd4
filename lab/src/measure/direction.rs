//! Who sends in a measurement.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Rank 0 to rank 1.
    Forward,
    /// Rank 1 to rank 0.
    Backward,
    /// Both at once; a rate is the sum.
    Both,
}

impl Direction {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Forward, Self::Backward, Self::Both];

    /// Whether `rank` sends.
    pub fn sends(self, rank: usize) -> bool {
        match self {
            Self::Forward => rank == 0,
            Self::Backward => rank == 1,
            Self::Both => true,
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward => "0->1",
            Self::Backward => "1->0",
            Self::Both => "both",
        })
    }
}
