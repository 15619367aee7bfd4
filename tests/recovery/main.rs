//! Connections that go on after a fault: two processes over the software device, messages both ways while rules of
//! `tools/softrnic/docs/faults.md` are in force, every byte of every message checked.

#[path = "../common/mod.rs"]
mod common;

mod errors;
mod fabric;
mod losses;
mod ports;
mod rails;
mod stream;
