//! Connections that resume after a fault: two processes over the software device, messages both
//! ways while rules of `softrnic/docs/faults.md` are in force, every byte of every message checked.

#[path = "../common/mod.rs"]
mod common;

mod addresses;
mod begin;
mod control;
mod ends;
mod errors;
mod fabric;
mod flushes;
mod groups;
mod long_paths;
mod losses;
mod many;
mod moves;
mod pairs;
mod path_mtus;
mod paths;
mod ports;
mod rails;
mod resets;
mod set_up;
mod stalls;
mod stream;
mod unpolled;
mod variants;
