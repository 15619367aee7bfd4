//! Reliable connected queue pairs between the two ends, with completions, acknowledgements and errors.
//!
//! A queue pair executes the work requests of the other end in their order, each once, and only in the state RTS. The requester
//! completes one when its acknowledgement has come. Between queue pairs there is no order. When a work request fails, its queue
//! pair goes to the error state and all work requests behind it are flushed. The requester does not know which of them the other
//! end has executed; and some that were not may be *delayed*: they are executed later, if the other end still is in RTS then.

use crate::QpIndex;
use crate::cts::CtsWords;
use crate::random::Random;
use crate::requests::RequestId;
use std::collections::VecDeque;

/// One of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Sender,
    Receiver,
}

impl End {
    pub(super) fn other(self) -> Self {
        if self == Self::Sender { Self::Receiver } else { Self::Sender }
    }
}

/// How a work request has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Success,
    RetryExceeded,
    RemoteError,
    Flushed,
}

/// What a completion belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WrId {
    /// The last work request of a stripe, or one of the same stripe before it.
    Data {
        request: RequestId,
        extra: u8,
    },
    Cts,
    Probe,
    /// A receive work request.
    Receive {
        imm: u32,
    },
}

/// Bytes of a message that are written into a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bytes {
    pub(super) addr: u64,
    pub(super) rkey: u32,
    pub(super) message: usize,
    pub(super) offset: u32,
    pub(super) length: u32,
}

/// An RDMA WRITE: of data, of clear-to-sends from half slot `.0` on, or of no bytes.
#[derive(Debug, Clone)]
pub(super) struct WorkRequest {
    pub(super) id: WrId,
    pub(super) bytes: Option<Bytes>,
    pub(super) cts: Option<(usize, Vec<CtsWords>)>,
    pub(super) imm: Option<u32>,
    pub(super) signaled: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Completion {
    pub(super) id: WrId,
    pub(super) qp: QpIndex,
    pub(super) status: Status,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QpState {
    ReadyToSend,
    Error,
    Destroyed,
}

/// One end of a queue pair.
#[derive(Debug)]
struct QueuePair {
    state: QpState,
    /// Work requests that are not completed, oldest first.
    sends: VecDeque<WorkRequest>,
    /// How many of them the other end has executed.
    executed: usize,
    /// How often the oldest has been sent again in vain.
    retries: u32,
    /// Whether no acknowledgement comes any more.
    acks_lost: bool,
    /// Work requests of a queue pair that has failed which the other end may still execute.
    delayed: VecDeque<WorkRequest>,
    /// Receives that are posted and not consumed.
    receives: u32,
}

/// A queue pair fails when its oldest work request has been sent again so many times.
pub(super) const MAX_RETRIES: u32 = 20;

/// All queue pairs of a connection, the ports and the completion queues.
#[derive(Debug)]
pub(super) struct Fabric {
    qps: Vec<[QueuePair; 2]>,
    /// Whether the ports of each rail are up, by end.
    ports: Vec<[bool; 2]>,
    /// By end and rail.
    completions: [Vec<VecDeque<Completion>>; 2],
}

impl Fabric {
    pub(super) fn new(rails: usize, qps: usize) -> Self {
        let qp = || QueuePair {
            state: QpState::ReadyToSend,
            sends: VecDeque::new(),
            executed: 0,
            retries: 0,
            acks_lost: false,
            delayed: VecDeque::new(),
            receives: 0,
        };
        let queues = || vec![VecDeque::new(); rails];
        Self {
            qps: (0..qps).map(|_| [qp(), qp()]).collect(),
            ports: vec![[true; 2]; rails],
            completions: [queues(), queues()],
        }
    }

    pub(super) fn post(&mut self, end: End, qp: QpIndex, wr: WorkRequest) {
        let pair = &mut self.qps[usize::from(qp.0)][end as usize];
        assert_ne!(pair.state, QpState::Destroyed, "a work request is posted to a destroyed queue pair");
        if pair.state == QpState::Error {
            return self.complete(end, qp, wr.id, Status::Flushed);
        }
        pair.sends.push_back(wr);
    }

    /// Posts receives.
    pub(super) fn post_receives(&mut self, end: End, qp: QpIndex, count: u32) {
        self.qps[usize::from(qp.0)][end as usize].receives += count;
    }

    /// Takes at most `limit` completions of a rail.
    pub(super) fn poll(&mut self, end: End, rail: usize, limit: usize) -> Vec<Completion> {
        let queue = &mut self.completions[end as usize][rail];
        let count = limit.min(queue.len());
        queue.drain(..count).collect()
    }

    /// Has the other end execute the next work request of `from`. Returns it if it was executed. `is_valid` tells whether its
    /// bytes are in a registered region; if not, the queue pair fails at both ends.
    pub(super) fn deliver(
        &mut self,
        from: End,
        qp: QpIndex,
        is_valid: impl Fn(&WorkRequest) -> bool,
    ) -> Option<WorkRequest> {
        if !self.is_path_up(qp) {
            return None;
        }
        let pair = &mut self.qps[usize::from(qp.0)];
        if pair[from.other() as usize].state != QpState::ReadyToSend {
            return None;
        }
        let requester = &mut pair[from as usize];
        let wr = match requester.state {
            QpState::ReadyToSend => requester.sends.get(requester.executed)?.clone(),
            _ => requester.delayed.pop_front()?,
        };
        if !is_valid(&wr) {
            self.fail(from, qp, Status::RemoteError, None);
            self.fail(from.other(), qp, Status::RemoteError, None);
            return None;
        }
        if requester.state == QpState::ReadyToSend {
            requester.executed += 1;
        }
        if let Some(imm) = wr.imm {
            let receives = &mut self.qps[usize::from(qp.0)][from.other() as usize].receives;
            assert!(*receives > 0, "a message finds no receive on {qp:?}");
            *receives -= 1;
            self.complete(from.other(), qp, WrId::Receive { imm }, Status::Success);
        }
        Some(wr)
    }

    /// Has an acknowledgement arrive at `end`: its oldest work request is complete, if the other end has executed it.
    pub(super) fn deliver_ack(&mut self, end: End, qp: QpIndex) {
        if !self.is_path_up(qp) {
            return;
        }
        let pair = &mut self.qps[usize::from(qp.0)][end as usize];
        if pair.executed == 0 || pair.acks_lost {
            return;
        }
        pair.executed -= 1;
        pair.retries = 0;
        if let Some(wr) = pair.sends.pop_front().filter(|wr| wr.signaled) {
            self.complete(end, qp, wr.id, Status::Success);
        }
    }

    /// The retransmission timer of `end` runs out. Returns what is executed in part if the queue pair fails thereby.
    pub(super) fn retry(&mut self, end: End, qp: QpIndex, random: &mut Random) -> Option<WorkRequest> {
        let is_up = self.is_path_up(qp);
        let pair = &mut self.qps[usize::from(qp.0)];
        let is_answered = pair[end.other() as usize].state == QpState::ReadyToSend || pair[end as usize].executed > 0;
        let requester = &mut pair[end as usize];
        if requester.sends.is_empty() || (is_up && is_answered && !requester.acks_lost) {
            requester.retries = 0;
            return None;
        }
        requester.retries += 1;
        if requester.retries < MAX_RETRIES { None } else { self.fail(end, qp, Status::RetryExceeded, Some(random)) }
    }

    /// The most retries of any queue pair.
    pub(super) fn most_retries(&self) -> u32 {
        self.qps.iter().flatten().map(|pair| pair.retries).max().unwrap_or(0)
    }

    /// The queue pair of `end` goes to the error state; its oldest work request fails with `status`, and the others are flushed.
    /// With `random`, some of those that the other end has not executed are delayed, and of the first of them a part may be
    /// executed at once, which is returned.
    pub(super) fn fail(
        &mut self,
        end: End,
        qp: QpIndex,
        status: Status,
        random: Option<&mut Random>,
    ) -> Option<WorkRequest> {
        let can_execute = self.is_path_up(qp) && self.is_ready(end.other(), qp);
        let pair = &mut self.qps[usize::from(qp.0)][end as usize];
        if pair.state != QpState::ReadyToSend {
            return None;
        }
        pair.state = QpState::Error;
        let sends = std::mem::take(&mut pair.sends);
        let executed = std::mem::take(&mut pair.executed);
        let mut part = None;
        if let Some(random) = random {
            pair.delay(sends.iter().skip(executed), random);
            part = pair.delayed.front().cloned().filter(|_| can_execute && random.one_in(3));
        }
        for (i, wr) in sends.into_iter().enumerate() {
            self.complete(end, qp, wr.id, if i == 0 { status } else { Status::Flushed });
        }
        if end == End::Receiver {
            self.complete(end, qp, WrId::Receive { imm: 0 }, Status::Flushed);
        }
        part.map(|wr| WorkRequest {
            bytes: wr.bytes.map(|b| Bytes { length: b.length / 2, ..b }),
            cts: None,
            imm: None,
            ..wr
        })
    }

    /// `end` is gone with its queue pairs. Its last packets may be delayed.
    pub(super) fn destroy(&mut self, end: End, random: &mut Random) {
        for [sender, receiver] in &mut self.qps {
            let pair = if end == End::Sender { sender } else { receiver };
            pair.state = QpState::Destroyed;
            let sends = std::mem::take(&mut pair.sends);
            let executed = std::mem::take(&mut pair.executed);
            pair.delay(sends.iter().skip(executed), random);
        }
        self.completions[end as usize].iter_mut().for_each(VecDeque::clear);
    }

    pub(super) fn lose_acks(&mut self, end: End, qp: QpIndex) {
        self.qps[usize::from(qp.0)][end as usize].acks_lost = true;
    }

    pub(super) fn set_port(&mut self, end: End, rail: usize, is_up: bool) {
        self.ports[rail][end as usize] = is_up;
    }

    fn is_ready(&self, end: End, qp: QpIndex) -> bool {
        self.qps[usize::from(qp.0)][end as usize].state == QpState::ReadyToSend
    }

    fn rail_of(&self, qp: QpIndex) -> usize {
        usize::from(qp.0) % self.ports.len()
    }

    fn is_path_up(&self, qp: QpIndex) -> bool {
        self.ports[self.rail_of(qp)] == [true; 2]
    }

    fn complete(&mut self, end: End, qp: QpIndex, id: WrId, status: Status) {
        let rail = self.rail_of(qp);
        self.completions[end as usize][rail].push_back(Completion { id, qp, status });
    }
}

impl QueuePair {
    /// Any number of the first of `unexecuted` are delayed; the others are lost.
    fn delay<'a>(&mut self, unexecuted: impl ExactSizeIterator<Item = &'a WorkRequest>, random: &mut Random) {
        let count = random.index(unexecuted.len() + 1);
        self.delayed.extend(unexecuted.take(count).cloned());
    }
}
