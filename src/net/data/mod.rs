//! The data path: isend, irecv, iflush and test.
//!
//! | file | what is in it |
//! |---|---|
//! | [`sender`], [`receiver`] | the two kinds of communicator |
//! | [`first_look`] | the beginning of `test` and `isend`, which decides most calls |
//! | `usual` | what `test` does after most polls that find something |
//! | `completion` | `test`, for both: whether a request is complete, and taking completions in |
//! | `send_recovery`, `recv_recovery` | what they do while not all is well: they report faults, and go on over new queue pairs |
//! | [`mode`], [`stall`] | what is possible meanwhile; finding a path that carries nothing |
//! | `timing`, `lane_trials` | what they do while a message is timed; what a sender learns of its lanes from that |
//! | [`cts_sender`] | clear-to-sends from the receiver to the sender |
//! | `cut` | what is told of a message that is longer than its receive |
//! | [`flush`] | flushes of received data to GPU memory |
//! | `looks` | how a communicator stands, for what explains waits |
//! | `other_work` | what a sender has in its send queues besides stripes in one write |
//! | [`probe`] | asks the peer's device for a sign of life |
//! | [`sticky_error`] | the error with which a communicator has failed |
//! | [`exclusive_cell`] | keeps two threads out of one communicator's data path |
//! | [`caps`] | capacities of the queue pairs |

pub mod caps;
mod completion;
pub mod cts_sender;
mod cut;
pub mod exclusive_cell;
#[cfg(test)]
mod exclusive_cell_tests;
pub mod first_look;
pub mod flush;
mod lane_trials;
mod looks;
pub mod mode;
mod other_work;
pub mod probe;
pub mod receiver;
mod recv_recovery;
mod send_recovery;
pub mod sender;
pub mod stall;
pub mod sticky_error;
mod timing;
mod usual;
