//! What the tests of the built plugin share beside `testkit`: processes with the plugin over the
//! software device, connections, and messages over them.
#![allow(dead_code, unused_imports, reason = "each test program uses a part of it")]

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

/// What most tests use.
pub(crate) mod prelude {
    pub(crate) use super::bench::Bench;
    pub(crate) use super::connect::{
        accept_nobody, address, connect, connect_pair, connect_through, relay_to, through, works,
    };
    pub(crate) use super::log::{assert_logged, log, said};
    pub(crate) use super::process::{alone, both, pair};
    pub(crate) use super::setting::{set, setting, setting_with, softrnic, stock_nccl, talkative};
    pub(crate) use super::stat::own_queues;
    pub(crate) use super::{faithful, pattern, plugin_transport};
    pub(crate) use lab::error::{Error, Result};
    pub(crate) use lab::nccl::{abi, debug_log::ALL_INFO, library::Source};
    pub(crate) use lab::pair::{PeerConn, Setting, WorkerCtx};
    pub(crate) use lab::transport::buffer::Buffer;
    pub(crate) use lab::transport::comm::{RecvBuffer, RecvComm, Region, Request, SendComm};
    pub(crate) use lab::transport::deadline::{Deadline, finished, posted};
    pub(crate) use lab::transport::{Handle, Listener, Transport};
    pub(crate) use std::sync::Arc;
    pub(crate) use std::time::{Duration, Instant};
    pub(crate) use testkit::crash::in_child_that_dies;
    pub(crate) use testkit::dist::{dist, plugin};
    pub(crate) use testkit::{Missing, Scratch, cases, program, require, wait_until};
}

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
