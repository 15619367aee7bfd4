//! Fault rules: what goes wrong, when, and for which messages. Their language, and the table in the
//! shared file that holds the rules in force, so that every process obeys the same ones and a
//! command can change them while traffic runs.

pub(crate) mod rule;
pub(crate) mod text;
