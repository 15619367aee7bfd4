//! One process in a fabric: its settings, its membership, which other processes live and can be reached, its timers, and
//! the entries of the device tables that it owns.

pub(crate) mod commands;
pub(crate) mod event_log;
pub(crate) mod fabric;
mod liveness;
mod membership;
pub(crate) mod reach;
pub(crate) mod route;
pub(crate) mod settings;
mod stage;
mod tables;
pub(crate) mod timers;
pub(crate) mod usage;
