//! The receiver's copy of the ring in the sender's memory: clear-to-sends in the form in which they are written there.

use super::RING_SLOTS;
use super::cts::{Cts, CtsWords, ExtraKeys, SlotIndex, cts_halves, emit_extra_keys, parse_extra_keys};
use std::ops::Range;

/// Encoded clear-to-sends, by slot.
#[derive(Debug)]
pub(super) struct CtsShadow {
    narrow: Box<[CtsWords; RING_SLOTS]>,
    /// The same with the extra keys in front, on a connection of three or four rails.
    wide: Option<Box<[[CtsWords; 2]; RING_SLOTS]>>,
}

impl CtsShadow {
    /// Empty slots, for a connection of `rails` rails.
    pub(super) fn new(rails: u8) -> Self {
        let wide = (cts_halves(rails.into()) == 2).then(|| Box::new([Default::default(); RING_SLOTS]));
        Self { narrow: Box::new([CtsWords::default(); RING_SLOTS]), wide }
    }

    /// Whether clear-to-sends have extra keys.
    #[inline(always)]
    pub(super) fn is_wide(&self) -> bool {
        self.wide.is_some()
    }

    /// Puts `cts` into slot number `slot`, where clear-to-sends have no extra keys.
    #[inline(always)]
    pub(super) fn put_narrow(&mut self, slot: usize, cts: &Cts) {
        self.narrow[slot] = cts.emit();
    }

    /// Puts `cts` into slot number `slot`, with the keys that it has no room for.
    #[inline(always)]
    pub(super) fn put(&mut self, slot: usize, cts: &Cts, extra: impl FnOnce() -> ExtraKeys) {
        self.narrow[slot] = cts.emit();
        if self.wide.is_some() {
            self.put_wide(slot, extra());
        }
    }

    #[inline(never)]
    fn put_wide(&mut self, slot: usize, extra: ExtraKeys) {
        if let Some(wide) = &mut self.wide {
            wide[slot] = [emit_extra_keys(extra), self.narrow[slot]];
        }
    }

    /// The clear-to-sends in `slots`, without extra keys: all there is on a connection of one or two rails.
    #[inline(always)]
    pub(super) fn narrow(&self, slots: Range<usize>) -> &[CtsWords] {
        &self.narrow[slots]
    }

    /// The clear-to-sends in `slots`, of one or two halves each.
    pub(super) fn encoded(&self, slots: Range<usize>) -> &[CtsWords] {
        match &self.wide {
            None => self.narrow(slots),
            Some(wide) => wide[slots].as_flattened(),
        }
    }

    /// The clear-to-send in `slot`, and the keys that it has no room for.
    pub(super) fn get(&self, slot: SlotIndex) -> (Cts, ExtraKeys) {
        let extra = self.wide.as_ref().map_or([0; 2], |wide| parse_extra_keys(&wide[slot.index()][0]));
        (Cts::from_words(&self.narrow[slot.index()]), extra)
    }

    /// The address of the buffer in `slot`.
    pub(super) fn address(&self, slot: SlotIndex) -> u64 {
        u64::from_le(self.narrow[slot.index()][0])
    }
}
