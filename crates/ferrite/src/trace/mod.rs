//! `ferrite trace`: messages that the plugin has timed, at both ends of their connections, as a timeline.
//!
//! | file | what is in it |
//! |---|---|
//! | [`timed`] | one message at one end, from its words in a record |
//! | [`recording`] | the messages of all processes, gathered while the plugin overwrites the oldest ones |
//! | [`pairs`] | which ends are of one connection, and which messages are the same |
//! | [`clocks`] | how far the clocks of several machines are apart |
//! | [`timeline`] | all of it on one clock |
//! | [`chrome`] | the timeline in Chrome's format, which Perfetto reads |
//! | [`slowest`] | the slowest messages as a table |
//!
//! Like `ferrite top` it opens files for reading only.

pub(crate) mod chrome;
pub(crate) mod clocks;
pub(crate) mod pairs;
pub(crate) mod recording;
pub(crate) mod slowest;
pub(crate) mod timed;
pub(crate) mod timeline;
