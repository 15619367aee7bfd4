//! Log lines of recoveries: one line for all connections that recover at the same time.

use super::rails::ConnRails;
use crate::net::device::nic::Nic;
use crate::net::peer::state::PeerState;
use crate::proto::QpIndex;
use crate::proto::automatic_lanes::LaneChange;
use crate::proto::recovery::rail_mask::RailMask;
use std::time::Duration;

/// The connection of `nic` to `peer` recovers from `cause`.
pub(super) fn warn_of_fault(nic: &Nic, peer: &PeerState, cause: &str) {
    let text = format!("{}: connection to {} is recovering: {cause}", nic.name, peer.peer());
    match nic.notices.line_unless_repeated("fault", &text) {
        Some(line) => log::warn!("{line}"),
        None => log::debug!("{text}"),
    }
}

/// Packets larger than this many bytes are lost because of `cause`; the connection now uses smaller
/// ones.
pub(super) fn warn_of_mtu(nic: &Nic, peer: &PeerState, cause: &str, bytes: u32) {
    let text = format!(
        "{}: {cause}; the connection to {} now uses packets of up to {bytes} bytes",
        nic.name,
        peer.peer()
    );
    match nic.notices.line("mtu", &text) {
        Some(line) => log::warn!("{line}"),
        None => log::debug!("{text}"),
    }
}

/// The lane of queue pair `qp` moves to another path.
pub(super) fn log_move(nic: &Nic, peer: &PeerState, qp: QpIndex) {
    let text = format!(
        "{}: lane {} of the connection to {} stays slow and moves to another path",
        nic.name,
        qp.0,
        peer.peer()
    );
    match nic.notices.line("path", &text) {
        Some(line) => log::info!("{line}"),
        None => log::debug!("{text}"),
    }
}

/// The connection requests another number of queue pairs.
pub(super) fn log_lanes(nic: &Nic, peer: &PeerState, LaneChange { per_rail, why }: LaneChange) {
    let text = format!(
        "{}: the connection to {} asks for {per_rail} queue pair(s) per rail: {why} (FERRITE_LANES=auto)",
        nic.name,
        peer.peer()
    );
    match nic.notices.line("lanes of a connection", &text) {
        Some(line) => log::info!("{line}"),
        None => log::debug!("{text}"),
    }
}

/// The connection does not run yet; `so_far` says why.
pub(super) fn warn_of_delay(nic: &Nic, peer: &PeerState, so_far: &str) {
    let text =
        format!("{}: the connection to {} is still recovering: {so_far}", nic.name, peer.peer());
    if let Some(line) = nic.notices.line("late", &text) {
        log::warn!("{line} (FERRITE_GIVE_UP={} s)", nic.config.give_up_s);
    }
}

/// The connection runs on `in_use` of its `rails` again, after this time and number of attempts.
pub(super) fn log_recovered(
    nic: &Nic,
    peer: &PeerState,
    rails: &ConnRails,
    (duration, attempts, in_use): (Duration, u32, RailMask),
) {
    let all = rails.all();
    let of = match rails.borrowing() {
        Some(rail) => format!(" over the borrowed port {}", rails.names(RailMask::only(rail))),
        None if in_use == all => String::new(),
        None => format!(" on rail(s) {in_use} of {all}"),
    };
    let (name, peer, ms) = (&nic.name, peer.peer(), duration.as_millis());
    let text =
        format!("{name}: connection to {peer} recovered{of} in {ms} ms ({attempts} attempt(s))");
    match nic.notices.line("recovered", &text) {
        Some(line) => log::info!("{line}"),
        None => log::debug!("{text}"),
    }
}
