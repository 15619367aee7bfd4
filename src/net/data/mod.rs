//! The data path: isend, irecv, iflush and test.
//!
//! | file | contents |
//! | --- | --- |
//! | [`send`], [`recv`] | the two kinds of communicator, through completions and recoveries; capacities of a sender's queue pairs |
//! | [`both_ends`] | what they share: the first check of `test`, which decides most calls; the state that a hang report shows |
//! | [`cts_sender`] | clear-to-sends from the receiver to the sender; capacities of a receiver's queue pairs |
//! | [`flush`] | flushes of received data to GPU memory |
//! | [`health`] | detection of a dead path or peer; what remains possible; the final error of an end |
//! | [`exclusive_cell`], [`state_word`] | keep two threads out of one communicator's data path; the word that each call reads first |
//! | [`sync`] | the primitives of that guard |

#![deny(clippy::disallowed_methods)]

pub mod both_ends;
pub mod cts_sender;
pub mod exclusive_cell;
// In its own file: a model checker compiles the cell's file with other atomics.
#[cfg(test)]
mod exclusive_cell_tests;
pub mod flush;
pub mod health;
pub mod recv;
pub mod send;
pub mod state_word;
pub mod sync;
