//! NCCL's side of the interface: where a vtable comes from, and the proof that it came from there.
//!
//! | file | what is in it |
//! |---|---|
//! | [`abi`] | the ncclNet types of versions 8 to 12 |
//! | [`elf`] | symbols and flags of an ELF file, read without loading it |
//! | [`release`] | the releases of NCCL that this program can call, and the interface version of each |
//! | [`plugin_search`] | which plugin a release takes by `NCCL_NET_PLUGIN` |
//! | `shared_object` | a shared object that is loaded into this process, and NCCL's plugin loader in it |
//! | [`profiler`] | the table of a profiler in a plugin, called as NCCL does |
//! | [`net_events`] | the function that a network tells events of messages by, for a profiler |
//! | `vtable` | a transport's table of functions, of any of the versions |
//! | [`stock_library`], [`cache`], `fetch` | libnccl.so.2 of a release: verified, kept in a cache, downloaded |
//! | [`library`] | a source of a transport, loaded and verified |
//! | [`debug_log`] | the log callback that `init` receives |

pub mod abi;
pub mod cache;
pub mod debug_log;
pub mod dynamic_loader;
pub mod elf;
mod fetch;
pub mod library;
pub mod nccl_files;
pub mod net_events;
pub mod plugin_search;
pub mod profiler;
pub mod release;
pub(crate) mod shared_object;
pub mod stock_library;
pub(crate) mod vtable;
