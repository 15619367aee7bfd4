//! `ferrite top`: what the connections of all processes of this machine do, from the files that the
//! plugin writes.
//!
//! | file | what is in it |
//! |---|---|
//! | [`stats_file`] | one file as it is at a moment, or why it cannot be read; one end of a connection, from its record; all files of a folder |
//! | [`rates`] | what has changed between two moments; counters of ports in sysfs; which connections are shown, in which order |
//! | [`table`] | tables of text: of all connections, of the lanes of those that have some; the terminal |
//! | [`openmetrics`] | JSON and OpenMetrics, for programs; HTTP with the latter |
//!
//! It opens files for reading only: it cannot disturb a job.

pub(crate) mod openmetrics;
pub(crate) mod rates;
pub(crate) mod stats_file;
pub(crate) mod table;
