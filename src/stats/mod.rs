//! Statistics of connections, for `ferrite top` and other readers: counters in a file in shared
//! memory, one file for each process.
//!
//! | file | what is in it |
//! |---|---|
//! | [`layout`] | what each word of the file means; `ferrite top` uses it too |
//! | [`record`] | the record of one end of a connection: its counters |
//! | [`labels`] | the words of a record that name NCCL's communicator and operation |
//! | `timing`, `clock`, `histogram` | the times of some messages, stage by stage |
//! | `stalls` | ends that stand still |
//! | [`process`] | the records of this process, and the rank that its sends tell |
//! | `table`, `file` | which records are free; the file that they are in |
//! | [`lock`], `dead` | how a reader sees whether the process is alive; files of dead processes |
//!
//! Nothing here ends or stops a job: without a file the records are in private memory. Counters are
//! written without a lock by the one thread that is inside of a communicator, on cache lines of its
//! own.

mod clock;
mod dead;
mod file;
pub mod histogram;
pub mod labels;
pub mod layout;
pub mod lock;
pub mod process;
pub mod record;
#[cfg(test)]
mod record_tests;
mod stalls;
mod table;
mod timing;

pub use table::ProcessInfo;
pub use timing::Completed;
