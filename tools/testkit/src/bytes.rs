//! Contents of buffers, and looking at them.

/// Bytes that differ from seed to seed and from offset to offset.
#[must_use]
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    payload::fill(&mut bytes, seed as u64);
    bytes
}

/// Whether all of `bytes` are `value`.
#[must_use]
pub fn are_all(bytes: &[u8], value: u8) -> bool {
    payload::other_than(bytes, value).is_none()
}
