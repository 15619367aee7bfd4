//! Who the two ends of a new connection are: for the peer, for messages, and for the statistics.

use crate::host::{launcher, sysfs};
use crate::net::device::nic::Nic;
use crate::net::qp::set::QpSet;
use crate::proto::identity::Identity;
use crate::stats::process;
use crate::stats::record::{ConnStats, Direction, Opening};

/// This process.
pub(super) fn own() -> Identity {
    Identity {
        host: sysfs::host_name().to_owned(),
        pid: std::process::id(),
        rank: process::own_rank(),
        label: launcher::rank().map(|(_, rank)| rank),
    }
}

/// The record of a new end on `nic` whose peer is `peer`.
pub(super) fn open_stats(nic: &Nic, direction: Direction, peer: &Identity, qps: &QpSet) -> ConnStats {
    let stats = ConnStats::open(&Opening {
        direction,
        device: &nic.name,
        peer_host: &peer.host,
        peer_pid: peer.pid,
        peer_rank: peer.rank,
        peer_label: peer.label,
    });
    qps.tell(&stats);
    stats
}
