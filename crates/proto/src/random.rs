//! Random numbers for simulators: they follow from a seed, or from bytes that a fuzzer chooses.

use std::collections::VecDeque;

/// The splitmix64 generator, behind bytes that count first.
#[derive(Debug)]
pub(super) struct Random {
    seed: u64,
    bytes: VecDeque<u8>,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, bytes: VecDeque::new() }
    }

    /// Numbers by `bytes`: one byte for a limit of up to 256, four for a greater one. When there are none left, those that follow from seed 0.
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self { seed: 0, bytes: bytes.iter().copied().collect() }
    }

    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next(limit) % limit
    }

    fn next(&mut self, limit: u64) -> u64 {
        if !self.bytes.is_empty() {
            let count = self.bytes.len().min(if limit <= 256 { 1 } else { 4 });
            return self.bytes.drain(..count).fold(0, |number, byte| number << 8 | u64::from(byte));
        }
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// An index into `count` elements.
    pub(super) fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// True in one of `n` cases.
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
