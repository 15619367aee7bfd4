//! What the tests share: the verbs interface as seen from outside, and what it is used with.

// Every test file uses another part of this.
#![allow(
    dead_code,
    unused_imports,
    missing_docs,
    unreachable_pub,
    reason = "shared by several test programs"
)]

pub mod channel;
pub mod datagrams;
pub mod domains;
pub mod elf;
pub mod extended_cqs;
pub mod gpu;
pub mod guard;
pub mod node;
pub mod observed;
pub mod srqs;
pub mod table;
pub mod tools;
pub mod verbs;

/// What most tests use.
pub mod prelude {
    pub use super::node::*;
    pub use super::verbs::*;
    pub use std::ptr;
    pub use std::time::{Duration, Instant};
    pub use testkit::softrnic::Softrnic;
    pub use testkit::{Missing, Peer, Scratch, cases, require, skipped, wait_until};
}
