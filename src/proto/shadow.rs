//! The receiver's copy of the ring in the sender's memory: clear-to-sends as they are going to be written.

use super::RING_SLOTS;
use super::wire::{FurtherKeys, Place, Slot, SlotWords, emit_further, slot_halves};
use std::ops::Range;

/// Encoded slots, by place.
#[derive(Debug)]
pub(super) struct Shadow {
    slots: Box<[SlotWords; RING_SLOTS]>,
    /// The same with the further keys in front, if slots have two halves.
    wide: Option<Box<[[SlotWords; 2]; RING_SLOTS]>>,
}

impl Shadow {
    /// Empty slots of a connection of `rails` rails.
    pub(super) fn new(rails: u8) -> Self {
        let wide = (slot_halves(rails.into()) == 2).then(|| Box::new([Default::default(); RING_SLOTS]));
        Self { slots: Box::new([SlotWords::default(); RING_SLOTS]), wide }
    }

    /// Puts `slot` into `place`, with the keys that it has no room for.
    #[inline(always)]
    pub(super) fn put(&mut self, place: usize, slot: &Slot, further: FurtherKeys) {
        self.slots[place] = slot.emit();
        if let Some(wide) = &mut self.wide {
            wide[place] = [emit_further(further), self.slots[place]];
        }
    }

    /// The slots in `places` of a connection of one or two rails.
    #[inline(always)]
    pub(super) fn narrow(&self, places: Range<usize>) -> &[SlotWords] {
        &self.slots[places]
    }

    /// The slots in `places`, of one or two halves each.
    pub(super) fn any(&self, places: Range<usize>) -> &[SlotWords] {
        match &self.wide {
            None => self.narrow(places),
            Some(wide) => wide[places].as_flattened(),
        }
    }

    /// The address in the slot in `place`.
    pub(super) fn address(&self, place: Place) -> u64 {
        u64::from_le(self.slots[place.index()][0])
    }
}
