//! The receiving end: a [`RecvFlow`], and around it what `net::data::recv` does, in the same order.

use super::control::{Cause, PeerState};
use super::fabric::{Completion, End, Fabric, WorkRequest, WrId};
use super::outside::Outside;
use super::plan::{Plan, address};
use crate::imm::Imm;
use crate::recv::{Buffer, RECEIVE_BATCH, RecvFlow};
use crate::requests::RequestId;
use crate::{QpIndex, RING_SLOTS, Violation};

/// One of so many writes of clear-to-sends is signaled.
const SIGNAL_EVERY: u32 = 4;

#[derive(Debug)]
pub(super) struct Receiver {
    flow: RecvFlow,
    /// Writes of clear-to-sends.
    writes: u32,
    probes: u32,
    /// By queue pair, receives that have been consumed and not posted again.
    consumed: Vec<u32>,
    /// The error of this end. It stays.
    failed: Option<Cause>,
}

impl Receiver {
    /// A receiver that has posted its first receives.
    pub(super) fn new(plan: &Plan, fabric: &mut Fabric) -> Self {
        let flow = RecvFlow::new(plan.striping);
        post_receives(plan, fabric, flow.receives());
        Self { flow, writes: 0, probes: 0, consumed: vec![0; plan.qps()], failed: None }
    }

    /// `irecv` of group number `group`.
    pub(super) fn irecv(&mut self, group: usize, outside: &mut Outside) -> Result<Option<RequestId>, Cause> {
        if outside.control.state(End::Receiver) >= PeerState::Closed {
            return Err(self.refusal(outside));
        }
        let Outside { plan, fabric, .. } = outside;
        let range = plan.groups[group].clone();
        let buffer = |i: usize| {
            let (i, message) = (range.start + i, plan.messages[range.start + i]);
            Ok::<_, Violation>(Buffer {
                addr: address(i),
                length: message.posted,
                rkeys: &plan.keys[i],
                tag: message.tag,
            })
        };
        let post = |flow: &mut RecvFlow| {
            let posted = flow.post_either(group.is_multiple_of(2), range.len(), buffer);
            posted.unwrap_or_else(|violation| panic!("{violation}"))
        };
        let mut posted = post(&mut self.flow);
        while posted.is_none()
            && let Some(more) = self.flow.more_receives(range.len())
        {
            post_receives(plan, fabric, more - self.flow.receives());
            self.flow.handle_more_receives();
            posted = post(&mut self.flow);
        }
        self.write_cts(outside);
        Ok(posted)
    }

    /// `test`: the bytes of each message, once the request is complete.
    pub(super) fn test(&mut self, id: RequestId, outside: &mut Outside) -> Result<Option<Vec<u32>>, Cause> {
        if !self.flow.is_done(id).expect("a live request") {
            // Looked at before the completion queue: what the peer sent before it was gone is in the queue by then.
            let state = outside.control.state(End::Receiver);
            if state != PeerState::Open
                && let Some(cause) = self.failed
            {
                return Err(cause);
            }
            let polled = self.poll(outside);
            // What is complete stays so, whatever has failed after it.
            if polled.is_err() && self.flow.is_done(id).expect("a live request") {
                return Ok(self.flow.poll_done(id).expect("a live request").map(<[u32]>::to_vec));
            }
            if polled? == 0 {
                self.flow.handle_empty_poll(id);
                if state >= PeerState::Closed {
                    let cause = self.refusal(outside);
                    return Err(self.fail(cause, outside));
                }
                if state == PeerState::Lost {
                    self.probe(outside);
                }
            }
            self.write_cts(outside);
        }
        Ok(self.flow.poll_done(id).expect("a live request").map(<[u32]>::to_vec))
    }

    /// Closes this end. The peer is told if messages are missing.
    pub(super) fn close(&mut self, outside: &mut Outside) {
        if self.flow.outstanding() > 0 {
            outside.control.fail(End::Receiver, Cause::ClosedEarly);
        }
        outside.control.close(End::Receiver);
    }

    fn refusal(&self, outside: &Outside) -> Cause {
        self.failed.unwrap_or_else(|| outside.control.cause(End::Receiver))
    }

    /// This end fails, and the peer is told. Returns the error that counts.
    fn fail(&mut self, cause: Cause, outside: &mut Outside) -> Cause {
        outside.control.fail(End::Receiver, cause);
        *self.failed.get_or_insert(cause)
    }

    /// Writes the clear-to-sends that are due into the sender's ring, over any rail.
    fn write_cts(&mut self, outside: &mut Outside) {
        let Outside { plan, fabric, random, ring, .. } = outside;
        let limit = 1 + random.below(8) as u32;
        while let Some(slots) = self.flow.poll_cts(limit) {
            assert!(self.failed.is_none(), "a clear-to-send is posted after the connection has failed");
            let first = slots.start * (ring.len() / RING_SLOTS);
            let cts = Some((first, self.flow.encoded_cts(slots).to_vec()));
            self.writes += 1;
            let signaled = self.writes.is_multiple_of(SIGNAL_EVERY);
            let qp = QpIndex(random.index(plan.rails()) as u8);
            fabric.post(End::Receiver, qp, WorkRequest { id: WrId::Cts, bytes: None, cts, imm: None, signaled });
        }
    }

    /// Asks every rail whether the peer is there, unless it has been asked.
    fn probe(&mut self, outside: &mut Outside) {
        if self.probes > 0 || !outside.random.one_in(4) {
            return;
        }
        for rail in 0..outside.plan.rails() {
            let probe = WorkRequest { id: WrId::Probe, bytes: None, cts: None, imm: None, signaled: true };
            outside.fabric.post(End::Receiver, QpIndex(rail as u8), probe);
            self.probes += 1;
        }
    }

    fn poll(&mut self, outside: &mut Outside) -> Result<usize, Cause> {
        let (mut count, mut failed) = (0, None);
        for rail in 0..outside.plan.rails() {
            let polled = outside.poll(End::Receiver, rail);
            count += polled.succeeded.len();
            polled.succeeded.iter().for_each(|completion| self.handle_completion(completion, &mut outside.fabric));
            failed = failed.or(polled.failed);
        }
        match failed {
            Some(status) => Err(self.fail(Cause::WorkRequest(status), outside)),
            None => Ok(count),
        }
    }

    fn handle_completion(&mut self, completion: &Completion, fabric: &mut Fabric) {
        match completion.id {
            WrId::Receive { imm } => {
                let consumed = &mut self.consumed[usize::from(completion.qp.0)];
                *consumed += 1;
                if *consumed == RECEIVE_BATCH {
                    fabric.post_receives(End::Receiver, completion.qp, std::mem::take(consumed));
                }
                let result = self.flow.handle_immediate(completion.qp, Imm::from_bits(imm));
                result.unwrap_or_else(|violation| panic!("{violation}"));
            }
            WrId::Probe => self.probes -= 1,
            _ => {}
        }
    }
}

/// Posts `count` receives on each queue pair.
fn post_receives(plan: &Plan, fabric: &mut Fabric, count: u32) {
    (0..plan.qps()).for_each(|qp| fabric.post_receives(End::Receiver, QpIndex(qp as u8), count));
}
