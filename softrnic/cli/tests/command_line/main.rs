//! `softrnic` as its user starts it. One program: linking one for each file took longer than
//! running it.

mod cli;
mod command;
#[path = "../../../tests/common/mod.rs"]
mod common;
mod control;
#[path = "../program/mod.rs"]
mod program;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
