//! Fault rules: what goes wrong, when, and for which messages. Their language, and the table in the shared file that holds
//! the rules in force, so that every process obeys the same ones and a command can change them while traffic runs.

pub(crate) mod action;
#[cfg(test)]
mod documented;
pub(crate) mod environment;
pub(crate) mod gid_return;
pub(crate) mod known;
pub(crate) mod rule;
pub(crate) mod table;
pub(crate) mod text;
mod time;
