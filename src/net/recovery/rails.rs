//! Which rails of a device can be used at present.

use super::devices::ConnDevices;
use super::spare::{SparePort, Wanted};
use crate::host::gid;
use crate::net::control::port_listeners::PortListener;
use crate::net::device::conn_memory::ConnMemory;
use crate::net::device::nic::Nic;
use crate::net::device::rail::{LocalAddress, Rail};
use crate::net::qp::set::QpSet;
use crate::proto::MAX_RAILS;
use crate::proto::recovery::action::Role;
use crate::proto::recovery::rail_mask::RailMask;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The rails of a connection, with the addresses that they had when it was set up, and the port that stands in for one of them.
#[derive(Debug)]
pub struct ConnRails {
    nic: Arc<Nic>,
    /// By rail number: this end's address, and the peer's GID.
    known: [Option<(LocalAddress, [u8; 16])>; MAX_RAILS],
    /// By rail number: until when a rail is not used because queue pairs could not be made there, and for how long that was.
    avoided: [Option<(Instant, Duration)>; MAX_RAILS],
    /// The devices that they are on.
    pub devices: ConnDevices,
    spare: SparePort,
}

/// How long a rail is not used after queue pairs could not be made there. Each time it is twice as long.
const FIRST_AVOIDED: Duration = Duration::from_secs(1);
const LONGEST_AVOIDED: Duration = Duration::from_secs(60);

impl ConnRails {
    /// Those of `qps`, of `nic`, at the end with this `role`.
    pub fn of(nic: &Arc<Nic>, role: Role, qps: &QpSet) -> Self {
        let mut known = [None; MAX_RAILS];
        for (on, far) in qps.rails.iter().zip(&qps.remote.rails) {
            known[usize::from(on.number) % MAX_RAILS] = Some((on.address, far.gid));
        }
        let (devices, spare) = (ConnDevices::of(nic, qps), SparePort::new(role));
        Self { nic: Arc::clone(nic), known, avoided: [None; MAX_RAILS], devices, spare }
    }

    /// All of them.
    pub fn all(&self) -> RailMask {
        self.mask(|_| true)
    }

    /// Those whose port is active and has an address of the same kind as before. A RoCE port has its link-local GID at once when it
    /// comes up, and that of its IP address later: the former may not reach the peer.
    pub fn usable(&self) -> RailMask {
        let usable = self.mask(|number| self.port(number).is_some_and(|port| self.is_addressable(number, port)));
        let now = Instant::now();
        let wanted = self.mask(|number| self.avoided[number].is_none_or(|(until, _)| until <= now));
        // A rail that may work is better than none.
        if (usable & wanted).is_empty() { usable } else { usable & wanted }
    }

    /// Looks whether devices that were lost are back, and whether a port is to be borrowed, or given back. The latter happens only if the connection `is_at_rest`: it has no queue pairs,
    /// not even of an attempt. `peer` are the rails that the peer can use, `listener` is told of the port's events.
    pub fn look(&mut self, memory: &ConnMemory, listener: &Weak<dyn PortListener>, peer: RailMask, is_at_rest: bool) {
        self.devices.look(memory);
        if self.nic.spares.is_empty() {
            return;
        }
        let own = self.mask(|number| self.nic.rails.get(number).is_some_and(|own| self.is_addressable(number, own)));
        self.spare.handle_own(!own.is_empty());
        if !is_at_rest {
            return;
        }
        // Meanwhile there is one that has borrowed nothing.
        let mut spare = std::mem::replace(&mut self.spare, SparePort::new(Role::Sender));
        let rail = (self.all() & peer).iter().next().or_else(|| self.all().iter().next()).unwrap_or_default();
        spare.settle(memory, |port| self.is_addressable(rail.into(), port));
        spare.borrow(Wanted { rail, nic: &self.nic, memory, listener }, |port| self.is_near(rail.into(), port));
        self.spare = spare;
    }

    /// The ports of the rails with these `numbers`, on which `attempt` makes queue pairs.
    pub fn ports_for_attempt(&mut self, attempt: u32, numbers: RailMask) -> Vec<(u8, Arc<Rail>)> {
        self.spare.handle_attempt(attempt);
        numbers.iter().filter_map(|number| Some((number, Arc::clone(self.port(number.into())?)))).collect()
    }

    /// The port of rail number `number`: its own, or the one that stands in for it.
    pub fn port(&self, number: usize) -> Option<&Arc<Rail>> {
        let spare = u8::try_from(number).ok().and_then(|number| self.spare.of_rail(number));
        spare.or_else(|| self.nic.rails.get(number))
    }

    /// For messages: the ports of these rails.
    pub fn names(&self, numbers: RailMask) -> String {
        let ports = numbers.iter().filter_map(|number| self.port(number.into()));
        ports.map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The rail that a port of another card stands in for.
    pub fn borrowing(&self) -> Option<u8> {
        self.spare.rail()
    }

    /// Whether the connection ought to go back to an own port.
    pub fn is_loan_over(&self) -> bool {
        self.spare.is_over()
    }

    /// Queue pairs could not be made on rail number `rail`: while another one can be used, it is not used for a while.
    pub fn avoid(&mut self, rail: u8) {
        let Some(avoided) = self.avoided.get_mut(usize::from(rail)) else { return };
        let time = avoided.map_or(FIRST_AVOIDED, |(_, time)| (2 * time).min(LONGEST_AVOIDED));
        *avoided = Some((Instant::now() + time, time));
    }

    /// The connection runs on `rails`: queue pairs can be made there.
    pub fn handle_running(&mut self, rails: RailMask) {
        self.spare.handle_running();
        rails.iter().filter_map(|rail| self.avoided.get_mut(usize::from(rail)).map(Option::take)).for_each(drop);
    }

    /// Whether a rail is not used, or has not been used again.
    pub fn has_avoided(&self) -> bool {
        self.avoided.iter().any(Option::is_some)
    }

    /// When a rail may be used again that is not used for a while, a device be back, or a port be borrowed or given back.
    pub fn next_change(&self) -> Option<Instant> {
        let now = Instant::now();
        let avoided = self.avoided.iter().flatten().map(|(until, _)| *until).filter(|until| *until > now);
        avoided.chain(self.spare.next_change()).chain(self.devices.next_look()).min()
    }

    /// Whether `port` is active, has an address like that which rail number `number` had before, and its device knows the memory.
    fn is_addressable(&self, number: usize, port: &Arc<Rail>) -> bool {
        let Some((before, peer)) = self.known[number] else { return false };
        let is_own = self.nic.rails.get(number).is_some_and(|own| Arc::ptr_eq(own, port));
        let is_ready = if is_own { self.devices.is_ready(number) } else { self.spare.is_ready(port) };
        is_ready && port.address_towards(Some(peer)).is_ok_and(|now| are_of_one_kind(&before, &now))
    }

    /// Whether `port`, in place of rail number `number`, is in the network of the peer. `None`: it cannot be used.
    fn is_near(&self, number: usize, port: &Rail) -> Option<bool> {
        let (before, peer) = self.known[number]?;
        let now = port.address_towards(Some(peer)).ok().filter(|now| are_of_one_kind(&before, now))?;
        Some(port.infiniband || gid::are_in_one_network(&now.gid.gid, &peer, port.config.subnet_bits))
    }

    fn mask(&self, is_in: impl Fn(usize) -> bool) -> RailMask {
        let bits = (0..MAX_RAILS).filter(|number| self.known[*number].is_some() && is_in(*number));
        RailMask(bits.fold(0, |mask, number| mask | 1 << number))
    }
}

fn are_of_one_kind(before: &LocalAddress, now: &LocalAddress) -> bool {
    before.port.is_infiniband() || now.gid.is_like(&before.gid)
}
