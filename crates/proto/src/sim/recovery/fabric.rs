//! Queue pairs with identity and state, on ports that go and come.
//!
//! A queue pair is created, connected to one of the other end, and destroyed; its number is never
//! used again. The responder executes a request if it is ready and the request is the next one that
//! it expects. A request that has left the requester may be *late*: it arrives at any later time,
//! also when its requester is gone; then only the state of the responder counts.

use super::super::fabric::{Bytes, End, Status, WorkRequest, WrId};
use crate::random::Random;
use crate::recv::RECEIVE_BATCH;
use crate::{MAX_RAILS, QpIndex};
use std::collections::VecDeque;

/// A queue pair fails when its oldest work request has been sent again so many times.
const MAX_RETRIES: u32 = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Init,
    Ready,
    Error,
    Destroyed,
}

#[derive(Debug, Clone)]
pub(super) struct Completion {
    pub(super) id: WrId,
    pub(super) qp: QpIndex,
    pub(super) status: Status,
}

/// A work request and its place in the order of those of its queue pair.
#[derive(Debug, Clone)]
struct Request {
    place: u32,
    wr: WorkRequest,
}

#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) end: End,
    pub(super) rail: u8,
    pub(super) state: State,
    /// Its index in its connection.
    index: QpIndex,
    peer: Option<usize>,
    /// Work requests that are not acknowledged.
    sends: VecDeque<Request>,
    /// How many of them have arrived.
    arrived: usize,
    posted: u32,
    /// The place of the next request of the peer that is executed.
    expected: u32,
    retries: u32,
    acks_lost: bool,
    late: VecDeque<Request>,
    /// Receives that are posted and not consumed, and those whose completion has been polled and
    /// that are not posted again.
    receives: u32,
    polled: u32,
    pub(super) completions: VecDeque<Completion>,
}

/// What a packet has done.
#[derive(Debug)]
pub(super) struct Executed {
    pub(super) wr: WorkRequest,
    /// The rail that it has come over.
    pub(super) rail: u8,
    /// Whether its requester has read it from memory just now.
    pub(super) is_read_now: bool,
}

#[derive(Debug)]
pub(super) struct Fabric {
    /// All that have ever been created.
    pub(super) qps: Vec<QueuePair>,
    /// The numbers of those that are not destroyed, and of those from which requests are late. An
    /// attempt without success leaves some, so that a run that ends without success has hundreds
    /// that nothing happens to any more.
    live: Vec<usize>,
    detained: Vec<usize>,
    /// Whether the port of each rail is up, by end.
    pub(super) ports: [[bool; MAX_RAILS]; 2],
    /// Whether what an end sends over each rail is lost without a word.
    pub(super) cut: [[bool; MAX_RAILS]; 2],
    /// Requests that were still on their way when their requester had failed, and that the other
    /// end has not executed.
    pub(super) late_packets: u32,
    /// Whether the receiver's device acknowledges data and loses it.
    pub(super) forgets: bool,
    /// Receives that the receiver posts on new queue pairs.
    receives: u32,
}

impl Fabric {
    pub(super) fn new() -> Self {
        let (ports, cut) = ([[true; MAX_RAILS]; 2], [[false; MAX_RAILS]; 2]);
        let (qps, live, detained) = (Vec::new(), Vec::new(), Vec::new());
        Self { qps, live, detained, ports, cut, late_packets: 0, forgets: false, receives: 0 }
    }

    /// A queue pair with index `index`. Returns its number.
    pub(super) fn create(&mut self, end: End, rail: u8, index: QpIndex) -> usize {
        self.qps.push(QueuePair {
            end,
            rail,
            index,
            state: State::Init,
            peer: None,
            sends: VecDeque::new(),
            arrived: 0,
            posted: 0,
            expected: 0,
            retries: 0,
            acks_lost: false,
            late: VecDeque::new(),
            receives: if end == End::Receiver { self.receives } else { 0 },
            polled: 0,
            completions: VecDeque::new(),
        });
        let number = self.qps.len() - 1;
        self.live.push(number);
        number
    }

    /// The receiver posts as many on each of `qps`, which it uses, and on new queue pairs.
    pub(super) fn keep_receives(&mut self, qps: &[usize], count: u32) {
        qps.iter().for_each(|qp| self.qps[*qp].receives += count - self.receives);
        self.receives = count;
    }

    /// The receiver, which uses `qps`, has polled a completion.
    pub(super) fn handle_receive_of(&mut self, completion: &Completion, qps: &[usize]) {
        if !matches!(completion.id, WrId::Receive { .. }) {
            return;
        }
        let pair = &mut self.qps[qps[usize::from(completion.qp.0)]];
        pair.polled += 1;
        if pair.polled == RECEIVE_BATCH {
            pair.receives += std::mem::take(&mut pair.polled);
        }
    }

    pub(super) fn connect(&mut self, qp: usize, peer: usize) {
        let pair = &mut self.qps[qp];
        assert_eq!(pair.state, State::Init, "a queue pair is connected twice");
        (pair.state, pair.peer) = (State::Ready, Some(peer));
    }

    pub(super) fn post(&mut self, qp: usize, wr: WorkRequest) {
        let pair = &mut self.qps[qp];
        match pair.state {
            State::Ready => {
                pair.sends.push_back(Request { place: pair.posted, wr });
                pair.posted += 1;
            }
            State::Error => pair.complete(wr.id, Status::Flushed),
            state => panic!("a work request is posted to a queue pair that is {state:?}"),
        }
    }

    /// Whether what `qp` sends now is acknowledged.
    pub(super) fn is_answered(&self, qp: usize) -> bool {
        let QueuePair { end, rail, peer, .. } = self.qps[qp];
        let is_there = peer.is_some_and(|peer| self.qps[peer].state == State::Ready);
        is_there && self.is_up(rail, end) && self.is_up(rail, end.other())
    }

    fn is_up(&self, rail: u8, from: End) -> bool {
        let rail = usize::from(rail);
        self.ports[0][rail] && self.ports[1][rail] && !self.cut[from as usize][rail]
    }

    /// Has the next request of `qp` arrive, or a late one.
    pub(super) fn deliver(&mut self, qp: usize, is_late: bool) -> Option<Executed> {
        let QueuePair { end: from, rail, state, peer, arrived, .. } = self.qps[qp];
        let is_live = state == State::Ready && self.is_up(rail, from);
        let request = match is_late {
            true => self.next_late(qp)?,
            false if is_live => self.qps[qp].sends.get(arrived)?.clone(),
            false => return None,
        };
        let responder = &mut self.qps[peer?];
        if responder.state != State::Ready || request.place > responder.expected {
            self.late_packets += u32::from(is_late);
            return None;
        }
        let is_new = request.place == responder.expected;
        responder.expected += u32::from(is_new);
        let is_forgotten = self.forgets && from == End::Sender;
        if is_new
            && !is_forgotten
            && let Some(imm) = request.wr.imm
        {
            assert!(responder.receives > 0, "a message finds no receive on queue pair {qp}");
            responder.receives -= 1;
            let index = responder.index;
            responder.completions.push_back(Completion {
                id: WrId::Receive { imm },
                qp: index,
                status: Status::Success,
            });
        }
        self.qps[qp].arrived += usize::from(!is_late);
        (is_new && !is_forgotten).then_some(Executed {
            wr: request.wr,
            rail,
            is_read_now: !is_late,
        })
    }

    fn next_late(&mut self, qp: usize) -> Option<Request> {
        let late = &mut self.qps[qp].late;
        let next = late.pop_front();
        if late.is_empty() {
            self.detained.retain(|other| *other != qp);
        }
        next
    }

    /// Has an acknowledgement arrive at `qp`.
    pub(super) fn acknowledge(&mut self, qp: usize) -> bool {
        let QueuePair { end, rail, .. } = self.qps[qp];
        let is_up = self.is_up(rail, end.other());
        let pair = &mut self.qps[qp];
        if !is_up || pair.acks_lost || pair.state != State::Ready || pair.arrived == 0 {
            return false;
        }
        (pair.arrived, pair.retries) = (pair.arrived - 1, 0);
        if let Some(request) = pair.sends.pop_front().filter(|request| request.wr.signaled) {
            pair.complete(request.wr.id, Status::Success);
        }
        true
    }

    /// The retransmission timer of `qp` runs out. Returns what is executed in part when the queue
    /// pair fails.
    pub(super) fn retry(&mut self, qp: usize, random: &mut Random) -> Option<Executed> {
        let is_fine = self.is_answered(qp);
        let pair = &mut self.qps[qp];
        if pair.state != State::Ready || pair.sends.is_empty() || is_fine && !pair.acks_lost {
            return None;
        }
        pair.retries += 1;
        if pair.retries < MAX_RETRIES { None } else { self.fail(qp, Status::RetryExceeded, random) }
    }

    /// The queue pair goes to the error state. Some of what it has sent is late, and of the first
    /// of that a part may be executed at once, which is returned.
    pub(super) fn fail(
        &mut self,
        qp: usize,
        status: Status,
        random: &mut Random,
    ) -> Option<Executed> {
        let QueuePair { end, rail, state, peer, .. } = self.qps[qp];
        if state != State::Ready {
            return None;
        }
        self.detain(qp, random);
        let expected = peer.map(|peer| self.qps[peer].expected);
        let next = self.qps[qp].late.iter().find(|request| Some(request.place) == expected);
        let part = next.map(|request| request.wr.clone());
        let is_there =
            self.is_up(rail, end) && peer.is_some_and(|peer| self.qps[peer].state == State::Ready);
        let pair = &mut self.qps[qp];
        (pair.state, pair.arrived) = (State::Error, 0);
        for (i, request) in std::mem::take(&mut pair.sends).into_iter().enumerate() {
            pair.complete(request.wr.id, if i == 0 { status } else { Status::Flushed });
        }
        pair.complete(WrId::Receive { imm: 0 }, Status::Flushed);
        let wr = part.filter(|_| is_there && !self.forgets && random.one_in(3))?;
        let bytes = wr.bytes.map(|bytes| Bytes { length: bytes.length / 2, ..bytes });
        let wr = WorkRequest { bytes, cts: None, imm: None, ..wr };
        Some(Executed { wr, rail, is_read_now: true })
    }

    /// Some of what `qp` has under way is late from now on, in its order.
    pub(super) fn detain(&mut self, qp: usize, random: &mut Random) {
        let pair = &mut self.qps[qp];
        let count = random.index(pair.sends.len() - pair.arrived + 1);
        pair.late.extend(pair.sends.iter().skip(pair.arrived).take(count).cloned());
        if count > 0 && !self.detained.contains(&qp) {
            self.detained.push(qp);
        }
    }

    pub(super) fn lose_acks(&mut self, qp: usize) {
        self.qps[qp].acks_lost = true;
    }

    /// Ends a queue pair for good. Returns its completions: those that have succeeded, and those of
    /// what is flushed.
    pub(super) fn fence(&mut self, qp: usize, random: &mut Random) -> VecDeque<Completion> {
        self.fail(qp, Status::Flushed, random);
        let pair = &mut self.qps[qp];
        pair.state = State::Destroyed;
        let completions = std::mem::take(&mut pair.completions);
        self.live.retain(|other| *other != qp);
        completions
    }

    /// The queue pairs that are not destroyed.
    pub(super) fn live(&self) -> &[usize] {
        &self.live
    }

    /// The queue pairs from which requests are late; they may be destroyed.
    pub(super) fn detained(&self) -> &[usize] {
        &self.detained
    }

    /// The queue pairs of `end` that are not destroyed.
    pub(super) fn existing(&self, end: End) -> Vec<usize> {
        self.live.iter().copied().filter(|qp| self.qps[*qp].end == end).collect()
    }
}

impl QueuePair {
    fn complete(&mut self, id: WrId, status: Status) {
        self.completions.push_back(Completion { id, qp: self.index, status });
    }
}
