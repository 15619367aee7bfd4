//! Which port of this end each rail of a connection uses: the one that reaches the peer's.
//!
//! Rails have the numbers of the sender's ports. For each, the receiver finds a port in the same
//! network, by its GID and the peer's. Only if no port shares a network with any of the peer's,
//! ports are paired by position, since a router may join the networks.

use crate::proto::MAX_RAILS;
use crate::proto::recovery::rail_mask::RailMask;

/// By rail number, which of its device's ports this end uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pairs([Option<u8>; MAX_RAILS]);

/// How near a port and a rail are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nearness {
    /// The port is unusable, or its address is of another kind than the peer's.
    Impossible,
    /// The two are in different networks.
    Far,
    /// The peer's address is unknown.
    Unknown,
    /// The two are in one network.
    Near,
}

impl Pairs {
    /// For each rail, the port in the same position: the sender's choice.
    pub fn same_places() -> Self {
        Self(std::array::from_fn(|rail| Some(rail as u8)))
    }

    /// The position of the port of rail number `rail`, if it has one.
    pub fn port_of(&self, rail: u8) -> Option<usize> {
        self.0.get(usize::from(rail)).copied().flatten().map(usize::from)
    }

    /// Assigns the port in position `port` to rail number `rail`.
    pub fn set(&mut self, rail: u8, port: Option<usize>) {
        if let Some(pair) = self.0.get_mut(usize::from(rail)) {
            *pair = port.and_then(|port| u8::try_from(port).ok());
        }
    }

    /// The rails that have a port.
    pub fn rails(&self) -> RailMask {
        let numbers = (0..MAX_RAILS as u8).filter(|rail| self.port_of(*rail).is_some());
        numbers.fold(RailMask::NONE, |rails, rail| rails | RailMask::only(rail))
    }
}

/// The inputs of pairing.
#[derive(Debug, Clone, Copy)]
pub struct PairingInputs<'a> {
    /// The rails of the connection.
    pub all: RailMask,
    /// The rails that the peer can use. The others get the ports that are left.
    pub peer: RailMask,
    /// Rails that keep their ports in any case.
    pub fixed: RailMask,
    /// The pairs so far.
    pub before: &'a Pairs,
    /// Whether to pair ports in different networks, although others share one.
    pub may_be_far: bool,
    /// How many ports there are.
    pub ports: usize,
}

/// The best pairs: most in one network, then most unchanged, then most in the same position.
pub fn pair(wanted: PairingInputs<'_>, nearness: impl Fn(u8, usize) -> Nearness) -> Pairs {
    let PairingInputs { all, peer, fixed, before, ports, .. } = wanted;
    let ports = ports.min(MAX_RAILS);
    let mut table = [[Nearness::Impossible; MAX_RAILS]; MAX_RAILS];
    for rail in all.iter().filter(|rail| usize::from(*rail) < MAX_RAILS) {
        table[usize::from(rail)] = std::array::from_fn(|port| {
            if port < ports { nearness(rail, port) } else { Nearness::Impossible }
        });
    }
    let is_any_near =
        peer.iter().any(|rail| table[usize::from(rail) % MAX_RAILS].contains(&Nearness::Near));
    let value = |rail: u8, port: usize| {
        let is_kept = before.port_of(rail) == Some(port);
        let worth = match table[usize::from(rail)][port] {
            Nearness::Impossible => return None,
            Nearness::Far if !(is_kept || wanted.may_be_far || !is_any_near) => return None,
            _ if !peer.contains(rail) => 3,
            Nearness::Far => 50,
            Nearness::Unknown => 100,
            Nearness::Near => 1000,
        };
        Some(worth + 4 * u32::from(is_kept) + u32::from(usize::from(rail) == port))
    };
    let mut start = Pairs::default();
    fixed.iter().for_each(|rail| start.set(rail, before.port_of(rail)));
    let taken = fixed
        .iter()
        .filter_map(|rail| before.port_of(rail))
        .fold(0, |taken, port| taken | 1_u32 << port);
    let rails: Vec<u8> =
        (all - fixed).iter().filter(|rail| usize::from(*rail) < MAX_RAILS).collect();
    best(&rails, ports, taken, (start, 0), &value).0
}

/// Extends `so_far` by the pairs of `rails` and ports not `taken` with the highest total value.
/// There are at most four of each.
fn best(
    rails: &[u8],
    ports: usize,
    taken: u32,
    so_far: (Pairs, u32),
    value: &impl Fn(u8, usize) -> Option<u32>,
) -> (Pairs, u32) {
    let Some((rail, rest)) = rails.split_first() else { return so_far };
    let mut found = best(rest, ports, taken, so_far, value);
    for port in (0..ports).filter(|port| taken & 1 << port == 0) {
        let Some(worth) = value(*rail, port) else { continue };
        let mut pairs = so_far.0;
        pairs.set(*rail, Some(port));
        let with = best(rest, ports, taken | 1 << port, (pairs, so_far.1 + worth), value);
        if with.1 > found.1 {
            found = with;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Networks of rails and ports by letters; `?`: unknown, `-`: unusable.
    fn paired(
        rails: &str,
        ports: &str,
        change: impl FnOnce(&mut PairingInputs<'_>),
    ) -> [Option<u8>; MAX_RAILS] {
        let letter = |text: &str, at: usize| text.as_bytes()[at];
        let all = RailMask::first(rails.len() as u8);
        let before = Pairs::default();
        let mut wanted = PairingInputs {
            all,
            peer: all,
            fixed: RailMask::NONE,
            before: &before,
            may_be_far: false,
            ports: ports.len(),
        };
        change(&mut wanted);
        pair(wanted, |rail, port| match (letter(rails, rail.into()), letter(ports, port)) {
            (_, b'-') => Nearness::Impossible,
            (b'?', _) => Nearness::Unknown,
            (rail, port) if rail == port => Nearness::Near,
            _ => Nearness::Far,
        })
        .0
    }

    #[test]
    fn ports_are_paired_by_network() {
        let cases = [
            ("AB", "AB", [Some(0), Some(1), None, None]),
            ("AB", "BA", [Some(1), Some(0), None, None]),
            ("B", "AB", [Some(1), None, None, None]),
            ("AB", "B", [None, Some(0), None, None]),
            ("ABCD", "DCBA", [Some(3), Some(2), Some(1), Some(0)]),
            ("AA", "AA", [Some(0), Some(1), None, None]),
            ("AB", "-B", [None, Some(1), None, None]),
            ("AB", "AC", [Some(0), None, None, None]),
        ];
        for (rails, ports, expected) in cases {
            assert_eq!(paired(rails, ports, |_| ()), expected, "{rails} {ports}");
        }
    }

    /// Holds whether or not the rail that shares a network with the peer is in use.
    #[test]
    fn a_port_without_a_partner_is_left_out_unless_the_two_were_a_pair() {
        let mut first = Pairs::default();
        first.set(0, Some(0));
        let mut both = first;
        both.set(1, Some(1));
        let pair_with = |fixed: RailMask, before: &Pairs| {
            let wanted = PairingInputs {
                all: RailMask::first(2),
                peer: RailMask::first(2),
                fixed,
                before,
                may_be_far: false,
                ports: 2,
            };
            pair(
                wanted,
                |rail, port| if (rail, port) == (0, 0) { Nearness::Near } else { Nearness::Far },
            )
            .0
        };
        for fixed in [RailMask::NONE, RailMask::only(0)] {
            assert_eq!(pair_with(fixed, &first), [Some(0), None, None, None], "{fixed}");
            assert_eq!(pair_with(fixed, &both), [Some(0), Some(1), None, None], "{fixed}");
        }
    }

    #[test]
    fn where_no_two_are_in_one_network_places_count() {
        assert_eq!(paired("AB", "CD", |_| ()), [Some(0), Some(1), None, None]);
        assert_eq!(paired("AB", "CDE", |_| ()), [Some(0), Some(1), None, None]);
        assert_eq!(paired("AB", "-D", |_| ()), [None, Some(1), None, None]);
    }

    #[test]
    fn a_rail_whose_address_is_not_known_gets_a_port_that_is_left() {
        assert_eq!(paired("?B", "BA", |_| ()), [Some(1), Some(0), None, None]);
    }

    #[test]
    fn what_the_peer_cannot_use_comes_last() {
        let only_1 = |wanted: &mut PairingInputs<'_>| wanted.peer = RailMask::only(1);
        assert_eq!(paired("AA", "A-", only_1), [None, Some(0), None, None]);
        assert_eq!(paired("AA", "AA", only_1), [Some(0), Some(1), None, None], "both have one");
    }

    #[test]
    fn pairs_stay_as_they_were_as_far_as_that_makes_no_difference() {
        let mut crossed = Pairs::default();
        crossed.set(0, Some(1));
        crossed.set(1, Some(0));
        let all = RailMask::first(2);
        let wanted = PairingInputs {
            all,
            peer: all,
            fixed: RailMask::NONE,
            before: &crossed,
            may_be_far: false,
            ports: 2,
        };
        assert_eq!(pair(wanted, |_, _| Nearness::Near), crossed);
        let others =
            |rail: u8, port| if usize::from(rail) == port { Nearness::Near } else { Nearness::Far };
        assert_eq!(pair(wanted, others).0[..2], [Some(0), Some(1)]);
        let fixed = PairingInputs { fixed: all, ..wanted };
        assert_eq!(pair(fixed, |_, _| Nearness::Impossible), crossed, "they are in use");
    }
}
