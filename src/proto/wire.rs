//! The two formats of the data path: the clear-to-send [`Slot`] and the immediate [`Imm`].

use super::{MAX_GROUP, MAX_MESSAGE, MAX_RAILS, RING_SLOTS, Violation, violation};

/// A clear-to-send: where the sender may write one message.
///
/// ```text
/// byte  0        8       12       16       20     24    25     26        28
///       addr u64 len u32 rkey0    rkey1    tag    index count  reserved  seq u32
/// ```
///
/// All little-endian. `seq` is last because a remote write becomes visible in ascending address order: a reader that
/// finds the sequence number it waits for may trust the bytes before it. A slot is 32-byte aligned, so it never straddles
/// a cache line.
///
/// A connection of one or two rails has such slots. One of three or four has slots of 64 bytes: the [`FurtherKeys`] first,
/// then this. They travel in one write, and therefore in one packet, since packets may overtake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot {
    /// Address of the receive buffer in the receiver's process.
    pub addr: u64,
    /// Bytes the buffer has room for.
    pub length: u32,
    /// Key of the buffer's memory region, for each of the first two rails.
    pub rkeys: [u32; Self::KEYS],
    /// NCCL's tag of this message.
    pub tag: u32,
    /// Position in its grouped receive, and the size of the group.
    pub group: (u8, u8),
    /// Sequence number on this connection, starting with 1.
    pub seq: u32,
}

/// A slot as it is written and read: four little-endian words, the sequence number in the upper half of the last.
pub type SlotWords = [u64; Slot::BYTES / 8];

impl Slot {
    /// Bytes on the wire and in the ring.
    pub const BYTES: usize = 32;
    /// Keys it has room for.
    pub const KEYS: usize = 2;

    /// The words to be written into the sender's ring.
    #[inline]
    pub fn emit(&self) -> SlotWords {
        let pair = |low: u32, high: u32| (u64::from(low) | u64::from(high) << 32).to_le();
        let group = u32::from(self.group.0) | u32::from(self.group.1) << 8;
        [self.addr.to_le(), pair(self.length, self.rkeys[0]), pair(self.rkeys[1], self.tag), pair(group, self.seq)]
    }

    /// The sequence number in the last word of a slot.
    #[inline]
    pub fn seq_of(last_word: u64) -> u32 {
        (u64::from_le(last_word) >> 32) as u32
    }

    /// Reads a slot that a peer has written.
    ///
    /// # Errors
    /// A group or a length that no Ferrite announces.
    #[inline]
    pub fn parse(words: &SlotWords) -> Result<Self, Violation> {
        let [addr, first, second, last] = words.map(u64::from_le);
        let slot = Self {
            addr,
            length: first as u32,
            rkeys: [(first >> 32) as u32, second as u32],
            tag: (second >> 32) as u32,
            group: (last as u8, (last >> 8) as u8),
            seq: (last >> 32) as u32,
        };
        let (index, count) = slot.group;
        if usize::from(count) > MAX_GROUP || index >= count || slot.length > MAX_MESSAGE {
            return Err(violation!(
                "clear-to-send {} announces {} bytes, as number {} of a group of {}",
                slot.seq,
                slot.length,
                index,
                count
            ));
        }
        Ok(slot)
    }
}

/// The keys of the third and the fourth rail; the rest is zero.
pub type FurtherKeys = [u32; MAX_RAILS - Slot::KEYS];

/// What precedes a slot of 64 bytes.
#[inline]
pub fn emit_further(keys: FurtherKeys) -> SlotWords {
    [(u64::from(keys[0]) | u64::from(keys[1]) << 32).to_le(), 0, 0, 0]
}

/// Reads what precedes a slot of 64 bytes.
#[inline]
pub fn parse_further(words: &SlotWords) -> FurtherKeys {
    let keys = u64::from_le(words[0]);
    [keys as u32, (keys >> 32) as u32]
}

/// 32-byte halves of a slot of a connection of `rails` rails.
pub const fn slot_halves(rails: usize) -> usize {
    if rails > Slot::KEYS { 2 } else { 1 }
}

/// Place of a slot in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place(u16);

impl Place {
    /// The place of sequence number `seq`.
    #[inline]
    pub fn of(seq: u32) -> Self {
        Self((seq as usize % RING_SLOTS) as u16)
    }

    /// As an index into an array of [`RING_SLOTS`].
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What an immediate says about its message's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The whole length, in bytes, below [`Imm::EXPLICIT_LIMIT`].
    Bytes(u32),
    /// As many bytes as the receiver had announced.
    Full,
    /// The low 16 bits of a length that fits neither of the above; the high ones come separately.
    Low(u16),
    /// The high 16 bits.
    High(u16),
    /// Nothing: this is a further stripe of a message whose first stripe tells the length.
    Stripe,
}

/// The 32 bits of immediate data: which slot, and what of it.
///
/// ```text
/// bit 31        23 22 21                     0
///     place (9)    0  length (22)                Bytes
///     place (9)    1  00 0…                      Full
///     place (9)    1  01 0… low 16               Low
///     place (9)    1  10 0… high 16              High
///     place (9)    1  11 0…                      Stripe
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Imm(u32);

const PLACE_BITS: u32 = RING_SLOTS.ilog2();
const EXTENT_BITS: u32 = 32 - PLACE_BITS;
const CODED: u32 = 1 << (EXTENT_BITS - 1);
const KIND_SHIFT: u32 = EXTENT_BITS - 3;
const KIND_FULL: u32 = 0;
const KIND_LOW: u32 = 1;
const KIND_HIGH: u32 = 2;
const KIND_STRIPE: u32 = 3;

const _: () = assert!(RING_SLOTS.is_power_of_two() && EXTENT_BITS == 23);
const _: () = assert!(64 == 2 * Slot::BYTES, "a slot of one or two halves must not straddle a cache line");

impl Imm {
    /// Lengths from here on need [`Extent::Full`] or a low and a high half.
    pub const EXPLICIT_LIMIT: u32 = CODED;

    /// Says `extent` of the slot in `place`.
    #[inline]
    pub fn new(place: Place, extent: Extent) -> Self {
        let extent = match extent {
            Extent::Bytes(n) => n & (CODED - 1),
            Extent::Full => CODED | KIND_FULL << KIND_SHIFT,
            Extent::Low(n) => CODED | KIND_LOW << KIND_SHIFT | u32::from(n),
            Extent::High(n) => CODED | KIND_HIGH << KIND_SHIFT | u32::from(n),
            Extent::Stripe => CODED | KIND_STRIPE << KIND_SHIFT,
        };
        Self(u32::from(place.0) << EXTENT_BITS | extent)
    }

    /// The 32 bits, in host order.
    #[inline]
    pub fn to_bits(self) -> u32 {
        self.0
    }

    /// The immediate of 32 bits, in host order. Every value means something; whether it fits is for the flow to judge.
    #[inline]
    pub fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Place of the message's slot.
    #[inline]
    pub fn place(self) -> Place {
        Place((self.0 >> EXTENT_BITS) as u16)
    }

    /// Length, or part of it.
    #[inline(always)]
    pub fn extent(self) -> Extent {
        if self.0 & CODED == 0 {
            return Extent::Bytes(self.0 & (CODED - 1));
        }
        let half = self.0 as u16;
        match self.0 >> KIND_SHIFT & 3 {
            KIND_FULL => Extent::Full,
            KIND_LOW => Extent::Low(half),
            KIND_HIGH => Extent::High(half),
            _ => Extent::Stripe,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_slot_survives_the_wire(addr: u64, length in 0..=MAX_MESSAGE, rkeys: [u32; 2], tag: u32, count in 1u8..=8, seq: u32) {
            let slot = Slot { addr, length, rkeys, tag, group: (count - 1, count), seq };
            prop_assert_eq!(Slot::parse(&slot.emit()), Ok(slot));
        }

        #[test]
        fn further_keys_survive_the_wire(keys: [u32; 2]) {
            prop_assert_eq!(parse_further(&emit_further(keys)), keys);
        }

        #[test]
        fn any_bytes_parse_or_are_refused(words: [u64; 4]) {
            if let Ok(slot) = Slot::parse(&words) {
                prop_assert!(slot.length <= MAX_MESSAGE);
                prop_assert!(slot.group.0 < slot.group.1 && usize::from(slot.group.1) <= MAX_GROUP);
            }
        }

        #[test]
        fn an_immediate_survives_the_wire(seq: u32, n in 0..Imm::EXPLICIT_LIMIT, half: u16) {
            for extent in [Extent::Bytes(n), Extent::Full, Extent::Low(half), Extent::High(half), Extent::Stripe] {
                let imm = Imm::from_bits(Imm::new(Place::of(seq), extent).to_bits());
                prop_assert_eq!((imm.place(), imm.extent()), (Place::of(seq), extent));
            }
        }

        #[test]
        fn any_immediate_names_a_place_in_the_ring(bits: u32) {
            prop_assert!(Imm::from_bits(bits).place().index() < RING_SLOTS);
        }
    }

    #[test]
    fn a_slot_on_the_wire() {
        let slot = Slot {
            addr: 0x0807_0605_0403_0201,
            length: 0x0c0b_0a09,
            rkeys: [0x100f_0e0d, 0x1413_1211],
            tag: 0x1817_1615,
            group: (2, 3),
            seq: 0x201f_1e1d,
        };
        let bytes: Vec<u8> = slot.emit().into_iter().flat_map(u64::to_ne_bytes).collect();
        let expected: Vec<u8> = (1..=24).chain([2, 3, 0, 0]).chain(29..=32).collect();
        assert_eq!(bytes, expected);
        assert_eq!(Slot::seq_of(slot.emit()[3]), slot.seq);
    }
}
