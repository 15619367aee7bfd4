//! NCCL's plugin interface: the only code that names its C types.
//!
//! | file | what is in it |
//! |---|---|
//! | [`v8`] | the table of version 8 and its thunks; each further version is one such file |
//! | [`calls`], [`datapath`] | the calls in neutral types: of NCCL's service thread, and of its progress thread |
//! | [`process`] | what exists once in the process |
//! | [`handles`] | the objects behind NCCL's `void*` |
//! | [`guard`] | errors become result codes, and panics become errors |
//! | [`logger`] | the `log` crate, through NCCL's logger |

mod calls;
mod datapath;
mod guard;
mod handles;
mod logger;
mod output;
mod process;
mod v8;

/// NCCL's types, generated from `include/nccl/net_v8.h`. Result codes, logger and constants are common to all versions.
#[allow(missing_docs, missing_debug_implementations, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#[allow(unreachable_pub, clippy::all, dead_code)]
pub mod nccl {
    include!(concat!(env!("OUT_DIR"), "/net_v8.rs"));
}
