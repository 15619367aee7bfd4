//! The report of what an operation waits for that does not go on: [`crate::proto::explain`] with the connections of this process, and with those
//! that are not set up yet.
//!
//! | file | what it is |
//! |---|---|
//! | [`explainer`] | looks at all ends once a second, and has waits reported that are too long |
//! | `inquiries` | the thread for that: questions and answers over the control connections, and the reports |
//! | [`end`] | what it needs of a communicator |
//! | [`set_up`] | waits before there is a connection |
//! | [`text`], [`json`] | a report, for people and for programs |
//! | `socket` | the Unix socket where `ferrite hang` asks for one |
//! | [`output`] | where it goes: the log, stderr, a file |
//!
//! The ends are looked at by a watcher, which does not wait. All else is done by a thread of [`crate::net::background::workers`] that
//! exists only while a wait is too long. NCCL's threads are in none of it.

pub mod end;
pub mod explainer;
mod inquiries;
pub mod json;
pub mod output;
pub mod set_up;
mod socket;
pub mod text;
