//! Why an operation of NCCL stalls: who waits for whom, as a value. No I/O and no clock.
//!
//! Each end of a connection counts its messages by progress, and both count alike. The
//! clear-to-sends that the receiver has written are those that the sender sees, and the messages
//! that the sender has sent are those that arrive. So the counters of both ends show what a waiting
//! end waits for ([`verdict`]). They are exchanged over the control connection ([`message`]).
//!
//! A peer may itself wait for another one. So a process that is asked asks its own peers in turn,
//! and passes the answers on at once ([`inquiry`]). The causes are the processes that are stuck
//! without waiting for a peer: all others wait for them.
//!
//! | file | contents |
//! | --- | --- |
//! | [`numbers`] | the counters of one end |
//! | [`operation`] | the NCCL operation of messages |
//! | [`verdict`] | what an end waits for, from the counters of both ends |
//! | [`message`] | questions and answers between two processes |
//! | [`snapshot`], `local_end` | one end at a moment; one end over time, with its peer's reports |
//! | `ends` | all ends |
//! | [`inquiry`] | what a process knows, asks and answers |
//! | [`report_times`] | when a wait is reported, and how often |

mod ends;
pub mod inquiry;
mod local_end;
pub mod message;
pub mod numbers;
pub mod operation;
pub mod report_times;
pub mod snapshot;
#[cfg(test)]
mod tests;
pub mod verdict;
