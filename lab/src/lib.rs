//! Drives an ncclNet transport between two processes, checks and measures it, and compares two
//! transports.
//!
//! Each folder is a layer. It uses the ones above it in this table and [`error`], and none below
//! it.
//!
//! | folder | what is in it |
//! |---|---|
//! | [`system`] | system calls of this program on its own process, its output, its installed files, the files of the machine |
//! | [`hosts`] | how processes of several hosts find each other, and the lines that they send |
//! | [`nccl`] | releases of NCCL, shared objects, vtables of each interface version, the transport's log |
//! | [`transport`] | a vtable's calls with Rust's types: transport, listener, communicators, memory regions, requests |
//! | [`verbs`] | which libibverbs a run uses, fabrics of the software device, counters of a device's port |
//! | [`pair`] | two processes: the parent that starts them, what a worker process can do, a connection each way |
//! | [`measure`] | measurements and byte checks, as both processes run them in step |
//! | `solo` | one process that sends to itself, for counting |
//! | `connections` | many connections between two processes: time, commands, memory, and what they cost while idle |
//! | `cost` | what a message costs the card and its driver, counted by the software device |
//! | [`results`] | statistics over repetitions, and the record of a run (`raw.json`) |
//! | `report` | a record, or times that `nccl-net-ferrite ab` has measured, as tables, Markdown and SVG |
//! | `run` | the worker process, one session of a pair, verification and comparison of transports |
//! | `instructions` | instructions per call out of callgrind's output |
//! | `check` | the contract of an NCCL net transport, point by point |
//! | `outlast` | a stream of checked messages while faults happen |
//! | [`cli`] | the commands of the program `ferrite` that do all that |
//!
//! To write a test, start at [`pair`]; to call a vtable, at [`transport`]; to understand a result,
//! at [`results`].

// A library for this workspace alone: `pub` means visible in it, and the compiler finds what is
// unused in private modules.
#![allow(missing_docs, unreachable_pub)]

mod check;
pub mod cli;
mod connections;
mod cost;
pub mod error;
pub mod hosts;
mod instructions;
pub mod measure;
pub mod nccl;
mod outlast;
pub mod pair;
mod report;
pub mod results;
mod run;
mod solo;
pub mod system;
pub mod transport;
pub mod verbs;
