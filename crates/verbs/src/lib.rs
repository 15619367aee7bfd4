//! Safe, owned objects over libibverbs: the only code that calls `ibv_` functions.
//!
//! | file | contents |
//! | --- | --- |
//! | [`library`] | libibverbs, loaded at run time, so that the plugin loads on a machine without it |
//! | [`context`] | an open device: its asynchronous events, the state, GID table and speed of its ports |
//! | [`memory`] | protection domains and memory regions |
//! | [`shared`], `record`, `device_memory` | registered memory that a peer writes, and the order in which it is read |
//! | [`sink`] | registered memory for path tests, whose content is never read |
//! | [`staging`] | registered memory as a source for writes where a device has no inline data |
//! | [`completion_queue`], `queue_failure`, [`queue_pair`] | the queues, and how a failure is detected |
//! | [`qp_ex`] | queue pairs for certain operations only; posting without `struct ibv_send_wr` |
//! | `cq_ex` | completion queues for one thread at a time |
//! | [`thread_domain`] | queue pairs for one thread at a time |
//! | [`path`] | from INIT to RTS |
//! | [`work`] | work requests: posting them, polling their completions |
//! | [`prepared_write`] | a write that is posted repeatedly with other values |
//! | [`status`], [`error`] | why a work request or a call failed |
//! | [`extended_call`] | functions of a device without symbols in libibverbs |
//! | [`clock`] | the time |
//! | [`sys`]; `sys_own` or `sys_package` | structs and constants of libibverbs; ours, or those of the crate rdma-sys |
//!
//! Each object holds an `Arc` of its parent, so that objects are destroyed in the order that the
//! verbs require.

#![allow(rustdoc::private_intra_doc_links)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::exit,
        clippy::print_stdout, clippy::print_stderr
    )
)]

pub mod clock;
pub mod completion_queue;
pub mod context;
mod cq_ex;
mod create;
pub mod device_memory;
pub mod dma_buf;
pub mod error;
pub mod extended_call;
pub mod library;
mod mapping;
mod memlock;
pub mod memory;
pub mod path;
pub mod prepared_write;
pub mod qp_ex;
mod queue_failure;
pub mod queue_pair;
mod record;
mod recv_chain;
pub mod shared;
pub mod sink;
pub mod staging;
pub mod status;
pub mod sys;
#[cfg(not(feature = "rdma-sys"))]
mod sys_own;
#[cfg(feature = "rdma-sys")]
mod sys_package;
pub mod thread_domain;
pub mod work;
