//! The identities of both ends of a new connection: for the peer, for messages, and for the
//! statistics.

use crate::error::Result;
use crate::host::{launcher, sysfs};
use crate::net::background::periodic::PeriodicTask;
use crate::net::control::driver::ControlDriver;
use crate::net::control::fork::process_id;
use crate::net::device::nic::Nic;
use crate::net::qp::set::QpSet;
use crate::proto::handle::Token;
use crate::proto::identity::Identity;
use crate::stats::process;
use crate::stats::record::{ConnStats, Direction, Opening};
use std::sync::{Arc, LazyLock};

/// This process.
pub(super) fn own() -> Identity {
    Identity {
        host: sysfs::host_name().to_owned(),
        pid: process_id(),
        rank: process::own_rank(),
        label: launcher::rank().map(|(_, rank)| rank),
    }
}

/// Runs stall detection on a watcher while there are connections.
#[derive(Debug)]
struct StallCheck;

impl PeriodicTask for StallCheck {
    fn run(&self) -> bool {
        process::check_stalls()
    }
}

/// A number for the connection whose sender, process `sender`, sent these in its hello: both ends
/// know them. It does not reveal the token.
pub(super) fn connection_number(token: &Token, ring: u64, sender: u32) -> u64 {
    let bytes = token.iter().copied().chain(ring.to_le_bytes()).chain(sender.to_le_bytes());
    // FNV-1a.
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    hash.max(1)
}

/// The record of a new end on `nic` whose peer is `peer`, of connection number `connection`.
///
/// # Errors
/// A watcher cannot be started, or the kernel has no memory for it.
pub(super) fn open_stats(
    nic: &Nic,
    control: &Arc<ControlDriver>,
    direction: Direction,
    peer: &Identity,
    qps: &QpSet,
    connection: u64,
) -> Result<ConnStats> {
    static STALL_LOOK: LazyLock<Arc<dyn PeriodicTask>> = LazyLock::new(|| Arc::new(StallCheck));
    let stats = ConnStats::open(&Opening {
        direction,
        device: &nic.name,
        peer_host: &peer.host,
        peer_pid: peer.pid,
        peer_rank: peer.rank,
        peer_label: peer.label,
        connection,
    });
    qps.record_in(&stats);
    nic.watch_set_up(control, Some(&STALL_LOOK))?;
    Ok(stats)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends must compute the same, also across releases. The value is FNV-1a of the 28 bytes,
    /// computed by another program.
    #[test]
    fn the_number_of_a_connection_is_the_fnv_1a_of_its_hello() {
        let token = std::array::from_fn(|index| index as u8);
        assert_eq!(connection_number(&token, 0x1122_3344_5566_7788, 4711), 0x336c_f275_5ad3_3d5c);
    }
}
