//! `ferrite outlast`: one stream of checked messages, a script of faults, a clock; how it ended.
//!
//! | file | what is in it |
//! |---|---|
//! | `worker` | one of the two processes; time in a stream, and waiting; receive buffers, in which every byte is checked twice; the two ends of a stream; a TCP relay that cuts or silences what passes |
//! | `scenario` | the scenarios; their faults and times; what the two processes of a run do; what can be done to a run |
//! | `runner` | the process that starts the others and keeps the clock; the software device's command line; the failures in a transport's log |
//! | `report` | outcomes as text and as a table; what happened: at each end, to the messages, to the bytes |

pub(crate) mod report;
pub(crate) mod runner;
pub(crate) mod scenario;
pub(crate) mod worker;
