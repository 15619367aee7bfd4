//! The sending end: a [`SendFlow`], and around it what `net::data::send` does, in the same order.

use super::control::{Cause, PeerState};
use super::fabric::{Bytes, Completion, End, WorkRequest, WrId};
use super::outside::Outside;
use super::plan::Plan;
use crate::QpIndex;
use crate::RING_SLOTS;
use crate::cts::{Cts, CtsWords, SlotIndex};
use crate::imm::Imm;
use crate::requests::RequestId;
use crate::send::{MAX_STRIPE_WRS, SendFlow, SendQueueSpace, Transfer};
use crate::stripe::LL128_LINE_BYTES;

#[derive(Debug)]
pub(super) struct Sender {
    flow: SendFlow,
    space: SendQueueSpace,
    /// Work requests in each send queue.
    queued: Vec<u32>,
    requests: u32,
    probes: u32,
    /// The error of this end. It stays.
    failed: Option<Cause>,
}

impl Sender {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            flow: plan.send_flow(),
            space: SendQueueSpace::new(plan.max_extra),
            queued: vec![0; plan.qps()],
            requests: 0,
            probes: 0,
            failed: None,
        }
    }

    /// `isend` of message number `message`.
    pub(super) fn isend(&mut self, message: usize, outside: &mut Outside) -> Result<Option<RequestId>, Cause> {
        if outside.control.state(End::Sender) != PeerState::Open && !self.check_peer(outside)? {
            return Ok(None);
        }
        let plan = &outside.plan;
        let (tag, length) = (plan.messages[message].tag, plan.messages[message].length);
        let extra = u8::from(length > plan.trailing_above) + u8::from(length >= Imm::EXPLICIT_LIMIT);
        if extra > 0 && !self.space.has_space(plan.qps(), extra) {
            return Ok(None);
        }
        let (ring, halves) = (&outside.ring, outside.ring.len() / RING_SLOTS);
        let half = |slot: SlotIndex, half| ring[slot.index() * halves + half];
        let read =
            |seq| Some(half(SlotIndex::of(seq), halves - 1)).filter(|words: &CtsWords| Cts::seq_of(words[3]) == seq);
        let is_usual = outside.random.one_in(2);
        let submitted = self.flow.submit_either(is_usual, tag, 0, length, read);
        let Some(transfer) = submitted.unwrap_or_else(|violation| panic!("{violation}")) else { return Ok(None) };
        self.requests += 1;
        self.post(message, transfer, outside);
        Ok(Some(transfer.id))
    }

    /// The peer is gone, or the control connection is lost. In the latter case, whether sending goes on.
    fn check_peer(&mut self, outside: &mut Outside) -> Result<bool, Cause> {
        let state = outside.control.state(End::Sender);
        if state >= PeerState::Closed {
            return Err(self.refusal(outside));
        }
        if self.flow.is_idle() && self.probes == 0 && outside.random.one_in(4) {
            for rail in 0..outside.plan.rails() {
                let probe = WorkRequest { id: WrId::Probe, bytes: None, cts: None, imm: None, signaled: true };
                outside.fabric.post(End::Sender, QpIndex(rail as u8), probe);
                self.probes += 1;
            }
        }
        if self.probes > 0 {
            self.poll(outside)?;
        }
        Ok(self.probes == 0)
    }

    fn refusal(&self, outside: &Outside) -> Cause {
        self.failed.unwrap_or_else(|| outside.control.cause(End::Sender))
    }

    /// This end fails, and the peer is told. Returns the error that counts.
    fn fail(&mut self, cause: Cause, outside: &mut Outside) -> Cause {
        outside.control.fail(End::Sender, cause);
        *self.failed.get_or_insert(cause)
    }

    fn post(&mut self, message: usize, transfer: Transfer, outside: &mut Outside) {
        assert!(self.failed.is_none(), "data is posted after the connection has failed");
        let Outside { plan, fabric, ring, .. } = outside;
        let halves = ring.len() / RING_SLOTS;
        self.flow.handle_posted(&transfer);
        for (stripe, imms) in transfer.stripes(|qp| self.flow.weight_of(qp)) {
            let rkey = self.flow.rkey(&transfer, transfer.rail_of(stripe.qp), |slot| ring[slot.index() * halves]);
            assert_eq!(stripe.offset % LL128_LINE_BYTES, 0, "a line is cut");
            let addr = transfer.remote_addr + u64::from(stripe.offset);
            let bytes = Bytes { addr, rkey, message, offset: stripe.offset, length: stripe.length };
            let is_trailing = stripe.length > plan.trailing_above;
            let mut imms =
                [Some(imms.first.to_bits()), imms.second.map(Imm::to_bits)].into_iter().flatten().collect::<Vec<_>>();
            let mut writes = vec![(Some(bytes), if is_trailing { None } else { Some(imms.remove(0)) })];
            writes.extend(imms.into_iter().map(|imm| (None, Some(imm))));
            let extra = (writes.len() - 1) as u8;
            assert!(writes.len() <= MAX_STRIPE_WRS);
            self.space.handle_posted(stripe.qp, extra);
            let last = writes.len() - 1;
            for (i, (bytes, imm)) in writes.into_iter().enumerate() {
                let id = WrId::Data { request: transfer.id, extra };
                fabric.post(End::Sender, stripe.qp, WorkRequest { id, bytes, cts: None, imm, signaled: i == last });
            }
            let queued = &mut self.queued[usize::from(stripe.qp.0)];
            *queued += 1 + u32::from(extra);
            let most = self.requests + u32::from(plan.max_extra);
            assert!(*queued <= most, "the send queue of {:?} overflows", stripe.qp);
        }
    }

    /// `test`: the bytes that were sent, once the request is complete.
    pub(super) fn test(&mut self, id: RequestId, outside: &mut Outside) -> Result<Option<u32>, Cause> {
        if !self.flow.is_done(id).expect("a live request") {
            let is_broken = outside.control.state(End::Sender) == PeerState::Broken;
            if is_broken && let Some(cause) = self.failed {
                return Err(cause);
            }
            let polled = self.poll(outside);
            // What is complete stays so, whatever has failed after it.
            let is_done = self.flow.is_done(id).expect("a live request");
            if !is_done && polled? == 0 && is_broken {
                let cause = self.refusal(outside);
                return Err(self.fail(cause, outside));
            }
        }
        let done = self.flow.poll_done(id).expect("a live request");
        self.requests -= u32::from(done.is_some());
        Ok(done)
    }

    fn poll(&mut self, outside: &mut Outside) -> Result<usize, Cause> {
        let rails = outside.plan.rails();
        let has_shares = rails > 1 || self.flow.has_lanes();
        if has_shares {
            self.flow.handle_poll();
        }
        let (mut count, mut failed) = (0, None);
        for rail in 0..rails {
            let polled = outside.poll(End::Sender, rail);
            count += polled.succeeded.len();
            polled.succeeded.iter().for_each(|completion| self.handle_completion(completion, has_shares));
            failed = failed.or(polled.failed);
        }
        match failed {
            Some(status) => Err(self.fail(Cause::WorkRequest(status), outside)),
            None => Ok(count),
        }
    }

    fn handle_completion(&mut self, completion: &Completion, has_shares: bool) {
        let result = match completion.id {
            WrId::Data { request, extra } => {
                self.queued[usize::from(completion.qp.0)] -= 1 + u32::from(extra);
                self.space.handle_completion(completion.qp, extra);
                if has_shares {
                    self.flow.handle_completion_on(request, completion.qp)
                } else {
                    self.flow.handle_completion(request)
                }
            }
            _ => {
                self.probes -= 1;
                Ok(())
            }
        };
        result.unwrap_or_else(|violation| panic!("{violation}"));
    }
}
