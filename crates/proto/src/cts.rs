//! The clear-to-send, [`Cts`]: what the receiver writes into the ring in the sender's memory, and
//! where in the ring.

use super::{MAX_MESSAGE, MAX_RAILS, RING_SLOTS, Violation, violation};

/// A clear-to-send: the address, size and keys of one receive buffer, for one message.
///
/// ```text
/// byte  0        8       12       16       20     24        28
///       addr u64 len u32 rkey0    rkey1    tag    reserved  seq u32
/// ```
///
/// All little-endian; reserved bytes are written as 0 and not read. `seq` is last because a remote
/// write becomes visible in ascending address order: a reader that finds the expected sequence
/// number may read the bytes before it. A clear-to-send is aligned to 32 bytes, so it never
/// straddles a cache line.
///
/// This is the form on a connection of one or two rails. On three or four rails a clear-to-send has
/// 64 bytes: the [`ExtraKeys`] in the first half, this in the second. One RDMA WRITE of one packet
/// carries both halves, since packets may overtake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cts {
    /// Address of the receive buffer in the receiver's process.
    pub addr: u64,
    /// Size of the receive buffer in bytes.
    pub length: u32,
    /// Remote keys of the buffer's memory region on the first two rails.
    pub rkeys: [u32; Self::KEYS],
    /// NCCL's tag of this message.
    pub tag: u32,
    /// Sequence number on this connection, starting with 1.
    pub seq: u32,
}

/// A clear-to-send in wire format: four little-endian words, the sequence number in the upper half
/// of the last.
pub type CtsWords = [u64; Cts::BYTES / 8];

impl Cts {
    /// Bytes of this form on the wire and in the ring.
    pub const BYTES: usize = 32;
    /// The remote keys that fit.
    pub const KEYS: usize = 2;

    /// The words to write into the sender's ring.
    #[inline]
    pub fn emit(&self) -> CtsWords {
        let pair = |low: u32, high: u32| (u64::from(low) | u64::from(high) << 32).to_le();
        [
            self.addr.to_le(),
            pair(self.length, self.rkeys[0]),
            pair(self.rkeys[1], self.tag),
            pair(0, self.seq),
        ]
    }

    /// The sequence number in the last word of a clear-to-send.
    #[inline]
    pub fn seq_of(last_word: u64) -> u32 {
        (u64::from_le(last_word) >> 32) as u32
    }

    /// The last word of the clear-to-send with sequence number `seq`, without the reserved part.
    #[inline]
    pub fn last_word_of(seq: u32) -> u64 {
        (u64::from(seq) << 32).to_le()
    }

    /// The last word of an empty slot: the number belongs to another slot, so nothing is found
    /// there. Zeroed memory would be number 0 in slot 0.
    pub fn empty_last_word(slot: usize) -> u64 {
        Self::last_word_of(slot as u32 + 1)
    }

    /// Parses a clear-to-send that this process has encoded.
    #[inline]
    pub(super) fn from_words(words: &CtsWords) -> Self {
        let [addr, first, second, last] = words.map(u64::from_le);
        Self {
            addr,
            length: first as u32,
            rkeys: [(first >> 32) as u32, second as u32],
            tag: (second >> 32) as u32,
            seq: (last >> 32) as u32,
        }
    }

    /// Parses a clear-to-send from the peer.
    ///
    /// # Errors
    /// The length is above [`MAX_MESSAGE`].
    #[inline]
    pub fn parse(words: &CtsWords) -> Result<Self, Violation> {
        let cts = Self::from_words(words);
        if cts.length > MAX_MESSAGE {
            return Err(violation!(
                "clear-to-send {} is for {} bytes; at most {MAX_MESSAGE} are allowed",
                cts.seq,
                cts.length
            ));
        }
        Ok(cts)
    }
}

/// The keys of registered memory for the peer's work requests.
pub trait KeysByRail {
    /// The key on rail number `rail`, which is below [`MAX_RAILS`].
    fn of_rail(&self, rail: usize) -> u32;
}

impl KeysByRail for [u32; MAX_RAILS] {
    #[inline(always)]
    fn of_rail(&self, rail: usize) -> u32 {
        self[rail]
    }
}

/// The remote keys of the third and the fourth rail.
pub type ExtraKeys = [u32; MAX_RAILS - Cts::KEYS];

/// The first half of a clear-to-send of 64 bytes.
#[inline]
pub fn emit_extra_keys(keys: ExtraKeys) -> CtsWords {
    [(u64::from(keys[0]) | u64::from(keys[1]) << 32).to_le(), 0, 0, 0]
}

/// Reads the first half of a clear-to-send of 64 bytes.
#[inline]
pub fn parse_extra_keys(words: &CtsWords) -> ExtraKeys {
    let keys = u64::from_le(words[0]);
    [keys as u32, (keys >> 32) as u32]
}

/// 32-byte halves of a clear-to-send of a connection of `rails` rails.
pub const fn cts_halves(rails: usize) -> usize {
    if rails > Cts::KEYS { 2 } else { 1 }
}

const _: () = assert!(
    64 == 2 * Cts::BYTES,
    "a clear-to-send of one or two halves must not straddle a cache line"
);
const _: () = assert!(RING_SLOTS.is_power_of_two());

/// Index of a slot of the ring. The clear-to-send with sequence number n has slot n modulo
/// [`RING_SLOTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotIndex(u16);

impl SlotIndex {
    /// Bits that an index takes.
    pub const BITS: u32 = RING_SLOTS.ilog2();

    /// The slot of sequence number `seq`.
    #[inline]
    pub fn of(seq: u32) -> Self {
        Self((seq as usize % RING_SLOTS) as u16)
    }

    /// As an index into an array of [`RING_SLOTS`].
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The [`Self::BITS`] bits of the index.
    #[inline]
    pub(super) fn to_bits(self) -> u32 {
        self.0.into()
    }

    /// The slot of `bits`, which are below `1 << BITS`.
    #[inline]
    pub(super) fn from_bits(bits: u32) -> Self {
        Self(bits as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_cts_is_parsed_as_it_was_emitted(addr: u64, length in 0..=MAX_MESSAGE, rkeys: [u32; 2], tag: u32, seq: u32) {
            let cts = Cts { addr, length, rkeys, tag, seq };
            prop_assert_eq!(Cts::parse(&cts.emit()), Ok(cts));
        }

        /// A sender recognises a clear-to-send by its last word.
        #[test]
        fn the_last_word_has_the_sequence_number(seq: u32) {
            let cts = Cts { addr: 1, length: 2, rkeys: [3, 4], tag: 5, seq };
            prop_assert_eq!(Cts::last_word_of(seq), cts.emit()[3]);
            prop_assert_eq!(Cts::seq_of(cts.emit()[3]), seq);
        }

        #[test]
        fn extra_keys_are_parsed_as_they_were_emitted(keys: [u32; 2]) {
            prop_assert_eq!(parse_extra_keys(&emit_extra_keys(keys)), keys);
        }

        /// Half of the lengths are too long.
        #[test]
        fn any_words_are_a_cts_or_refused_for_their_length(mut words: [u64; 4], length in 0..=2 * MAX_MESSAGE) {
            words[1] = (words[1] & 0xffff_ffff_0000_0000 | u64::from(length)).to_le();
            match Cts::parse(&words) {
                Ok(cts) => {
                    prop_assert!(length <= MAX_MESSAGE);
                    let reserved = (u64::from_le(words[3]) & 0xffff_ffff_0000_0000).to_le();
                    prop_assert_eq!(cts.emit(), [words[0], words[1], words[2], reserved]);
                }
                Err(refusal) => {
                    prop_assert!(length > MAX_MESSAGE);
                    prop_assert!(refusal.text().contains(&length.to_string()), "{refusal}");
                }
            }
        }
    }

    #[test]
    fn the_number_in_an_empty_slot_is_one_of_another_slot() {
        for slot in 0..RING_SLOTS {
            assert_ne!(SlotIndex::of(Cts::seq_of(Cts::empty_last_word(slot))).index(), slot);
        }
    }

    #[test]
    fn the_bytes_of_a_cts() {
        let cts = Cts {
            addr: 0x0807_0605_0403_0201,
            length: 0x0c0b_0a09,
            rkeys: [0x100f_0e0d, 0x1413_1211],
            tag: 0x1817_1615,
            seq: 0x201f_1e1d,
        };
        let bytes: Vec<u8> = cts.emit().into_iter().flat_map(u64::to_ne_bytes).collect();
        let expected: Vec<u8> = (1..=24).chain([0; 4]).chain(29..=32).collect();
        assert_eq!(bytes, expected);
        assert_eq!(Cts::seq_of(cts.emit()[3]), cts.seq);
    }
}
