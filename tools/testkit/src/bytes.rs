//! Contents of buffers, and looking at them: of this crate, which is compiled with optimisation in debug builds too, since tests look at
//! many megabytes.

/// Bytes that differ from seed to seed and from offset to offset.
#[must_use]
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    bytes
}

/// Whether all of `bytes` are `value`.
#[must_use]
pub fn are_all(bytes: &[u8], value: u8) -> bool {
    bytes.iter().all(|byte| *byte == value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ_by_seed_and_offset() {
        let (one, other) = (pattern(1, 21), pattern(2, 21));
        assert_eq!((one.len(), pattern(1, 0).len()), (21, 0));
        assert_ne!(one, other);
        assert_ne!(one[..8], one[8..16]);
        assert_eq!(one[..20], pattern(1, 20));
    }

    #[test]
    fn one_other_byte_is_found() {
        assert!(are_all(&[], 3) && are_all(&[3; 17], 3));
        assert!(!are_all(&[3, 3, 4], 3));
    }
}
