//! Contents that tell every message and every place in it apart.

use crate::error::Result;
use crate::transport::buffer::Buffer;

/// The first byte of a message that is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Difference {
    /// From the message's start.
    pub offset: usize,
    /// What was sent.
    pub expected: u8,
    /// What is there.
    pub got: u8,
}

/// The eight bytes at word `index` of the message with this seed.
#[inline]
pub(crate) fn word(seed: u64, index: u64) -> u64 {
    let mixed = (seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}

/// The seed of message `index` that `rank` sends in the test `test`.
pub(crate) fn seed(test: u64, rank: usize, index: u64) -> u64 {
    word(test.wrapping_mul(2).wrapping_add(rank as u64), index)
}

/// Writes the message.
///
/// # Errors
/// [`crate::error::Error::Misuse`] if it does not fit.
pub(crate) fn fill(memory: &Buffer, offset: usize, len: usize, seed: u64) -> Result<()> {
    // SAFETY: the caller fills what it is about to send; no receive is posted there.
    unsafe { memory.with(offset, len, |bytes| fill_slice(bytes, seed)) }
}

/// Compares `len` bytes with the message.
///
/// # Errors
/// [`crate::error::Error::Misuse`] if the range lies outside.
pub(crate) fn check(memory: &Buffer, offset: usize, len: usize, seed: u64) -> Result<Option<Difference>> {
    // SAFETY: the caller looks at a receive that is done.
    unsafe { memory.with(offset, len, |bytes| check_slice(bytes, seed)) }
}

/// How many of `len` bytes are not the message's.
///
/// # Errors
/// [`crate::error::Error::Misuse`] if the range lies outside.
pub(crate) fn wrong_bytes(memory: &Buffer, offset: usize, len: usize, seed: u64) -> Result<u64> {
    // SAFETY: the caller looks at a receive that is done, or at memory that no receive is posted for.
    unsafe { memory.with(offset, len, |bytes| wrong_in_slice(bytes, seed)) }
}

/// Looks for a byte that is not `value`.
///
/// # Errors
/// [`crate::error::Error::Misuse`] if the range lies outside.
pub(crate) fn untouched(memory: &Buffer, offset: usize, len: usize, value: u8) -> Result<Option<Difference>> {
    // SAFETY: the caller looks beside a receive that is done.
    let found = unsafe {
        memory.with(offset, len, |bytes| bytes.iter().position(|byte| *byte != value).map(|at| (at, bytes[at])))
    };
    Ok(found?.map(|(at, got)| Difference { offset: at, expected: value, got }))
}

fn fill_slice(bytes: &mut [u8], seed: u64) {
    let mut words = bytes.chunks_exact_mut(8);
    let mut index = 0;
    for chunk in &mut words {
        chunk.copy_from_slice(&word(seed, index).to_le_bytes());
        index += 1;
    }
    let rest = words.into_remainder();
    rest.copy_from_slice(&word(seed, index).to_le_bytes()[..rest.len()]);
}

fn wrong_in_slice(bytes: &[u8], seed: u64) -> u64 {
    let chunks = bytes.chunks(8).enumerate();
    let wrong = chunks.map(|(index, chunk)| {
        let expected = &word(seed, index as u64).to_le_bytes()[..chunk.len()];
        if chunk == expected { 0 } else { chunk.iter().zip(expected).filter(|(got, sent)| got != sent).count() as u64 }
    });
    wrong.sum()
}

fn check_slice(bytes: &[u8], seed: u64) -> Option<Difference> {
    for (index, chunk) in bytes.chunks(8).enumerate() {
        let expected = &word(seed, index as u64).to_le_bytes()[..chunk.len()];
        if chunk != expected {
            let within = chunk.iter().zip(expected).position(|(got, sent)| got != sent)?;
            return Some(Difference { offset: index * 8 + within, expected: expected[within], got: chunk[within] });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_byte_is_found() {
        for len in [0, 1, 7, 8, 9, 63, 64, 65] {
            let mut bytes = vec![0; len];
            fill_slice(&mut bytes, seed(3, 1, 42));
            assert_eq!(check_slice(&bytes, seed(3, 1, 42)), None);
            assert_eq!(wrong_in_slice(&bytes, seed(3, 1, 42)), 0);
            for at in 0..len {
                let sent = bytes[at];
                bytes[at] ^= 0x10;
                let difference = check_slice(&bytes, seed(3, 1, 42));
                let expected = Difference { offset: at, expected: sent, got: sent ^ 0x10 };
                assert_eq!(difference, Some(expected));
                assert_eq!(wrong_in_slice(&bytes, seed(3, 1, 42)), 1);
                bytes[at] = sent;
            }
        }
    }

    #[test]
    fn messages_differ_in_every_word() {
        let (mut one, mut two) = ([0; 4096], [0; 4096]);
        for (other, rank, index) in [(1, 0, 1), (1, 1, 0), (2, 0, 0)] {
            fill_slice(&mut one, seed(1, 0, 0));
            fill_slice(&mut two, seed(other, rank, index));
            assert!(one.chunks(8).zip(two.chunks(8)).all(|(a, b)| a != b));
        }
    }
}
