//! Paths that lose large packets only: a switch takes smaller ones than the ports at both ends say.
//!
//! Tests of new queue pairs send packets of all sizes up to the path MTU, in ascending order. Where the smaller ones are acknowledged and
//! the larger ones are not, twice in a row, the rail has that MTU from then on. Once might be chance.

use super::rail_mask::RailMask;
use crate::proto::MAX_RAILS;

/// The bytes of packets of the verbs' MTU `code`, from 1 on: 1 = 256 … 5 = 4096. 0: a packet without data.
pub fn bytes(code: u8) -> u32 {
    if code == 0 { 0 } else { 128 << code.min(5) }
}

/// What is known of the rails of one connection. MTUs are the verbs' codes.
#[derive(Debug, Clone, Copy, Default)]
pub struct PathMtus {
    /// What has come through in the latest test of each rail, if larger packets have not.
    found: [Option<u8>; MAX_RAILS],
    /// The greatest MTU that a rail may have; `None`: that of its ports.
    limits: [Option<u8>; MAX_RAILS],
}

impl PathMtus {
    /// The MTU of rail number `rail`, whose ports have `mtu`.
    pub fn limited(&self, rail: u8, mtu: u8) -> u8 {
        self.limits.get(usize::from(rail)).copied().flatten().map_or(mtu, |limit| limit.min(mtu))
    }

    /// A test of `rails` has found for some of them, with their numbers, the largest packets that come through where larger ones do not.
    /// Returns those that have a smaller MTU from now on.
    pub fn handle_test(&mut self, rails: RailMask, found: impl Iterator<Item = (u8, u8)>) -> RailMask {
        let mut now = [None; MAX_RAILS];
        for (rail, code) in found {
            if let Some(now) = now.get_mut(usize::from(rail)) {
                *now = Some(now.map_or(code, |least: u8| least.min(code)));
            }
        }
        let mut lowered = RailMask::NONE;
        for rail in rails.iter() {
            let place = usize::from(rail) % MAX_RAILS;
            let before = std::mem::replace(&mut self.found[place], now[place]);
            if let (Some(before), Some(now)) = (before, now[place])
                && before.min(now) > 0
            {
                self.limits[place] = Some(before.min(now));
                self.found[place] = None;
                lowered = lowered | RailMask::only(rail);
            }
        }
        lowered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_are_those_of_verbs() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(bytes), [0, 256, 512, 1024, 2048, 4096]);
    }

    #[test]
    fn a_rail_has_a_smaller_mtu_after_two_tests_in_a_row_in_which_larger_packets_are_lost() {
        let (both, mut mtus) = (RailMask::first(2), PathMtus::default());
        assert_eq!(mtus.handle_test(both, [(1, 3), (1, 4)].into_iter()), RailMask::NONE);
        assert_eq!(mtus.handle_test(both, std::iter::empty()), RailMask::NONE, "it was chance");
        assert_eq!(mtus.handle_test(both, [(1, 3)].into_iter()), RailMask::NONE);
        assert_eq!(mtus.handle_test(RailMask::only(0), std::iter::empty()), RailMask::NONE, "rail 1 is not tested");
        assert_eq!(mtus.limited(1, 5), 5);
        assert_eq!(mtus.handle_test(both, [(1, 4)].into_iter()), RailMask::only(1));
        assert_eq!([(0, 5), (1, 5), (1, 2), (9, 5)].map(|(rail, mtu)| mtus.limited(rail, mtu)), [5, 3, 2, 5]);
    }

    #[test]
    fn where_no_packet_with_data_comes_through_no_mtu_helps() {
        let (rail, mut mtus) = (RailMask::only(0), PathMtus::default());
        assert!((0..3).all(|_| mtus.handle_test(rail, [(0, 0)].into_iter()).is_empty()));
        assert_eq!(mtus.limited(0, 5), 5);
    }
}
