//! NCCL's plugin interface: the only code that names its C types.
//!
//! | file | what is in it |
//! |---|---|
//! | [`v8`] to [`v12`] | the table of a version, and the functions that are new in it; NCCL takes the highest that it knows |
//! | [`table`], [`common_slots`] | how a table is written; the slots that are the same in all |
//! | [`layout`] | NCCL's structs of versions 9 to 12 |
//! | [`calls`], [`context_calls`], [`datapath`], [`test_call`] | the calls in neutral types: of NCCL's service thread, those of them that have a context, and of its progress thread |
//! | [`process`] | what exists once in the process |
//! | [`devices`] | the devices that a table shows, by number |
//! | [`context`] | what NCCL holds for each of its communicators, from version 11 on |
//! | [`profiler`], [`profiler_layout`] | NCCL's interface for profilers, and its structs |
//! | [`network_events`] | events of messages, for a profiler of the user's |
//! | [`env_plugin`] | settings that NCCL has from a plugin, and not from the environment |
//! | [`handles`] | the other objects behind NCCL's `void*` |
//! | [`guard`] | errors become result codes, and panics become errors |
//! | [`logger`] | the `log` crate, through NCCL's logger |

#![allow(unsafe_code)]

mod calls;
mod common_slots;
mod context;
mod context_calls;
mod datapath;
mod devices;
mod env_plugin;
mod guard;
mod handles;
mod layout;
mod logger;
#[cfg(not(feature = "bindgen"))]
pub mod nccl;
/// NCCL's types, as bindgen makes them of `include/nccl/net_v8.h` when this is built.
#[cfg(feature = "bindgen")]
#[allow(missing_docs, missing_debug_implementations, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#[allow(unreachable_pub, clippy::all, dead_code)]
pub mod nccl {
    include!(concat!(env!("OUT_DIR"), "/nccl.rs"));
}
mod network_events;
mod output;
mod process;
mod profiler;
mod profiler_layout;
mod table;
mod test_call;
mod v10;
mod v11;
mod v12;
mod v8;
mod v9;
