//! Drives an ncclNet transport between two processes, verifies and measures it, and compares two of them.
//!
//! | layer | modules |
//! |---|---|
//! | a vtable and where it came from | [`abi`], [`elf`], [`maps`], [`vtable`], `object`, [`library`], [`wheel`] |
//! | its calls with Rust's types | [`transport`], [`comm`], [`buffer`], [`nccl_log`] |
//! | two processes | [`pair`] (the parent), [`seat`] and [`link`] (the children), [`pages`], [`verbs`], [`host`] |
//! | one process, for counting | [`solo`] |
//! | what they do | [`plan`], [`worker`], [`measure`], [`sample`], [`traffic`] |
//! | a run | [`session`] (one pair), [`verification`], [`compare`] (many pairs), [`stats`], [`rows`], [`finding`], [`record`] |
//! | the contract, point by point | [`check`] |
//! | what a user sees | [`cli`], [`dist`], [`progress`], [`report`], [`version`], `output`, `interrupt` |
//!
//! Start at [`pair`] to write a test, at [`transport`] to drive a vtable, at [`compare`] to
//! understand a result.

pub mod abi;
pub mod buffer;
pub mod check;
pub mod cli;
pub mod comm;
pub mod compare;
pub mod dist;
pub mod elf;
pub mod error;
mod fabric;
pub mod finding;
pub mod host;
mod interrupt;
pub mod library;
pub mod link;
pub mod maps;
pub mod measure;
mod member;
pub mod nccl_log;
mod object;
mod output;
pub mod pages;
pub mod pair;
pub mod plan;
pub mod progress;
pub mod record;
pub mod report;
pub mod rows;
pub mod sample;
pub mod seat;
pub mod session;
pub mod solo;
pub mod stats;
pub mod traffic;
pub mod transport;
pub mod verbs;
pub mod verification;
pub mod version;
pub mod vtable;
pub mod wheel;
pub mod worker;
