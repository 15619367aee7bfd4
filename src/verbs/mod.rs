//! libibverbs, owned: the only code that says `ibv_`.
//!
//! Types, constants and the calls that go through a context's own table come from `rdma-sys`; everything else is
//! looked up at run time ([`library`]), so the plugin loads on a machine that has no libibverbs.
//!
//! Each object holds an `Arc` of its parent, so the order of destruction is the order the verbs ask for.

pub mod context;
mod create;
pub mod library;
mod mapping;
mod memlock;
pub mod memory;
pub mod path;
pub mod port;
pub mod queue;
pub mod shared;
pub mod staging;
pub mod status;
pub mod work;

pub(crate) use rdma_sys as sys;
