//! Faults on demand: rules that say what goes wrong, when, and for whom.
//!
//! The rules lie in the fabric, so that every process obeys the same ones and a command can change them while traffic
//! runs. Whether a rule applies to a message is a pure function of the seed, the connection (its two ports and its
//! number among those between them), the number of the message on it and the number of the transmission: the same
//! seed gives the same faults, whatever the timing.

mod apply;
mod call;
mod decide;
#[cfg(test)]
mod documented;
mod environment;
mod rule;
mod table;
mod text;
mod trace;

pub(crate) use apply::{Effect, Twist, raise_port};
pub(crate) use call::{modify_qp, reg_mr};
pub(crate) use decide::{Targets, decide};
pub(crate) use environment::bring;
pub(crate) use table::{clear, install, list, remove, require};
pub(crate) use text::parse;
