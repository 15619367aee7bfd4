//! What processes of Ferrite wait for: `ferrite hang`.
//!
//! | file | what is in it |
//! |---|---|
//! | [`ask`] | asking a process over its Unix socket |
//! | [`outside`] | what is seen of a process that does not answer: its state, and its statistics file |
//! | [`stats_file`] | the connections in a statistics file, of a process that may be dead |
//! | [`finding`] | all of that for one process, as a text, and for several |

pub mod ask;
pub mod finding;
pub mod outside;
pub mod stats_file;
