//! NCCL's calls at both ends, as `net::data` carries them out.

use super::super::fabric::{Bytes, Status, WorkRequest, WrId};
use super::super::plan::address;
use super::ends::{Caller, Outside, Receiver, Sender};
use super::fabric::Completion;
use crate::cts::{Cts, CtsWords, SlotIndex};
use crate::imm::Imm;
use crate::recv::{Buffer, RecvFlow};
use crate::send::Transfer;
use crate::{QpIndex, RING_SLOTS, Violation};

impl Caller {
    /// Takes some completions of the queue pairs in use. If one has failed, the machine learns it;
    /// those before it count.
    fn poll(&mut self, outside: &mut Outside) -> Vec<Completion> {
        let mut succeeded = Vec::new();
        for qp in self.in_use.clone() {
            let limit = outside.random.index(6);
            for _ in 0..limit {
                let Some(completion) = outside.fabric.qps[qp].completions.pop_front() else {
                    break;
                };
                if completion.status != Status::Success {
                    self.machine.handle_fault(outside.now, "a work request has failed");
                    return succeeded;
                }
                succeeded.push(completion);
            }
        }
        succeeded
    }
}

impl Sender {
    /// `isend` of the first message of any tag.
    pub(super) fn isend(&mut self, outside: &mut Outside) -> bool {
        if !self.caller.machine.is_running() || self.is_draining {
            return false;
        }
        if self.flow.has_replays() {
            return self.send_again(outside);
        }
        let firsts: Vec<_> =
            self.to_send.values().filter_map(|queue| queue.front().copied()).collect();
        if firsts.is_empty() {
            return false;
        }
        let message = firsts[outside.random.index(firsts.len())];
        let plan = &outside.plan;
        let (tag, length) = (plan.messages[message].tag, plan.messages[message].length);
        if !self.has_room(length, outside) {
            return false;
        }
        let halves = self.ring.len() / RING_SLOTS;
        let ring = &self.ring;
        let half = |seq: u32| ring[SlotIndex::of(seq).index() * halves + halves - 1];
        let read = |seq| Some(half(seq)).filter(|words: &CtsWords| Cts::seq_of(words[3]) == seq);
        let is_fast = outside.random.one_in(2);
        let submitted = self.flow.submit_either(is_fast, tag, message as u64, length, read);
        let Some(transfer) = submitted.unwrap_or_else(|e| panic!("{e}")) else { return false };
        outside.laws.handle_sent(message);
        self.sending.push((transfer.id, message));
        self.to_send.get_mut(&tag).and_then(std::collections::VecDeque::pop_front);
        self.post(message, transfer, outside);
        true
    }

    fn send_again(&mut self, outside: &mut Outside) -> bool {
        let Some(length) = self.flow.peek_replay().filter(|length| self.has_room(*length, outside))
        else {
            return false;
        };
        let Some((transfer, addr)) = self.flow.poll_replay() else { return false };
        assert_eq!(transfer.length, length);
        outside.replayed += 1;
        outside.laws.handle_sent_again(addr as usize);
        self.post(addr as usize, transfer, outside);
        true
    }

    fn has_room(&self, length: u32, outside: &Outside) -> bool {
        let extra = u8::from(length > outside.plan.trailing_above)
            + u8::from(length >= Imm::EXPLICIT_LIMIT);
        extra == 0 || self.space.has_space(self.caller.in_use.len(), extra)
    }

    fn post(&mut self, message: usize, transfer: Transfer, outside: &mut Outside) {
        let halves = self.ring.len() / RING_SLOTS;
        for (stripe, imms) in transfer.stripes(|qp| self.flow.weight_of(qp)) {
            let rail = transfer.rail_of(stripe.qp);
            let rkey = self.flow.rkey(&transfer, rail, |slot| self.ring[slot.index() * halves]);
            let addr = transfer.remote_addr + u64::from(stripe.offset);
            let bytes = Bytes { addr, rkey, message, offset: stripe.offset, length: stripe.length };
            let mut imms: Vec<_> =
                std::iter::once(imms.first).chain(imms.second).map(Imm::to_bits).collect();
            let with_data = if stripe.length > outside.plan.trailing_above {
                None
            } else {
                Some(imms.remove(0))
            };
            let mut writes = vec![(Some(bytes), with_data)];
            writes.extend(imms.into_iter().map(|imm| (None, Some(imm))));
            let extra = (writes.len() - 1) as u8;
            if extra > 0 {
                self.space.handle_posted(stripe.qp, extra);
            }
            let qp = self.caller.in_use[usize::from(stripe.qp.0)];
            for (i, (bytes, imm)) in writes.into_iter().enumerate() {
                let id = WrId::Data { request: transfer.id, extra };
                let signaled = i == usize::from(extra);
                outside.fabric.post(qp, WorkRequest { id, bytes, cts: None, imm, signaled });
            }
        }
    }

    /// `test` of all requests.
    pub(super) fn test(&mut self, outside: &mut Outside) -> bool {
        let mut is_any = false;
        if self.caller.machine.is_running() {
            for completion in self.caller.poll(outside) {
                is_any = true;
                let WrId::Data { request, extra } = completion.id else { continue };
                if extra > 0 {
                    self.space.handle_completion(completion.qp, extra);
                }
                let has_shares = self.caller.striping.rails() > 1 || self.flow.has_lanes();
                let handled = match has_shares {
                    false => self.flow.handle_completion(request),
                    true => self.flow.handle_completion_on(request, completion.qp),
                };
                handled.unwrap_or_else(|e| panic!("{e}"));
            }
            self.flow.handle_poll();
        }
        let before = self.sending.len();
        let Self { flow, sending, .. } = self;
        sending.retain(|(id, message)| match flow.poll_done(*id).expect("a live request") {
            None => true,
            Some(length) => {
                outside.laws.handle_send_completed(*message, length);
                false
            }
        });
        is_any || self.sending.len() < before
    }

    /// Clear-to-sends are written into the ring from half slot `first` on.
    pub(super) fn handle_cts(&mut self, first: usize, halves: Vec<CtsWords>) {
        let per_slot = self.ring.len() / RING_SLOTS;
        for (i, half) in halves.into_iter().enumerate() {
            let before = std::mem::replace(&mut self.ring[first + i], half);
            if (first + i) % per_slot == per_slot - 1 {
                super::laws::Laws::handle_cts(&before, &half);
            }
        }
    }
}

impl Receiver {
    /// `irecv` of the next group. While the connection recovers, it is accepted all the same.
    pub(super) fn irecv(&mut self, outside: &mut Outside) -> bool {
        let Outside { plan, fabric, .. } = outside;
        let Some(range) = plan.groups.get(self.next_group).cloned() else { return false };
        let buffer = |i: usize| {
            let (i, message) = (range.start + i, plan.messages[range.start + i]);
            let (addr, length, tag) = (address(i), message.posted, message.tag);
            Ok::<_, Violation>(Buffer { addr, length, rkeys: &plan.keys[i], tag })
        };
        let is_fast = self.next_group.is_multiple_of(2);
        let post = |flow: &mut RecvFlow| {
            let posted = flow.post_either(is_fast, range.len(), buffer);
            posted.unwrap_or_else(|violation| panic!("{violation}"))
        };
        let mut posted = post(&mut self.flow);
        while posted.is_none()
            && self.caller.machine.is_running()
            && let Some(more) = self.flow.more_receives(range.len())
        {
            fabric.keep_receives(&self.caller.in_use, more);
            self.flow.handle_more_receives();
            posted = post(&mut self.flow);
        }
        let Some(id) = posted else { return false };
        self.receiving.push_back((id, range));
        self.next_group += 1;
        self.write_cts(outside);
        true
    }

    /// `test` of the oldest request.
    pub(super) fn test(&mut self, outside: &mut Outside) -> bool {
        let Some((id, messages)) = self.receiving.front().cloned() else { return false };
        let mut is_any = false;
        if self.caller.machine.is_running() {
            let polled = self.caller.poll(outside);
            is_any = !polled.is_empty();
            for completion in &polled {
                outside.fabric.handle_receive_of(completion, &self.caller.in_use);
            }
            self.handle_completions(polled);
            if !is_any {
                self.flow.handle_empty_poll(id);
            }
            self.write_cts(outside);
        }
        let Some(lengths) = self.flow.poll_done(id).expect("a live request") else { return is_any };
        let lengths = lengths.to_vec();
        messages
            .zip(lengths)
            .for_each(|(i, length)| outside.laws.handle_receive_completed(i, length));
        self.receiving.pop_front();
        true
    }

    pub(super) fn handle_completions(&mut self, completions: Vec<Completion>) {
        for completion in completions {
            if let WrId::Receive { imm } = completion.id {
                let handled = self.flow.handle_immediate(completion.qp, Imm::from_bits(imm));
                handled.unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }

    /// Writes the clear-to-sends that are due into the sender's ring, over any rail.
    fn write_cts(&mut self, outside: &mut Outside) {
        if !self.caller.machine.is_running() {
            return;
        }
        let limit = 1 + outside.random.below(8) as u32;
        while let Some(slots) = self.flow.poll_cts(limit) {
            let halves = crate::cts::cts_halves(outside.plan.rails());
            let cts = Some((slots.start * halves, self.flow.encoded_cts(slots).to_vec()));
            let rails = usize::from(self.caller.striping.rails());
            let qp = QpIndex(outside.random.index(rails) as u8);
            let wr = WorkRequest { id: WrId::Cts, bytes: None, cts, imm: None, signaled: true };
            outside.fabric.post(self.caller.in_use[usize::from(qp.0)], wr);
        }
    }
}
