//! What NCCL sees: the only code that knows its C types.

pub mod datapath;
pub mod guard;
pub mod handles;
pub mod logger;
mod output;
pub mod v8;

/// The ncclNet v8 types, generated from `include/nccl/net_v8.h`.
#[allow(missing_docs, missing_debug_implementations, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#[allow(unreachable_pub, clippy::all)]
pub mod nccl {
    include!(concat!(env!("OUT_DIR"), "/net_v8.rs"));
}
