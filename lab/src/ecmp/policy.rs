//! What a transport does with the queue pairs of a connection.

use std::fmt;
use std::str::FromStr;

use nccl_net::inspect::proto::Striping;

/// Queue pairs of a connection at most, and lanes.
const MOST: u8 = 32;
const MOST_LANES: u8 = 8;

/// What a transport does with the queue pairs of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Whole messages go over so many queue pairs in turn: NCCL's built-in transport, by default with one.
    Turns(u8),
    /// Each message is cut evenly over so many: NCCL's built-in transport with `NCCL_IB_SPLIT_DATA_ON_QPS=1`.
    Even(u8),
    /// So many lanes with shares that follow what they complete.
    Shares(u8),
    /// The same, and a lane that stays slow is given another path.
    Moves(u8),
    /// One queue pair, in a fabric that spreads every packet.
    Ideal,
}

impl Policy {
    /// How messages are cut.
    pub(super) fn striping(self) -> Striping {
        match self {
            Self::Turns(count) => Striping::new(1, count, false),
            Self::Even(count) | Self::Shares(count) | Self::Moves(count) => Striping::new(1, count, true),
            Self::Ideal => Striping::new(1, 1, false),
        }
    }

    /// Whether queue pairs have shares of their own.
    pub(super) fn has_shares(self) -> bool {
        matches!(self, Self::Shares(_) | Self::Moves(_))
    }

    pub(super) fn moves(self) -> bool {
        matches!(self, Self::Moves(_))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Turns(count) => write!(f, "turns:{count}"),
            Self::Even(count) => write!(f, "even:{count}"),
            Self::Shares(count) => write!(f, "shares:{count}"),
            Self::Moves(count) => write!(f, "moves:{count}"),
            Self::Ideal => f.write_str("ideal"),
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text} is no policy; turns:N and even:N (N from 1 to {MOST}), shares:N and moves:N (from 1 to {MOST_LANES}) and ideal are"
            )
        };
        if text == "ideal" {
            return Ok(Self::Ideal);
        }
        let (name, count) = text.split_once(':').ok_or_else(wrong)?;
        let most = if matches!(name, "shares" | "moves") { MOST_LANES } else { MOST };
        let count = count.parse().ok().filter(|count| (1..=most).contains(count)).ok_or_else(wrong)?;
        match name {
            "turns" => Ok(Self::Turns(count)),
            "even" => Ok(Self::Even(count)),
            "shares" => Ok(Self::Shares(count)),
            "moves" => Ok(Self::Moves(count)),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_as_it_is_written() {
        for text in ["turns:1", "even:8", "shares:4", "even:32", "moves:8", "ideal"] {
            assert_eq!(text.parse::<Policy>().expect("a policy").to_string(), text);
        }
        for wrong in ["", "turns", "turns:0", "even:33", "moves:9", "stock:1", "ideal:1"] {
            assert!(wrong.parse::<Policy>().is_err(), "{wrong}");
        }
    }
}
