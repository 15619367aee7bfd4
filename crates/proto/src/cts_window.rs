//! Which clear-to-sends have been sent, which wait, and when the waiting ones are sent.
//!
//! Clear-to-sends are coalesced like TCP window updates. They wait until they are at least as many
//! as the sender's unused ones, whose messages have not arrived, or until their buffers have
//! [`MAX_WAITING_BYTES`]. So a sender in full flow gets one write for several messages, and always
//! has a clear-to-send in hand. The clear-to-send of a receive with no other one before it is sent
//! at once.
//!
//! So the third of three receives waits while the sender has two clear-to-sends in hand. Three
//! things end that:
//! - The first of the two messages arrives. If the three are used in order, the third had to wait
//!   for it in any case. The sender loses at most the time of one message to the receiver and one
//!   clear-to-send back.
//! - A test of the third receive itself finds no completion: that one is needed now, and the other
//!   two may not be.
//! - [`MAX_EMPTY_POLLS`] polls of the completion queue find nothing.

use super::RING_SLOTS;
use super::cts::{
    Cts, CtsWords, ExtraKeys, SlotIndex, cts_halves, emit_extra_keys, parse_extra_keys,
};
use std::ops::Range;

/// Polls without a completion after which all waiting clear-to-sends are sent.
const MAX_EMPTY_POLLS: u32 = 32;

/// All waiting clear-to-sends are sent once their buffers have this many bytes together. On a fast
/// network, the sender may need the space of larger ones before they are as many as those it has.
pub(super) const MAX_WAITING_BYTES: u64 = 128 << 10;

/// The clear-to-sends of a connection, by sequence number. `oldest <= unsent <= next`, in wrapping
/// arithmetic; `next - oldest` is no more than the ring has slots: see [`Self::is_consistent`].
#[derive(Debug)]
pub(super) struct CtsWindow {
    /// The oldest one whose message has not arrived.
    oldest: u32,
    /// The first one that has not been sent.
    unsent: u32,
    /// The number for the next buffer.
    next: u32,
    /// How many have been sent and whose message has not arrived: at most `unsent - oldest`.
    outstanding: u32,
    /// How many there may be, counted from the oldest one whose message has not arrived.
    limit: u32,
    /// The bytes of the buffers of all waiting ones; or [`MAX_WAITING_BYTES`] or more, where they
    /// are sent at the next opportunity.
    waiting_bytes: u64,
    empty_polls: u32,
}

impl CtsWindow {
    /// No clear-to-send yet; the first one will have the sequence number 1.
    pub(super) fn new() -> Self {
        Self {
            oldest: 1,
            unsent: 1,
            next: 1,
            outstanding: 0,
            limit: RING_SLOTS as u32,
            waiting_bytes: 0,
            empty_polls: 0,
        }
    }

    /// The first one will have the sequence number `seq`.
    #[cfg(test)]
    pub(super) fn begin_at(&mut self, seq: u32) {
        (self.oldest, self.unsent, self.next) = (seq, seq, seq);
    }

    /// Allows `limit` of them, or as many as the ring has slots.
    pub(super) fn set_limit(&mut self, limit: u32) {
        self.limit = limit.min(RING_SLOTS as u32);
    }

    /// Whether there may be `count` more: one whose message has not arrived keeps its slot of the
    /// ring.
    #[inline(always)]
    pub(super) fn has_space(&self, count: usize) -> bool {
        self.next.wrapping_sub(self.oldest) as usize + count <= self.limit as usize
    }

    /// The sequence number of the next buffer.
    #[inline(always)]
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// The sequence number of the first clear-to-send that has not been sent.
    pub(super) fn unsent(&self) -> u32 {
        self.unsent
    }

    /// The sequence number before which all messages have arrived.
    pub(super) fn oldest(&self) -> u32 {
        self.oldest
    }

    /// A missing list has announced all clear-to-sends; `missing` of their messages have not
    /// arrived.
    pub(super) fn handle_missing_list(&mut self, missing: u32) {
        (self.unsent, self.outstanding) = (self.next, missing);
        (self.waiting_bytes, self.empty_polls) = (0, 0);
        debug_assert!(self.is_consistent());
    }

    /// Adds the clear-to-sends of the next `count` buffers, of this many `bytes` together.
    #[inline(always)]
    pub(super) fn push(&mut self, count: usize, bytes: u64) {
        self.next = self.next.wrapping_add(count as u32);
        self.waiting_bytes += bytes;
        debug_assert!(self.is_consistent());
    }

    /// How many messages have not arrived.
    pub(super) fn missing(&self) -> u32 {
        self.waiting() + self.outstanding
    }

    /// How many clear-to-sends wait.
    #[inline(always)]
    pub(super) fn waiting(&self) -> u32 {
        self.next.wrapping_sub(self.unsent)
    }

    /// Whether to send some now.
    #[inline(always)]
    pub(super) fn is_due(&self) -> bool {
        let waiting = self.waiting();
        waiting != 0 && (waiting >= self.outstanding || self.waiting_bytes >= MAX_WAITING_BYTES)
    }

    /// The slots whose clear-to-sends are to be sent now: contiguous, at most `limit`, which is not
    /// 0. Call it while [`Self::is_due`].
    #[inline(always)]
    pub(super) fn take(&mut self, limit: u32) -> Range<usize> {
        let start = SlotIndex::of(self.unsent).index();
        let count = self.waiting().min(limit).min((RING_SLOTS - start) as u32);
        self.unsent = self.unsent.wrapping_add(count);
        self.outstanding += count;
        if self.unsent == self.next {
            self.waiting_bytes = 0;
            self.empty_polls = 0;
        } else {
            self.waiting_bytes = MAX_WAITING_BYTES;
        }
        debug_assert!(self.is_consistent());
        start..start + count as usize
    }

    /// [`Self::take`] if some are due.
    #[cfg(test)]
    fn poll(&mut self, limit: u32) -> Option<Range<usize>> {
        self.is_due().then(|| self.take(limit))
    }

    /// Handles an empty poll of the completion queue. `is_tested` returns whether a slot belongs to
    /// the request under test.
    #[inline]
    pub(super) fn handle_empty_poll(&mut self, is_tested: impl Fn(usize) -> bool) {
        if self.waiting() == 0 {
            return;
        }
        self.empty_polls += 1;
        let slot = |i: u32| SlotIndex::of(self.unsent.wrapping_add(i)).index();
        if self.empty_polls >= MAX_EMPTY_POLLS || (0..self.waiting()).any(|i| is_tested(slot(i))) {
            self.empty_polls = 0;
            self.waiting_bytes = MAX_WAITING_BYTES;
        }
    }

    /// Whether the clear-to-send in `slot` has been sent and is still kept. No two from `oldest` to
    /// `unsent` share a slot.
    #[inline]
    pub(super) fn is_sent(&self, slot: usize) -> bool {
        self.distance(slot) < self.unsent.wrapping_sub(self.oldest) as usize
    }

    /// How many slots `slot` is after the oldest one.
    #[inline(always)]
    fn distance(&self, slot: usize) -> usize {
        slot.wrapping_sub(SlotIndex::of(self.oldest).index()) % RING_SLOTS
    }

    /// Handles the arrival of the message of `slot`, whose clear-to-send [`Self::is_sent`].
    /// `is_pending` returns whether the message of a slot has not arrived.
    #[inline(always)]
    pub(super) fn handle_arrival(&mut self, slot: usize, is_pending: impl Fn(usize) -> bool) {
        debug_assert!(self.is_sent(slot) && !is_pending(slot));
        self.outstanding -= 1;
        if self.distance(slot) == 0 {
            let mut oldest = self.oldest.wrapping_add(1);
            while oldest != self.unsent && !is_pending(SlotIndex::of(oldest).index()) {
                oldest = oldest.wrapping_add(1);
            }
            self.oldest = oldest;
        }
        debug_assert!(self.is_consistent());
    }

    /// The invariants.
    fn is_consistent(&self) -> bool {
        debug_assert!(self.limit <= RING_SLOTS as u32, "more may be kept than the ring has slots");
        debug_assert!(self.empty_polls < MAX_EMPTY_POLLS, "they have waited for too long");
        debug_assert!(
            self.waiting() != 0 || self.empty_polls == 0,
            "polls are counted while none waits"
        );
        debug_assert!(
            self.waiting() != 0 || self.waiting_bytes == 0,
            "bytes are counted while none waits"
        );
        let kept = self.next.wrapping_sub(self.oldest);
        let sent = self.unsent.wrapping_sub(self.oldest);
        kept <= RING_SLOTS as u32 && sent <= kept && self.outstanding <= sent
    }
}

/// The receiver's copy of the ring in the sender's memory: clear-to-sends in wire format, by slot.
#[derive(Debug)]
pub(super) struct CtsShadow {
    narrow: Box<[CtsWords; RING_SLOTS]>,
    /// The same with the extra keys in front, on a connection of three or four rails.
    wide: Option<Box<[[CtsWords; 2]; RING_SLOTS]>>,
}

impl CtsShadow {
    /// Empty slots, for a connection of `rails` rails.
    pub(super) fn new(rails: u8) -> Self {
        let wide =
            (cts_halves(rails.into()) == 2).then(|| Box::new([Default::default(); RING_SLOTS]));
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

    /// Puts `cts` into slot number `slot`, with the keys that do not fit it.
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

    /// The clear-to-sends in `slots`, without extra keys: the complete form on a connection of one
    /// or two rails.
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

    /// The clear-to-send in `slot`, and the keys that do not fit it.
    pub(super) fn get(&self, slot: SlotIndex) -> (Cts, ExtraKeys) {
        let extra =
            self.wide.as_ref().map_or([0; 2], |wide| parse_extra_keys(&wide[slot.index()][0]));
        (Cts::from_words(&self.narrow[slot.index()]), extra)
    }

    /// The address of the buffer in `slot`.
    pub(super) fn address(&self, slot: SlotIndex) -> u64 {
        u64::from_le(self.narrow[slot.index()][0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clear_to_sends_are_kept_until_their_message_and_all_before_it_have_arrived() {
        let mut window = CtsWindow::new();
        window.push(3, MAX_WAITING_BYTES);
        while window.poll(8).is_some() {}
        let mut kept = |arrived: usize, is_pending: [bool; 4]| {
            window.handle_arrival(arrived, |slot| is_pending[slot]);
            [1, 2, 3].map(|slot| window.is_sent(slot))
        };
        assert_eq!(kept(2, [false, true, false, true]), [true; 3]);
        assert_eq!(kept(1, [false, false, false, true]), [false, false, true]);
        assert_eq!(kept(3, [false; 4]), [false; 3]);
    }

    /// How many clear-to-sends are written after each of `pushes` buffers of `bytes`.
    fn written(window: &mut CtsWindow, pushes: usize, bytes: u64) -> Vec<usize> {
        let mut push = |_| {
            window.push(1, bytes);
            window.poll(8).map_or(0, |slots| slots.len())
        };
        (0..pushes).map(&mut push).collect()
    }

    #[test]
    fn small_buffers_are_coalesced_and_the_last_is_sent_after_empty_polls() {
        let mut window = CtsWindow::new();
        assert_eq!(written(&mut window, 9, 8), [1, 1, 0, 2, 0, 0, 0, 4, 0]);
        for _ in 0..MAX_EMPTY_POLLS {
            assert_eq!(window.poll(8), None);
            window.handle_empty_poll(|slot| slot == 1);
        }
        assert_eq!(window.poll(8), Some(9..10));
    }

    #[test]
    fn clear_to_sends_of_large_buffers_wait_for_few_others() {
        let after = |bytes| written(&mut CtsWindow::new(), 9, bytes);
        assert_eq!(after(MAX_WAITING_BYTES), [1; 9]);
        assert_eq!(after(MAX_WAITING_BYTES / 2), [1, 1, 0, 2, 0, 2, 0, 2, 0]);
        assert_eq!(after(MAX_WAITING_BYTES / 3), [1, 1, 0, 2, 0, 0, 0, 4, 0]);
    }

    #[test]
    fn a_waiting_cts_is_sent_when_a_message_arrives_or_its_own_request_is_tested() {
        let mut window = CtsWindow::new();
        assert_eq!(written(&mut window, 3, 8), [1, 1, 0]);
        window.handle_arrival(1, |slot| slot != 1);
        assert_eq!(window.poll(8), Some(3..4), "the first message has arrived");
        let mut window = CtsWindow::new();
        assert_eq!(written(&mut window, 3, 8), [1, 1, 0]);
        for tested in [1, 2] {
            window.handle_empty_poll(|slot| slot == tested);
            assert_eq!(window.poll(8), None, "the sender has that one");
        }
        window.handle_empty_poll(|slot| slot == 3);
        assert_eq!(window.poll(8), Some(3..4), "the sender cannot send what is tested");
    }
}
