//! Why an operation of NCCL does not go on: who waits for whom, as a value. No I/O and no clock.
//!
//! Each end of a connection counts its messages by how far they are, and both ends count alike: the clear-to-sends that the receiver
//! has written are those that the sender sees, the messages that the sender has sent are those that arrive. So the numbers of both ends
//! tell what a waiting end waits for ([`verdict`]). They are asked for over the control connection ([`message`]).
//!
//! A peer may itself wait for another one. So a process that is asked asks those that it waits for in turn, and passes on what it hears
//! as soon as it hears it ([`inquiry`]). The processes that cannot go on and do not wait for a peer are what all others wait for: the
//! causes.
//!
//! | file | what it is |
//! |---|---|
//! | [`numbers`] | what one end has counted |
//! | [`operation`] | the operation of NCCL that messages are of |
//! | [`verdict`] | what an end waits for, from the numbers of both ends |
//! | [`message`] | questions and answers between two processes |
//! | [`look`], `watched` | one end at a moment; one end over time, with what its peer has said |
//! | `ends` | all of them |
//! | [`inquiry`] | what a process knows, asks and answers |
//! | [`report_times`] | when a wait is reported, and how often |
//! | `many_ends` | tests: a process with many ends goes through them for each step, and not for each end |
//! | `model` | tests: rings of processes that stand still, for a cause that each has to name |

mod ends;
pub mod inquiry;
#[cfg(test)]
mod inquiry_tests;
pub mod look;
#[cfg(test)]
mod many_ends;
pub mod message;
#[cfg(test)]
mod model;
pub mod numbers;
pub mod operation;
pub mod report_times;
pub mod verdict;
mod watched;
