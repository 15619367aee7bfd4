//! Which rails of a device can be used at present.

use crate::net::device::nic::Nic;
use crate::net::device::rail::LocalAddress;
use crate::net::qp::set::QpSet;
use crate::proto::MAX_RAILS;
use crate::proto::recovery::rail_mask::RailMask;

/// The rails of a connection, with the addresses that they had when it was set up.
#[derive(Debug, Clone)]
pub struct ConnRails {
    /// By rail number: this end's address, and the peer's GID.
    known: [Option<(LocalAddress, [u8; 16])>; MAX_RAILS],
}

impl ConnRails {
    /// Those of `qps`.
    pub fn of(qps: &QpSet) -> Self {
        let mut known = [None; MAX_RAILS];
        for (on, far) in qps.rails.iter().zip(&qps.remote.rails) {
            known[usize::from(on.number) % MAX_RAILS] = Some((on.address, far.gid));
        }
        Self { known }
    }

    /// All of them.
    pub fn all(&self) -> RailMask {
        self.mask(|_| true)
    }

    /// Those whose port is active and has an address of the same kind as before. A RoCE port has its link-local GID at once when it
    /// comes up, and that of its IP address later: the former may not reach the peer.
    pub fn usable(&self, nic: &Nic) -> RailMask {
        self.mask(|number| {
            let (Some((before, peer)), Some(rail)) = (self.known[number], nic.rails.get(number)) else { return false };
            rail.address_towards(Some(peer)).is_ok_and(|now| are_of_one_kind(&before, &now))
        })
    }

    fn mask(&self, is_in: impl Fn(usize) -> bool) -> RailMask {
        let bits = (0..MAX_RAILS).filter(|number| self.known[*number].is_some() && is_in(*number));
        RailMask(bits.fold(0, |mask, number| mask | 1 << number))
    }
}

fn are_of_one_kind(before: &LocalAddress, now: &LocalAddress) -> bool {
    before.port.is_infiniband() || now.gid.is_like(&before.gid)
}
