//! `ferrite` as its user starts it. One program: linking one for each file took longer than running it.

mod check;
mod cli;
#[path = "../common/mod.rs"]
mod common;
mod cost;
mod early;
mod ending;
mod fabrics;
mod hosts;
mod library;
mod outlast;
mod pages;
mod pair;
mod softrnic;
mod solo;
mod trace;
mod verify;
mod wheel;
