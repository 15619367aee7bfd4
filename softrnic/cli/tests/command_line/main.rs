//! `softrnic` as its user starts it. One program: linking one for each file took longer than running it.

mod clean;
mod cli;
mod command;
#[path = "../../../tests/common/mod.rs"]
mod common;
mod control;
mod delayed;
mod draining;
mod env;
mod injected;
mod pages;
#[path = "../program/mod.rs"]
mod program;
mod rules;
mod staged;
mod watch;
