//! What the tests of the built plugin share beside `testkit`: processes with the plugin over the
//! software device, connections, and messages over them.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod bench;
pub(crate) mod connect;
pub(crate) mod control_process;
pub(crate) mod faithful;
pub(crate) mod flushes;
pub(crate) mod handshake;
pub(crate) mod log;
pub(crate) mod process;
pub(crate) mod setting;
pub(crate) mod stat;

use lab::nccl::library::Source;
use lab::transport::Transport;
pub(crate) use testkit::bytes::{are_all, pattern};

/// The plugin, initialised in this process. Where it has not been built, the test has ended before
/// ([`setting::setting`]).
pub(crate) fn plugin_transport() -> lab::error::Result<Transport> {
    Transport::open(&Source::plugin(testkit::dist::dist().join("lib/libnccl-net.so")))
}

/// As [`plugin_transport`], by the table of version `abi`.
pub(crate) fn plugin_transport_of(abi: u32) -> lab::error::Result<Transport> {
    Transport::open(&Source::plugin_of(testkit::dist::dist().join("lib/libnccl-net.so"), abi))
}
