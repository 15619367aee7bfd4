//! The data path: isend, irecv, iflush and test.
//!
//! | file | what is in it |
//! |---|---|
//! | [`send`], [`recv`] | the two kinds of communicator, from a call's beginning to its completion and through recoveries; capacities of a sender's queue pairs |
//! | [`both_ends`] | what they have in common: the first look of `test`, which decides most calls; how a communicator stands, for what explains waits |
//! | [`cts_sender`] | clear-to-sends from the receiver to the sender; capacities of a receiver's queue pairs |
//! | [`flush`] | flushes of received data to GPU memory |
//! | [`health`] | finding a path that carries nothing and a peer that is gone; what is possible meanwhile; the error with which an end has failed |
//! | [`exclusive_cell`], [`state_word`] | keeps two threads out of one communicator's data path; the number that each call looks at first |
//! | [`sync`] | what that guard is made of |

#![deny(clippy::disallowed_methods)]

pub mod both_ends;
pub mod cts_sender;
pub mod exclusive_cell;
// In a file of its own: a model checker takes in the file of the cell, with other atomics.
#[cfg(test)]
mod exclusive_cell_tests;
pub mod flush;
pub mod health;
pub mod recv;
pub mod send;
pub mod state_word;
pub mod sync;
