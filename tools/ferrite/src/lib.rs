//! Drives any ncclNet v8 transport between two processes, measures it and compares two of them.
//!
//! | layer | modules |
//! |---|---|
//! | a vtable and where it came from | [`abi`], [`elf`], [`maps`], [`library`], [`wheel`] |
//! | its calls with Rust's types | [`transport`], [`comm`], [`buffer`], [`nccl_log`] |
//! | two processes | [`pair`] (the parent), [`seat`] and [`link`] (the children), [`verbs`], [`host`] |
//!
//! Start at [`pair`] to write a test, at [`transport`] to drive a vtable.

pub mod abi;
pub mod buffer;
pub mod comm;
pub mod elf;
pub mod error;
pub mod host;
pub mod library;
pub mod link;
pub mod maps;
pub mod nccl_log;
pub mod pair;
pub mod seat;
pub mod transport;
pub mod verbs;
pub mod wheel;
