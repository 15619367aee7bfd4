//! The device as a program sees it through the verbs. One program: linking one for each file took longer than running it.

mod atomics;
mod channels;
mod churn;
#[path = "../common/mod.rs"]
mod common;
mod completions;
mod copies;
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
mod generations;
mod gpu;
mod gpu_helper;
mod inline;
mod layout;
mod observations;
mod ports;
mod reregistration;
mod retries;
mod returns;
mod semantics;
mod shared_receives;
mod states;
mod teardown;
mod transmissions;
mod variants;
mod wire;
