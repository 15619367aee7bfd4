//! What is told of two ends that have different numbers of rails.

use crate::net::control::peer_name::PeerName;
use crate::net::device::nic::Nic;

/// A connection of `nic` is set up with a `peer` whose device has so many `rails`. Says, once for the device, if that is
/// another number than here. (A sender is told of the rails that are used, and does not see that its receiver has more.)
pub(super) fn warn_of_rails(nic: &Nic, rails: usize, peer: &PeerName) {
    let ours = nic.rails.len();
    if ours != rails && nic.notices.is_first("rails") {
        log::warn!(
            "{}: {ours} rail(s) here, {rails} at {peer}: {} are used. A port may be down, or a device excluded, at one end: each log \
             says at its start which ports are not used and why",
            nic.name,
            ours.min(rails)
        );
    }
}
