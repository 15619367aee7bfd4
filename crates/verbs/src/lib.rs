//! Safe, owned objects over libibverbs: the only code that calls `ibv_` functions.
//!
//! | file | what is in it |
//! |---|---|
//! | [`library`] | libibverbs, loaded at run time, so that the plugin loads on a machine without it |
//! | [`context`] | an open device and its asynchronous events |
//! | [`port`] | queries of a port: state, GID table, speed |
//! | [`memory`] | protection domains and memory regions |
//! | [`shared`], `record`, `device_memory` | registered memory that a peer writes, and the order in which it is read |
//! | [`sink`] | registered memory for tests of a path, whose bytes nobody looks at |
//! | [`staging`] | registered memory that writes are sent from where a device has no inline data |
//! | [`completion_queue`], `queue_failure`, [`queue_pair`] | the queues, and how the failure of one is known |
//! | [`qp_ex`] | creating a queue pair for certain operations only |
//! | [`thread_domain`] | queue pairs that one thread at a time uses |
//! | [`path`] | from INIT to RTS |
//! | [`work`] | work requests: posting them, polling their completions |
//! | [`prepared_write`] | a write that is posted again and again with other values |
//! | [`status`], [`error`] | why a work request failed, or a call |
//! | [`extended_call`] | calls of a device that libibverbs has no symbols for |
//! | [`sys`], `sys_work` | structs and numbers of libibverbs |
//!
//! Each object holds an `Arc` of its parent, so that objects are destroyed in the order that the verbs demand.

#![allow(rustdoc::private_intra_doc_links)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::exit,
        clippy::print_stdout,
        clippy::print_stderr
    )
)]

pub mod completion_queue;
pub mod context;
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
pub mod port;
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
