//! How much of a message each rail gets.
//!
//! A rail begins with its nominal share, which is its speed. From then on the order in which the stripes of a message
//! complete is the measure, and no clock is needed: a rail whose stripe is the last one to complete, in a later poll than
//! the others', has had too much and loses a 128th of its share; the others regain a 2048th of what they lack of their
//! nominal one. So equal rails stay equal, and a slow one settles where its stripes take as long as those of the rest.
//! All of it concerns the sender alone: the receiver counts stripes and does not care where the cuts are.

use super::MAX_RAILS;

/// A share in its nominal size, of the fastest rail.
const WHOLE: u32 = 1 << 14;
/// No rail falls below this: one that has recovered would not be noticed.
const LEAST: u16 = (WHOLE >> 6) as u16;
/// What part of its share a late rail loses, as a power of two.
const LOSS: u32 = 7;
/// What part of what they lack the others regain. Little, since of several slow rails only one at a time is the last.
const GAIN: u32 = 11;

/// The shares of all rails; only their proportions matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    now: [u16; MAX_RAILS],
    nominal: [u16; MAX_RAILS],
}

impl Shares {
    /// In proportion to the rails' speeds, in any unit.
    pub fn by_speed(speeds: impl IntoIterator<Item = u32>) -> Self {
        let mut rails = [0; MAX_RAILS];
        for (rail, speed) in rails.iter_mut().zip(speeds) {
            *rail = speed;
        }
        let fastest = u64::from(rails.iter().copied().max().unwrap_or(0).max(1));
        let share = |speed: u32| (u64::from(WHOLE) * u64::from(speed) / fastest).max(u64::from(LEAST)) as u16;
        let nominal = rails.map(share);
        Self { now: nominal, nominal }
    }

    /// The share of rail number `rail`.
    #[inline]
    pub fn of(&self, rail: u8) -> u64 {
        u64::from(self.now[usize::from(rail) % MAX_RAILS])
    }

    /// The stripe on `late` was the last of its message to complete, after those on other rails.
    pub fn handle_late(&mut self, late: u8) {
        for (rail, (now, nominal)) in self.now.iter_mut().zip(&self.nominal).enumerate() {
            if rail == usize::from(late) {
                *now = (*now - (*now >> LOSS)).max(LEAST);
            } else {
                let lack = nominal.saturating_sub(*now);
                *now += (lack >> GAIN).max(u16::from(lack > 0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets rails of these speeds carry messages one by one; the shares in percent of the first rail's after that.
    fn settled(nominal: &[u32], real: &[u32], messages: usize) -> Vec<u64> {
        let mut shares = Shares::by_speed(nominal.iter().copied());
        for _ in 0..messages {
            let time = |rail: &usize| shares.of(*rail as u8) * 1_000_000 / u64::from(real[*rail]);
            let late = (0..real.len()).max_by_key(time).expect("a rail");
            shares.handle_late(late as u8);
        }
        (0..real.len() as u8).map(|rail| shares.of(rail) * 100 / shares.of(0)).collect()
    }

    #[test]
    fn shares_begin_with_the_speeds() {
        assert_eq!(settled(&[400, 100, 200], &[1, 1, 1], 0), [100, 25, 50]);
        assert_eq!(settled(&[0, 0], &[1, 1], 0), [100, 100], "nothing told");
    }

    #[test]
    fn a_slow_rail_gets_what_it_can_carry() {
        let slow = settled(&[400, 400], &[400, 100], 1000);
        assert!((22..=30).contains(&slow[1]), "{slow:?}");
        let middle = settled(&[400; 4], &[400, 400, 50, 200], 4000);
        assert!(
            (85..=115).contains(&middle[1]) && (10..=17).contains(&middle[2]) && (42..=60).contains(&middle[3]),
            "{middle:?}"
        );
    }

    #[test]
    fn a_rail_that_has_recovered_is_noticed() {
        let mut shares = Shares::by_speed([1, 1]);
        (0..10_000).for_each(|_| shares.handle_late(1));
        assert_eq!(shares.of(1), u64::from(LEAST), "even a rail that hardly moves gets a little");
        (0..8000).for_each(|_| shares.handle_late(0));
        assert!(shares.of(1) > u64::from(WHOLE) * 9 / 10, "{shares:?}");
    }

    #[test]
    fn equal_rails_stay_alike_if_any_of_them_is_late() {
        let mut shares = Shares::by_speed([7; 4]);
        let mut dice = 1u64;
        for message in 0..20_000 {
            dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            shares.handle_late((dice >> 62) as u8);
            let all = [0, 1, 2, 3].map(|rail| shares.of(rail));
            let (least, most) = (all.iter().min().expect("four"), all.iter().max().expect("four"));
            assert!(2 * least > *most, "after message {message}: {all:?}");
        }
    }
}
