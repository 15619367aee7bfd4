//! `ferrite outlast`: one stream of checked messages, a script of faults, a clock; how it ended.
//!
//! | file | what is in it |
//! |---|---|
//! | `plan` | what the two processes of a run do |
//! | `outcome` | what happened: at each end, to the messages, to the bytes |
//! | `pace` | time in a stream, and waiting |
//! | `buffers` | receive buffers, every byte of which is looked at twice |
//! | `sender`, `receiver` | the two ends of a stream |
//! | `control_relay` | a TCP relay that cuts or silences what passes |
//! | `worker` | one of the two processes |
//! | `fault` | what can be done to a run |
//! | `scenario`, `script` | the scenarios; their faults and times |
//! | `device` | the software device's command line |
//! | `transport_log` | what a transport's log tells of failures |
//! | `runner` | the process that starts the others and keeps the clock |
//! | `report` | outcomes as text and as a table |

mod buffers;
mod control_relay;
mod device;
pub(crate) mod fault;
pub(crate) mod outcome;
mod pace;
pub(crate) mod plan;
mod receiver;
pub(crate) mod report;
pub(crate) mod runner;
pub(crate) mod scenario;
mod script;
mod sender;
mod transport_log;
pub(crate) mod worker;
