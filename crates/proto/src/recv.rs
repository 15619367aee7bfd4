//! The receiving end of a connection: accepts buffers, decides which clear-to-sends to write,
//! counts arrivals.
//!
//! A [`RecvFlow`] has an [`Arrival`] for each awaited message, and [`Receives`] limits their
//! number.

use crate::cts::{Cts, CtsWords, KeysByRail, SlotIndex};
use crate::cts_window::{CtsShadow, CtsWindow};
use crate::explain::numbers::Numbers;
use crate::explain::snapshot::{Contact, EndSnapshot, rank};
use crate::imm::{Imm, LengthCode};
use crate::recovery::missing_list::{MissingList, MissingMessage};
use crate::recovery::rail_mask::RailMask;
use crate::requests::{Entries, Entry, Finished, RecvRequest, RequestId, Requests, TestResult};
use crate::shared::Shared;
use crate::stripe::Striping;
use crate::{MAX_GROUP, MAX_RAILS, QpIndex, RING_SLOTS, Violation, violation};
use std::ops::Range;

/// One buffer of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer<'a, K = [u32; MAX_RAILS]> {
    /// Its address in this process.
    pub addr: u64,
    /// Its size in bytes.
    pub length: u32,
    /// Keys of its memory.
    pub rkeys: &'a K,
    /// The tag that its message has to carry.
    pub tag: u32,
}

/// The state of the receiving end. `new` allocates all memory.
///
/// Its methods come in these groups, in this order:
/// - NCCL's requests: [`Self::begin`]; on the fast path [`Self::begin_single`];
/// - clear-to-sends to write: [`Self::is_cts_due`], [`Self::take_cts`], [`Self::encoded_cts`];
/// - arrivals: [`Self::handle_immediate`]; on the fast path [`Self::complete_whole`];
/// - results for NCCL: [`Self::finish`], [`Self::progress`];
/// - how many messages may be expected: [`Self::receives`], [`Self::more_receives`];
/// - after a fault ([`super::recovery`]): [`Self::missing_list`], [`Self::renew_keys`];
/// - the state for hang reports ([`super::explain`]): [`Self::snapshot`].
#[derive(Debug)]
pub struct RecvFlow {
    pub(super) striping: Striping,
    pub(super) shadow: CtsShadow,
    /// The message of each slot.
    pub(super) arrivals: Box<[Arrival; RING_SLOTS]>,
    pub(super) window: CtsWindow,
    receives: Receives,
    requests: Requests<RecvRequest>,
    /// A buffer of fewer bytes may take the fast path: [`Self::begin_single`].
    single_below: u32,
    /// The bytes of each message of the group that completed last.
    done: [u32; MAX_GROUP],
    /// The rails of the connection.
    pub(super) all_rails: RailMask,
    /// By slot, the rails that carried the messages that arrived before the last missing list.
    pub(super) earlier_rails: Vec<RailMask>,
    /// The number of the next buffer when a look found no request. A request posts a buffer, so
    /// there is none until this number changes.
    idle_at: Shared<u32>,
}

impl RecvFlow {
    /// A flow with nothing posted, of a connection that begins on all of its rails.
    #[cfg(any(test, feature = "simulator"))]
    pub fn new(striping: Striping) -> Self {
        Self::over(striping, striping.rails())
    }

    /// The flow of a connection of `count` rails that begins on those in `striping`.
    pub fn over(striping: Striping, count: u8) -> Self {
        let receives = Receives::default();
        let mut window = CtsWindow::new();
        window.set_limit(receives.most_messages());
        let shadow = CtsShadow::new(count);
        Self {
            striping,
            single_below: if shadow.is_wide() { 0 } else { Imm::EXPLICIT_LIMIT + 1 },
            shadow,
            arrivals: Box::new([Arrival::new(RequestId::from_bits(0), 0, 0); RING_SLOTS]),
            window,
            receives,
            requests: Requests::default(),
            done: [0; MAX_GROUP],
            all_rails: RailMask::first(count),
            earlier_rails: Vec::new(),
            idle_at: Shared::new(1),
        }
    }

    /// [`Self::begin`] for callers that do not need the entry.
    #[cfg(any(test, feature = "simulator"))]
    pub(super) fn post<'a, E: From<Violation>, K: KeysByRail + 'a>(
        &mut self,
        count: usize,
        buffer: impl FnMut(usize) -> Result<Buffer<'a, K>, E>,
    ) -> Result<Option<RequestId>, E> {
        self.begin(count, buffer, |_| ())
    }

    /// Posts a grouped receive of `count` buffers, 1 to [`MAX_GROUP`]; `buffer` returns each. Calls
    /// `begun` with the request's entry if it is posted. `None`: too much is outstanding; try again.
    ///
    /// # Errors
    /// The group has no or too many members, or `buffer` returns an error. Nothing is posted then.
    #[inline(always)]
    pub fn begin<'a, E: From<Violation>, K: KeysByRail + 'a>(
        &mut self,
        count: usize,
        mut buffer: impl FnMut(usize) -> Result<Buffer<'a, K>, E>,
        begun: impl FnOnce(&Entry<RecvRequest>),
    ) -> Result<Option<RequestId>, E> {
        if !(1..=MAX_GROUP).contains(&count) {
            return Err(violation!("a receive of {} messages; 1 to {MAX_GROUP} are allowed", {
                count
            })
            .into());
        }
        if !self.window.has_space(count) {
            return Ok(None);
        }
        let Self { requests, window, shadow, arrivals, .. } = self;
        let Some(entry) = requests.allocate() else { return Ok(None) };
        let id = entry.id();
        entry.value.begin(count as u8);
        let (mut longest, mut bytes) = (0, 0);
        for index in 0..count {
            let Buffer { addr, length, rkeys, tag } = match buffer(index) {
                Ok(buffer) => buffer,
                Err(e) => {
                    self.withdraw(id);
                    return Err(e);
                }
            };
            let seq = window.next().wrapping_add(index as u32);
            let slot = SlotIndex::of(seq).index();
            let cts = Cts { addr, length, rkeys: [rkeys.of_rail(0), rkeys.of_rail(1)], tag, seq };
            shadow.put(slot, &cts, || [rkeys.of_rail(2), rkeys.of_rail(3)]);
            arrivals[slot] = Arrival::new(id, index as u8, length);
            longest = longest.max(length);
            bytes += u64::from(length);
        }
        window.push(count, bytes);
        begun(entry);
        if longest > Imm::EXPLICIT_LIMIT {
            self.expect_two_immediates();
        }
        Ok(Some(id))
    }

    /// Ends a request for which nothing has been posted.
    #[cold]
    #[inline(never)]
    fn withdraw(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get(id) {
            request.end();
        }
        self.requests.release_id(id);
    }
}

// The fast path, with fewer instructions: a receive of one message whose length fits one immediate.
impl RecvFlow {
    /// As [`Self::begin`], for one buffer, on a connection of one or two rails. False: it is
    /// another case, or too much is outstanding, and nothing has changed.
    #[inline(always)]
    pub fn begin_single<K: KeysByRail>(
        &mut self,
        buffer: Buffer<'_, K>,
        begun: impl FnOnce(&Entry<RecvRequest>),
    ) -> bool {
        let Buffer { addr, length, rkeys, tag } = buffer;
        let Self { requests, window, shadow, arrivals, single_below, .. } = self;
        if length >= *single_below || !window.has_space(1) {
            return false;
        }
        let Some(entry) = requests.allocate() else { return false };
        entry.value.begin(1);
        begun(entry);
        let seq = window.next();
        let slot = SlotIndex::of(seq).index();
        arrivals[slot] = Arrival::new(entry.id(), 0, length);
        shadow.put_narrow(
            slot,
            &Cts { addr, length, rkeys: [rkeys.of_rail(0), rkeys.of_rail(1)], tag, seq },
        );
        window.push(1, length.into());
        true
    }
}

// Clear-to-sends: which to write, and when.
impl RecvFlow {
    /// Whether to write clear-to-sends now.
    #[inline(always)]
    pub fn is_cts_due(&self) -> bool {
        self.window.is_due()
    }

    /// Whether some wait to be coalesced, so that [`Self::handle_empty_poll`] has work.
    #[inline(always)]
    pub fn has_waiting_cts(&self) -> bool {
        self.window.waiting() != 0
    }

    /// The slots of the sender's ring to write now: contiguous, at most `limit`, which is not 0.
    /// Call it while [`Self::is_cts_due`].
    #[inline(always)]
    pub fn take_cts(&mut self, limit: u32) -> Range<usize> {
        self.window.take(limit)
    }

    /// [`Self::take_cts`] if some are due.
    #[cfg(any(test, feature = "simulator"))]
    pub(super) fn poll_cts(&mut self, limit: u32) -> Option<Range<usize>> {
        self.is_cts_due().then(|| self.take_cts(limit))
    }

    /// The words to write into `slots`, on a connection of one or two rails.
    #[inline]
    pub fn encoded_cts_narrow(&self, slots: Range<usize>) -> &[CtsWords] {
        self.shadow.narrow(slots)
    }

    /// The words to write into `slots`: one or two halves for each.
    pub fn encoded_cts(&self, slots: Range<usize>) -> &[CtsWords] {
        self.shadow.encoded(slots)
    }

    /// Handles an empty poll of the completion queue, while NCCL tests request `tested`.
    #[inline]
    pub fn handle_empty_poll(&mut self, tested: RequestId) {
        let Self { window, arrivals, .. } = self;
        window.handle_empty_poll(|slot| arrivals[slot].request == tested);
    }
}

// Arriving immediates: which message they belong to, and when it is complete.
impl RecvFlow {
    /// Handles an immediate that has arrived on `qp`. All earlier data on that queue pair has
    /// arrived too.
    ///
    /// # Errors
    /// It fits no message that may arrive now. The connection cannot continue.
    #[inline(always)]
    pub fn handle_immediate(&mut self, qp: QpIndex, imm: Imm) -> Result<(), Violation> {
        let slot = imm.slot().index();
        if !self.window.is_sent(slot) {
            return Err(violation!(
                "data for slot {}, whose clear-to-send has not been sent",
                slot
            ));
        }
        if self.complete_whole(qp, imm) { Ok(()) } else { self.handle_part(qp, imm) }
    }

    /// [`Self::handle_immediate`] for a whole message with its length, the most frequent case.
    /// False: the fast path does not apply; nothing has changed.
    #[inline(always)]
    pub fn complete_whole(&mut self, qp: QpIndex, imm: Imm) -> bool {
        let Self { window, arrivals, requests, striping, .. } = self;
        let (slot, arrivals) = (imm.slot().index(), arrivals.as_mut());
        if !window.is_sent(slot) {
            return false;
        }
        let arrival = &mut arrivals[slot];
        if arrival.stage == Stage::Untouched
            && let LengthCode::Bytes(length) = imm.length_code()
            && length <= arrival.posted
            && length <= striping.whole_up_to()
        {
            arrival.handle_whole(qp, length);
            requests.get_live(arrival.request).complete(arrival.index, length);
            window.handle_arrival(slot, |slot| arrivals[slot].is_pending());
            return true;
        }
        false
    }

    /// [`Self::handle_immediate`] for all cases, for a slot whose clear-to-send has been sent.
    ///
    /// # Errors
    /// As for [`Self::handle_immediate`].
    #[inline(never)]
    fn handle_part(&mut self, qp: QpIndex, imm: Imm) -> Result<(), Violation> {
        let slot = imm.slot().index();
        let arrival = &mut self.arrivals[slot];
        if !arrival.is_pending() {
            return Err(violation!("data for slot {}, where nothing is posted", slot));
        }
        arrival.stage = Stage::Begun;
        if arrival.qps & 1 << qp.0 != 0 {
            return Err(violation!("a stripe arrived twice on queue pair {}", qp.0));
        }
        if !arrival.handle_length(imm.length_code())? {
            return Ok(());
        }
        let arrived = u32::from(arrival.count_stripe(qp));
        if !arrival.is_length_known() {
            return Ok(());
        }
        let length = arrival.length;
        let expected = self.striping.stripe_count(length);
        if arrived < expected {
            return Ok(());
        }
        if arrived > expected {
            return Err(violation!("more than {expected} stripes for a message of {length} bytes"));
        }
        arrival.stage = Stage::Whole;
        let Self { window, arrivals, requests, .. } = self;
        let arrival = &arrivals[slot];
        requests.get_live(arrival.request).complete(arrival.index, length);
        window.handle_arrival(slot, |slot| arrivals[slot].is_pending());
        Ok(())
    }

    /// For a generated page: how much of the message of that slot has arrived.
    #[cfg(test)]
    pub(super) fn state_of(&self, slot: SlotIndex) -> &'static str {
        self.arrivals[slot.index()].state_name()
    }
}

// Completion of requests.
impl RecvFlow {
    /// The bytes of each message of request `id`, in the order of its buffers, if it is complete.
    #[cfg(any(test, feature = "simulator"))]
    pub(super) fn poll_done(&mut self, id: RequestId) -> Result<Option<&[u32]>, Violation> {
        self.requests.tested(id)?;
        let entries = std::sync::Arc::clone(self.requests.entries());
        let entry = &entries[id.index()];
        Ok(match self.finish(entry)? {
            None => None,
            Some(Finished::One(length)) => {
                self.done[0] = length;
                Some(&self.done[..1])
            }
            Some(Finished::Group) => Some(self.lengths(entry)),
        })
    }

    /// Whether the request in `entry` is complete; [`Self::lengths`] has the bytes of a group. Its id
    /// is stale afterwards.
    ///
    /// # Errors
    /// The request has ended.
    #[inline(always)]
    pub fn finish(&mut self, entry: &Entry<RecvRequest>) -> Result<Option<Finished>, Violation> {
        let request = &entry.value;
        match self.progress(entry) {
            TestResult::Pending => return Ok(None),
            TestResult::Finished(length) => return Ok(Some(Finished::One(length))),
            TestResult::Other if request.pending.get() != 0 => return Err(entry.ended()),
            TestResult::Other => {}
        }
        request.end();
        self.requests.release(entry);
        Ok(Some(Finished::Group))
    }

    /// [`Self::finish`], but leaves groups unfinished, and creates no error if the request has
    /// ended.
    #[inline(always)]
    pub fn progress(&mut self, entry: &Entry<RecvRequest>) -> TestResult {
        let request = &entry.value;
        match request.pending.get() {
            1.. => TestResult::Pending,
            0 if request.count.get() == 1 => {
                request.end();
                self.requests.release(entry);
                TestResult::Finished(request.lengths[0].get())
            }
            _ => TestResult::Other,
        }
    }

    /// The bytes of each message of the request in `entry`, which has just finished.
    pub fn lengths(&mut self, entry: &Entry<RecvRequest>) -> &[u32] {
        let RecvRequest { count, lengths, .. } = &entry.value;
        self.done.iter_mut().zip(lengths).for_each(|(done, length)| *done = length.get());
        &self.done[..usize::from(count.get()).min(MAX_GROUP)]
    }

    /// Whether request `id` is complete.
    ///
    /// # Errors
    /// The id is stale.
    #[inline]
    pub fn is_done(&self, id: RequestId) -> Result<bool, Violation> {
        Ok(!self.requests.tested(id)?.value.is_pending())
    }

    /// The number of messages of request `id`, and the bytes of those that have arrived.
    pub fn messages(&self, id: RequestId) -> (u8, u64) {
        let Some(request) = self.requests.get(id) else { return (0, 0) };
        let lengths = request.lengths.iter().take(request.count.get().into());
        (request.count.get(), lengths.map(|length| u64::from(length.get())).sum())
    }

    /// The rails that carried the latest message into the buffer at `addr`, as a bit mask. All
    /// rails, if none of the last [`RING_SLOTS`] messages went there. Scans every slot.
    pub fn rails_of(&self, addr: u64) -> u32 {
        let all = self.all_rails.0.into();
        if self.all_rails.count() == 1 {
            return all;
        }
        let mut slots = (1..=RING_SLOTS as u32)
            .map(|back| SlotIndex::of(self.window.next().wrapping_sub(back)));
        // Messages of no bytes may have any address.
        let is_full = |arrival: &Arrival| !arrival.is_pending() && arrival.length > 0;
        let is_it = |slot: &SlotIndex| {
            is_full(&self.arrivals[slot.index()]) && self.shadow.address(*slot) == addr
        };
        let Some(slot) = slots.find(is_it) else { return all };
        self.rails_of_slot(slot.index()).0.into()
    }

    /// Whether no request is in use.
    pub fn is_idle(&self) -> bool {
        self.requests.are_all_free()
    }

    /// Expected messages that have not arrived.
    pub fn outstanding(&self) -> u32 {
        self.window.missing()
    }

    /// All entries of the table of requests.
    pub fn entries(&self) -> &Entries<RecvRequest> {
        self.requests.entries()
    }
}

// How many messages may be expected at once: as many as have receives.
impl RecvFlow {
    /// The receives that must be posted on each queue pair.
    pub fn receives(&self) -> u32 {
        self.receives.posted()
    }

    /// The receives that each queue pair would need to accept `count` more messages, if that is
    /// what is missing.
    pub fn more_receives(&self, count: usize) -> Option<u32> {
        if self.window.has_space(count) { None } else { self.receives.more().map(Receives::posted) }
    }

    /// Each queue pair now has the number of receives that [`Self::more_receives`] returned.
    pub fn handle_more_receives(&mut self) {
        if let Some(more) = self.receives.more() {
            self.receives = more;
            self.window.set_limit(more.most_messages());
        }
    }

    /// Handles that a buffer of a group has room for a message whose length needs two immediates.
    #[cold]
    #[inline(never)]
    fn expect_two_immediates(&mut self) {
        self.receives.expect_two_each();
        self.window.set_limit(self.receives.most_messages());
    }
}

// After a fault: what is missing.
impl RecvFlow {
    /// The sequence number of the oldest message that has not arrived.
    pub fn oldest_missing(&self) -> u32 {
        self.window.oldest()
    }

    /// Lists the messages that have not arrived whole. Call it after the old queue pairs are
    /// destroyed and all of their completions are handled.
    ///
    /// The flow forgets partial arrivals of a listed message: all of it is resent, over queue pairs
    /// according to `striping`. The missing list replaces all clear-to-sends so far:
    /// [`Self::take_cts`] returns none of them any more.
    pub fn missing_list(&mut self, striping: Striping) -> MissingList {
        self.keep_rails();
        let (oldest, next) = (self.window.oldest(), self.window.next());
        let mut missing = Vec::new();
        for seq in (0..next.wrapping_sub(oldest)).map(|i| oldest.wrapping_add(i)) {
            let slot = SlotIndex::of(seq);
            let arrival = &mut self.arrivals[slot.index()];
            if arrival.is_pending() {
                arrival.reset();
                let (cts, extra) = self.shadow.get(slot);
                missing.push(MissingMessage { cts, extra });
            }
        }
        self.window.handle_missing_list(missing.len() as u32);
        self.striping = striping;
        MissingList { oldest, next, missing }
    }

    /// Updates the keys of buffers after a rail has moved to a port of another card. `keys_at`
    /// returns them by address and length, or `None` where they are unchanged. Call it before
    /// [`Self::missing_list`], which sends them to the sender.
    pub fn renew_keys(&mut self, mut keys_at: impl FnMut(u64, u32) -> Option<[u32; MAX_RAILS]>) {
        let (oldest, next) = (self.window.oldest(), self.window.next());
        for slot in (0..next.wrapping_sub(oldest)).map(|i| SlotIndex::of(oldest.wrapping_add(i))) {
            let (cts, _) = self.shadow.get(slot);
            if let Some([first, second, extra @ ..]) = keys_at(cts.addr, cts.length) {
                self.shadow.put(slot.index(), &Cts { rkeys: [first, second], ..cts }, || extra);
            }
        }
    }

    /// The rails that carried the message in `slot`.
    pub(crate) fn rails_of_slot(&self, slot: usize) -> RailMask {
        let arrived = self.arrivals[slot].qps;
        if arrived == 0 {
            return self.earlier_rails.get(slot).copied().unwrap_or(self.all_rails);
        }
        let qps = (0..self.striping.qp_count()).filter(|qp| arrived & 1 << qp != 0);
        qps.fold(RailMask::NONE, |rails, qp| {
            rails | RailMask::only(self.striping.rail_of(QpIndex(qp)))
        })
    }

    /// Records the rails of arrived messages, before the queue pairs change.
    fn keep_rails(&mut self) {
        self.earlier_rails = (0..RING_SLOTS).map(|slot| self.rails_of_slot(slot)).collect();
        self.arrivals
            .iter_mut()
            .filter(|arrival| !arrival.is_pending())
            .for_each(|arrival| arrival.qps = 0);
    }
}

// For hang reports.
impl RecvFlow {
    /// The present state. NCCL has called `tests` times for its requests without a result.
    pub fn snapshot(&self, tests: u32, flushes: bool) -> EndSnapshot {
        let next = self.window.next();
        let posted = next.wrapping_sub(1);
        let is_idle = self.idle_at.get() == next || self.is_idle();
        if is_idle {
            self.idle_at.set(next);
        }
        EndSnapshot {
            numbers: Numbers::Receiver {
                posted,
                announced: self.window.unsent().wrapping_sub(1),
                arrived: posted.wrapping_sub(self.window.missing()),
                flushes,
            },
            refusals: 0,
            calls: tests,
            has_requests: !is_idle,
            recovers: false,
            contact: Contact::Up,
            sender_rank: (posted != 0)
                .then(|| self.shadow.get(SlotIndex::of(posted)).0.tag)
                .and_then(rank),
        }
    }
}

/// The message of one slot of the ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    /// The receive request that the message is for.
    request: RequestId,
    /// Size of its buffer in bytes.
    posted: u32,
    /// Its length in bytes, as far as known (see `known`).
    length: u32,
    /// Queue pairs on which a stripe has arrived, as a bit mask.
    pub(super) qps: u32,
    /// Index of the buffer within the request.
    index: u8,
    stage: Stage,
    known: LengthState,
    /// Stripes that have arrived.
    stripes: u8,
}

/// How much of a message has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// All of it.
    Whole,
    /// Nothing.
    Untouched,
    /// Something, or part of its length.
    Begun,
}

/// What is known of a message's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LengthState {
    Unknown,
    LowHalf,
    Known,
}

impl Arrival {
    /// Begins a message; nothing of it has arrived yet.
    #[inline]
    fn new(request: RequestId, index: u8, posted: u32) -> Self {
        let (stage, known) = (Stage::Untouched, LengthState::Unknown);
        Self { request, posted, length: 0, qps: 0, index, stage, known, stripes: 0 }
    }

    /// Whether some of the message has not arrived.
    #[inline(always)]
    pub(super) fn is_pending(&self) -> bool {
        self.stage != Stage::Whole
    }

    /// Handles that the whole message has arrived on `qp`, in one stripe of `length` bytes.
    #[inline(always)]
    fn handle_whole(&mut self, qp: QpIndex, length: u32) {
        (self.stage, self.length, self.qps) = (Stage::Whole, length, 1 << qp.0);
    }

    /// For a generated page: how much has arrived.
    #[cfg(test)]
    fn state_name(&self) -> &'static str {
        match (self.stage, self.known) {
            (Stage::Untouched, _) => "nothing has come",
            (Stage::Whole, _) => "whole",
            (Stage::Begun, LengthState::Unknown) => "a stripe, no length",
            (Stage::Begun, LengthState::LowHalf) => "low half of the length",
            (Stage::Begun, LengthState::Known) => "length, not all stripes",
        }
    }

    /// Forgets what has arrived.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.request, self.index, self.posted);
    }

    /// Handles the part of the length in an immediate. Returns whether it is the last immediate of
    /// its stripe.
    ///
    /// # Errors
    /// It contradicts an earlier one, or the message is longer than the buffer.
    fn handle_length(&mut self, code: LengthCode) -> Result<bool, Violation> {
        match code {
            LengthCode::Stripe => {}
            LengthCode::Bytes(n) => self.set_length(n)?,
            LengthCode::Full => self.set_length(self.posted)?,
            LengthCode::Low(_) if self.known != LengthState::Unknown => {
                return Err(violation!("the low half of a length came after the length, or twice"));
            }
            LengthCode::Low(n) => {
                (self.known, self.length) = (LengthState::LowHalf, u32::from(n));
                return Ok(false);
            }
            LengthCode::High(_) if self.known != LengthState::LowHalf => {
                return Err(violation!("the high half of a length came before the low one"));
            }
            LengthCode::High(n) => {
                self.known = LengthState::Unknown;
                self.set_length(u32::from(n) << 16 | self.length)?;
            }
        }
        Ok(true)
    }

    /// Whether the whole length is known.
    fn is_length_known(&self) -> bool {
        self.known == LengthState::Known
    }

    /// Counts a stripe that has arrived on `qp`. Returns how many have arrived.
    fn count_stripe(&mut self, qp: QpIndex) -> u8 {
        debug_assert!(self.qps & 1 << qp.0 == 0);
        self.qps |= 1 << qp.0;
        self.stripes += 1;
        self.stripes
    }

    /// Handles the whole length.
    ///
    /// # Errors
    /// The message is longer than the buffer, or its length came before.
    fn set_length(&mut self, length: u32) -> Result<(), Violation> {
        if length > self.posted {
            return Err(violation!(
                "a message of {} bytes for a buffer of {}",
                length,
                self.posted
            ));
        }
        if self.known != LengthState::Unknown {
            return Err(violation!("the length of a message came twice"));
        }
        (self.known, self.length) = (LengthState::Known, length);
        Ok(())
    }
}

/// Receives posted in one call.
pub const RECEIVE_BATCH: u32 = 32;
/// Receives of each queue pair at the beginning.
const FIRST_RECEIVES: u32 = 64;
/// The most receives of each queue pair. They suffice for the messages of 32 groups of 8, the most
/// that NCCL has outstanding.
pub const MAX_RECEIVES: u32 = 416;

const _: () = assert!(
    FIRST_RECEIVES.is_multiple_of(RECEIVE_BATCH) && MAX_RECEIVES.is_multiple_of(RECEIVE_BATCH)
);
const _: () = assert!(Receives::most(MAX_RECEIVES, 1) >= 32 * MAX_GROUP as u32);

/// How many receive work requests each queue pair has posted, and how many messages may be
/// expected.
///
/// A message consumes one receive of the queue pair that carries it, or two if its length needs two
/// immediates. A missing receive would make the sender's device wait and retry. So none is ever
/// missing: receives are posted before the clear-to-sends of messages that could consume them. A
/// connection begins with few. It posts more, in steps, when more messages than ever before are
/// expected at once.
///
/// Receives are reposted in batches. So a queue pair may lack all but one of a batch; messages can
/// rely on the others.
#[derive(Debug, Clone, Copy)]
pub struct Receives {
    /// The receives of each queue pair, which are reposted when consumed.
    posted: u32,
    /// The receives that a message may consume: 2 from the first buffer on that has room for a
    /// length of two immediates.
    each: u32,
}

impl Default for Receives {
    fn default() -> Self {
        Self { posted: FIRST_RECEIVES, each: 1 }
    }
}

impl Receives {
    /// Receives that each queue pair must have.
    pub fn posted(self) -> u32 {
        self.posted
    }

    /// Messages that may be expected at once.
    fn most_messages(self) -> u32 {
        Self::most(self.posted, self.each)
    }

    /// In the first group with messages of two receives, each member consumes one more than
    /// planned.
    const fn most(posted: u32, each: u32) -> u32 {
        let reliable = posted - (RECEIVE_BATCH - 1);
        if each == 1 { reliable - MAX_GROUP as u32 } else { reliable / each }
    }

    /// One step more; `None` if this is the maximum.
    fn more(self) -> Option<Self> {
        (self.posted < MAX_RECEIVES)
            .then(|| Self { posted: (2 * self.posted).min(MAX_RECEIVES), ..self })
    }

    /// Records that messages may consume two receives from now on.
    fn expect_two_each(&mut self) {
        self.each = 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cts_window::MAX_WAITING_BYTES;

    fn buffer(length: u32) -> Buffer<'static> {
        Buffer { addr: 0x1000, length, rkeys: &[1, 0, 0, 0], tag: 0 }
    }

    fn post(flow: &mut RecvFlow, buffers: &[Buffer<'_>]) -> Result<Option<RequestId>, Violation> {
        flow.post(buffers.len(), |i| Ok(buffers[i]))
    }

    mod general {
        use super::*;
        use crate::MAX_REQUESTS;

        fn one_qp() -> Striping {
            Striping::new(1, 1, false)
        }

        fn flow_with(lengths: &[u32]) -> (RecvFlow, Vec<RequestId>) {
            let mut flow = RecvFlow::new(one_qp());
            let ids = lengths
                .iter()
                .map(|n| post(&mut flow, &[buffer(*n)]).expect("valid").expect("space"))
                .collect();
            while flow.poll_cts(8).is_some() {}
            (flow, ids)
        }

        fn imm(seq: u32, extent: LengthCode) -> Imm {
            Imm::new(SlotIndex::of(seq), extent)
        }

        #[test]
        fn a_grouped_receive_completes_with_its_last_message() {
            let mut flow = RecvFlow::new(one_qp());
            let id = post(&mut flow, &[buffer(100), buffer(200), buffer(0)])
                .expect("valid")
                .expect("space");
            assert_eq!(flow.poll_cts(8), Some(1..4), "sequence numbers start with 1");
            for (seq, n) in [(3, 0), (1, 99), (2, 200)] {
                assert_eq!(flow.poll_done(id), Ok(None));
                flow.handle_immediate(QpIndex(0), imm(seq, LengthCode::Bytes(n)))
                    .expect("outstanding");
            }
            assert_eq!(flow.poll_done(id), Ok(Some(&[99, 200, 0][..])));
            assert!(flow.poll_done(id).is_err());
        }

        #[test]
        fn an_immediate_that_fits_no_message_is_a_violation() {
            let bad = |imms: &[(u8, Imm)]| {
                let (mut flow, _) = flow_with(&[64]);
                imms.iter()
                    .map(|(qp, imm)| flow.handle_immediate(QpIndex(*qp), *imm))
                    .last()
                    .expect("at least one")
                    .is_err()
            };
            assert!(bad(&[(0, imm(1, LengthCode::Bytes(65)))]), "longer than the buffer");
            assert!(bad(&[(0, imm(2, LengthCode::Bytes(1)))]), "nothing posted there");
            assert!(bad(&[(0, imm(0, LengthCode::Bytes(1)))]), "nothing posted before the first");
            assert!(
                bad(&[(0, imm(1, LengthCode::Bytes(1))), (0, imm(1, LengthCode::Bytes(1)))]),
                "twice"
            );
            assert!(bad(&[(0, imm(1, LengthCode::High(0)))]), "high half first");
            assert!(
                bad(&[(0, imm(1, LengthCode::Low(0))), (0, imm(1, LengthCode::Low(0)))]),
                "low half twice"
            );
            assert!(
                bad(&[(0, imm(1, LengthCode::Low(0))), (0, imm(1, LengthCode::High(1)))]),
                "65536 bytes for 64"
            );
            assert!(
                bad(&[(1, imm(1, LengthCode::Stripe)), (0, imm(1, LengthCode::Full))]),
                "a stripe too many"
            );
            let mut wide = RecvFlow::new(Striping::new(1, 4, true));
            post(&mut wide, &[buffer(1 << 20)]).expect("valid").expect("space");
            assert_eq!(wide.poll_cts(8), Some(1..2));
            let mut stripe =
                |qp| wide.handle_immediate(QpIndex(qp), imm(1, LengthCode::Stripe)).is_err();
            assert_eq!(
                [1, 2, 3, 1].map(&mut stripe),
                [false, false, false, true],
                "twice on queue pair 1"
            );
        }

        #[test]
        fn the_257th_request_waits() {
            let mut flow = RecvFlow::new(one_qp());
            while flow.receives.more().is_some() {
                flow.handle_more_receives();
            }
            for _ in 0..MAX_REQUESTS {
                assert!(post(&mut flow, &[buffer(1)]).expect("valid").is_some());
            }
            assert_eq!(post(&mut flow, &[buffer(1)]), Ok(None));
            assert!(post(&mut flow, &[]).is_err());
            assert!(post(&mut flow, &[buffer(1); 9]).is_err());
        }

        #[test]
        fn a_held_back_cts_is_written_when_its_request_is_tested() {
            let (mut flow, mut ids) = flow_with(&[8, 8]);
            ids.push(post(&mut flow, &[buffer(8)]).expect("valid").expect("space"));
            assert_eq!(flow.poll_cts(8), None);
            for sent in [ids[0], ids[1]] {
                flow.handle_empty_poll(sent);
                assert_eq!(flow.poll_cts(8), None, "the sender has that one");
            }
            flow.handle_empty_poll(ids[2]);
            assert_eq!(flow.poll_cts(8), Some(3..4));
        }

        #[test]
        fn data_for_a_slot_whose_cts_was_not_sent_is_a_violation() {
            let mut flow = flow_with(&[8, 8]).0;
            post(&mut flow, &[buffer(8)]).expect("valid").expect("space");
            assert_eq!(flow.poll_cts(8), None);
            assert!(flow.handle_immediate(QpIndex(0), imm(3, LengthCode::Full)).is_err());
        }

        #[test]
        fn the_cts_of_a_large_receive_is_written_at_once() {
            let mut flow = flow_with(&[8, 8]).0;
            post(&mut flow, &[buffer(MAX_WAITING_BYTES as u32)]).expect("valid").expect("space");
            assert!(flow.poll_cts(8).is_some());
        }

        #[test]
        fn the_rails_of_a_buffer_are_those_of_its_latest_message() {
            let mut flow = RecvFlow::new(Striping::new(3, 2, false));
            let at = |addr, length| Buffer { addr, ..buffer(length) };
            let post = |flow: &mut RecvFlow, addr, length| {
                post(flow, &[at(addr, length)]).expect("valid").expect("space");
                while flow.poll_cts(8).is_some() {}
            };
            post(&mut flow, 0x1000, 100);
            post(&mut flow, 0x2000, 20_000);
            assert_eq!(flow.rails_of(0x1000), 0b111, "nothing has arrived there");
            flow.handle_immediate(QpIndex(4), imm(1, LengthCode::Full)).expect("outstanding");
            flow.handle_immediate(QpIndex(5), imm(2, LengthCode::Full)).expect("outstanding");
            flow.handle_immediate(QpIndex(1), imm(2, LengthCode::Stripe)).expect("outstanding");
            assert_eq!(flow.rails_of(0x2000), 0b111, "a stripe is missing");
            flow.handle_immediate(QpIndex(0), imm(2, LengthCode::Stripe)).expect("outstanding");
            assert_eq!((flow.rails_of(0x1000), flow.rails_of(0x2000)), (0b010, 0b111));
            post(&mut flow, 0x1000, 100);
            flow.handle_immediate(QpIndex(2), imm(3, LengthCode::Full)).expect("outstanding");
            assert_eq!(flow.rails_of(0x1000), 0b100, "the latest message counts");
            post(&mut flow, 0x1000, 0);
            flow.handle_immediate(QpIndex(0), imm(4, LengthCode::Full)).expect("outstanding");
            assert_eq!(flow.rails_of(0x1000), 0b100, "one of no bytes has put nothing there");
        }

        #[test]
        fn what_a_connection_has_outstanding_is_reported() {
            let mut flow = RecvFlow::new(one_qp());
            assert!(flow.is_idle() && !flow.has_waiting_cts());
            let id = post(&mut flow, &[buffer(100), buffer(200)]).expect("valid").expect("space");
            assert!(!flow.is_idle() && flow.has_waiting_cts());
            let slots = flow.poll_cts(8).expect("due");
            assert!(!flow.has_waiting_cts());
            assert_eq!(flow.encoded_cts_narrow(slots.clone()), flow.encoded_cts(slots));
            assert_eq!((flow.messages(id), flow.oldest_missing()), ((2, 0), 1));
            flow.handle_immediate(QpIndex(0), imm(1, LengthCode::Bytes(7))).expect("outstanding");
            assert_eq!((flow.messages(id), flow.oldest_missing()), ((2, 7), 2));
            assert!(
                !flow.complete_whole(QpIndex(0), imm(2, LengthCode::Stripe)),
                "that is another case"
            );
            assert!(flow.complete_whole(QpIndex(0), imm(2, LengthCode::Bytes(200))));
            assert_eq!(flow.messages(id), (2, 207));
            assert_eq!(flow.poll_done(id), Ok(Some(&[7, 200][..])));
            assert!(flow.is_idle());
            assert_eq!(flow.messages(id), (0, 0));
        }

        #[test]
        fn an_entry_whose_request_has_ended_is_refused_with_its_id() {
            let (mut flow, ids) = flow_with(&[100]);
            let entries = std::sync::Arc::clone(flow.entries());
            let entry = &entries[ids[0].index()];
            assert_eq!(entry.id(), ids[0]);
            flow.handle_immediate(QpIndex(0), imm(1, LengthCode::Bytes(100))).expect("outstanding");
            assert!(flow.finish(entry).expect("live").is_some());
            let refusal = flow.finish(entry).expect_err("it has ended");
            assert_eq!(refusal, flow.is_done(ids[0]).expect_err("it has ended"));
            // One that has never been in use.
            assert!(flow.finish(&entries[MAX_REQUESTS - 1]).is_err());
        }
    }

    mod single {
        use super::*;
        use proptest::prelude::*;

        /// What NCCL and the peer do.
        #[derive(Debug, Clone)]
        enum Step {
            /// `irecv` of a buffer of so many bytes.
            Post(u32),
            /// Clear-to-sends that are due are sent.
            Send,
            /// The oldest message arrives, and NCCL gets its result.
            Arrive,
        }

        fn steps() -> impl Strategy<Value = Vec<Step>> {
            let bound = |bytes: u32| bytes - 1..bytes + 2;
            let length = prop_oneof![8 => 0..40_000u32, 1 => bound(Imm::EXPLICIT_LIMIT), 1 => bound(MAX_WAITING_BYTES as u32)];
            let step = prop_oneof![3 => length.prop_map(Step::Post), 1 => Just(Step::Send), 1 => Just(Step::Arrive)];
            prop::collection::vec(step, 1..400)
        }

        proptest! {
            #[test]
            fn the_fast_path_leads_to_the_same_state_as_the_general_one(steps in steps(), rails in 1..5u8) {
                let mut flows = [(); 2].map(|()| RecvFlow::new(Striping::new(rails, 1, false)));
                let (mut outstanding, mut seq) = (Vec::new(), 1);
                for (tag, step) in steps.into_iter().enumerate() {
                    let [fast, general] = &mut flows;
                    match step {
                        Step::Post(length) => {
                            let buffer = Buffer { addr: 7, length, rkeys: &[1, 2, 3, 4], tag: tag as u32 };
                            let mut id = None;
                            if !fast.begin_single(buffer, |entry| id = Some(entry.id())) {
                                prop_assert_eq!(id, None);
                                id = fast.post(1, |_| Ok::<_, Violation>(buffer)).expect("valid");
                            }
                            prop_assert_eq!(id, general.post(1, |_| Ok::<_, Violation>(buffer)).expect("valid"));
                            outstanding.extend(id);
                        }
                        Step::Send => {
                            prop_assert_eq!(fast.poll_cts(6), general.poll_cts(6));
                        }
                        Step::Arrive => {
                            let imm = Imm::new(SlotIndex::of(seq), LengthCode::Bytes(0));
                            let [a, b] = [fast, general].map(|flow| flow.handle_immediate(QpIndex(0), imm).is_ok());
                            prop_assert_eq!(a, b);
                            if a {
                                seq += 1;
                                let id = outstanding.remove(0);
                                flows.iter_mut().for_each(|flow| assert_eq!(flow.poll_done(id), Ok(Some(&[0][..]))));
                            }
                        }
                    }
                }
                let [fast, general] = &flows;
                prop_assert_eq!(format!("{fast:?}"), format!("{general:?}"));
            }
        }
    }

    mod immediates {
        use super::*;
        use proptest::prelude::*;

        fn code() -> impl Strategy<Value = LengthCode> {
            prop_oneof![
                6 => (0..20_000u32).prop_map(LengthCode::Bytes),
                2 => Just(LengthCode::Full),
                2 => Just(LengthCode::Stripe),
                1 => any::<u16>().prop_map(LengthCode::Low),
                1 => (0..2u16).prop_map(LengthCode::High),
            ]
        }

        proptest! {
            /// Half of the buffers are announced before each immediate; some immediates fit no
            /// message.
            #[test]
            fn a_message_that_comes_whole_is_taken_in_as_by_the_general_case(
                lengths in prop::collection::vec(0..20_000u32, 1..40),
                immediates in prop::collection::vec((0..44u32, 0..3u8, code()), 1..80),
                (qps, split) in (1..4u8, any::<bool>()),
            ) {
                let flow = || RecvFlow::new(Striping::new(1, qps, split));
                let mut flows = [flow(), flow()];
                let mut ids = Vec::new();
                for flow in &mut flows {
                    let buffer = |length| Buffer { addr: 1, length, rkeys: &[1, 0, 0, 0], tag: 0 };
                    let post = |length: &u32| flow.post(1, |_| Ok::<_, Violation>(buffer(*length))).expect("valid");
                    ids = lengths.iter().map(post).collect();
                    for _ in 0..3 {
                        flow.poll_cts(8);
                    }
                }
                for (seq, qp, code) in immediates {
                    let (qp, imm) = (QpIndex(qp), Imm::new(SlotIndex::of(seq), code));
                    let [fast, general] = &mut flows;
                    let taken = fast.handle_immediate(qp, imm).is_ok();
                    let is_sent = general.window.is_sent(imm.slot().index());
                    prop_assert_eq!(taken, is_sent && general.handle_part(qp, imm).is_ok());
                    // The connection cannot continue.
                    if !taken {
                        return Ok(());
                    }
                    prop_assert_eq!(fast.outstanding(), general.outstanding());
                    prop_assert_eq!(fast.is_cts_due(), general.is_cts_due());
                    ids.retain(|id| {
                        let Some(id) = *id else { return false };
                        let [fast, general] = &mut flows;
                        let [a, b] = [fast, general].map(|flow| flow.poll_done(id).expect("live").map(<[u32]>::to_vec));
                        assert_eq!(a, b);
                        a.is_none()
                    });
                }
            }
        }
    }

    mod room {
        use super::*;

        fn new() -> RecvFlow {
            RecvFlow::new(Striping::new(1, 1, false))
        }

        fn imm(seq: u32, extent: LengthCode) -> Imm {
            Imm::new(SlotIndex::of(seq), extent)
        }

        /// A flow with as many receives as there can be.
        fn grown() -> RecvFlow {
            let mut flow = new();
            while flow.receives.more().is_some() {
                flow.handle_more_receives();
            }
            flow
        }

        #[test]
        fn messages_that_have_no_receives_wait_for_the_oldest_message() {
            let mut flow = grown();
            let groups = flow.receives.most_messages() as usize / MAX_GROUP;
            let ids: Vec<_> = (0..groups)
                .map(|_| post(&mut flow, &[buffer(1); 8]).expect("valid").expect("space"))
                .collect();
            while flow.poll_cts(8).is_some() {}
            assert_eq!(post(&mut flow, &[buffer(1); 2]), Ok(None));
            assert_eq!(flow.more_receives(2), None, "there cannot be more");
            flow.handle_immediate(QpIndex(0), imm(2, LengthCode::Full)).expect("outstanding");
            assert_eq!(
                post(&mut flow, &[buffer(1); 2]),
                Ok(None),
                "message 1 may still consume one"
            );
            flow.handle_immediate(QpIndex(0), imm(1, LengthCode::Full)).expect("outstanding");
            assert!(post(&mut flow, &[buffer(1); 2]).expect("valid").is_some());
            assert_eq!(flow.poll_done(ids[0]), Ok(None));
        }

        #[test]
        fn more_messages_than_receives_are_accepted_once_there_are_more_receives() {
            let mut flow = new();
            for _ in 0..25 {
                assert!(post(&mut flow, &[buffer(1)]).expect("valid").is_some());
            }
            assert_eq!((flow.receives(), post(&mut flow, &[buffer(1)])), (64, Ok(None)));
            assert_eq!(flow.more_receives(1), Some(128));
            flow.handle_more_receives();
            assert!(post(&mut flow, &[buffer(1)]).expect("valid").is_some());
            assert_eq!((flow.receives(), flow.more_receives(1)), (128, None), "there is space");
        }

        #[test]
        fn buffers_for_lengths_of_two_immediates_have_two_receives_each() {
            let mut flow = new();
            let long = buffer(Imm::EXPLICIT_LIMIT + 1);
            assert!(post(&mut flow, &[buffer(Imm::EXPLICIT_LIMIT); 8]).expect("valid").is_some());
            assert!(post(&mut flow, &[long; 8]).expect("valid").is_some());
            assert_eq!(
                (post(&mut flow, &[buffer(1)]), flow.more_receives(1)),
                (Ok(None), Some(128)),
                "16 of them have 32"
            );
            flow.handle_more_receives();
            for _ in 16..48 {
                assert!(post(&mut flow, &[long]).expect("valid").is_some());
            }
            assert_eq!(
                (post(&mut flow, &[buffer(1)]), flow.more_receives(1)),
                (Ok(None), Some(256))
            );
        }
    }

    mod receives {
        use super::*;

        #[test]
        fn receives_grow_in_steps_and_messages_with_them() {
            let steps: Vec<_> =
                std::iter::successors(Some(Receives::default()), |receives| receives.more())
                    .collect();
            assert_eq!(
                steps.iter().map(|step| step.posted()).collect::<Vec<_>>(),
                [64, 128, 256, 416]
            );
            assert_eq!(
                steps.iter().map(|step| step.most_messages()).collect::<Vec<_>>(),
                [25, 89, 217, 377]
            );
        }

        /// All but one of a batch are missing, and the last group that was accepted is the first
        /// with messages of two receives.
        #[test]
        fn messages_never_consume_more_than_a_queue_pair_has() {
            for step in std::iter::successors(Some(Receives::default()), |receives| receives.more())
            {
                let has = step.posted() - (RECEIVE_BATCH - 1);
                assert!(step.most_messages() + MAX_GROUP as u32 <= has);
                let mut two = step;
                two.expect_two_each();
                assert!(2 * two.most_messages() <= has);
            }
        }
    }

    mod after_a_fault {
        use super::super::*;
        use crate::Violation;
        use crate::imm::{Imm, LengthCode};
        use crate::recv::Buffer;
        use crate::requests::RequestId;

        const LENGTH: u32 = 20_000;

        fn post(flow: &mut RecvFlow, at: u64, count: usize) -> RequestId {
            let buffer =
                |i| Buffer { addr: at + i as u64, length: LENGTH, rkeys: &[1, 2, 3, 4], tag: 7 };
            flow.post(count, |i| Ok::<_, Violation>(buffer(i))).expect("valid").expect("space")
        }

        fn announce(flow: &mut RecvFlow) {
            while flow.poll_cts(8).is_some() {}
        }

        fn arrive(flow: &mut RecvFlow, seq: u32, qp: u8, code: LengthCode) {
            flow.handle_immediate(QpIndex(qp), Imm::new(SlotIndex::of(seq), code))
                .expect("expected");
        }

        fn seqs(missing_list: &MissingList) -> Vec<u32> {
            missing_list.missing.iter().map(|missing| missing.cts.seq).collect()
        }

        #[test]
        fn what_has_not_arrived_whole_is_listed_and_comes_again_whole() {
            let mut flow = RecvFlow::new(Striping::new(3, 1, false));
            let ids = [post(&mut flow, 100, 3), post(&mut flow, 200, 1)];
            announce(&mut flow);
            let held = post(&mut flow, 300, 1);
            (0..3).for_each(|qp| {
                arrive(
                    &mut flow,
                    2,
                    qp,
                    if qp == 0 { LengthCode::Full } else { LengthCode::Stripe },
                )
            });
            arrive(&mut flow, 3, 0, LengthCode::Full);
            arrive(&mut flow, 3, 1, LengthCode::Stripe);
            arrive(&mut flow, 4, 0, LengthCode::Low(5));
            let over = Striping::new(2, 1, false).over(RailMask(0b101));
            let missing_list = flow.missing_list(over);
            assert_eq!(
                (missing_list.oldest, missing_list.next, seqs(&missing_list)),
                (1, 6, vec![1, 3, 4, 5])
            );
            assert_eq!(missing_list.arrived(), 1);
            let MissingMessage { cts, extra } = missing_list.missing[1];
            assert_eq!(
                (cts.addr, cts.length, cts.rkeys, cts.tag, extra),
                (102, LENGTH, [1, 2], 7, [3, 4])
            );
            assert_eq!(flow.outstanding(), 4);
            assert!(
                !flow.is_cts_due() && flow.poll_cts(8).is_none(),
                "the missing list stands for all clear-to-sends"
            );
            for seq in [1, 3, 4, 5] {
                arrive(&mut flow, seq, 0, LengthCode::Full);
                arrive(&mut flow, seq, 1, LengthCode::Stripe);
            }
            assert_eq!(flow.poll_done(ids[0]), Ok(Some(&[LENGTH; 3][..])));
            assert_eq!(flow.poll_done(ids[1]), Ok(Some(&[LENGTH][..])));
            assert_eq!(flow.poll_done(held), Ok(Some(&[LENGTH][..])));
            assert_eq!(flow.outstanding(), 0);
            post(&mut flow, 400, 1);
            assert_eq!(flow.poll_cts(8), Some(6..7), "the next one is announced as ever");
        }

        #[test]
        fn a_missing_list_has_the_keys_that_memory_has_on_another_card() {
            let mut flow = RecvFlow::new(Striping::new(3, 1, false));
            post(&mut flow, 100, 1);
            announce(&mut flow);
            post(&mut flow, 200, 1);
            post(&mut flow, 300, 1);
            flow.renew_keys(|addr, length| {
                (addr != 200 && length == LENGTH).then_some([addr as u32, 12, 13, 14])
            });
            let missing_list = flow.missing_list(Striping::new(1, 1, false));
            let keys: Vec<_> = missing_list
                .missing
                .iter()
                .map(|MissingMessage { cts, extra }| (cts.rkeys, *extra))
                .collect();
            assert_eq!(keys, [([100, 12], [13, 14]), ([1, 2], [3, 4]), ([300, 12], [13, 14])]);
            let of_cts: Vec<_> = missing_list
                .missing
                .iter()
                .map(|missing| (missing.cts.seq, missing.cts.addr))
                .collect();
            assert_eq!(of_cts, [(1, 100), (2, 200), (3, 300)]);
        }

        #[test]
        fn nothing_is_listed_if_all_has_arrived() {
            let mut flow = RecvFlow::new(Striping::new(1, 1, false));
            let empty = flow.missing_list(Striping::new(1, 1, false));
            assert_eq!(empty, MissingList { oldest: 1, next: 1, missing: Vec::new() });
            post(&mut flow, 0, 2);
            announce(&mut flow);
            [1, 2].into_iter().for_each(|seq| arrive(&mut flow, seq, 0, LengthCode::Bytes(1)));
            assert_eq!(
                flow.missing_list(Striping::new(1, 1, false)),
                MissingList { oldest: 3, next: 3, missing: Vec::new() }
            );
        }

        #[test]
        fn as_many_messages_as_can_be_are_listed_across_the_end_of_the_ring() {
            let striping = Striping::new(1, 1, false);
            let mut flow = RecvFlow::new(striping);
            for seq in 1..=5 {
                post(&mut flow, seq, 1);
                announce(&mut flow);
                arrive(&mut flow, seq as u32, 0, LengthCode::Bytes(1));
            }
            while flow.more_receives(RING_SLOTS).is_some() {
                flow.handle_more_receives();
            }
            // 200 that have arrived, so that the others cross the end of the ring.
            for seq in 6..=205 {
                post(&mut flow, seq, 1);
                announce(&mut flow);
                arrive(&mut flow, seq as u32, 0, LengthCode::Bytes(1));
            }
            let groups = 47;
            for _ in 0..groups {
                post(&mut flow, 0, 8);
            }
            let missing_list = flow.missing_list(striping);
            assert!(missing_list.next > RING_SLOTS as u32);
            assert_eq!((missing_list.oldest, missing_list.next), (206, 206 + 8 * groups));
            assert_eq!(seqs(&missing_list), (206..206 + 8 * groups).collect::<Vec<_>>());
            assert_eq!(missing_list.check(), Ok(()));
        }

        #[test]
        fn the_rails_of_a_buffer_are_known_after_the_queue_pairs_are_others() {
            let mut flow = RecvFlow::new(Striping::new(3, 1, false));
            for at in [100, 200] {
                post(&mut flow, at, 1);
            }
            announce(&mut flow);
            arrive(&mut flow, 1, 2, LengthCode::Bytes(5));
            assert_eq!(flow.rails_of(100), 0b100);
            flow.missing_list(Striping::new(1, 1, false).over(RailMask::only(1)));
            arrive(&mut flow, 2, 0, LengthCode::Bytes(5));
            assert_eq!((flow.rails_of(100), flow.rails_of(200)), (0b100, 0b010));
            flow.missing_list(Striping::new(3, 1, false));
            assert_eq!(
                (flow.rails_of(100), flow.rails_of(200), flow.rails_of(300)),
                (0b100, 0b010, 0b111)
            );
        }
    }
}
