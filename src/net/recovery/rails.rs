//! Which rails of a device are usable at present.

use super::devices::ConnDevices;
use crate::error::{Error, Result};
use crate::host::gid;
use crate::net::device::card_port::{CardPort, LocalAddress};
use crate::net::device::conn_memory::ConnMemory;
use crate::net::device::nic::Nic;
use crate::net::device::pairing::{Nearness, PairingInputs, Pairs, pair};
use crate::net::qp::init_rail::RailPort;
use crate::net::qp::set::QpSet;
use crate::proto::MAX_RAILS;
use crate::proto::endpoint::Endpoint;
use crate::proto::recovery::machine::Role;
use crate::proto::recovery::rail_history::wait_after_failures;
use crate::proto::recovery::rail_mask::RailMask;
use crate::verbs::clock;
use std::sync::Arc;
use std::time::Instant;

/// A rail that is not used for a while.
#[derive(Debug)]
struct Avoided {
    /// When the latest attempt over it failed.
    since: Instant,
    /// How many have failed in a row.
    failures: u32,
    /// Whether the connection has never run on it, and its port has reported no change since.
    waits_long: bool,
}

impl Avoided {
    fn until(&self) -> Instant {
        self.since + wait_after_failures(self.failures, !self.waits_long)
    }
}

/// The rails of a connection, with the addresses that they had when it was set up.
#[derive(Debug)]
pub struct ConnRails {
    nic: Arc<Nic>,
    role: Role,
    all: RailMask,
    /// By rail number: this end's address when the connection was set up.
    known: [Option<LocalAddress>; MAX_RAILS],
    /// By rail number: the peer's GID, if known. A GID from before the peer lost the rail does not
    /// count.
    far: [Option<[u8; 16]>; MAX_RAILS],
    /// By the peer's port: its GID when it listened, if known.
    listened: [Option<[u8; 16]>; MAX_RAILS],
    /// The device's own port of each rail. The receiver may choose another when there are no queue
    /// pairs.
    pairs: Pairs,
    /// The rails that the connection has run on, and the own ports that it has run over last.
    run: RailMask,
    run_pairs: Pairs,
    /// Whether the ends were in different networks at set-up.
    is_routed: bool,
    /// By rail number: until when a rail is not used because queue pairs could not be made there,
    /// and how often in a row that was.
    avoided: [Option<Avoided>; MAX_RAILS],
    /// The devices that they are on.
    pub devices: ConnDevices,
}

impl ConnRails {
    /// The rails of a connection of `count` rails that begins on `qps`, of `nic`, at the end with
    /// this `role`. The others are tried after a while.
    pub fn of(nic: &Arc<Nic>, role: Role, count: u8, qps: &QpSet) -> Self {
        let (mut known, mut far) = ([None; MAX_RAILS], [None; MAX_RAILS]);
        let mut pairs = if role == Role::Sender { Pairs::same_places() } else { Pairs::default() };
        let mut is_routed = true;
        for (on, end) in qps.rails.iter().zip(&qps.remote.rails) {
            let number = usize::from(on.number) % MAX_RAILS;
            (known[number], far[number]) = (Some(on.address), Some(end.gid));
            is_routed &= on.port.nearness_of(&on.address, &end.gid) != Nearness::Near;
            pairs.set(on.number, nic.ports.iter().position(|own| Arc::ptr_eq(own, &on.port)));
        }
        let devices = ConnDevices::of(nic, qps);
        let (all, avoided, run) =
            (RailMask::first(count), Default::default(), qps.striping.rail_numbers());
        let (nic, listened) =
            (Arc::clone(nic), qps.listened.map(|gid| Some(gid).filter(|gid| *gid != [0; 16])));
        let mut this = Self {
            nic,
            role,
            all,
            known,
            far,
            listened,
            pairs,
            run,
            run_pairs: pairs,
            is_routed,
            avoided,
            devices,
        };
        (all - run).iter().for_each(|rail| this.avoid(rail));
        this
    }

    /// All rails.
    pub fn all(&self) -> RailMask {
        self.all
    }

    /// Whether the choice of local ports depends on what the peer can use.
    pub fn depend_on_peer(&self) -> bool {
        self.role == Role::Receiver && (self.nic.ports.len() > 1 || self.all.count() > 1)
    }

    /// Learns the addresses of `remote`, the peer, on these `rails`; it can use the rails `peer`.
    /// There are no queue pairs.
    pub fn learn(&mut self, peer: RailMask, rails: RailMask, remote: &Endpoint) {
        let before = self.far;
        for (rail, end) in rails.iter().zip(&remote.rails) {
            self.far[usize::from(rail) % MAX_RAILS] = Some(end.gid);
        }
        if self.role == Role::Receiver && self.far != before {
            self.pair(peer, RailMask::NONE);
        }
    }

    /// The rails whose port is active and has an address of the same kind as before.
    pub fn usable(&self) -> RailMask {
        let usable = self
            .mask(|number| self.port(number).is_some_and(|port| self.is_addressable(number, port)));
        let now = clock::now();
        let wanted = self.mask(|number| {
            self.avoided[number].as_ref().is_none_or(|avoided| avoided.until() <= now)
        });
        // A rail that may work is better than none.
        if (usable & wanted).is_empty() { usable } else { usable & wanted }
    }

    /// Checks whether lost devices are back. `peer` is the mask of rails that the peer can use,
    /// `fixed` that of rails with queue pairs.
    pub fn reopen_lost(&mut self, memory: &ConnMemory, (peer, fixed): (RailMask, RailMask)) {
        self.devices.reopen_lost(memory);
        // The peer's address may have changed on a rail that was tried and has no port here.
        // Another try learns it.
        let (now, mut forgotten) = (clock::now(), self.all - peer);
        if self.role == Role::Receiver {
            let is_due = |number: usize| {
                self.avoided[number].as_ref().is_some_and(|avoided| avoided.until() <= now)
            };
            forgotten = forgotten | (self.mask(is_due) - self.pairs.rails());
        }
        forgotten.iter().for_each(|rail| self.far[usize::from(rail) % MAX_RAILS] = None);
        if self.role == Role::Receiver {
            self.pair(peer, fixed);
        }
    }

    /// Chooses a port for each rail that is not `fixed`, for a peer that can use the rails `peer`.
    fn pair(&mut self, peer: RailMask, fixed: RailMask) {
        if !self.depend_on_peer() {
            return;
        }
        let towards = (0..).zip(&self.nic.ports).map(|(place, port)| {
            let near = port.nearness(&self.far).ok().filter(|_| self.devices.is_ready(place))?;
            let is_like = |(number, (address, near))| {
                if self.is_like(number, &address) { near } else { Nearness::Impossible }
            };
            Some((0..).zip(near).map(is_like).collect::<Vec<_>>())
        });
        let table: Vec<_> = towards.collect();
        let near_to = |rail: u8, port: usize| {
            let known = table
                .get(port)
                .and_then(Option::as_ref)
                .and_then(|near| near.get(usize::from(rail)));
            known.copied().unwrap_or(Nearness::Impossible)
        };
        // Two rails that have not run may be in different networks, which was unknown when they
        // were paired.
        let mut before = self.run_pairs;
        fixed.iter().for_each(|rail| before.set(rail, self.pairs.port_of(rail)));
        let wanted = PairingInputs {
            all: self.all,
            peer,
            fixed,
            before: &before,
            may_be_far: self.is_routed,
            ports: self.nic.ports.len(),
        };
        let mut pairs = pair(wanted, near_to);
        // A rail whose port is unusable now keeps it unless another rail takes it.
        for rail in (self.all - pairs.rails()).iter() {
            let is_free =
                |port: &usize| !self.all.iter().any(|other| pairs.port_of(other) == Some(*port));
            pairs.set(rail, before.port_of(rail).filter(is_free));
        }
        self.pairs = pairs;
    }

    /// The ports of the rails with these `numbers`.
    ///
    /// # Errors
    /// A rail has no port.
    pub fn ports(&self, numbers: RailMask) -> Result<Vec<RailPort>> {
        let on = |number: u8| {
            let port = self.port(number.into()).map(Arc::clone);
            let port = port.ok_or_else(|| {
                Error::system(format!("rail {number} has no local port")).on_rail(number)
            })?;
            Ok(RailPort { number, port, towards: self.towards(number.into()) })
        };
        numbers.iter().map(on).collect()
    }

    /// The port of rail number `number`.
    pub fn port(&self, number: usize) -> Option<&Arc<CardPort>> {
        self.nic.ports.get(self.pairs.port_of(u8::try_from(number).ok()?)?)
    }

    /// The peer's GID of rail number `number`. If unknown: the GID of its port of this number when
    /// it listened, and those of other rails.
    fn towards(&self, number: usize) -> Vec<[u8; 16]> {
        match self.far[number % MAX_RAILS] {
            Some(gid) => vec![gid],
            None => self.listened[number % MAX_RAILS]
                .iter()
                .chain(self.far.iter().flatten())
                .copied()
                .collect(),
        }
    }

    /// The ports of these rails, for messages.
    pub fn names(&self, numbers: RailMask) -> String {
        let ports = numbers.iter().filter_map(|number| self.port(number.into()));
        ports.map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Avoids rail number `rail` for a while if another is usable: its queue pairs could not be
    /// created.
    pub fn avoid(&mut self, rail: u8) {
        let waits_long = !self.run.contains(rail);
        let Some(avoided) = self.avoided.get_mut(usize::from(rail)) else { return };
        let failures = avoided.as_ref().map_or(0, |avoided| avoided.failures).saturating_add(1);
        *avoided = Some(Avoided { since: clock::now(), failures, waits_long });
    }

    /// A port came up, or has other addresses: a rail that has never run waits no longer than one
    /// that has.
    pub fn shorten_waits(&mut self) {
        self.avoided.iter_mut().flatten().for_each(|avoided| avoided.waits_long = false);
    }

    /// Records that the connection runs on `rails`: queue pairs can be created there.
    pub fn handle_running(&mut self, rails: RailMask) {
        self.run = self.run | rails;
        rails.iter().for_each(|rail| self.run_pairs.set(rail, self.pairs.port_of(rail)));
        rails
            .iter()
            .filter_map(|rail| self.avoided.get_mut(usize::from(rail)).map(Option::take))
            .for_each(drop);
    }

    /// Whether a rail is avoided, or was and has not been used again.
    pub fn has_avoided(&self) -> bool {
        self.avoided.iter().any(Option::is_some)
    }

    /// The next time after `looked` at which an avoided rail may be used, or a device may be back.
    /// A time that has passed since [`Self::reopen_lost`] counts.
    pub fn next_change(&self, looked: Instant) -> Option<Instant> {
        let avoided =
            self.avoided.iter().flatten().map(Avoided::until).filter(|until| *until > looked);
        avoided.chain(self.devices.next_look()).min()
    }

    /// Whether `port` is active, has an address compatible with that of rail number `number`, and
    /// its device knows the memory.
    fn is_addressable(&self, number: usize, port: &Arc<CardPort>) -> bool {
        let place = self.nic.ports.iter().position(|own| Arc::ptr_eq(own, port));
        place.is_some_and(|place| self.devices.is_ready(place))
            && port.address_now(&self.towards(number)).is_ok_and(|now| self.is_like(number, &now))
    }

    /// Whether the address `now` is of the same kind as the earlier one of rail number `number`, or
    /// may reach the peer's. A RoCE port has its link-local GID as soon as it comes up, and the GID
    /// of its IP address later. The former may not reach the peer. The peer's address may be
    /// unknown: other rails may be in networks of other kinds.
    fn is_like(&self, number: usize, now: &LocalAddress) -> bool {
        if now.port.is_infiniband() {
            return true;
        }
        match (self.known[number % MAX_RAILS], self.far[number % MAX_RAILS]) {
            (Some(before), _) => now.gid.is_like(&before.gid),
            (None, Some(far)) => gid::are_of_one_kind(&now.gid.gid, &far),
            (None, None) => {
                !now.gid.is_link_local()
                    || self.known.iter().flatten().all(|before| before.gid.is_link_local())
            }
        }
    }

    fn mask(&self, is_in: impl Fn(usize) -> bool) -> RailMask {
        let numbers = self.all.iter().filter(|number| is_in(usize::from(*number)));
        numbers.fold(RailMask::NONE, |mask, number| mask | RailMask::only(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_rail_that_has_never_run_waits_no_longer_than_others_after_its_port_has_changed() {
        let since = Instant::now();
        let mut new = Avoided { since, failures: 7, waits_long: true };
        assert_eq!(new.until(), since + Duration::from_secs(3600));
        // As `shorten_waits` does.
        new.waits_long = false;
        assert_eq!(new.until(), since + Duration::from_secs(60));
    }
}
