//! Reports what a stalled operation waits for: [`crate::proto::explain`] applied to the connections
//! of this process and to those being set up.
//!
//! | file | contents |
//! | --- | --- |
//! | [`explainer`] | checks all ends once a second, and triggers reports of long waits |
//! | `inquiries` | the thread for that: questions and answers over the control connections, and the reports |
//! | [`end`] | what it needs of a communicator |
//! | [`set_up`] | waits before a connection exists |
//! | [`text`], [`json`] | a report for people and for programs |
//! | `socket` | the Unix socket through which `ferrite hang` requests a report |
//! | [`output`] | where a report goes: the log, stderr, a file |
//!
//! A watcher checks the ends without blocking. A thread of [`crate::net::background::workers`] does
//! the rest, and exists only while a wait is too long. NCCL's threads take no part.

pub mod end;
pub mod explainer;
mod inquiries;
pub mod json;
pub mod output;
pub mod set_up;
mod socket;
pub mod text;
