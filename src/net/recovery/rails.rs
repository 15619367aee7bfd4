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

/// How long a rail is not used after it has failed; with each further failure it is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Rails on which queue pairs could not be created or connected although their ports are active: they are not used for a while, as
/// long as there are others.
#[derive(Debug, Default)]
pub struct FailedRails {
    /// By rail number: the end of its pause, and how long that is.
    pauses: [Option<(Instant, Duration)>; MAX_RAILS],
}

impl FailedRails {
    /// Rail `number` has failed.
    pub fn handle_failure(&mut self, now: Instant, number: u8) {
        let pause = &mut self.pauses[usize::from(number) % MAX_RAILS];
        let length = pause.map_or(FIRST_PAUSE, |(_, length)| (2 * length).min(LONGEST_PAUSE));
        *pause = Some((now + length, length));
    }

    /// The connection runs over `rails`.
    pub fn handle_success(&mut self, rails: RailMask) {
        rails.iter().for_each(|number| self.pauses[usize::from(number) % MAX_RAILS] = None);
    }

    /// Those of `usable` that need not pause; all of them, if all have to.
    pub fn keep_out(&self, now: Instant, usable: RailMask) -> RailMask {
        let pauses = |number: &u8| self.pauses[usize::from(*number) % MAX_RAILS].is_some_and(|(end, _)| end > now);
        let rest = usable.iter().filter(pauses).fold(usable, |rest, number| rest - RailMask::only(number));
        if rest.is_empty() { usable } else { rest }
    }

    /// Whether any has failed since it was used last.
    pub fn is_any(&self) -> bool {
        self.pauses.iter().any(Option::is_some)
    }

    /// When the next pause ends after `now`.
    pub fn next_end(&self, now: Instant) -> Option<Instant> {
        self.pauses.iter().flatten().map(|(end, _)| *end).filter(|end| *end > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_that_fails_is_kept_out_for_longer_each_time_until_it_is_used() {
        let (mut failed, now, both) = (FailedRails::default(), Instant::now(), RailMask::first(2));
        let one = RailMask::only(1);
        for length in [1, 2, 4] {
            failed.handle_failure(now, 1);
            let end = now + Duration::from_secs(length);
            assert_eq!((failed.keep_out(now, both), failed.next_end(now)), (RailMask::only(0), Some(end)));
            assert_eq!((failed.keep_out(end, both), failed.next_end(end)), (both, None));
        }
        assert_eq!(failed.keep_out(now, one), one, "there is no other");
        failed.handle_failure(now, 0);
        assert_eq!(failed.keep_out(now, both), both, "there is no other");
        failed.handle_success(one);
        assert_eq!(failed.keep_out(now, both), one);
    }
}
