//! Drives an ncclNet transport between two processes, checks and measures it, and compares two transports.
//!
//! Each folder is a layer. It uses the ones above it in this table, [`error`] and `version`, and none below it.
//!
//! | folder | what is in it |
//! |---|---|
//! | `system` | system calls of this program on its own process, its output and its installed files |
//! | `hosts` | how processes of several hosts find each other, and the lines that they send |
//! | [`nccl`] | releases of NCCL, shared objects, vtables of each interface version, the transport's log |
//! | [`transport`] | a vtable's calls with Rust's types: transport, listener, communicators, memory regions, requests |
//! | [`verbs`] | which libibverbs a run uses, fabrics of the software device, counters of a device's port |
//! | [`pair`] | two processes: the parent that starts them, what a worker process can do, a connection each way |
//! | [`measure`] | measurements and byte checks, as both processes run them in step |
//! | `solo` | one process that sends to itself, for counting |
//! | `cost` | what a message costs the card and its driver, counted by the software device |
//! | [`results`] | statistics over repetitions, and the record of a run (`raw.json`) |
//! | `report` | a record as tables, Markdown and SVG |
//! | `run` | the worker process, one session of a pair, verification and comparison of transports |
//! | [`ecmp`] | a model of a fabric with ECMP, over the plugin's own code |
//! | `scale` | a model of what the connections of a rank take at any number of ranks |
//! | `instructions` | instructions per call out of callgrind's output |
//! | `check` | the contract of an NCCL net transport, point by point |
//! | `outlast` | a stream of checked messages while faults happen |
//! | `top` | statistics that the plugin writes, as tables and metrics |
//! | `trace` | messages that the plugin has timed, of both ends, as a timeline |
//! | [`hang`] | what processes of Ferrite wait for |
//! | `doctor` | a machine before a job, row by row; sees it through the plugin's own code |
//! | [`cli`] | the command line |
//! | `fuzz` | what a fuzzer chooses: files of statistics, messages between doctors |
//!
//! To write a test, start at [`pair`]; to call a vtable, at [`transport`]; to understand a result, at [`results`].

mod check;
pub mod cli;
mod cost;
mod doctor;
pub mod ecmp;
pub mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod hang;
mod hosts;
mod instructions;
pub mod measure;
pub mod nccl;
mod outlast;
pub mod pair;
mod report;
pub mod results;
mod run;
mod scale;
mod solo;

mod system;
mod top;
mod trace;
pub mod transport;
pub mod verbs;
