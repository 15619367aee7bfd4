//! NCCL's side of the interface: where a vtable comes from, and the proof that it came from there.
//!
//! | file | what is in it |
//! |---|---|
//! | [`abi`] | the ncclNet types of versions 8 to 12 |
//! | [`release`] | the releases of NCCL that this program can call, and the interface version of each; libnccl.so.2 of a release: verified, kept in a cache, downloaded |
//! | `one_sided` | the table of one-sided operations in NCCL's built-in transport, and its calls |
//! | [`plugin_search`] | which plugin a release takes by `NCCL_NET_PLUGIN` |
//! | [`profiler`] | the table of a profiler in a plugin, called as NCCL does; the function that a network tells events of messages by, for a profiler |
//! | [`library`] | a source of a transport, loaded and verified; a transport's table of functions, of any of the versions |
//! | [`shared_object`] | symbols and flags of an ELF file, read without loading it; one that is loaded into this process, and NCCL's plugin loader in it |
//! | [`debug_log`] | the log callback that `init` receives |

pub mod abi;
pub mod debug_log;
pub mod library;
pub(crate) mod one_sided;
pub mod plugin_search;
pub mod profiler;
pub mod release;
pub mod shared_object;
