//! `ferrite` as its user starts it. One program: linking one for each file took longer than running
//! it.

mod check;
mod cli;
#[path = "../common/mod.rs"]
mod common;
mod cost;
mod hosts;
mod outlast;
mod provider;
mod softrnic;
mod trace;
