//! Contents of buffers, and looking at them.

/// Bytes that differ from seed to seed and from offset to offset.
#[must_use]
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // Of seed 0, the first word would be zero, as fresh memory is.
    payload::fill(&mut bytes, seed as u64 + 1);
    bytes
}

/// Whether all of `bytes` are `value`.
#[must_use]
pub fn are_all(bytes: &[u8], value: u8) -> bool {
    payload::other_than(bytes, value).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_is_as_fresh_memory_or_as_its_neighbour() {
        for seed in 0..100 {
            let bytes = pattern(seed, 4096);
            let words: Vec<_> = bytes.chunks(8).collect();
            assert!(words.iter().all(|word| *word != [0; 8]), "seed {seed}");
            assert!(words.windows(2).all(|pair| pair[0] != pair[1]), "seed {seed}");
        }
    }

    #[test]
    fn patterns_differ_by_seed_and_a_shorter_one_is_the_beginning_of_a_longer_one() {
        let (one, other) = (pattern(1, 21), pattern(2, 21));
        assert_ne!(one, other);
        assert_eq!(one[..20], pattern(1, 20));
    }

    #[test]
    fn one_other_byte_is_found() {
        assert!(are_all(&[], 3) && are_all(&[3; 17], 3));
        assert!(!are_all(&[3, 3, 4], 3));
    }
}
