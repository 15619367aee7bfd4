//! `ferrite top`: what the connections of all processes of this machine do, from the files that the plugin writes.
//!
//! | file | what is in it |
//! |---|---|
//! | [`stats_file`] | one file as it is at a moment, or why it cannot be read |
//! | [`end`] | one end of a connection, from its record |
//! | [`processes`] | all files of a folder |
//! | [`rates`] | what has changed between two moments |
//! | [`ports`] | counters of ports in sysfs |
//! | [`filter`] | which connections are shown, in which order |
//! | [`table`], [`lanes`] | tables of text: of all connections, of the lanes of those that have some |
//! | [`json`], [`openmetrics`] | the same for programs; [`serve`] answers HTTP with the latter |
//! | [`screen`] | the terminal |
//!
//! It opens files for reading only: it cannot disturb a job.

pub(crate) mod end;
pub(crate) mod filter;
pub(crate) mod json;
pub(crate) mod lanes;
pub(crate) mod openmetrics;
pub(crate) mod ports;
pub(crate) mod processes;
pub(crate) mod rates;
pub(crate) mod screen;
pub(crate) mod serve;
pub(crate) mod stats_file;
pub(crate) mod table;
