//! The rails on which a connection begins, and warnings about the others.
//!
//! A connection that both ends would recover begins on the rails that connect, as one that has
//! recovered: a rail whose port is down, whose device fails, or on which queue pairs cannot be made
//! or connected is left out, and taken in later by the recovery. What may pass while queue pairs
//! are connected is tried again before that, as the user has set, but at most
//! [`RETRIES_BESIDE_OTHERS`] times, since each attempt may take a second, and once, however many
//! rails fail. Only if none is left, they are all tried with patience: that what fails may pass is
//! waited for.

use crate::error::{Class, Error};
use crate::host::config::Retries;
use crate::host::gid;
use crate::net::device::nic::Nic;
use crate::net::device::pairing::{Nearness, PairingInputs, Pairs, pair};
use crate::net::peer::name::PeerName;
use crate::net::qp::init_rail::RailPort;
use crate::proto::endpoint::Endpoint;
use crate::proto::handshake::Hello;
use crate::proto::recovery::rail_mask::RailMask;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How often a rail is tried again while others connect. The first attempt has the kernel resolve
/// the address, and a later one finds it.
const RETRIES_BESIDE_OTHERS: u32 = 2;

/// The rails of a connection that is set up.
#[derive(Debug)]
pub(super) struct Rails {
    /// The rails that it may begin on.
    all: RailMask,
    /// Whether it may begin on a subset.
    may_leave_out: bool,
    /// The rails that are left out, and why.
    left_out: BTreeMap<u8, String>,
    /// Whether to wait for an unusable port or device instead of leaving it out.
    is_patient: bool,
    /// How often to retry connecting a queue pair.
    retries: Retries,
    /// Whether a rail has been left out after all retries: the others have had this time too.
    has_retried: bool,
}

impl Rails {
    /// All of these rails, with the configured `retries`.
    pub(super) fn new(all: RailMask, may_leave_out: bool, retries: Retries) -> Self {
        let is_patient = all.count() < 2 || !may_leave_out;
        Self {
            all,
            may_leave_out,
            left_out: BTreeMap::new(),
            is_patient,
            retries,
            has_retried: false,
        }
    }

    /// The rails that are not left out.
    pub(super) fn chosen(&self) -> RailMask {
        self.left_out.keys().fold(self.all, |chosen, rail| chosen - RailMask::only(*rail))
    }

    /// How often to retry connecting a queue pair now.
    pub(super) fn retries(&self) -> Retries {
        match (self.is_patient, self.has_retried) {
            (true, _) => self.retries,
            (false, false) => {
                Retries { count: self.retries.count.min(RETRIES_BESIDE_OTHERS), ..self.retries }
            }
            (false, true) => Retries::NONE,
        }
    }

    /// Leaves out rail number `rail`, which is unusable for the reason `why`, if others are usable.
    pub(super) fn handle_unusable(&mut self, rail: u8, why: String) {
        self.left_out.insert(rail, why);
    }

    /// Handles a failure. Returns whether to try again at once, without the failed rail or on all
    /// rails patiently.
    pub(super) fn leave_out(&mut self, error: &Error) -> bool {
        let Some(rail) = error.rail.filter(|rail| self.chosen().contains(*rail)) else {
            return false;
        };
        if !self.may_leave_out || matches!(error.class, Class::Usage | Class::Internal) {
            return false;
        }
        if self.chosen().count() > 1 {
            self.has_retried |= !error.is_recoverable && self.retries.apply_to(error.errno);
            self.handle_unusable(rail, error.text());
            return true;
        }
        self.left_out.clear();
        !std::mem::replace(&mut self.is_patient, true)
    }

    /// As [`Self::leave_out`], where the time of the rail that has failed is over. When none is
    /// left, that of all is over.
    pub(super) fn leave_out_late(&mut self, error: &Error) -> bool {
        let has_others = !self.is_patient && self.leave_out(error);
        has_others && !self.is_patient
    }

    /// Whether a port or a device that cannot be used is waited for, as it is for the only rail.
    pub(super) fn is_patient(&self) -> bool {
        self.is_patient
    }

    /// For the peer and the log: the rails that are left out, and why; empty: none is, or there are
    /// too few ports.
    pub(super) fn describe(&self) -> String {
        let told = self.left_out.iter().filter(|(_, why)| !why.is_empty());
        told.map(|(rail, why)| format!("rail {rail}: {why}")).collect::<Vec<_>>().join("; ")
    }
}

/// The ports of `nic` for those rails of the sender of `hello` that are not left out of `rails`.
/// Leaves out rails without a port from now on.
///
/// # Errors
/// No port is usable.
pub(super) fn pair_with(
    nic: &Nic,
    hello: &Hello,
    rails: &mut Rails,
) -> Result<Vec<RailPort>, Error> {
    let chosen = rails.chosen();
    let (pairs, troubles) = pairs_towards(nic, hello, chosen)?;
    if let Some(trouble) = troubles.iter().find(|_| !rails.may_leave_out) {
        return Err(trouble.clone());
    }
    let ends = hello.rails.iter().zip(&hello.endpoint.rails);
    let mut ports = Vec::new();
    for (rail, end) in ends.filter(|(rail, _)| chosen.contains(*rail)) {
        match pairs.port_of(rail).and_then(|port| nic.ports.get(port)) {
            Some(port) => ports.push(RailPort {
                number: rail,
                port: Arc::clone(port),
                towards: vec![end.gid],
            }),
            None => {
                let troubles: Vec<_> = troubles.iter().map(|error| error.text()).collect();
                let because = if troubles.is_empty() {
                    String::new()
                } else {
                    format!(" ({})", troubles.join("; "))
                };
                let (name, address) = (&end.name, gid::address(&end.gid));
                let is_full = usize::from(pairs.rails().count()) == nic.ports.len();
                let why = format!("no port of {} matches {name}, {address}{because}", nic.name);
                rails.handle_unusable(rail, if is_full { String::new() } else { why });
            }
        }
    }
    Ok(ports)
}

/// The ports of `nic` for the `chosen` rails of the sender of `hello`, and why others cannot be used.
///
/// # Errors
/// No port is usable.
fn pairs_towards(nic: &Nic, hello: &Hello, chosen: RailMask) -> Result<(Pairs, Vec<Error>), Error> {
    let (mut pairs, mut troubles) = (Pairs::default(), Vec::new());
    if nic.ports.len() == 1 && chosen.count() == 1 {
        chosen.iter().for_each(|rail| pairs.set(rail, Some(0)));
        return Ok((pairs, troubles));
    }
    let gids: Vec<_> = hello.endpoint.rails.iter().map(|end| Some(end.gid)).collect();
    let mut nearness = Vec::new();
    for (rail, port) in (0..).zip(&nic.ports) {
        nearness.push(port.nearness(&gids).map_err(|e| troubles.push(e.on_rail(rail))).ok());
    }
    let wanted = PairingInputs {
        all: chosen,
        peer: chosen,
        fixed: RailMask::NONE,
        before: &Pairs::default(),
        // No recovery adds a rail later, and a router may join the networks.
        may_be_far: !nic.config.failover,
        ports: nic.ports.len(),
    };
    let near_to = |rail: u8, port: usize| {
        let place = hello.rails.iter().position(|number| number == rail);
        let known = nearness.get(port).and_then(Option::as_ref);
        let known = known.zip(place).and_then(|(known, place)| known.get(place));
        known.map_or(Nearness::Impossible, |(_, nearness)| *nearness)
    };
    pairs = pair(wanted, near_to);
    if pairs.rails().is_empty() {
        // Not even the kinds of addresses match: connecting reports the error.
        let usable = |rail: u8, port: usize| match nearness.get(port) {
            Some(Some(_)) if usize::from(rail) == port => Nearness::Far,
            _ => Nearness::Impossible,
        };
        pairs = pair(wanted, usable);
    }
    if pairs.rails().is_empty() {
        return Err(troubles.into_iter().next().unwrap_or_else(|| Error::internal("no rail")));
    }
    Ok((pairs, troubles))
}

/// Warns that a connection of `nic` with `peer` begins on `rails` of `count`. `ours` and `theirs`
/// are the reasons known at this end and at the peer.
pub(super) fn warn_of_left_out(
    nic: &Nic,
    peer: &PeerName,
    (rails, count): (RailMask, u8),
    ours: &str,
    theirs: &str,
) {
    if ours.is_empty() && theirs.is_empty() {
        return;
    }
    let at_peer = if theirs.is_empty() { String::new() } else { format!("at the peer: {theirs}") };
    let why: Vec<_> =
        [ours, at_peer.as_str()].into_iter().filter(|text| !text.is_empty()).collect();
    let text = format!(
        "{}: the connection with {peer} begins on rail(s) {rails} of {count}; left out until they connect: {}",
        nic.name,
        why.join("; ")
    );
    match nic.notices.line_unless_repeated("left out", &text) {
        Some(line) => log::warn!("{line}"),
        None => log::debug!("{text}"),
    }
}

/// The rails of an end with GIDs that no packet from any of `peers` reaches; `None` if there is
/// none.
pub(super) fn cut_off(endpoint: &Endpoint, peers: &[[u8; 16]]) -> Option<usize> {
    let reaches = |gid: &[u8; 16]| peers.iter().any(|peer| gid::are_of_one_kind(gid, peer));
    endpoint.rails.iter().position(|end| !end.infiniband && !peers.is_empty() && !reaches(&end.gid))
}

/// Warns once per device if a `peer` has another number of `rails` than `nic`. (A sender only
/// learns of the rails in use, and not that its receiver has more.)
pub(super) fn warn_of_rails(nic: &Nic, rails: usize, peer: &PeerName) {
    let ours = nic.ports.len();
    if ours != rails && nic.notices.is_first("rails") {
        log::warn!(
            "{}: {ours} rail(s) here, {rails} at {peer}: {} are used. A port may be down, or a device excluded, at one end: each log \
             says at its start which ports are not used and why",
            nic.name,
            ours.min(rails)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIGURED: Retries = Retries { all: false, count: 7, pause_ms: 100 };

    fn failure(rail: u8) -> Error {
        Error::system(format!("no on {rail}")).on_rail(rail)
    }

    #[test]
    fn what_fails_is_left_out_as_long_as_others_are_left_and_then_all_are_tried_with_patience() {
        let mut rails = Rails::new(RailMask::first(2), true, CONFIGURED);
        assert!(rails.leave_out(&failure(0)));
        assert_eq!(
            (rails.chosen(), rails.describe()),
            (RailMask::only(1), "rail 0: no on 0".into())
        );
        assert!(rails.leave_out(&failure(1)), "from the beginning");
        assert_eq!((rails.chosen(), rails.is_patient), (RailMask::first(2), true));
        assert!(rails.leave_out(&failure(1)) && !rails.leave_out(&failure(0)), "none is left");
        assert_eq!(rails.chosen(), RailMask::first(2), "they may be tried later");
    }

    /// An error that passes while the first rail is retried passes for the others too.
    #[test]
    fn connecting_is_tried_again_a_few_times_before_a_rail_is_left_out_and_once_for_all() {
        let unresolved = |rail| Error::os("connecting", libc::ETIMEDOUT).on_rail(rail);
        let down = |rail| Error::os("using a port", libc::ENETDOWN).recoverable().on_rail(rail);
        let mut rails = Rails::new(RailMask::first(4), true, CONFIGURED);
        let beside_others = Retries { count: RETRIES_BESIDE_OTHERS, ..CONFIGURED };
        assert_eq!(rails.retries(), beside_others);
        assert!(rails.leave_out(&down(0)) && rails.leave_out(&failure(1)));
        assert_eq!(rails.retries(), beside_others, "nothing has been tried again");
        assert!(rails.leave_out(&unresolved(2)));
        assert_eq!((rails.chosen(), rails.retries()), (RailMask::only(3), Retries::NONE));
        assert!(rails.leave_out(&unresolved(3)));
        assert_eq!(
            (rails.chosen(), rails.retries()),
            (RailMask::first(4), CONFIGURED),
            "none is left"
        );
    }

    #[test]
    fn rails_that_are_tried_with_patience_have_no_time_of_their_own() {
        let late = |rail| Error::os("connecting", libc::ETIMEDOUT).on_rail(rail);
        let mut rails = Rails::new(RailMask::first(2), true, CONFIGURED);
        assert!(rails.leave_out_late(&late(0)) && !rails.is_patient());
        assert!(!rails.leave_out_late(&late(1)), "both have had theirs");
        let mut patient = Rails::new(RailMask::first(2), true, CONFIGURED);
        assert!(
            patient.leave_out(&failure(0))
                && patient.leave_out(&failure(1))
                && patient.is_patient()
        );
        assert!(!patient.leave_out_late(&late(0)));
    }

    #[test]
    fn mistakes_and_connections_without_failover_leave_nothing_out() {
        let mut rails = Rails::new(RailMask::first(2), true, CONFIGURED);
        assert!(!rails.leave_out(&Error::usage("no such key").on_rail(0)));
        assert!(!rails.leave_out(&Error::system("of no rail")));
        let mut strict = Rails::new(RailMask::first(2), false, CONFIGURED);
        assert!(!strict.leave_out(&failure(0)));
        let mut only = Rails::new(RailMask::first(1), true, CONFIGURED);
        assert!(!only.leave_out(&failure(0)), "the only one");
    }
}
