//! `ferrite` as its user starts it. One program: linking one for each file took longer than running
//! it.

use std::path::Path;

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

fn text(path: &Path) -> &str {
    path.to_str().expect("it is text")
}
