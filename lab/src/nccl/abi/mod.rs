//! The ncclNet interfaces that this driver calls: version 8 as `include/nccl/net_v8.h` states it
//! (the plugin's own declarations), and what later versions changed.

#![allow(
    missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, dead_code,
    unreachable_pub, clippy::all
)]

pub mod later;

pub use nccl_net::inspect::nccl::*;
