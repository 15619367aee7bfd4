//! A set of rails of a connection.

use std::fmt;
use std::ops::{BitAnd, BitOr, Sub};

/// A set of rails: bit i stands for rail number i. Rails keep their numbers for the life of the
/// connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RailMask(pub u8);

impl RailMask {
    /// No rail.
    pub const NONE: Self = Self(0);

    /// The rails 0 to `count - 1`; `count` is at most 8.
    pub const fn first(count: u8) -> Self {
        Self(((1_u16 << count) - 1) as u8)
    }

    /// Rail number `rail` alone, which is below 8.
    pub const fn only(rail: u8) -> Self {
        Self(1 << rail)
    }

    /// How many rails.
    pub const fn count(self) -> u8 {
        self.0.count_ones() as u8
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether rail number `rail` is one of them.
    pub const fn contains(self, rail: u8) -> bool {
        rail < 8 && self.0 & 1 << rail != 0
    }

    /// Whether `other` contains all of them.
    pub const fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// The numbers, ascending.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..8).filter(move |rail| self.contains(*rail))
    }

    /// The number of the rail in position `place`, counted from 0 in ascending order; 8 if there
    /// are fewer.
    #[inline]
    pub fn at(self, place: u8) -> u8 {
        (0..place).fold(self.0, |rest, _| rest & rest.wrapping_sub(1)).trailing_zeros() as u8
    }
}

impl BitAnd for RailMask {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for RailMask {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Sub for RailMask {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Display for RailMask {
    /// `none`, or the numbers: `0, 2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        let numbers: Vec<_> = self.iter().map(|rail| rail.to_string()).collect();
        f.write_str(&numbers.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_the_numbers_in_ascending_order() {
        for bits in 0..=u8::MAX {
            let mask = RailMask(bits);
            let numbers: Vec<_> = mask.iter().collect();
            let places: Vec<_> = (0..mask.count()).map(|place| mask.at(place)).collect();
            assert_eq!(numbers, places);
            assert_eq!(mask.at(mask.count()), 8);
            assert!(numbers.iter().all(|rail| RailMask::only(*rail).is_within(mask)));
        }
    }

    #[test]
    fn sets_are_written_as_numbers() {
        assert_eq!(RailMask::first(4) - RailMask::only(1), RailMask(0b1101));
        assert_eq!(
            (RailMask(0b101).to_string(), RailMask::NONE.to_string()),
            ("0, 2".into(), "none".into())
        );
        assert!(!RailMask::first(2).contains(200));
    }

    #[test]
    fn rails_are_numbered_0_to_7() {
        assert!(RailMask(0xff).contains(7) && !RailMask(0xff).contains(8));
        assert_eq!(
            (RailMask(0b0110) | RailMask(0b0011), RailMask(0b0110) & RailMask(0b0011)),
            (RailMask(0b0111), RailMask(0b0010))
        );
    }
}
