//! One process in a fabric: its settings, its membership, which other processes live and can be
//! reached, its timers, and the entries of the device tables that it owns.

pub(crate) mod fabric;
pub(crate) mod settings;
