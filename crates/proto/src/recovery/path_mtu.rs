//! Paths that lose only large packets: a switch has a smaller MTU than the ports at both ends.
//!
//! Tests of new queue pairs send packets of all sizes up to the path MTU, in ascending order. If
//! small packets are acknowledged and larger ones are not, twice in a row, the rail uses the
//! smaller MTU from then on. Once might be chance.

use super::rail_mask::RailMask;
use crate::MAX_RAILS;

/// The bytes of packets of the `ibv_mtu` code `code`: 1 = 256 … 5 = 4096. 0: a packet without data.
pub fn bytes(code: u8) -> u32 {
    if code == 0 { 0 } else { 128 << code.min(5) }
}

/// The ports at both ends of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports {
    /// The name of this end's port.
    pub own: String,
    /// The GID of the peer's port.
    pub far: [u8; 16],
}

/// The most known paths: rails may be paired with other ports, of either end.
const MOST_PATHS: usize = 2 * MAX_RAILS;

/// The known paths of one connection. Results between other ports do not apply.
#[derive(Debug, Clone, Default)]
pub struct PathMtus(Vec<Path>);

/// MTUs are `ibv_mtu` codes.
#[derive(Debug, Clone)]
struct Path {
    between: Ports,
    /// The largest packets that arrived in the latest test, if larger ones did not.
    found: Option<u8>,
    /// The greatest MTU of the path; `None` for that of its ports.
    limit: Option<u8>,
}

impl PathMtus {
    /// The MTU of the path between these ports, which have `mtu`.
    pub fn limited(&self, between: &Ports, mtu: u8) -> u8 {
        let path = self.0.iter().find(|path| path.between == *between);
        path.and_then(|path| path.limit).map_or(mtu, |limit| limit.min(mtu))
    }

    /// Handles a test of rails, given by number and ports. `found` has the largest packets that
    /// arrive on rails where larger ones do not. Returns the rails that have a smaller MTU from now
    /// on.
    pub fn handle_test(
        &mut self,
        tested: impl Iterator<Item = (u8, Ports)>,
        found: impl Iterator<Item = (u8, u8)>,
    ) -> RailMask {
        let mut now = [None; MAX_RAILS];
        for (rail, code) in found {
            if let Some(now) = now.get_mut(usize::from(rail)) {
                *now = Some(now.map_or(code, |least: u8| least.min(code)));
            }
        }
        let mut lowered = RailMask::NONE;
        for (rail, between) in tested {
            let now = now.get(usize::from(rail)).copied().flatten();
            let path = self.path(between);
            let before = std::mem::replace(&mut path.found, now);
            if let (Some(before), Some(now)) = (before, now)
                && before.min(now) > 0
            {
                (path.limit, path.found) = (Some(before.min(now)), None);
                lowered = lowered | RailMask::only(rail);
            }
        }
        lowered
    }

    /// The record of the path between these ports, which becomes the last one to be forgotten.
    fn path(&mut self, between: Ports) -> &mut Path {
        let known = self
            .0
            .iter()
            .position(|path| path.between == between)
            .map(|place| self.0.remove(place));
        self.0.truncate(MOST_PATHS - 1);
        self.0.insert(0, known.unwrap_or(Path { between, found: None, limit: None }));
        &mut self.0[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_are_those_of_verbs() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(bytes), [0, 256, 512, 1024, 2048, 4096]);
    }

    fn between(own: u8, far: u8) -> Ports {
        Ports { own: format!("rdma{own}"), far: [far; 16] }
    }

    /// Rails 0 and 1, over ports of the same numbers at both ends.
    fn both() -> impl Iterator<Item = (u8, Ports)> {
        (0..2).map(|rail| (rail, between(rail, rail)))
    }

    #[test]
    fn a_rail_has_a_smaller_mtu_after_two_tests_in_a_row_in_which_larger_packets_are_lost() {
        let mut mtus = PathMtus::default();
        assert_eq!(mtus.handle_test(both(), [(1, 3), (1, 4)].into_iter()), RailMask::NONE);
        assert_eq!(mtus.handle_test(both(), std::iter::empty()), RailMask::NONE, "it was chance");
        assert_eq!(mtus.handle_test(both(), [(1, 3)].into_iter()), RailMask::NONE);
        assert_eq!(
            mtus.handle_test(both().take(1), std::iter::empty()),
            RailMask::NONE,
            "rail 1 is not tested"
        );
        assert_eq!(mtus.limited(&between(1, 1), 5), 5);
        assert_eq!(mtus.handle_test(both(), [(1, 4)].into_iter()), RailMask::only(1));
        let limited = |port, mtu| mtus.limited(&between(port, port), mtu);
        assert_eq!([limited(0, 5), limited(1, 5), limited(1, 2), limited(9, 5)], [5, 3, 2, 5]);
    }

    #[test]
    fn a_smaller_mtu_is_that_of_the_path_between_two_ports() {
        let mut mtus = PathMtus::default();
        let mut test = |own, far, code| {
            mtus.handle_test([(0, between(own, far))].into_iter(), [(0, code)].into_iter())
        };
        assert_eq!(
            [test(0, 0, 3), test(1, 0, 3), test(0, 0, 3)].map(|lowered| lowered.0),
            [0, 0, 1]
        );
        let limited = |own, far| mtus.limited(&between(own, far), 5);
        assert_eq!(
            [limited(0, 0), limited(1, 0), limited(0, 1)],
            [3, 5, 5],
            "another port, of either end, has its own"
        );
        for own in 0..=255 {
            mtus.handle_test([(0, between(own, 7))].into_iter(), std::iter::empty());
        }
        assert!(mtus.0.len() <= MOST_PATHS);
    }

    #[test]
    fn where_no_packet_with_data_comes_through_no_mtu_helps() {
        let mut mtus = PathMtus::default();
        assert!((0..3).all(|_| mtus.handle_test(both(), [(0, 0)].into_iter()).is_empty()));
        assert_eq!(mtus.limited(&between(0, 0), 5), 5);
    }
}
