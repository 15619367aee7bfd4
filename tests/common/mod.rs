//! What the tests of the built plugin share beside `testkit`: processes with the plugin over the software device, connections,
//! and messages over them.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod bench;
pub(crate) mod connect;
pub(crate) mod control_process;
pub(crate) mod faithful;
pub(crate) mod handshake;
pub(crate) mod log;
pub(crate) mod process;
pub(crate) mod setting;

use ferrite::nccl::library::Source;
use ferrite::transport::Transport;

/// The plugin, initialised in this process. Where it has not been built, the test has ended before ([`setting::setting`]).
pub(crate) fn plugin_transport() -> ferrite::error::Result<Transport> {
    Transport::open(&Source::plugin(testkit::dist::dist().join("lib/libnccl-net.so")))
}

/// As [`plugin_transport`], by the table of version `abi`.
pub(crate) fn plugin_transport_of(abi: u32) -> ferrite::error::Result<Transport> {
    Transport::open(&Source::plugin_of(testkit::dist::dist().join("lib/libnccl-net.so"), abi))
}

/// A byte pattern that differs from message to message and from offset to offset.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    bytes
}
