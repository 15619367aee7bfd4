//! Which rails of a device can be used at present.

use crate::net::device::nic::Nic;
use crate::net::device::rail::LocalAddress;
use crate::net::qp::set::QpSet;
use crate::proto::MAX_RAILS;
use crate::proto::recovery::rail_mask::RailMask;
use std::time::{Duration, Instant};

/// The rails of a connection, with the addresses that they had when it was set up.
#[derive(Debug, Clone)]
pub struct ConnRails {
    /// By rail number: this end's address, and the peer's GID.
    known: [Option<(LocalAddress, [u8; 16])>; MAX_RAILS],
    /// By rail number: until when a rail is not used because queue pairs could not be made there, and for how long that was.
    avoided: [Option<(Instant, Duration)>; MAX_RAILS],
}

/// How long a rail is not used after queue pairs could not be made there. Each time it is twice as long.
const FIRST_AVOIDED: Duration = Duration::from_secs(1);
const LONGEST_AVOIDED: Duration = Duration::from_secs(60);

impl ConnRails {
    /// Those of `qps`.
    pub fn of(qps: &QpSet) -> Self {
        let mut known = [None; MAX_RAILS];
        for (on, far) in qps.rails.iter().zip(&qps.remote.rails) {
            known[usize::from(on.number) % MAX_RAILS] = Some((on.address, far.gid));
        }
        Self { known, avoided: [None; MAX_RAILS] }
    }

    /// All of them.
    pub fn all(&self) -> RailMask {
        self.mask(|_| true)
    }

    /// Those whose port is active and has an address of the same kind as before. A RoCE port has its link-local GID at once when it
    /// comes up, and that of its IP address later: the former may not reach the peer.
    pub fn usable(&self, nic: &Nic) -> RailMask {
        let usable = self.addressable(nic);
        let now = Instant::now();
        let wanted = self.mask(|number| self.avoided[number].is_none_or(|(until, _)| until <= now));
        // A rail that may work is better than none.
        if (usable & wanted).is_empty() { usable } else { usable & wanted }
    }

    /// Queue pairs could not be made on rail number `rail`: while another one can be used, it is not used for a while.
    pub fn avoid(&mut self, rail: u8) {
        let Some(avoided) = self.avoided.get_mut(usize::from(rail)) else { return };
        let time = avoided.map_or(FIRST_AVOIDED, |(_, time)| (2 * time).min(LONGEST_AVOIDED));
        *avoided = Some((Instant::now() + time, time));
    }

    /// The connection runs on `rails`: queue pairs can be made there.
    pub fn handle_running(&mut self, rails: RailMask) {
        rails.iter().filter_map(|rail| self.avoided.get_mut(usize::from(rail)).map(Option::take)).for_each(drop);
    }

    /// Whether a rail is not used, or has not been used again.
    pub fn has_avoided(&self) -> bool {
        self.avoided.iter().any(Option::is_some)
    }

    /// When a rail may be used again that is not used for a while.
    pub fn next_change(&self) -> Option<Instant> {
        let now = Instant::now();
        self.avoided.iter().flatten().map(|(until, _)| *until).filter(|until| *until > now).min()
    }

    fn addressable(&self, nic: &Nic) -> RailMask {
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
