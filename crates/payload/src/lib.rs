//! What test messages contain: bytes that tell every message and every place in it apart.
//!
//! A crate of its own, since it is compiled with optimisation in debug builds too: tests look at
//! gigabytes.

/// Bytes that are looked at before the first difference among them is searched for.
const BLOCK: usize = 4096;

/// The first byte that is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    /// From the start of the bytes that were looked at.
    pub offset: usize,
    /// What should be there.
    pub expected: u8,
    /// What is there.
    pub got: u8,
}

/// The eight bytes at word `index` of the message with this seed, the lowest first.
#[inline]
#[must_use]
pub const fn word(seed: u64, index: u64) -> u64 {
    let mixed =
        (seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}

/// Writes the message with this seed, as long as `bytes`.
pub fn fill(bytes: &mut [u8], seed: u64) {
    let mut words = bytes.chunks_exact_mut(8);
    let mut index = 0;
    for chunk in &mut words {
        chunk.copy_from_slice(&word(seed, index).to_le_bytes());
        index += 1;
    }
    let rest = words.into_remainder();
    rest.copy_from_slice(&word(seed, index).to_le_bytes()[..rest.len()]);
}

/// The first byte that is not the message's.
#[must_use]
pub fn difference(bytes: &[u8], seed: u64) -> Option<Difference> {
    let mut words = bytes.chunks_exact(8);
    let is_wrong = |(index, chunk): (usize, &[u8])| chunk != word(seed, index as u64).to_le_bytes();
    let first = words.by_ref().enumerate().find(|pair| is_wrong(*pair)).map(|(index, _)| index);
    let start = 8 * first.unwrap_or(bytes.len() / 8);
    let expected = word(seed, start as u64 / 8).to_le_bytes();
    let within = bytes[start..].iter().zip(expected).position(|(got, sent)| *got != sent)?;
    Some(Difference {
        offset: start + within,
        expected: expected[within],
        got: bytes[start + within],
    })
}

/// How many bytes are not the message's.
#[must_use]
pub fn differences(bytes: &[u8], seed: u64) -> usize {
    let wrong = bytes.chunks(8).enumerate().map(|(index, chunk)| {
        let expected = word(seed, index as u64).to_le_bytes();
        chunk.iter().zip(expected).filter(|(got, sent)| **got != *sent).count()
    });
    wrong.sum()
}

/// The first byte that is not `value`.
#[must_use]
pub fn other_than(bytes: &[u8], value: u8) -> Option<Difference> {
    // A loop without an exit looks at many bytes at once.
    let differs = |block: &[u8]| block.iter().fold(0, |all, byte| all | (byte ^ value)) != 0;
    let block = bytes.chunks(BLOCK).position(differs)? * BLOCK;
    let within = bytes[block..].iter().position(|byte| *byte != value)?;
    Some(Difference { offset: block + within, expected: value, got: bytes[block + within] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_byte_is_found() {
        for len in [0, 1, 7, 8, 9, 63, 64, 65] {
            let mut bytes = vec![0; len];
            fill(&mut bytes, 42);
            assert_eq!((difference(&bytes, 42), differences(&bytes, 42)), (None, 0));
            for at in 0..len {
                let sent = bytes[at];
                bytes[at] ^= 0x10;
                let expected = Difference { offset: at, expected: sent, got: sent ^ 0x10 };
                assert_eq!((difference(&bytes, 42), differences(&bytes, 42)), (Some(expected), 1));
                bytes[at] = sent;
            }
        }
    }

    #[test]
    fn of_several_wrong_bytes_the_first_is_told_and_all_are_counted() {
        let mut bytes = vec![0; 100];
        fill(&mut bytes, 1);
        for at in [99, 40, 13] {
            bytes[at] ^= 1;
        }
        assert_eq!(difference(&bytes, 1).map(|difference| difference.offset), Some(13));
        assert_eq!(differences(&bytes, 1), 3);
    }

    #[test]
    fn a_byte_of_another_value_is_found_in_any_block() {
        for len in [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 1] {
            let mut bytes = vec![0xee; len];
            assert_eq!(other_than(&bytes, 0xee), None);
            for at in [0, len / 2, len.saturating_sub(1)].into_iter().filter(|at| *at < len) {
                bytes[at] = 0xed;
                assert_eq!(
                    other_than(&bytes, 0xee),
                    Some(Difference { offset: at, expected: 0xee, got: 0xed })
                );
                bytes[at] = 0xee;
            }
        }
    }

    #[test]
    fn messages_differ_in_every_word() {
        let (mut one, mut two) = ([0; 4096], [0; 4096]);
        fill(&mut one, 1);
        for seed in [0, 2, 3, 1 << 40] {
            fill(&mut two, seed);
            assert!(one.chunks(8).zip(two.chunks(8)).all(|(a, b)| a != b));
        }
        let mut short = [0; 13];
        fill(&mut short, 1);
        assert_eq!(short, one[..13]);
    }
}
