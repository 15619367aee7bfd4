//! The device as a program sees it through the verbs. One program: linking one for each file took
//! longer than running it.

#[path = "../common/mod.rs"]
mod common;
mod create_ex;
mod data;
mod datagrams;
mod domains;
mod drivers;
mod ece;
mod errors;
mod extended_cqs;
mod extended_qps;
mod faults;
mod gpu;
mod layout;
mod states;
