//! Random numbers that a seed repeats.

/// splitmix64: every seed is a different schedule.
#[derive(Debug)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % sides
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.roll(n) == 0
    }
}
