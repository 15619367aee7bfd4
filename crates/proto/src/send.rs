//! The sending end of a connection: reads clear-to-sends, decides what to post, counts completions.
//!
//! A [`SendFlow`] returns a [`Transfer`] for each message that it matches with a clear-to-send.
//! [`SendQueueSpace`] counts their work requests in the send queues.

use crate::cts::{Cts, CtsWords, ExtraKeys, SlotIndex, parse_extra_keys};
use crate::explain::numbers::Numbers;
use crate::explain::snapshot::{Contact, EndSnapshot, rank};
use crate::imm::{Imm, LengthCode};
use crate::lanes::{LEARNING_BYTES, Lanes};
use crate::rail_weights::{BusyPolls, LaneWeights, RailWeights};
use crate::recovery::missing_list::{MissingList, MissingMessage};
use crate::requests::{Entries, Entry, RequestId, Requests, SendRequest, TestResult};
use crate::shared::Shared;
use crate::stripe::{Stripe, Striping};
use crate::{MAX_MESSAGE, MAX_QPS, MAX_REQUESTS, QpIndex, RING_SLOTS, Violation, violation};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// The clear-to-sends that are searched for a message's tag: as many as the receiver can have
/// written.
const WINDOW: usize = RING_SLOTS;

/// A clear-to-send from the ring. Its position in the window is its sequence number.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnclaimedCts {
    addr: u64,
    length: u32,
    rkeys: [u32; Cts::KEYS],
    tag: u32,
}

/// The state of the sending side. [`SendFlow::new`] allocates all memory.
///
/// Its methods come in these groups, in this order:
/// - NCCL's requests: [`Self::submit`]; on the fast path [`Self::refuse`] and
///   [`Self::submit_single`];
/// - completions: [`Self::handle_completion`] and its variants; results for NCCL:
///   [`Self::finish`], [`Self::progress`];
/// - lanes: [`Self::use_lanes`], [`Self::weight_of`], [`Self::poll_slow_lane`];
/// - after a fault ([`super::recovery`]): [`Self::apply_missing_list`], [`Self::poll_replay`];
/// - the state for hang reports ([`super::explain`]): [`Self::snapshot`].
#[derive(Debug)]
pub struct SendFlow {
    pub(super) striping: Striping,
    /// Those of the clear-to-sends `head..next` that no message has claimed: no more than the
    /// window has room for.
    pub(super) unclaimed: Unclaimed,
    /// Sequence number of the oldest clear-to-send that no message has claimed.
    pub(super) head: u32,
    /// Sequence number of the clear-to-send that the peer writes next.
    pub(super) next: u32,
    /// Queue pair of the next message's first stripe.
    pub(super) qp: QpIndex,
    pub(super) weights: RailWeights,
    /// The queue pairs, where they are lanes.
    pub(super) lanes: Option<Box<Lanes>>,
    /// Whether several queue pairs of a rail are lanes.
    may_have_lanes: bool,
    /// Number of the present poll of the completion queues, where there are several rails or lanes.
    poll: u32,
    /// How long the rails, or the lanes if there are any, are busy.
    busy: Box<BusyPolls>,
    pub(super) requests: Requests<SendRequest>,
    pub(super) replays: Replays,
    /// How often a message has found no clear-to-send with its tag.
    pub(super) refusals: u32,
    /// Sequence number of the clear-to-send that was due at the last refusal while none was kept.
    refused_at: u32,
    /// The number of the next clear-to-send when a look found neither a request nor a kept
    /// clear-to-send. A request takes a clear-to-send, so there is none until this number changes.
    idle_at: Shared<u32>,
}

/// The result of [`SendFlow::submit_single`]. With `repr(u8)`, as the compiler would otherwise
/// encode the variant in a field of the transfer and read that field again, which costs
/// instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FastSubmit {
    /// A message to post according to [`Transfer::single`].
    Begun(Transfer),
    /// The fast path does not apply, and nothing has changed: [`SendFlow::submit`] decides.
    Other,
}

/// The result of [`SendFlow::refuse`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendRefusal {
    /// The expected clear-to-send is there, and no earlier one is kept: [`SendFlow::submit_single`]
    /// may be called.
    Next,
    /// There is a clear-to-send, which may be for the message.
    No,
    /// Refused, for the first time since the last message or clear-to-send.
    First,
    /// Refused again.
    Again,
}

impl SendFlow {
    /// A flow that has read no clear-to-send, over rails that begin with `weights`.
    pub fn new(striping: Striping, weights: RailWeights) -> Self {
        Self {
            striping,
            unclaimed: Unclaimed(Vec::with_capacity(WINDOW)),
            head: 1,
            next: 1,
            qp: QpIndex(0),
            weights,
            lanes: None,
            may_have_lanes: false,
            poll: 0,
            busy: Box::default(),
            requests: Requests::default(),
            replays: Replays::default(),
            refusals: 0,
            refused_at: 0,
            idle_at: Shared::new(1),
        }
    }

    /// Matches a message of `length` bytes at `addr` in this process with the oldest unclaimed
    /// clear-to-send of its tag. `read` reads the clear-to-send of a sequence number from the ring.
    /// It is read once, so a peer that overwrites it later changes nothing.
    ///
    /// Returns `None` if there is no such clear-to-send yet, or too many requests are outstanding.
    ///
    /// # Errors
    /// A clear-to-send is invalid.
    #[inline(always)]
    pub fn submit(
        &mut self,
        tag: u32,
        addr: u64,
        length: u32,
        mut read: impl FnMut(u32) -> Option<CtsWords>,
    ) -> Result<Option<Transfer>, Violation> {
        if self.requests.is_exhausted() {
            if self.head == self.next && read(self.next).is_none() {
                self.count_refusal();
            }
            return Ok(None);
        }
        if self.head != self.next
            && let Some((seq, cts)) = self.claim(tag)
        {
            return Ok(self.begin(seq, cts, addr, length));
        }
        while self.next.wrapping_sub(self.head) < WINDOW as u32 {
            let Some(words) = read(self.next) else { break };
            if let Some((seq, cts)) = self.handle_cts(Cts::parse(&words)?, tag)? {
                return Ok(self.begin(seq, cts, addr, length));
            }
        }
        self.count_refusal();
        Ok(None)
    }

    /// Reads the next clear-to-send. Returns it if it has the tag `wanted` and no earlier one has;
    /// otherwise keeps it.
    #[inline(always)]
    fn handle_cts(
        &mut self,
        cts: Cts,
        wanted: u32,
    ) -> Result<Option<(u32, UnclaimedCts)>, Violation> {
        let (seq, tag) = (cts.seq, cts.tag);
        if seq != self.next {
            return Err(violation!("clear-to-send {} came where {} was due", seq, self.next));
        }
        let cts = UnclaimedCts::from(&cts);
        let is_oldest = self.head == seq;
        self.next = seq.wrapping_add(1);
        debug_assert!(self.next.wrapping_sub(self.head) <= WINDOW as u32);
        if tag != wanted {
            self.unclaimed.put(seq, cts);
            return Ok(None);
        }
        if is_oldest {
            self.head = self.next;
        } else {
            self.unclaimed.take(seq);
        }
        Ok(Some((seq, cts)))
    }

    /// Removes the oldest kept clear-to-send of `tag`.
    #[inline(never)]
    fn claim(&mut self, tag: u32) -> Option<(u32, UnclaimedCts)> {
        let known = self.next.wrapping_sub(self.head);
        let mut kept = (0..known).map(|i| self.head.wrapping_add(i));
        let seq = kept.find(|seq| self.unclaimed.get(*seq).is_some_and(|cts| cts.tag == tag))?;
        let cts = self.unclaimed.take(seq)?;
        while self.head != self.next && self.unclaimed.get(self.head).is_none() {
            self.head = self.head.wrapping_add(1);
        }
        Some((seq, cts))
    }

    #[inline(always)]
    fn begin(&mut self, seq: u32, cts: UnclaimedCts, addr: u64, length: u32) -> Option<Transfer> {
        let length = length.min(cts.length);
        let stripes = self.striping.stripe_count(length);
        let entry = self.requests.allocate()?;
        entry.value.begin(seq, addr, length, stripes);
        let id = entry.id();
        if let Some(lanes) = &mut self.lanes {
            self.qp = lanes.begin(stripes, self.striping, length);
        }
        Some(self.transfer(id, SlotIndex::of(seq), cts, length, stripes))
    }

    /// Begins the message of request `id`, on the next queue pair and those after it.
    #[inline(always)]
    pub(super) fn transfer(
        &mut self,
        id: RequestId,
        slot: SlotIndex,
        cts: UnclaimedCts,
        length: u32,
        stripes: u32,
    ) -> Transfer {
        let qp = self.qp;
        if !self.striping.has_one_qp() {
            self.qp = self.striping.next_qp(qp);
        }
        Transfer {
            id,
            remote_addr: cts.addr,
            rkeys: cts.rkeys,
            length,
            slot,
            posted: cts.length,
            stripes,
            striping: self.striping,
            qp,
        }
    }
}

// The fast path, with fewer instructions: a message in one stripe takes the next clear-to-send.
impl SendFlow {
    /// Refuses a message of any tag if there is no clear-to-send. `is_there` returns whether the
    /// clear-to-send of a sequence number is in the ring.
    #[inline(always)]
    pub fn refuse(&mut self, is_there: impl FnOnce(u32) -> bool) -> SendRefusal {
        let seq = self.next;
        if self.head != seq {
            return SendRefusal::No;
        }
        if is_there(seq) {
            return SendRefusal::Next;
        }
        // If so, no message has begun since: the ring had nothing new, and nothing was kept.
        let is_first = self.refused_at != seq;
        self.count_refusal();
        if is_first { SendRefusal::First } else { SendRefusal::Again }
    }

    /// Counts a message that has found no clear-to-send with its tag.
    #[inline(always)]
    fn count_refusal(&mut self) {
        self.refusals = self.refusals.wrapping_add(1);
        if self.head == self.next {
            self.refused_at = self.next;
        }
    }

    /// [`Self::submit`] for a message of one stripe that is shorter than [`Imm::EXPLICIT_LIMIT`],
    /// after [`Self::refuse`] has found the next clear-to-send. A message longer than its receive
    /// takes the slow path.
    ///
    /// If the clear-to-send is for the message, calls `begun` with the request's entry.
    #[inline(always)]
    pub fn submit_single(
        &mut self,
        tag: u32,
        addr: u64,
        length: u32,
        read: impl FnOnce(u32) -> CtsWords,
        begun: impl FnOnce(&Entry<SendRequest>),
    ) -> FastSubmit {
        let seq = self.next;
        let cts = Cts::from_words(&read(seq));
        if cts.tag != tag {
            return FastSubmit::Other;
        }
        if cts.length.wrapping_sub(1) >= MAX_MESSAGE || length > cts.length {
            return FastSubmit::Other;
        }
        let Some(entry) = self.requests.allocate() else { return FastSubmit::Other };
        let id = entry.id();
        entry.value.begin(seq, addr, length, 1);
        begun(entry);
        self.next = seq.wrapping_add(1);
        self.head = self.next;
        FastSubmit::Begun(self.transfer(
            id,
            SlotIndex::of(seq),
            UnclaimedCts::from(&cts),
            length,
            1,
        ))
    }
}

#[cfg(test)]
impl SendFlow {
    /// Tries [`Self::refuse`] and [`Self::submit_single`] first if `is_fast` and the message has
    /// one stripe, and else [`Self::submit`].
    pub(super) fn submit_either(
        &mut self,
        is_fast: bool,
        tag: u32,
        addr: u64,
        length: u32,
        read: impl Fn(u32) -> Option<CtsWords> + Copy,
    ) -> Result<Option<Transfer>, Violation> {
        let is_single = self.striping.stripe_count(length) == 1 && length < Imm::EXPLICIT_LIMIT;
        match if is_fast { self.refuse(|seq| read(seq).is_some()) } else { SendRefusal::No } {
            SendRefusal::First | SendRefusal::Again => return Ok(None),
            SendRefusal::Next if is_single => {
                let read = |seq| read(seq).unwrap_or_default();
                if let FastSubmit::Begun(transfer) =
                    self.submit_single(tag, addr, length, read, |_| ())
                {
                    let stripes: Vec<_> = transfer.stripes(|qp| self.weight_of(qp)).collect();
                    let (qp, first) = transfer.single();
                    let whole = Stripe { qp, offset: 0, length: transfer.length };
                    assert_eq!(stripes, [(whole, Immediates { first, second: None })]);
                    return Ok(Some(transfer));
                }
            }
            SendRefusal::Next | SendRefusal::No => {}
        }
        self.submit(tag, addr, length, read)
    }
}

// Completion: acknowledged stripes and complete requests.
impl SendFlow {
    /// Handles that a stripe of request `id` has been acknowledged.
    ///
    /// # Errors
    /// There is no such request, or all of its stripes are acknowledged already.
    #[inline]
    pub fn handle_completion(&mut self, id: RequestId) -> Result<(), Violation> {
        match self.complete_stripe(id) {
            true => Ok(()),
            false => Err(violation!("send completion for {:?}, which is not outstanding", id)),
        }
    }

    /// [`Self::handle_completion`]; false where that fails.
    #[inline(always)]
    pub fn complete_stripe(&mut self, id: RequestId) -> bool {
        match self.requests.get(id) {
            Some(request) if request.is_pending() => {
                request.pending_stripes.add(-1);
                true
            }
            _ => false,
        }
    }

    /// With several rails or lanes: records that the stripes of `transfer` are posted.
    pub fn handle_posted(&mut self, transfer: &Transfer) {
        if transfer.length < LEARNING_BYTES
            || !self.has_weights()
            || !self.is_on_all(transfer.length)
        {
            return;
        }
        let mut qp = transfer.qp;
        for _ in 0..transfer.stripes {
            self.busy.begin(self.weight_number(qp), self.poll);
            qp = self.striping.next_qp(qp);
        }
    }

    /// Whether there are several rails or lanes, which share messages by weight.
    #[inline]
    fn has_weights(&self) -> bool {
        self.striping.rails() > 1 || self.lanes.is_some()
    }

    /// Whether a message of `length` bytes has a stripe on each rail or lane: only such a one
    /// compares all of them.
    fn is_on_all(&self, length: u32) -> bool {
        let all =
            if self.lanes.is_some() { self.striping.qp_count() } else { self.striping.rails() };
        self.striping.stripe_count(length) >= all.into()
    }

    /// By which number the weight of `qp` is known.
    fn weight_number(&self, qp: QpIndex) -> u8 {
        if self.lanes.is_some() { qp.0 } else { self.striping.rail_of(qp) }
    }

    /// Begins another poll: later completions belong to it.
    pub fn handle_poll(&mut self) {
        self.poll = self.poll.wrapping_add(1);
    }

    /// [`Self::handle_completion`] with several rails or lanes. Their weights are learnt from which
    /// one completes its stripe of a message last.
    ///
    /// # Errors
    /// As [`Self::handle_completion`].
    pub fn handle_completion_on(&mut self, id: RequestId, qp: QpIndex) -> Result<(), Violation> {
        self.handle_completion(id)?;
        if !self.has_weights() {
            return Ok(());
        }
        let Some(request) = self.requests.get(id) else { return Ok(()) };
        let (is_last, length) = (!request.is_pending(), request.length.get());
        let is_later = is_last && request.poll.get() != self.poll;
        request.poll.set(self.poll);
        let later = self.next.wrapping_sub(request.seq.get()).wrapping_sub(1);
        if let Some(lanes) = &mut self.lanes {
            lanes.handle_stripe(qp);
        }
        if length < LEARNING_BYTES {
            return Ok(());
        }
        let is_on_all = self.is_on_all(length);
        if is_on_all {
            self.busy.end(self.weight_number(qp), self.poll);
        }
        let teaches = !is_last || self.busy.handle_message(is_on_all);
        match &mut self.lanes {
            Some(lanes) => lanes.handle_completion(id, qp, self.poll, is_last, teaches),
            None if is_later && teaches => self.weights.handle_slowest(self.striping.rail_of(qp)),
            None => {}
        }
        if is_last && let Some(polls) = self.busy.poll_slow(later) {
            match &mut self.lanes {
                Some(lanes) => lanes.correct(polls),
                None => self.weights.correct(polls),
            }
        }
        Ok(())
    }

    /// [`Self::finish`] for request `id`.
    #[cfg(any(test, feature = "simulator"))]
    pub(super) fn poll_done(&mut self, id: RequestId) -> Result<Option<u32>, Violation> {
        self.requests.tested(id)?;
        let entries = std::sync::Arc::clone(self.requests.entries());
        self.finish(&entries[id.index()])
    }

    /// The bytes sent, once the request in `entry` is complete. Its id is stale afterwards.
    ///
    /// # Errors
    /// The request has ended.
    #[inline(always)]
    pub fn finish(&mut self, entry: &Entry<SendRequest>) -> Result<Option<u32>, Violation> {
        match self.progress(entry) {
            TestResult::Pending => Ok(None),
            TestResult::Finished(length) => Ok(Some(length)),
            TestResult::Other => Err(entry.ended()),
        }
    }

    /// [`Self::finish`] without creating an error if the request has ended.
    #[inline(always)]
    pub fn progress(&mut self, entry: &Entry<SendRequest>) -> TestResult {
        let request = &entry.value;
        match request.pending_stripes.get() {
            1.. => TestResult::Pending,
            0 => {
                request.end();
                self.requests.release(entry);
                TestResult::Finished(request.length.get())
            }
            _ => TestResult::Other,
        }
    }

    /// Whether request `id` is complete.
    ///
    /// # Errors
    /// The id is stale.
    #[inline]
    pub fn is_done(&self, id: RequestId) -> Result<bool, Violation> {
        Ok(!self.requests.tested(id)?.value.is_pending())
    }

    /// How many messages the receiver had cleared before that of request `id`: the lower 32 bits.
    pub fn place(&self, id: RequestId) -> Option<u32> {
        self.requests.get(id).map(|request| request.seq.get().wrapping_sub(1))
    }

    /// The bytes of request `id`.
    pub fn bytes(&self, id: RequestId) -> u64 {
        self.requests.get(id).map_or(0, |request| request.length.get().into())
    }

    /// Whether no request is in use.
    pub fn is_idle(&self) -> bool {
        self.requests.are_all_free()
    }

    /// All entries of the table of requests.
    pub fn entries(&self) -> &Entries<SendRequest> {
        self.requests.entries()
    }

    /// The entry of request `id`.
    pub fn entry(&self, id: RequestId) -> Option<&Entry<SendRequest>> {
        self.requests.entry(id)
    }
}

// The sender's queue pairs as lanes. Each carries a share of every large message, according to what
// it completes.
//
// Queue pairs of one rail have different UDP source ports, so a fabric with several paths may carry
// them over different ones, at different speeds. With even shares each message would be as slow as
// its slowest queue pair. The number of stripes is the same with and without lanes, so the receiver
// need not know.
impl SendFlow {
    /// Makes the queue pairs of a rail lanes from now on, where messages are cut over several of
    /// them. Each lane has a weight, which begins with that of its rail. A message that is not cut
    /// uses the lane with the greatest weight.
    pub fn use_lanes(&mut self) {
        self.may_have_lanes = true;
        self.begin_lanes();
    }

    /// Restarts for new queue pairs. They are lanes if lanes are allowed and a rail has several.
    pub(super) fn begin_lanes(&mut self) {
        *self.busy = BusyPolls::default();
        if !self.may_have_lanes
            || !self.striping.is_split()
            || self.striping.qp_count() <= self.striping.rails()
        {
            self.lanes = None;
            return;
        }
        let (count, rails) = (self.striping.qp_count(), self.striping.rails());
        let qps = (0..count).map(QpIndex);
        let nominal = LaneWeights::from_speeds(
            qps.map(|qp| self.weights.of(self.striping.rail_of(qp)) as u32),
        );
        self.lanes = Some(Box::new(match &self.lanes {
            None => Lanes::new(nominal, count, rails),
            Some(old) => old.of_new_queue_pairs(nominal, count, rails),
        }));
    }

    /// The present share of queue pair `qp` of a message, relative to the others.
    #[inline]
    pub fn weight_of(&self, qp: QpIndex) -> u64 {
        match &self.lanes {
            None => self.weights.of(self.striping.rail_of(qp)),
            Some(lanes) => lanes.weight(qp),
        }
    }

    /// Whether the queue pairs are lanes.
    pub fn has_lanes(&self) -> bool {
        self.lanes.is_some()
    }

    /// The lane that has stayed slow, if one has since the last call.
    pub fn poll_slow_lane(&mut self) -> Option<QpIndex> {
        self.lanes.as_mut()?.slow.take()
    }

    /// The lanes, as a bit mask, that have an incomplete stripe while others have none: these are
    /// to blame if nothing moves. 0 if there are none, or all are alike.
    pub fn lagging_lanes(&self) -> u32 {
        self.lanes.as_ref().map_or(0, |lanes| lanes.lagging())
    }
}

// After a fault: requests and clear-to-sends once the receiver has sent its missing list.
impl SendFlow {
    /// Applies the receiver's missing list, after both ends have destroyed all old queue pairs.
    ///
    /// Requests whose messages are not listed are complete. Those whose messages are listed are
    /// resent ([`Self::poll_replay`]), over queue pairs according to `striping`, on rails that
    /// begin with `weights`. The other clear-to-sends in the list count as read from the ring.
    ///
    /// # Errors
    /// The missing list is invalid or contradicts this end's state, or a message is missing that
    /// was reported to NCCL as sent. Nothing has changed then.
    pub fn apply_missing_list(
        &mut self,
        missing_list: &MissingList,
        striping: Striping,
        weights: RailWeights,
    ) -> Result<(), MissingListError> {
        missing_list.check()?;
        let live: BTreeMap<u32, RequestId> =
            self.requests.live().map(|(id, request)| (request.seq.get(), id)).collect();
        self.check_unlisted(missing_list)?;
        let replays = self.check_listed(missing_list, &live)?;
        self.replays.begin(missing_list);
        self.replays.queue.extend(replays);
        for (_, request) in self.requests.live() {
            request.pending_stripes.set(0);
        }
        for replay in &self.replays.queue {
            if let Some(request) = self.requests.get(replay.request) {
                request.pending_stripes.set(striping.stripe_count(replay.length) as i32);
            }
        }
        self.unclaimed.0.fill(None);
        let mut head = missing_list.next;
        for MissingMessage { cts, .. } in
            missing_list.missing.iter().rev().filter(|m| !live.contains_key(&m.cts.seq))
        {
            self.unclaimed.put(cts.seq, UnclaimedCts::from(cts));
            head = cts.seq;
        }
        (self.head, self.next, self.qp) = (head, missing_list.next, QpIndex(0));
        (self.striping, self.weights) = (striping, weights);
        self.begin_lanes();
        Ok(())
    }

    /// Checks each listed message. Returns those to resend.
    fn check_listed(
        &self,
        missing_list: &MissingList,
        live: &BTreeMap<u32, RequestId>,
    ) -> Result<Vec<Replay>, MissingListError> {
        let mut replays = Vec::new();
        for missing in &missing_list.missing {
            let MissingMessage { cts, .. } = missing;
            let request = live
                .get(&cts.seq)
                .and_then(|id| self.requests.get(*id).map(|request| (*id, request)));
            if let Some((id, request)) = request {
                let (seq, length) = (cts.seq, request.length.get());
                if length > cts.length {
                    return Err(violation!(
                        "message {seq} of {length} bytes is missing, but its buffer is reported to have {} bytes",
                        cts.length
                    )
                    .into());
                }
                replays.push(Replay {
                    request: id,
                    addr: request.addr.get(),
                    length,
                    missing: *missing,
                });
            } else if !self.is_unclaimed(cts.seq, missing_list.next) {
                return Err(MissingListError::Lost { seq: cts.seq });
            }
        }
        Ok(replays)
    }

    /// Whether no message has claimed clear-to-send `seq`: it was read and kept, or is unread and
    /// before `end`.
    fn is_unclaimed(&self, seq: u32, end: u32) -> bool {
        let is_kept = seq.wrapping_sub(self.head) < self.next.wrapping_sub(self.head)
            && self.unclaimed.get(seq).is_some();
        is_kept || seq.wrapping_sub(self.next) < end.wrapping_sub(self.next)
    }

    /// Checks that the missing list contains every message that this end has not sent.
    fn check_unlisted(&self, missing_list: &MissingList) -> Result<(), Violation> {
        let (next, own) = (missing_list.next, self.next);
        // A peer that goes backwards appears more than half of all numbers ahead.
        if next.wrapping_sub(own) as usize > RING_SLOTS {
            return Err(violation!("a missing list up to message {next}; {own} is due"));
        }
        let known = next.wrapping_sub(self.head);
        let unsent = (0..known)
            .map(|i| self.head.wrapping_add(i))
            .filter(|seq| self.is_unclaimed(*seq, next));
        let listed: BTreeSet<u32> =
            missing_list.missing.iter().map(|missing| missing.cts.seq).collect();
        match { unsent }.find(|seq| !listed.contains(seq)) {
            None => Ok(()),
            Some(seq) => Err(violation!("message {seq} is reported as arrived but was not sent")),
        }
    }

    /// The next message to resend, and the address of its bytes in this process. Post it like one
    /// from [`Self::submit`].
    pub fn poll_replay(&mut self) -> Option<(Transfer, u64)> {
        let Replay { request, addr, length, missing } = self.replays.queue.pop_front()?;
        let cts = missing.cts;
        let stripes = self.striping.stripe_count(length);
        if let Some(lanes) = &mut self.lanes {
            self.qp = lanes.begin(stripes, self.striping, length);
        }
        let transfer = self.transfer(
            request,
            SlotIndex::of(cts.seq),
            UnclaimedCts::from(&cts),
            length,
            stripes,
        );
        Some((transfer, addr))
    }

    /// The length in bytes of the message that [`Self::poll_replay`] returns next.
    pub fn peek_replay(&self) -> Option<u32> {
        self.replays.queue.front().map(|replay| replay.length)
    }

    /// Handles that the receiver has closed the connection in good order: every message has
    /// arrived.
    pub fn complete_all(&mut self) {
        self.replays.queue.clear();
        self.requests.live().for_each(|(_, request)| request.pending_stripes.set(0));
    }

    /// Requests with unacknowledged stripes.
    pub fn outstanding(&self) -> usize {
        self.requests.live().filter(|(_, request)| request.is_pending()).count()
    }

    /// The sequence number of the oldest unacknowledged message, and the bytes of all of them.
    pub fn unacknowledged(&self) -> Option<(u32, u64)> {
        let pending = || self.requests.live().filter(|(_, request)| request.is_pending());
        let oldest = pending()
            .map(|(_, request)| request.seq.get())
            .min_by_key(|seq| seq.wrapping_sub(self.next))?;
        Some((oldest, pending().map(|(_, request)| u64::from(request.length.get())).sum()))
    }

    /// Remote key of the buffer of `transfer` on rail number `rail`. `read_extra_keys` reads the
    /// first half of the clear-to-send in a slot of the ring, where clear-to-sends have two halves.
    /// Keys from a missing list are not read from the ring.
    pub fn rkey(
        &self,
        transfer: &Transfer,
        rail: u8,
        read_extra_keys: impl FnOnce(SlotIndex) -> CtsWords,
    ) -> u32 {
        if let Some(key) = transfer.rkeys.get(usize::from(rail)) {
            return *key;
        }
        let listed = self
            .requests
            .get(transfer.id)
            .and_then(|request| self.replays.extra_keys(request.seq.get()));
        transfer.extra_key(rail, listed, read_extra_keys)
    }
}

// For hang reports.
impl SendFlow {
    /// The present state. `read` reads the clear-to-send of a sequence number from the ring. NCCL
    /// has called `tests` times for its requests without a result.
    pub fn snapshot(&self, tests: u32, read: impl Fn(u32) -> Option<CtsWords>) -> EndSnapshot {
        let (head, next) = (self.head, self.next);
        let is_idle = (head == next && self.idle_at.get() == next) || self.is_idle();
        if is_idle && head == next {
            self.idle_at.set(next);
        }
        // Those that have arrived and that no message has read.
        let unread = (0..RING_SLOTS as u32)
            .take_while(|i| read(next.wrapping_add(*i)).is_some())
            .count() as u32;
        let known = next.wrapping_sub(head);
        let is_unclaimed = |i: &u32| self.unclaimed.get(head.wrapping_add(*i)).is_some();
        let unclaimed = (0..known).filter(is_unclaimed).count() as u32;
        let sent = next.wrapping_sub(1).wrapping_sub(unclaimed);
        let last = next.wrapping_add(unread).wrapping_sub(1);
        EndSnapshot {
            numbers: Numbers::Sender {
                seen: last,
                sent,
                acknowledged: sent.wrapping_sub(if is_idle {
                    0
                } else {
                    self.outstanding() as u32
                }),
                wants: false,
            },
            refusals: self.refusals,
            calls: self.refusals.wrapping_add(tests),
            has_requests: !is_idle,
            recovers: false,
            contact: Contact::Up,
            // NCCL's tag is the rank of the sender.
            sender_rank: read(last).and_then(|words| rank(Cts::from_words(&words).tag)),
        }
    }
}

impl From<&Cts> for UnclaimedCts {
    #[inline(always)]
    fn from(cts: &Cts) -> Self {
        let Cts { addr, length, rkeys, tag, .. } = *cts;
        Self { addr, length, rkeys, tag }
    }
}

/// Clear-to-sends by sequence number modulo the window. Its memory is allocated from the beginning,
/// and first written to when one is kept: most connections never keep any.
#[derive(Debug)]
pub(super) struct Unclaimed(Vec<Option<UnclaimedCts>>);

impl Unclaimed {
    /// The one with number `seq`, if it is kept.
    fn get(&self, seq: u32) -> Option<&UnclaimedCts> {
        self.0.get(seq as usize % WINDOW)?.as_ref()
    }

    fn put(&mut self, seq: u32, cts: UnclaimedCts) {
        if self.0.is_empty() {
            // Allocates nothing: it has this capacity.
            self.0.resize(WINDOW, None);
        }
        self.0[seq as usize % WINDOW] = Some(cts);
    }

    /// Takes the one with number `seq` out, if it is kept.
    fn take(&mut self, seq: u32) -> Option<UnclaimedCts> {
        self.0.get_mut(seq as usize % WINDOW)?.take()
    }
}

/// A message to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// The request, which completes when every stripe has been acknowledged.
    pub id: RequestId,
    /// Address of the peer's buffer.
    pub remote_addr: u64,
    /// Remote keys of the peer's buffer on the first two rails.
    pub rkeys: [u32; Cts::KEYS],
    /// Bytes to send: the lesser of the message and the buffer.
    pub length: u32,
    /// Slot of its clear-to-send. No other clear-to-send gets this slot until the message has
    /// arrived.
    pub slot: SlotIndex,
    /// Size of the peer's buffer in bytes.
    pub(super) posted: u32,
    /// Number of its stripes.
    pub(super) stripes: u32,
    pub(super) striping: Striping,
    /// Queue pair of its first stripe.
    pub(super) qp: QpIndex,
}

impl Transfer {
    /// The queue pair and the immediate of a message of one stripe that is shorter than
    /// [`Imm::EXPLICIT_LIMIT`]: the result of [`Self::stripes`] for it.
    #[inline]
    pub fn single(&self) -> (QpIndex, Imm) {
        (self.qp, Imm::new(self.slot, LengthCode::Bytes(self.length)))
    }

    /// Remote key of the peer's buffer on rail number `rail`, which is 2 or 3. `read_extra_keys`
    /// reads the first half of the clear-to-send in a slot, unless the keys are `known`.
    pub(super) fn extra_key(
        &self,
        rail: u8,
        known: Option<ExtraKeys>,
        read_extra_keys: impl FnOnce(SlotIndex) -> CtsWords,
    ) -> u32 {
        let keys = known.unwrap_or_else(|| parse_extra_keys(&read_extra_keys(self.slot)));
        keys.get(usize::from(rail) - Cts::KEYS).copied().unwrap_or_default()
    }

    /// The rail that `qp` is on.
    #[inline]
    pub fn rail_of(&self, qp: QpIndex) -> u8 {
        self.striping.rail_of(qp)
    }

    /// The stripes in posting order, each with its immediates. `weight` returns the weight of a
    /// queue pair: see [`SendFlow::weight_of`].
    pub fn stripes(
        &self,
        weight: impl Fn(QpIndex) -> u64,
    ) -> impl Iterator<Item = (Stripe, Immediates)> {
        self.striping
            .stripes(self.length, self.qp, weight)
            .enumerate()
            .map(|(i, stripe)| (stripe, self.immediates(i == 0)))
    }

    fn immediates(&self, is_first: bool) -> Immediates {
        let imm = |code| Imm::new(self.slot, code);
        let (first, second) = if !is_first {
            (LengthCode::Stripe, None)
        } else if self.length < Imm::EXPLICIT_LIMIT {
            (LengthCode::Bytes(self.length), None)
        } else if self.length == self.posted {
            (LengthCode::Full, None)
        } else {
            (
                LengthCode::Low(self.length as u16),
                Some(LengthCode::High((self.length >> 16) as u16)),
            )
        };
        Immediates { first: imm(first), second: second.map(imm) }
    }
}

/// The immediates of a stripe: one, or two for a length that does not fit one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Immediates {
    /// Posted with the data, or in a trailing write behind it.
    pub first: Imm,
    /// Posted behind the first, in a write of no bytes.
    pub second: Option<Imm>,
}

/// Work requests that the send queue of a queue pair must hold.
pub const SEND_QUEUE_DEPTH: u32 = MAX_REQUESTS as u32 + EXTRA_WRS;
/// Entries of a send queue for extra work requests and a probe. Messages that need extra ones have
/// many packets each, so this number keeps a path full.
const EXTRA_WRS: u32 = 64;
/// The most work requests of one stripe.
pub const MAX_STRIPE_WRS: usize = 3;

/// Extra work requests that a send queue has space for.
const MAX_EXTRA_WRS: u16 = EXTRA_WRS as u16 - 1;

/// The free space in the send queues of a connection, counted in work requests.
///
/// A stripe takes one to three work requests of its queue pair. These are the data, with an
/// immediate or without; the immediate, where it follows the data in a trailing write; and the
/// second immediate of a length that does not fit one. Only the last is signalled; its completion
/// covers all of them.
///
/// No queue overflows. At most [`MAX_REQUESTS`] messages are outstanding, each with at most one
/// stripe on a queue pair. A message stays outstanding until the completions of all its stripes
/// have been polled. So the *first* work requests of all stripes take at most that many entries of
/// a send queue. The *extra* ones, which most stripes lack, are counted here for each queue pair.
/// They get [`EXTRA_WRS`] entries less one, which is reserved for a probe that may still be
/// outstanding when messages begin again. [`SEND_QUEUE_DEPTH`] is the sum. Messages that find no
/// entry wait.
#[derive(Debug)]
pub struct SendQueueSpace {
    extra: [u16; MAX_QPS],
    most: u16,
}

impl Default for SendQueueSpace {
    fn default() -> Self {
        Self::new(MAX_EXTRA_WRS)
    }
}

impl SendQueueSpace {
    /// Space for `most` extra work requests on each queue pair; a stripe may take two.
    pub(super) fn new(most: u16) -> Self {
        Self { extra: [0; MAX_QPS], most }
    }

    /// Whether each of the first `qps` queue pairs has space for a stripe with up to `extra` extra
    /// work requests.
    #[inline]
    pub fn has_space(&self, qps: usize, extra: u8) -> bool {
        self.extra.iter().take(qps).all(|outstanding| outstanding + u16::from(extra) <= self.most)
    }

    /// Counts a stripe with `extra` extra work requests posted on `qp`, which had space for it.
    #[inline]
    pub fn handle_posted(&mut self, qp: QpIndex, extra: u8) {
        let outstanding = &mut self.extra[usize::from(qp.0) % MAX_QPS];
        *outstanding += u16::from(extra);
        debug_assert!(*outstanding <= self.most);
    }

    /// Counts the completion of such a stripe.
    #[inline]
    pub fn handle_completion(&mut self, qp: QpIndex, extra: u8) {
        let outstanding = &mut self.extra[usize::from(qp.0) % MAX_QPS];
        debug_assert!(*outstanding >= u16::from(extra), "more are complete than were posted");
        *outstanding = outstanding.saturating_sub(extra.into());
    }
}

/// Why a missing list cannot be applied. The connection cannot continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MissingListError {
    /// The receiver has violated the protocol.
    Violation(Violation),
    /// This message is missing, but NCCL was told that it is sent: its buffer may have other
    /// contents by now.
    Lost {
        /// Its sequence number.
        seq: u32,
    },
}

impl fmt::Display for MissingListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(violation) => write!(f, "the peer broke the protocol: {violation}"),
            Self::Lost { seq } => write!(
                f,
                "message {seq} was acknowledged by the peer's device and lost there: the device died, or a poll of its \
                 completion queue failed. The message cannot be sent again"
            ),
        }
    }
}

impl From<Violation> for MissingListError {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

/// A message to resend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Replay {
    pub(crate) request: RequestId,
    /// The address of its bytes in this process.
    pub(crate) addr: u64,
    /// Its length in bytes.
    pub(crate) length: u32,
    pub(crate) missing: MissingMessage,
}

/// The part of the last missing list that the sender keeps.
#[derive(Debug, Clone, Default)]
pub(crate) struct Replays {
    /// In ascending order of sequence numbers.
    pub(crate) queue: VecDeque<Replay>,
    /// By slot, the sequence number and the keys of rails 2 and 3 of each listed clear-to-send: the
    /// ring may lack them.
    extra: Vec<(u32, ExtraKeys)>,
}

impl Replays {
    /// Discards the state of an earlier missing list.
    pub(crate) fn begin(&mut self, missing_list: &MissingList) {
        self.queue.clear();
        self.extra.clear();
        self.extra.resize(RING_SLOTS, (missing_list.oldest.wrapping_sub(1), ExtraKeys::default()));
        for MissingMessage { cts, extra } in &missing_list.missing {
            self.extra[cts.seq as usize % RING_SLOTS] = (cts.seq, *extra);
        }
    }

    /// The keys of rails 2 and 3 for message `seq`, if the missing list contains it.
    pub(crate) fn extra_keys(&self, seq: u32) -> Option<ExtraKeys> {
        let found = self.extra.get(seq as usize % RING_SLOTS);
        found.filter(|(listed, _)| *listed == seq).map(|(_, keys)| *keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u32 = 1 << 20;

    /// Submits a message of `length` bytes, for which clear-to-send `seq` is there.
    fn submit(flow: &mut SendFlow, seq: u32, length: u32) -> Transfer {
        let cts = Cts { addr: 0x1000, length: LARGE, rkeys: [1, 0], tag: 0, seq };
        flow.submit(0, 0, length, |_| Some(cts.emit())).expect("valid").expect("clear to send")
    }

    mod general {
        use super::*;

        fn flow() -> SendFlow {
            SendFlow::new(Striping::new(1, 1, false), RailWeights::from_speeds([1]))
        }

        fn cts(seq: u32, tag: u32, length: u32) -> Cts {
            Cts { addr: 0x1000 * u64::from(seq), length, rkeys: [9, 0], tag, seq }
        }

        /// Submits a message when the ring holds `ring`.
        fn submit(flow: &mut SendFlow, ring: &[Cts], tag: u32, length: u32) -> Option<Transfer> {
            let read = |seq| ring.iter().find(|cts| cts.seq == seq).map(Cts::emit);
            flow.submit(tag, 0, length, read).expect("valid clear-to-sends")
        }

        #[test]
        fn a_message_waits_for_its_cts() {
            let mut flow = flow();
            assert_eq!(submit(&mut flow, &[], 7, 100), None);
            let ring = [cts(1, 7, 64)];
            let transfer = submit(&mut flow, &ring, 7, 100).expect("there is a clear-to-send");
            assert_eq!(
                (transfer.length, transfer.remote_addr),
                (64, 0x1000),
                "truncated to what the peer has room for"
            );
            assert_eq!(submit(&mut flow, &ring, 7, 100), None, "a clear-to-send is used once");
        }

        #[test]
        fn tags_are_matched_in_order_and_do_not_block_each_other() {
            let mut flow = flow();
            let ring = [cts(1, 10, 8), cts(2, 20, 8), cts(3, 10, 8), cts(4, 10, 8)];
            let mut addr = |tag| submit(&mut flow, &ring, tag, 8).map(|t| t.remote_addr);
            assert_eq!(addr(20), Some(0x2000));
            assert_eq!(addr(20), None);
            assert_eq!(addr(10), Some(0x1000));
            assert_eq!(addr(10), Some(0x3000));
            assert_eq!(addr(10), Some(0x4000));
            assert_eq!(addr(10), None);
        }

        /// Until a clear-to-send is kept, the memory for them is not written to.
        #[test]
        fn a_clear_to_send_is_kept_only_if_another_message_comes_before_its_own() {
            let mut flow = flow();
            let room = flow.unclaimed.0.capacity();
            let ring = [cts(1, 10, 8), cts(2, 20, 8), cts(3, 10, 8)];
            assert!(submit(&mut flow, &ring, 10, 8).is_some());
            assert!(flow.unclaimed.0.is_empty());
            assert!(submit(&mut flow, &ring, 10, 8).is_some());
            assert_eq!((flow.unclaimed.0.len(), flow.unclaimed.0.capacity()), (WINDOW, room));
        }

        #[test]
        fn a_message_has_the_place_in_which_the_receiver_has_asked_for_it() {
            let mut flow = flow();
            let ring = [cts(1, 10, 8), cts(2, 20, 8), cts(3, 10, 8)];
            let ids = [20, 10, 10].map(|tag| submit(&mut flow, &ring, tag, 8).expect("cleared").id);
            assert_eq!(ids.map(|id| flow.place(id)), [Some(1), Some(0), Some(2)]);
            flow.handle_completion(ids[0]).expect("one stripe");
            flow.poll_done(ids[0]).expect("complete");
            assert_eq!(flow.place(ids[0]), None, "it is no more");
        }

        #[test]
        fn a_tag_behind_the_window_waits() {
            let mut flow = flow();
            let window = WINDOW as u32;
            let mut ring: Vec<_> = (1..=window).map(|seq| cts(seq, 10, 8)).collect();
            ring.push(cts(window + 1, 20, 8));
            assert_eq!(submit(&mut flow, &ring, 20, 8), None);
            assert!(submit(&mut flow, &ring, 10, 8).is_some());
            assert!(submit(&mut flow, &ring, 20, 8).is_some());
        }

        #[test]
        fn a_cts_out_of_order_is_a_violation() {
            let mut flow = flow();
            assert!(flow.submit(0, 0, 8, |_| Some(cts(2, 0, 0).emit())).is_err());
        }

        #[test]
        fn a_completion_of_no_outstanding_request_is_a_violation() {
            let mut flow = flow();
            let id = submit(&mut flow, &[cts(1, 0, 8)], 0, 8).expect("there is a clear-to-send").id;
            assert_eq!(flow.poll_done(id), Ok(None));
            assert_eq!(flow.handle_completion(id), Ok(()));
            assert!(flow.handle_completion(id).is_err(), "twice");
            assert_eq!(flow.poll_done(id), Ok(Some(8)));
            assert!(flow.handle_completion(id).is_err(), "after the end");
            assert!(flow.poll_done(id).is_err(), "tested after the end");
        }

        #[test]
        fn a_length_that_fits_no_immediate_travels_in_two() {
            let mut flow = flow();
            let long = Imm::EXPLICIT_LIMIT + 0x2_0003;
            let ring = [cts(1, 0, long + 1), cts(2, 0, long)];
            let partial = submit(&mut flow, &ring, 0, long).expect("clear-to-send 1");
            let (_, imms) = partial.stripes(|qp| flow.weight_of(qp)).next().expect("one stripe");
            assert_eq!(imms.first.length_code(), LengthCode::Low(3));
            assert_eq!(
                imms.second.map(|i| i.length_code()),
                Some(LengthCode::High((long >> 16) as u16))
            );
            let full = submit(&mut flow, &ring, 0, long).expect("clear-to-send 2");
            let (_, imms) = full.stripes(|qp| flow.weight_of(qp)).next().expect("one stripe");
            assert_eq!((imms.first.length_code(), imms.second), (LengthCode::Full, None));
        }

        #[test]
        fn a_rail_that_completes_last_gets_less() {
            let mut flow =
                SendFlow::new(Striping::new(2, 1, false), RailWeights::from_speeds([1, 1]));
            let mut seq = 0;
            // The lengths of a message's stripes on qps 0 and 1, which complete in this order, in
            // one poll or in two.
            let mut message = |polls: u32, length: u32| {
                seq += 1;
                let transfer = submit(&mut flow, &[cts(seq, 0, length)], 0, length)
                    .expect("there is a clear-to-send");
                let stripes: Vec<_> =
                    transfer.stripes(|qp| flow.weight_of(qp)).map(|(stripe, _)| stripe).collect();
                let lengths = [0, 1].map(|qp| {
                    stripes.iter().find(|s| s.qp == QpIndex(qp)).expect("a stripe").length
                });
                for qp in [0, 1] {
                    flow.handle_completion_on(transfer.id, QpIndex(qp)).expect("outstanding");
                    (1..polls).for_each(|_| flow.handle_poll());
                }
                flow.handle_poll();
                assert_eq!(flow.poll_done(transfer.id), Ok(Some(length)));
                lengths
            };
            (0..50).for_each(|_| {
                assert_eq!(message(1, 1 << 20), [1 << 19; 2], "no order can be seen")
            });
            (0..50).for_each(|_| {
                assert_eq!(message(2, 48 << 10), [24 << 10; 2], "a short one tells nothing")
            });
            assert_eq!(message(2, 1 << 20), [1 << 19; 2], "nothing is known yet");
            let later: Vec<_> = (0..50).map(|_| message(2, 1 << 20)[1]).collect();
            assert!(later.is_sorted_by(|a, b| a > b) && later[49] < 450_000, "{later:?}");
        }

        #[test]
        fn an_entry_whose_request_has_ended_is_refused() {
            let mut flow = flow();
            let id = submit(&mut flow, &[cts(1, 7, 100)], 7, 64).expect("cleared").id;
            assert_eq!((flow.bytes(id), flow.unacknowledged()), (64, Some((1, 64))));
            let entries = std::sync::Arc::clone(flow.requests.entries());
            let entry = &entries[id.index()];
            assert!(matches!(flow.finish(entry), Ok(None)), "it is not acknowledged");
            flow.handle_completion(id).expect("one stripe");
            assert!(matches!(flow.finish(entry), Ok(Some(64))));
            assert!(flow.finish(entry).is_err() && flow.finish(&entries[200]).is_err());
            assert_eq!(flow.unacknowledged(), None);
        }

        /// One immediate tells all lengths below 2^22 less the codes, and that of the
        /// clear-to-send.
        #[test]
        fn the_least_length_beyond_an_immediate_goes_as_the_whole_buffer_or_in_two_halves() {
            let first = |room: u32, length: u32| {
                let transfer = submit(&mut flow(), &[cts(1, 7, room)], 7, length).expect("cleared");
                let mut stripes = transfer.stripes(|_| 1);
                stripes.next().map(|(_, immediates)| {
                    (immediates.first.length_code(), immediates.second.is_some())
                })
            };
            let limit = Imm::EXPLICIT_LIMIT;
            assert_eq!(first(limit, limit - 1), Some((LengthCode::Bytes(limit - 1), false)));
            assert_eq!(first(limit, limit), Some((LengthCode::Full, false)));
            assert_eq!(first(limit + 1, limit), Some((LengthCode::Low(limit as u16), true)));
        }
    }

    mod single {
        use super::*;
        use proptest::prelude::*;

        /// What the requests in flight are too many for has not waited for its peer.
        #[test]
        fn a_message_is_counted_as_refused_only_if_it_was_not_asked_for() {
            let mut flow = SendFlow::new(Striping::new(1, 1, false), RailWeights::from_speeds([1]));
            let words = |seq| Cts { addr: 0x1000, length: 8, rkeys: [9, 0], tag: 0, seq }.emit();
            let first =
                flow.submit(0, 0, 8, |seq| Some(words(seq))).expect("valid").expect("asked for").id;
            assert_eq!(flow.entry(first).map(Entry::id), Some(first));
            while flow.submit(0, 0, 8, |seq| Some(words(seq))).expect("valid").is_some() {}
            assert_eq!(flow.refusals, 0, "too many are outstanding");
            assert_eq!(flow.submit(0, 0, 8, |_| None), Ok(None));
            assert_eq!(flow.refusals, 1);
        }

        /// What NCCL and the peer do.
        #[derive(Debug, Clone)]
        enum Step {
            /// The peer writes a clear-to-send.
            Write { tag: u32, length: u32 },
            /// `isend`.
            Send { tag: u32, length: u32 },
            /// The stripe of some message that is outstanding completes, and NCCL gets the result
            /// of the message.
            Complete(prop::sample::Index),
        }

        fn steps() -> impl Strategy<Value = Vec<Step>> {
            // One tag is more frequent, as with NCCL; some lengths are too long for one stripe or
            // for a clear-to-send.
            let tag = || prop_oneof![8 => Just(0u32), 1 => 1..3u32];
            let posted = || prop_oneof![20 => 0..20_000u32, 1 => Just(MAX_MESSAGE + 1)];
            let step = prop_oneof![
                (tag(), posted()).prop_map(|(tag, length)| Step::Write { tag, length }),
                (tag(), 0..20_000u32).prop_map(|(tag, length)| Step::Send { tag, length }),
                any::<prop::sample::Index>().prop_map(Step::Complete),
            ];
            prop::collection::vec(step, 1..600)
        }

        proptest! {
            // Each has hundreds of steps.
            #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(4), ..Default::default() })]

            #[test]
            fn the_fast_path_gives_the_same_transfers_and_the_same_state_as_the_general_one(
                steps in steps(),
                (qps, split) in (1..4u8, any::<bool>()),
            ) {
                let striping = Striping::new(1, qps, split);
                let flow = || SendFlow::new(striping, RailWeights::from_speeds([1]));
                let mut callers = [(flow(), Vec::new(), false), (flow(), Vec::new(), true)];
                let mut ring: Vec<Cts> = Vec::new();
                for (number, step) in steps.into_iter().enumerate() {
                    let mut answers = Vec::new();
                    for (flow, outstanding, is_fast) in &mut callers {
                        match &step {
                            Step::Write { .. } => {}
                            Step::Send { tag, length } => {
                                let read = |seq: u32| ring.get(seq as usize - 1).map(Cts::emit);
                                let answer = flow.submit_either(*is_fast, *tag, 7, *length, read).ok();
                                outstanding.extend(answer.flatten());
                                answers.push(answer);
                            }
                            Step::Complete(_) if outstanding.is_empty() => {}
                            Step::Complete(index) => {
                                let transfer = outstanding.remove(index.index(outstanding.len()));
                                for _ in 0..striping.stripe_count(transfer.length) {
                                    flow.handle_completion(transfer.id).expect("outstanding");
                                }
                                prop_assert_eq!(flow.poll_done(transfer.id), Ok(Some(transfer.length)));
                            }
                        }
                    }
                    if let Step::Write { tag, length } = step {
                        let seq = ring.len() as u32 + 1;
                        ring.push(Cts { addr: 0x1000 * u64::from(seq), length, rkeys: [seq, 0], tag, seq });
                    }
                    prop_assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{:?}", answers);
                    // Whole states take long to compare, and a difference stays.
                    if number % 32 == 0 {
                        prop_assert_eq!(format!("{:?}", callers[0].0), format!("{:?}", callers[1].0));
                    }
                    // After a clear-to-send that is not valid the connection has failed.
                    if answers.contains(&None) {
                        break;
                    }
                }
                prop_assert_eq!(format!("{:?}", callers[0].0), format!("{:?}", callers[1].0));
            }
        }

        #[test]
        fn a_refusal_is_the_first_after_each_message_and_after_each_clear_to_send() {
            let mut flow = SendFlow::new(Striping::new(1, 1, false), RailWeights::from_speeds([1]));
            let cts = |seq, tag| Cts { addr: 1, length: 8, rkeys: [1, 0], tag, seq };
            let refuse = |flow: &mut SendFlow, written| {
                [flow.refuse(|seq| seq <= written), flow.refuse(|seq| seq <= written)]
            };
            let send = |flow: &mut SendFlow, ring: &[Cts], tag| {
                let read = |seq: u32| ring.get(seq as usize - 1).map(Cts::emit);
                flow.submit(tag, 0, 8, read).expect("valid clear-to-sends").is_some()
            };
            assert_eq!(refuse(&mut flow, 0), [SendRefusal::First, SendRefusal::Again]);
            assert!(!send(&mut flow, &[], 0));
            assert_eq!(refuse(&mut flow, 0), [SendRefusal::Again; 2], "by the general case, too");
            let ring = [cts(1, 0), cts(2, 7)];
            assert_eq!(refuse(&mut flow, 1), [SendRefusal::Next; 2]);
            assert!(send(&mut flow, &ring[..1], 0));
            assert_eq!(refuse(&mut flow, 1), [SendRefusal::First, SendRefusal::Again]);
            assert!(!send(&mut flow, &ring, 0), "the second one is kept");
            assert_eq!(refuse(&mut flow, 2), [SendRefusal::No; 2]);
            assert!(send(&mut flow, &ring, 7));
            assert_eq!(refuse(&mut flow, 2), [SendRefusal::First, SendRefusal::Again]);
        }
    }

    mod lanes {
        use super::*;
        use crate::recovery::missing_list::MissingList;

        /// A flow over four lanes of one rail, and the number of its messages.
        fn lanes() -> (SendFlow, u32) {
            let mut flow =
                SendFlow::new(Striping::new(1, 4, true), RailWeights::from_speeds([400_000]));
            flow.use_lanes();
            (flow, 0)
        }

        /// Sends a message, whose stripes complete in the order of their lengths, but that of
        /// `last` after the others.
        fn send((flow, count): &mut (SendFlow, u32), length: u32, last: Option<u8>) -> Vec<Stripe> {
            *count += 1;
            let transfer = submit(flow, *count, length);
            let stripes: Vec<_> =
                transfer.stripes(|qp| flow.weight_of(qp)).map(|(stripe, _)| stripe).collect();
            for is_last in [false, true] {
                flow.handle_poll();
                for stripe in stripes.iter().filter(|stripe| (last == Some(stripe.qp.0)) == is_last)
                {
                    flow.handle_completion_on(transfer.id, stripe.qp).expect("outstanding");
                }
            }
            assert_eq!(flow.poll_done(transfer.id), Ok(Some(length)));
            stripes
        }

        #[test]
        fn without_lanes_messages_begin_at_each_queue_pair_in_turn() {
            let mut flow =
                SendFlow::new(Striping::new(2, 2, false), RailWeights::from_speeds([1; 2]));
            let qps = [1, 2, 3, 4, 5, 6].map(|seq| submit(&mut flow, seq, 8).qp.0);
            assert_eq!(qps, [0, 1, 2, 3, 0, 1]);
        }

        #[test]
        fn queue_pairs_are_lanes_only_if_messages_are_cut_over_several_of_a_rail_and_it_is_wished()
        {
            let has_lanes = |rails, per_rail, split, is_requested: bool| {
                let mut flow = SendFlow::new(
                    Striping::new(rails, per_rail, split),
                    RailWeights::from_speeds([400_000; 4]),
                );
                if is_requested {
                    flow.use_lanes();
                } else {
                    flow.begin_lanes();
                }
                flow.has_lanes()
            };
            assert!(has_lanes(1, 4, true, true) && has_lanes(2, 4, true, true));
            assert!(!has_lanes(1, 4, true, false), "not wished");
            assert!(!has_lanes(1, 4, false, true), "not cut");
            assert!(!has_lanes(4, 1, true, true), "one on each rail");
        }

        #[test]
        fn a_lane_that_completes_last_gets_less_and_its_sisters_on_the_same_rail_do_not() {
            let mut flow = lanes();
            let even = send(&mut flow, LARGE, Some(2));
            assert!(even.iter().all(|stripe| stripe.length == LARGE / 4), "{even:?}");
            (0..100).for_each(|_| drop(send(&mut flow, LARGE, Some(2))));
            let stripes = send(&mut flow, LARGE, None);
            let length = |qp| {
                stripes.iter().find(|stripe| stripe.qp == QpIndex(qp)).expect("four stripes").length
            };
            assert!(2 * length(2) < length(0) + 128, "{stripes:?}");
            assert!(
                length(0).abs_diff(length(1)) <= 128 && length(0).abs_diff(length(3)) <= 128,
                "{stripes:?}"
            );
        }

        #[test]
        fn a_lane_of_new_queue_pairs_has_to_be_slow_for_longer() {
            let mut flow = lanes();
            let mut messages_until_named = || {
                let begun = flow.1;
                while flow.0.poll_slow_lane().is_none() {
                    send(&mut flow, LARGE, Some(2));
                }
                flow.0.begin_lanes();
                flow.1 - begun
            };
            let first = messages_until_named();
            assert!(messages_until_named() > first);
        }

        #[test]
        fn lanes_that_complete_last_together_all_get_less() {
            let mut flow = lanes();
            for _ in 0..100 {
                flow.1 += 1;
                let id = submit(&mut flow.0, flow.1, LARGE).id;
                for qps in [&[3][..], &[0, 1, 2]] {
                    flow.0.handle_poll();
                    qps.iter().for_each(|qp| {
                        flow.0.handle_completion_on(id, QpIndex(*qp)).expect("outstanding")
                    });
                }
                assert_eq!(flow.0.poll_done(id), Ok(Some(LARGE)));
            }
            let weights = [0, 1, 2, 3].map(|qp| flow.0.weight_of(QpIndex(qp)));
            assert!(
                weights[0] == weights[1] && weights[1] == weights[2] && 2 * weights[0] < weights[3],
                "{weights:?}"
            );
        }

        #[test]
        fn a_message_that_is_not_cut_goes_over_the_lane_with_the_greatest_weight() {
            let mut flow = lanes();
            for last in [0, 1, 3] {
                (0..20).for_each(|_| drop(send(&mut flow, LARGE, Some(last))));
            }
            for _ in 0..3 {
                assert_eq!(
                    send(&mut flow, 8, None),
                    [Stripe { qp: QpIndex(2), offset: 0, length: 8 }]
                );
            }
        }

        #[test]
        fn a_lane_that_stays_slow_is_named_and_a_slow_receiver_makes_none_slow() {
            let mut flow = lanes();
            let mut named = (0..1000).find_map(|_| {
                send(&mut flow, LARGE, Some(2));
                flow.0.poll_slow_lane()
            });
            assert_eq!(named.take(), Some(QpIndex(2)));
            // Whatever the time between messages, it is of no account: what counts is the order of
            // completions.
            let mut flow = lanes();
            for message in 0..4000_u32 {
                send(&mut flow, LARGE, Some((message % 4) as u8));
                assert_eq!(flow.0.poll_slow_lane(), None);
            }
        }

        /// Where order says nothing of speed, since all lanes share a path, shares differ by
        /// chance, and a lane is seldom slow.
        #[test]
        fn lanes_that_complete_last_at_random_are_seldom_slow() {
            let (mut flow, mut random, mut named) = (lanes(), 1_u64, 0);
            for _ in 0..100_000 {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                send(&mut flow, LARGE, Some((random >> 62) as u8));
                named += u32::from(flow.0.poll_slow_lane().is_some());
            }
            assert!(named <= 10, "{named} times");
        }

        #[test]
        fn lanes_that_lag_behind_all_others_are_known() {
            let mut flow = lanes();
            let mut begin = |length| {
                flow.1 += 1;
                submit(&mut flow.0, flow.1, length).id
            };
            let ids = [begin(LARGE), begin(8)];
            assert_eq!(flow.0.lagging_lanes(), 0, "all of them");
            [0, 3].into_iter().for_each(|qp| {
                flow.0.handle_completion_on(ids[0], QpIndex(qp)).expect("outstanding")
            });
            assert_eq!(flow.0.lagging_lanes(), 0b0111, "the short message is on the first lane");
            flow.0.handle_completion_on(ids[1], QpIndex(0)).expect("outstanding");
            assert_eq!(flow.0.lagging_lanes(), 0b0110);
            [1, 2].into_iter().for_each(|qp| {
                flow.0.handle_completion_on(ids[0], QpIndex(qp)).expect("outstanding")
            });
            assert_eq!(flow.0.lagging_lanes(), 0);
        }

        #[test]
        fn messages_that_are_cut_begin_on_each_lane_in_turn_and_every_fourth_one_on_any() {
            let mut flow = lanes();
            let first: Vec<_> =
                (0..4000).map(|_| usize::from(send(&mut flow, LARGE, None)[0].qp.0)).collect();
            for (every, allowed) in [(1, 1000..1001), (2, 400..600), (4, 200..300)] {
                let mut counts = [0; 4];
                first.iter().step_by(every).for_each(|lane| counts[*lane] += 1);
                assert!(counts.iter().all(|count| allowed.contains(count)), "{counts:?}");
            }
        }

        /// As on one link, which takes what is posted in its order; also with messages in between
        /// that are cut, but too short to learn from.
        #[test]
        fn no_lane_is_slow_where_stripes_complete_in_the_order_in_which_they_are_posted() {
            const SHORT: u32 = 16 << 10;
            for lengths in [&[LARGE][..], &[LARGE, SHORT], &[LARGE, SHORT, SHORT]] {
                let mut flow = lanes();
                for (message, length) in (0..18_000).zip(lengths.iter().cycle()) {
                    flow.1 += 1;
                    let transfer = submit(&mut flow.0, flow.1, *length);
                    let qps: Vec<_> = transfer
                        .stripes(|qp| flow.0.weight_of(qp))
                        .map(|(stripe, _)| stripe.qp)
                        .collect();
                    for qp in qps {
                        flow.0.handle_poll();
                        flow.0.handle_completion_on(transfer.id, qp).expect("outstanding");
                    }
                    assert_eq!(flow.0.poll_done(transfer.id), Ok(Some(*length)));
                    let weights = [0, 1, 2, 3].map(|qp| flow.0.weight_of(QpIndex(qp)));
                    let (least, most) =
                        (weights.iter().min().expect("four"), weights.iter().max().expect("four"));
                    assert!(
                        least * 10 > most * 9,
                        "after message {message} of {lengths:?}: {weights:?}"
                    );
                }
            }
        }

        /// Sends messages over lanes of these speeds, in bytes in the time of a poll, all at once.
        /// Returns the shares in percent.
        fn settled(flow: &mut (SendFlow, u32), speeds: &[u64], messages: u32) -> Vec<u64> {
            for _ in 0..messages {
                flow.1 += 1;
                let transfer = submit(&mut flow.0, flow.1, LARGE);
                let stripes = transfer.stripes(|qp| flow.0.weight_of(qp));
                let mut ends: Vec<_> = stripes
                    .map(|(stripe, _)| {
                        (u64::from(stripe.length) / speeds[usize::from(stripe.qp.0)], stripe.qp)
                    })
                    .collect();
                ends.sort_unstable();
                let mut poll = None;
                for (end, qp) in ends {
                    if poll.replace(end) != Some(end) {
                        flow.0.handle_poll();
                    }
                    flow.0.handle_completion_on(transfer.id, qp).expect("outstanding");
                }
                flow.0.poll_done(transfer.id).expect("complete");
            }
            let weights: Vec<_> =
                (0..speeds.len()).map(|qp| flow.0.weight_of(QpIndex(qp as u8))).collect();
            weights.iter().map(|weight| (100 * weight + 50) / weights.iter().sum::<u64>()).collect()
        }

        #[test]
        fn the_lanes_of_a_rail_that_was_slow_regain_their_shares_beside_those_of_another_one() {
            let rails = RailWeights::from_speeds([400_000, 400_000]);
            let mut flow = (SendFlow::new(Striping::new(2, 4, true), rails), 0);
            flow.0.use_lanes();
            // Queue pairs are on the two rails in turn.
            let (even, slow) =
                ([12_000; 8], [12_000, 3000, 12_000, 3000, 12_000, 3000, 12_000, 3000]);
            let near = |found: &[u64], expected: &[u64]| {
                found.iter().zip(expected).all(|(a, b)| a.abs_diff(*b) <= 1)
            };
            let found = settled(&mut flow, &slow, 3000);
            assert!(near(&found, &[20, 5, 20, 5, 20, 5, 20, 5]), "{found:?}");
            let found = settled(&mut flow, &even, 1000);
            assert!(near(&found, &[13, 12, 13, 12, 13, 12, 13, 12]), "{found:?}");
            let mut one = even;
            one[3] = 1500;
            let found = settled(&mut flow, &one, 3000);
            assert!(near(&found, &[14, 14, 14, 2, 14, 14, 14, 14]), "{found:?}");
            let found = settled(&mut flow, &even, 1000);
            assert!(near(&found, &[13, 12, 13, 12, 13, 12, 13, 12]), "{found:?}");
        }

        #[test]
        fn new_queue_pairs_begin_with_even_shares() {
            let mut flow = lanes();
            (0..100).for_each(|_| drop(send(&mut flow, LARGE, Some(2))));
            let next = flow.1 + 1;
            let nothing_missing = MissingList { oldest: next, next, missing: Vec::new() };
            let (striping, weights) =
                (Striping::new(1, 3, true), RailWeights::from_speeds([400_000]));
            flow.0.apply_missing_list(&nothing_missing, striping, weights).expect("it fits");
            assert!(flow.0.has_lanes());
            assert!((0..3).all(|qp| flow.0.weight_of(QpIndex(qp)) == flow.0.weight_of(QpIndex(0))));
        }
    }

    mod unlike_rails {
        use super::*;
        use std::collections::BTreeMap;

        /// Polls in which a rail of speed 1 sends a message of its own.
        const POLLS: u64 = 1 << 16;
        /// A sender that has always `window` messages outstanding over rails of these speeds, and
        /// polls at every moment.
        struct Link {
            flow: SendFlow,
            speeds: Vec<u64>,
            window: u32,
            now: u64,
            seq: u32,
            /// When each rail has sent what it was given.
            free: Vec<u64>,
            /// By the moments at which they complete.
            stripes: BTreeMap<u64, Vec<(RequestId, QpIndex)>>,
            /// By index of the request.
            pending: BTreeMap<usize, u32>,
        }

        impl Link {
            fn new(speeds: &[u64], window: u32) -> Self {
                let (rails, weights) = (speeds.len(), RailWeights::from_speeds([400_000; 4]));
                let flow = SendFlow::new(Striping::new(rails as u8, 1, false), weights);
                let (free, speeds) = (vec![0; rails], speeds.to_vec());
                let (stripes, pending) = Default::default();
                Self { flow, speeds, window, now: 0, seq: 0, free, stripes, pending }
            }

            fn post(&mut self) {
                self.seq += 1;
                let transfer = submit(&mut self.flow, self.seq, LARGE);
                self.flow.handle_posted(&transfer);
                for (stripe, _) in transfer.stripes(|qp| self.flow.weight_of(qp)) {
                    let rail = usize::from(stripe.qp.0);
                    let time =
                        POLLS * u64::from(stripe.length) / u64::from(LARGE) / self.speeds[rail];
                    self.free[rail] = self.free[rail].max(self.now) + time.max(1);
                    self.stripes.entry(self.free[rail]).or_default().push((transfer.id, stripe.qp));
                    *self.pending.entry(transfer.id.index()).or_default() += 1;
                }
            }

            /// Sends so many messages. Returns in how many polls.
            fn send(&mut self, messages: usize) -> u64 {
                let (begin, mut left) = (self.now, messages);
                while left > 0 {
                    while self.pending.len() < self.window as usize {
                        self.post();
                    }
                    let (at, completed) =
                        self.stripes.pop_first().expect("something is outstanding");
                    (self.now..at).for_each(|_| self.flow.handle_poll());
                    self.now = at;
                    for (id, qp) in completed {
                        self.flow.handle_completion_on(id, qp).expect("outstanding");
                        let pending = self.pending.get_mut(&id.index()).expect("outstanding");
                        *pending -= 1;
                        if *pending == 0 {
                            self.pending.remove(&id.index());
                            self.flow.poll_done(id).expect("complete");
                            left = left.saturating_sub(1);
                        }
                    }
                }
                self.now - begin
            }

            /// How much faster it sends so many messages than the fastest of its rails would alone,
            /// in percent.
            fn gain(&mut self, messages: usize) -> i64 {
                let alone = messages as u64 * POLLS / self.speeds.iter().max().expect("a rail");
                (100 * alone / self.send(messages)) as i64 - 100
            }
        }

        #[test]
        fn a_far_slower_rail_soon_gets_no_more_than_it_can_carry() {
            for window in [1, 2, 8, 32] {
                for speeds in [
                    &[13, 1][..],
                    &[1, 13],
                    &[40, 1],
                    &[10, 10, 1],
                    &[10, 10, 1, 1],
                    &[20, 1, 20, 20],
                ] {
                    let mut link = Link::new(speeds, window);
                    link.send(16 + 3 * window as usize);
                    let gain = link.gain(200);
                    assert!(gain > -35, "{speeds:?} with {window} messages at a time: {gain} %");
                }
            }
        }

        #[test]
        fn a_rail_that_is_as_fast_as_before_soon_carries_as_much_as_before() {
            for window in [1, 8, 32] {
                let mut link = Link::new(&[10, 10], window);
                assert!(link.gain(200) > 90);
                link.speeds = vec![10, 1];
                link.send(200);
                link.speeds = vec![10, 10];
                link.send(16 + 3 * window as usize);
                let gain = link.gain(200);
                assert!(gain > 50, "{window} messages at a time: {gain} %");
            }
        }

        /// Sends messages of `length` bytes over equal lanes, `window` at a time. Returns the least
        /// share that a lane has had, in percent of the greatest at that time, and how often one
        /// was found slow.
        fn shares_of_equal_lanes(
            (rails, per_rail): (u8, u8),
            length: u32,
            window: usize,
        ) -> (u64, usize) {
            let mut flow = SendFlow::new(
                Striping::new(rails, per_rail, true),
                RailWeights::from_speeds([400_000; 4]),
            );
            flow.use_lanes();
            let lanes = rails * per_rail;
            let (mut free, mut now, mut seq) = (vec![0_u64; lanes.into()], 0, 0);
            let (mut stripes, mut pending): (BTreeMap<_, Vec<_>>, BTreeMap<_, u32>) =
                Default::default();
            let (mut least, mut slow) = (100, 0);
            while seq < 1500 {
                while pending.len() < window {
                    seq += 1;
                    let transfer = submit(&mut flow, seq, length);
                    flow.handle_posted(&transfer);
                    for (stripe, _) in transfer.stripes(|qp| flow.weight_of(qp)) {
                        let free = &mut free[usize::from(stripe.qp.0)];
                        *free = (*free).max(now) + u64::from(stripe.length / 128).max(1);
                        stripes.entry(*free).or_default().push((transfer.id, stripe.qp));
                        *pending.entry(transfer.id.index()).or_default() += 1;
                    }
                }
                let (at, completed) = stripes.pop_first().expect("something is outstanding");
                (now..at).for_each(|_| flow.handle_poll());
                now = at;
                for (id, qp) in completed {
                    flow.handle_completion_on(id, qp).expect("outstanding");
                    let left = pending.get_mut(&id.index()).expect("outstanding");
                    *left -= 1;
                    if *left == 0 {
                        pending.remove(&id.index());
                        flow.poll_done(id).expect("complete");
                    }
                }
                slow += usize::from(flow.poll_slow_lane().is_some());
                let weights: Vec<_> = (0..lanes).map(|qp| flow.weight_of(QpIndex(qp))).collect();
                least = least.min(
                    100 * weights.iter().min().expect("lanes")
                        / weights.iter().max().expect("lanes"),
                );
            }
            (least, slow)
        }

        /// A lane that has no part of a message has nothing to do meanwhile, and is no faster than
        /// the others.
        #[test]
        fn equal_lanes_keep_like_shares_where_messages_are_cut_over_some_of_them() {
            for lanes in [(1, 16), (2, 8), (4, 8)] {
                for length in [80 << 10, 96 << 10] {
                    for window in [1, 4] {
                        let (least, slow) = shares_of_equal_lanes(lanes, length, window);
                        assert!(
                            least > 70 && slow == 0,
                            "{lanes:?}, {length} bytes, {window} at a time: {least} %, {slow} slow"
                        );
                    }
                }
            }
        }

        /// Also where many messages are outstanding, and the order in which they complete is known
        /// late.
        #[test]
        fn rails_that_are_not_far_apart_are_together_faster_than_either() {
            for window in [1, 8, 32, 128] {
                for (speeds, least) in
                    [(&[100, 100][..], 95), (&[100, 58], 35), (&[100, 100, 50], 90)]
                {
                    let gain = Link::new(speeds, window).gain(4000);
                    assert!(gain >= least, "{speeds:?} with {window} messages at a time: {gain} %");
                }
            }
        }
    }

    mod queue_space {
        use super::*;

        /// How many stripes with `extra` extra work requests fit on queue pair 1 at a time.
        fn fit(extra: u8) -> u32 {
            let mut space = SendQueueSpace::default();
            let mut count = 0;
            while space.has_space(2, extra) && count < MAX_REQUESTS as u32 {
                space.handle_posted(QpIndex(1), extra);
                count += 1;
            }
            // The most that the queue holds then: all first ones, these extra ones, a probe.
            assert!(MAX_REQUESTS as u32 + count * u32::from(extra) < SEND_QUEUE_DEPTH);
            if count < MAX_REQUESTS as u32 {
                assert!(space.has_space(1, extra), "the other queue is empty");
                space.handle_completion(QpIndex(1), extra);
                assert!(space.has_space(2, extra), "one has been completed");
            }
            count
        }

        #[test]
        fn messages_of_one_two_and_three_work_requests_fit_256_63_and_31_times() {
            assert_eq!([0, 1, 2].map(fit), [256, 63, 31]);
        }
    }

    mod after_a_fault {
        use super::super::*;
        use crate::cts::{Cts, emit_extra_keys};
        use crate::recovery::rail_mask::RailMask;

        const WEIGHTS: [u32; 4] = [1; 4];

        fn cts(seq: u32, length: u32) -> Cts {
            Cts {
                addr: 0x1000 * u64::from(seq),
                length,
                rkeys: [seq, seq + 100],
                tag: seq % 2,
                seq,
            }
        }

        fn missing(seqs: &[u32]) -> Vec<MissingMessage> {
            let missing =
                |seq: &u32| MissingMessage { cts: cts(*seq, 100), extra: [*seq + 200, *seq + 300] };
            seqs.iter().map(missing).collect()
        }

        fn missing_list(next: u32, seqs: &[u32]) -> MissingList {
            MissingList {
                oldest: seqs.first().copied().unwrap_or(next),
                next,
                missing: missing(seqs),
            }
        }

        /// A flow over two rails that has read clear-to-sends 1 to 4, of tags 1 and 0 in turn.
        /// Messages 1, 2 and 3 are sent; the first is complete and not tested. Their requests.
        fn flow() -> (SendFlow, Vec<RequestId>) {
            let mut flow =
                SendFlow::new(Striping::new(2, 1, false), RailWeights::from_speeds(WEIGHTS));
            let read = |seq| (seq <= 4).then(|| cts(seq, 100).emit());
            let mut send = |tag, at, length| {
                flow.submit(tag, at, length, read).expect("valid").expect("a clear-to-send").id
            };
            let ids = vec![send(1, 0x10, 100), send(0, 0x20, 50), send(1, 0x30, 60)];
            assert!(
                flow.submit(7, 0, 1, read).expect("valid").is_none(),
                "reads on up to the fourth"
            );
            flow.handle_completion(ids[0]).expect("outstanding");
            (flow, ids)
        }

        fn apply(flow: &mut SendFlow, missing_list: &MissingList) -> Result<(), MissingListError> {
            flow.apply_missing_list(
                missing_list,
                Striping::new(1, 1, false).over(RailMask::only(1)),
                RailWeights::from_speeds(WEIGHTS),
            )
        }

        fn replayed(flow: &mut SendFlow) -> Vec<(RequestId, u64, u64, u32)> {
            let length = flow.peek_replay();
            let all: Vec<_> = std::iter::from_fn(|| flow.poll_replay()).collect();
            assert_eq!(length, all.first().map(|(transfer, _)| transfer.length));
            assert_eq!(flow.peek_replay(), None);
            all.iter()
                .map(|(transfer, addr)| (transfer.id, transfer.remote_addr, *addr, transfer.length))
                .collect()
        }

        #[test]
        fn listed_requests_are_sent_again_in_order_and_the_others_are_complete() {
            let (mut flow, ids) = flow();
            assert_eq!(flow.outstanding(), 2);
            apply(&mut flow, &missing_list(5, &[1, 3, 4])).expect("valid");
            assert_eq!(flow.poll_done(ids[1]), Ok(Some(50)), "it has arrived");
            assert_eq!(
                flow.poll_done(ids[0]),
                Ok(None),
                "it was acknowledged, and has not arrived"
            );
            assert_eq!(flow.outstanding(), 2);
            assert_eq!(
                replayed(&mut flow),
                [(ids[0], 0x1000, 0x10, 100), (ids[2], 0x3000, 0x30, 60)]
            );
            for id in [ids[0], ids[2]] {
                flow.handle_completion(id).expect("one stripe");
                assert!(flow.poll_done(id).expect("live").is_some());
            }
        }

        /// As many buffers as the ring has slots are posted, and the sender has read no
        /// clear-to-send.
        #[test]
        fn a_missing_list_of_as_many_messages_as_the_ring_has_slots_is_applied() {
            let mut flow =
                SendFlow::new(Striping::new(2, 1, false), RailWeights::from_speeds(WEIGHTS));
            let end = RING_SLOTS as u32 + 1;
            let all: Vec<u32> = (1..end).collect();
            apply(&mut flow, &missing_list(end, &all)).expect("valid");
            let next = flow
                .submit(1, 0, 10, |_| None)
                .expect("valid")
                .map(|transfer| transfer.remote_addr);
            assert_eq!(next, Some(0x1000));
        }

        #[test]
        fn clear_to_sends_of_the_missing_list_are_used_as_if_they_had_been_read() {
            let (mut flow, _) = flow();
            apply(&mut flow, &missing_list(7, &[4, 5, 6])).expect("valid");
            let mut send = |tag, read: Option<Cts>| {
                let words = |seq| read.filter(|cts| cts.seq == seq).map(|cts| cts.emit());
                flow.submit(tag, 0, 10, words).expect("valid").map(|transfer| transfer.remote_addr)
            };
            assert_eq!(
                (send(0, None), send(0, None), send(0, None)),
                (Some(0x4000), Some(0x6000), None)
            );
            assert_eq!((send(1, None), send(1, None)), (Some(0x5000), None));
            assert_eq!(send(1, Some(cts(7, 10))), Some(0x7000), "the next one comes by the ring");
        }

        #[test]
        fn keys_come_from_the_missing_list_for_what_it_lists_and_from_the_ring_for_the_rest() {
            let (mut flow, _) = flow();
            let ring = |slot: SlotIndex| emit_extra_keys([slot.index() as u32, 9]);
            apply(&mut flow, &missing_list(5, &[1, 4])).expect("valid");
            let (replay, _) = flow.poll_replay().expect("message 1");
            assert_eq!([0, 1, 2, 3].map(|rail| flow.rkey(&replay, rail, ring)), [1, 101, 201, 301]);
            let mut send = |read: Option<Cts>| {
                flow.submit(0, 0, 1, |seq| read.filter(|cts| cts.seq == seq).map(|cts| cts.emit()))
                    .expect("valid")
            };
            let (listed, later) = (send(None).expect("message 4"), send(Some(cts(5, 1))));
            assert!(later.is_none(), "another tag");
            let newer = flow.submit(1, 0, 1, |_| None).expect("valid").expect("message 5");
            assert_eq!([flow.rkey(&listed, 3, ring), flow.rkey(&newer, 2, ring)], [304, 5]);
            // The slot of message 1 again: what the missing list says is of an earlier message.
            for seq in 6..RING_SLOTS as u32 + 2 {
                let words = cts(seq, 1).emit();
                let sent =
                    flow.submit(seq % 2, 0, 1, |_| Some(words)).expect("valid").expect("cleared");
                assert_eq!(flow.rkey(&sent, 2, ring), seq % RING_SLOTS as u32);
                flow.handle_completion(sent.id).expect("one stripe");
                flow.poll_done(sent.id).expect("done");
            }
        }

        #[test]
        fn a_missing_message_that_nccl_was_given_is_sent_is_lost() {
            let (mut flow, ids) = flow();
            flow.poll_done(ids[0]).expect("complete");
            let lost = apply(&mut flow, &missing_list(5, &[1, 4]));
            assert_eq!(lost, Err(MissingListError::Lost { seq: 1 }));
            assert!(
                lost.expect_err("lost")
                    .to_string()
                    .contains("acknowledged by the peer's device and lost")
            );
            assert_eq!((flow.outstanding(), flow.peek_replay()), (2, None), "nothing has changed");
        }

        #[test]
        fn a_missing_list_that_contradicts_what_was_sent_is_a_violation() {
            let refused = |missing_list: &MissingList| {
                matches!(apply(&mut flow().0, missing_list), Err(MissingListError::Violation(_)))
            };
            assert!(!refused(&missing_list(5, &[4])));
            assert!(refused(&missing_list(4, &[])), "clear-to-send 4 has been read");
            assert!(refused(&missing_list(5, &[])), "message 4 was not sent");
            assert!(refused(&missing_list(6, &[4])), "message 5 was not sent");
            assert!(refused(&missing_list(5 + RING_SLOTS as u32 + 1, &[])), "more than a ring");
            assert!(
                refused(&MissingList { missing: missing(&[4, 3]), ..missing_list(5, &[3, 4]) }),
                "not in order"
            );
            assert!(
                refused(&MissingList { missing: missing(&[3, 3, 4]), ..missing_list(5, &[3, 4]) }),
                "twice"
            );
            assert!(refused(&MissingList { oldest: 4, ..missing_list(5, &[3, 4]) }), "outside");
            let mut short = missing_list(5, &[2, 4]);
            short.missing[0].cts.length = 49;
            assert!(refused(&short), "50 bytes were sent");
            short.missing[0].cts.length = MAX_MESSAGE + 1;
            assert!(refused(&short));
        }

        #[test]
        fn a_second_missing_list_replaces_the_first() {
            let (mut flow, ids) = flow();
            apply(&mut flow, &missing_list(5, &[1, 2, 3, 4])).expect("valid");
            flow.poll_replay().expect("message 1");
            apply(&mut flow, &missing_list(6, &[2, 4, 5])).expect("valid");
            assert_eq!(flow.poll_done(ids[0]), Ok(Some(100)));
            assert_eq!(flow.poll_done(ids[2]), Ok(Some(60)));
            assert_eq!(replayed(&mut flow), [(ids[1], 0x2000, 0x20, 50)]);
        }

        #[test]
        fn all_requests_are_complete_once_the_receiver_has_closed_in_good_order() {
            let (mut flow, ids) = flow();
            apply(&mut flow, &missing_list(5, &[2, 3, 4])).expect("valid");
            flow.complete_all();
            assert_eq!((flow.outstanding(), flow.poll_replay()), (0, None));
            assert!(ids.into_iter().all(|id| flow.poll_done(id).is_ok_and(|done| done.is_some())));
        }
    }
}
