//! Contents that tell every message and every place in it apart.

use crate::error::Result;
use crate::transport::buffer::Buffer;
pub use payload::{Difference, word};

/// The seed of message `index` that `rank` sends in the test `test`.
pub fn seed(test: u64, rank: usize, index: u64) -> u64 {
    word(test.wrapping_mul(2).wrapping_add(rank as u64), index)
}

/// Writes the message.
///
/// # Errors
/// [`crate::error::Error::Misuse`] if it does not fit.
pub fn fill(memory: &Buffer, offset: usize, len: usize, seed: u64) -> Result<()> {
    // SAFETY: the caller fills what it is about to send; no receive is posted there.
    unsafe { memory.with(offset, len, |bytes| payload::fill(bytes, seed)) }
}

/// Compares `len` bytes with the message.
///
/// # Errors
/// [`crate::error::Error::Misuse`] if the range lies outside.
pub fn check(memory: &Buffer, offset: usize, len: usize, seed: u64) -> Result<Option<Difference>> {
    // SAFETY: the caller looks at a receive that is done.
    unsafe { memory.with(offset, len, |bytes| payload::difference(bytes, seed)) }
}

/// How many of `len` bytes are not the message's.
///
/// # Errors
/// [`crate::error::Error::Misuse`] if the range lies outside.
pub fn wrong_bytes(memory: &Buffer, offset: usize, len: usize, seed: u64) -> Result<u64> {
    // SAFETY: the caller looks at a receive that is done, or at memory that no receive is posted for.
    unsafe { memory.with(offset, len, |bytes| payload::differences(bytes, seed) as u64) }
}

/// Looks for a byte that is not `value`.
///
/// # Errors
/// [`crate::error::Error::Misuse`] if the range lies outside.
pub fn untouched(memory: &Buffer, offset: usize, len: usize, value: u8) -> Result<Option<Difference>> {
    // SAFETY: the caller looks beside a receive that is done.
    unsafe { memory.with(offset, len, |bytes| payload::other_than(bytes, value)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_different_tests_ranks_and_numbers_differ() {
        let (mut one, mut two) = ([0; 4096], [0; 4096]);
        payload::fill(&mut one, seed(1, 0, 0));
        for (other, rank, index) in [(1, 0, 1), (1, 1, 0), (2, 0, 0)] {
            payload::fill(&mut two, seed(other, rank, index));
            assert!(one.chunks(8).zip(two.chunks(8)).all(|(a, b)| a != b));
        }
    }
}
