//! Random numbers for simulators, from a seed or from bytes that a fuzzer chooses.

use std::collections::VecDeque;

/// The splitmix64 generator, preceded by given bytes.
#[derive(Debug)]
pub struct Random {
    seed: u64,
    bytes: VecDeque<u8>,
}

impl Random {
    /// The numbers of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed, bytes: VecDeque::new() }
    }

    /// Numbers from `bytes`: one byte for a limit of up to 256, four for a greater one. After that,
    /// the numbers of seed 0.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self { seed: 0, bytes: bytes.iter().copied().collect() }
    }

    /// A number below `limit`.
    #[inline]
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next(limit) % limit
    }

    #[inline]
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
    #[inline]
    pub fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// True in one of `n` cases.
    #[inline]
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Calls `run` with `count` seeds, or with those that the environment names.
///
/// # Panics
/// A run does.
pub fn run_seeds(count: u64, what: &str, mut run: impl FnMut(u64)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let (first, count) = match (number("FERRITE_SIM_SEED"), number("FERRITE_SIM_SEEDS")) {
        (Some(seed), count) => (seed, count.unwrap_or(1)),
        (None, named) => (0, named.unwrap_or(count)),
    };
    for seed in first..first + count {
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        assert!(checked.is_ok(), "{what}: replay with FERRITE_SIM_SEED={seed}");
    }
}
