//! Several hosts at once: whether they are alike, and whether each reaches the others over each
//! rail, at which speed.
//!
//! One process is the server (`doctor --serve`, or rank 0 of a launcher). Each host, the server's
//! own too, runs a process that connects to it over TCP, tells its facts, and tries the plugin as
//! the server asks. One JSON object a line, 64 KiB at most.
//!
//! | file | what is in it |
//! |---|---|
//! | `trial` | a host's part; what it does with the plugin |
//! | `judge` | the rows |
//! | `fuzz` | what a fuzzer chooses: what one says to the other |
//! | `message` | the messages between hosts and their server ([`lab::hosts`]) |
//! | `server` | letting hosts in, and having each pair try; which pairs at once |
//! | `session` | all of it, from the server's start to the report |

#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;
mod judge;
mod message;
pub(crate) mod server;
pub(crate) mod session;
mod trial;
