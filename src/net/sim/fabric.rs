//! Reliable connected queue pairs between simulated devices, with completions, acknowledgements and
//! errors.
//!
//! A queue pair executes the work requests of the other end in their order, each once, and only in
//! the state RTS. The requester completes one when its acknowledgement has come. Between queue
//! pairs there is no order. When a work request fails, its queue pair goes to the error state and
//! all work requests behind it are flushed. The requester does not know which of them the other end
//! has executed; and some that were not may be *delayed*: they are executed later, if the other end
//! still is in RTS then.
//!
//! Memory of the process is written when a work request is executed. Addresses of messages are
//! [imaginary](IMAGINARY): what is written there is returned instead.

#![allow(unsafe_code)]

use crate::proto::random::Random;
use crate::verbs::status::Status;
use std::collections::VecDeque;

/// Devices of each end, one for each rail.
pub(super) const DEVICES: usize = 4;
/// Addresses from here on are no memory.
pub(super) const IMAGINARY: u64 = 1 << 60;
/// A queue pair fails when its oldest work request has been sent again so many times.
pub(super) const MAX_RETRIES: u32 = 20;

pub(super) const REMOTE_ACCESS_ERROR: Status = Status(10);
pub(super) const FLUSHED: Status = Status(5);

/// An RDMA WRITE.
#[derive(Debug, Clone)]
pub(super) struct WorkRequest {
    pub(super) id: u64,
    /// Where its bytes are, and where they go.
    pub(super) source: u64,
    pub(super) target: u64,
    pub(super) length: u32,
    pub(super) rkey: u32,
    /// Its bytes, if they are inline and memory, or on their way.
    pub(super) inline: Option<Vec<u8>>,
    pub(super) imm: Option<u32>,
    pub(super) is_signaled: bool,
    /// Its number among those of its queue pair.
    pub(super) number: u32,
}

/// What a work request has written.
#[derive(Debug)]
pub(super) enum Written {
    /// No bytes.
    Nothing,
    /// So many bytes of an imaginary address to another one.
    Message { source: u64, target: u64, length: u32 },
    /// Words of memory, which were others before.
    Memory { target: u64, before: Vec<u64>, after: Vec<u64> },
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Completion {
    pub(super) id: u64,
    pub(super) qp: usize,
    pub(super) status: Status,
    pub(super) imm: u32,
    /// The number of the work request; `None`: it is a receive.
    sent: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QpState {
    /// It is not connected.
    New,
    ReadyToSend,
    Error,
    Destroyed,
}

/// One end of a queue pair.
#[derive(Debug)]
struct QueuePair {
    device: usize,
    queue: usize,
    state: QpState,
    /// The other end.
    far: usize,
    /// Work requests that are not completed, oldest first.
    sends: VecDeque<WorkRequest>,
    /// How many of them the other end has executed.
    executed: usize,
    /// How often the oldest has been sent again without success.
    retries: u32,
    /// Whether no acknowledgement comes any more.
    acks_lost: bool,
    /// Work requests of a queue pair that has failed which the other end may still execute.
    delayed: VecDeque<WorkRequest>,
    /// The ids of receives that are posted and not consumed.
    receives: VecDeque<u64>,
    /// Receives whose place in the queue is taken, until their completions are polled.
    taken_receives: u32,
    /// Work requests that have been posted, and those of them whose places are free again.
    posted: u32,
    freed: u32,
    max_sends: u32,
    max_receives: u32,
}

#[derive(Debug)]
struct Queue {
    completions: VecDeque<Completion>,
    entries: usize,
    is_alive: bool,
}

#[derive(Debug, Clone, Copy)]
struct Region {
    device: usize,
    start: u64,
    end: u64,
    is_alive: bool,
}

/// All queues and memory regions of the two ends.
#[derive(Debug)]
pub(super) struct Fabric {
    random: Random,
    qps: Vec<QueuePair>,
    queues: Vec<Queue>,
    regions: Vec<Region>,
    /// Whether the port of each device is up.
    ports: [bool; 2 * DEVICES],
    /// The most inline data that the devices of each end grant.
    pub(super) inline_bytes: [u32; 2],
    /// The first thing that a driver would not allow.
    violation: Option<String>,
}

impl Fabric {
    pub(super) fn new() -> Self {
        Self {
            random: Random::new(0),
            qps: Vec::new(),
            queues: Vec::new(),
            regions: Vec::new(),
            ports: [true; 2 * DEVICES],
            inline_bytes: [0; 2],
            violation: None,
        }
    }

    /// Begins a run.
    pub(super) fn begin(&mut self, mut random: Random) {
        const INLINE: [u32; 4] = [0, 28, 64, 220];
        *self = Self::new();
        self.inline_bytes = [INLINE[random.index(4)], INLINE[random.index(4)]];
        self.random = random;
    }

    /// Something is wrong, which is looked at after the call.
    pub(super) fn violated(&mut self, text: String) {
        self.violation.get_or_insert(text);
    }

    /// Nothing has been wrong so far.
    pub(super) fn check(&self) {
        assert_eq!(self.violation, None);
    }

    /// All has been given back.
    pub(super) fn check_released(&self) {
        let qps = self.qps.iter().filter(|qp| qp.state != QpState::Destroyed).count();
        let queues = self.queues.iter().filter(|queue| queue.is_alive).count();
        let regions = self.regions.iter().filter(|region| region.is_alive).count();
        assert_eq!(
            (qps, queues, regions),
            (0, 0, 0),
            "queue pairs, queues and memory regions are left"
        );
    }

    // -- what the verbs do --

    /// The key of new memory region.
    pub(super) fn register(&mut self, device: usize, start: u64, length: usize) -> u32 {
        self.regions.push(Region { device, start, end: start + length as u64, is_alive: true });
        self.regions.len() as u32
    }

    pub(super) fn deregister(&mut self, key: u32) {
        if let Some(region) = self.regions.get_mut(key as usize - 1) {
            region.is_alive = false;
        }
    }

    pub(super) fn create_queue(&mut self, entries: usize) -> usize {
        self.queues.push(Queue { completions: VecDeque::new(), entries, is_alive: true });
        self.queues.len() - 1
    }

    pub(super) fn destroy_queue(&mut self, queue: usize) {
        self.queues[queue].is_alive = false;
    }

    pub(super) fn create_qp(
        &mut self,
        device: usize,
        queue: usize,
        (max_sends, max_receives): (u32, u32),
    ) -> usize {
        self.qps.push(QueuePair {
            device,
            queue,
            state: QpState::New,
            far: usize::MAX,
            sends: VecDeque::new(),
            executed: 0,
            retries: 0,
            acks_lost: false,
            delayed: VecDeque::new(),
            receives: VecDeque::new(),
            taken_receives: 0,
            posted: 0,
            freed: 0,
            max_sends,
            max_receives,
        });
        self.qps.len() - 1
    }

    /// Moves it to state RTR: `far` is the other end.
    pub(super) fn connect(&mut self, qp: usize, far: usize) {
        self.qps[qp].far = far;
    }

    /// Moves it to state RTS.
    pub(super) fn start(&mut self, qp: usize) {
        self.qps[qp].state = QpState::ReadyToSend;
    }

    /// Its end is gone with it. Its last packets may be delayed.
    pub(super) fn destroy_qp(&mut self, qp: usize) {
        let Self { random, qps, queues, .. } = self;
        let pair = &mut qps[qp];
        pair.state = QpState::Destroyed;
        let (sends, executed) =
            (std::mem::take(&mut pair.sends), std::mem::take(&mut pair.executed));
        pair.delay(sends.iter().skip(executed), random);
        queues[pair.queue].completions.retain(|completion| completion.qp != qp);
    }

    pub(super) fn post(&mut self, qp: usize, mut wr: WorkRequest, lkey: u32) {
        let device = self.qps[qp].device;
        let reads_memory = wr.length > 0 && wr.inline.is_none();
        if reads_memory && !self.covers(lkey, device, wr.source, wr.length) {
            self.violated(format!(
                "the local key of {wr:?} is not that of its memory on device {device}"
            ));
        }
        let pair = &mut self.qps[qp];
        wr.number = pair.posted;
        pair.posted += 1;
        let is_full = pair.posted - pair.freed > pair.max_sends;
        match pair.state {
            _ if is_full => self.violated(format!("the send queue of queue pair {qp} overflows")),
            QpState::ReadyToSend => pair.sends.push_back(wr),
            QpState::Error => self.complete(qp, wr.id, FLUSHED, 0, Some(wr.number)),
            QpState::New | QpState::Destroyed => {
                self.violated(format!("{wr:?} is posted to no queue pair"))
            }
        }
    }

    pub(super) fn post_receive(&mut self, qp: usize, id: u64) {
        let pair = &mut self.qps[qp];
        pair.taken_receives += 1;
        let is_full = pair.taken_receives > pair.max_receives;
        match pair.state {
            _ if is_full => {
                self.violated(format!("the receive queue of queue pair {qp} overflows"))
            }
            QpState::Error => self.complete(qp, id, FLUSHED, 0, None),
            _ => pair.receives.push_back(id),
        }
    }

    /// Takes at most `limit` completions: as many as there happen to be by now.
    pub(super) fn poll(&mut self, queue: usize, limit: usize) -> Vec<Completion> {
        let Self { random, qps, queues, .. } = self;
        let completions = &mut queues[queue].completions;
        let count = (1 + random.index(limit)).min(completions.len());
        let polled: Vec<_> = completions.drain(..count).collect();
        for completion in &polled {
            let pair = &mut qps[completion.qp];
            match completion.sent {
                Some(number) => pair.freed = number + 1,
                None => pair.taken_receives -= 1,
            }
        }
        polled
    }

    // -- what the schedule picks --

    /// Has the other end of `qp` execute its next work request. Returns what that has written, if
    /// it was executed. If its target is not registered any more, the queue pair fails at both
    /// ends.
    pub(super) fn deliver(&mut self, qp: usize) -> Option<Written> {
        if !self.is_path_up(qp) {
            return None;
        }
        let far = self.qps[qp].far;
        if self.qps[far].state != QpState::ReadyToSend {
            return None;
        }
        let requester = &mut self.qps[qp];
        let wr = match requester.state {
            QpState::ReadyToSend => requester.sends.get(requester.executed)?.clone(),
            _ => requester.delayed.pop_front()?,
        };
        let Some(written) = self.execute(far, &wr) else {
            self.fail(qp, REMOTE_ACCESS_ERROR, false);
            self.fail(far, REMOTE_ACCESS_ERROR, false);
            return None;
        };
        let requester = &mut self.qps[qp];
        if requester.state == QpState::ReadyToSend {
            requester.executed += 1;
        }
        if let Some(imm) = wr.imm {
            let receive = self.qps[far].receives.pop_front();
            let id =
                receive.unwrap_or_else(|| panic!("a message finds no receive on queue pair {far}"));
            self.complete(far, id, Status::SUCCESS, imm, None);
        }
        Some(written)
    }

    /// Has an acknowledgement arrive at `qp`: its oldest work request is complete, if the other end
    /// has executed it.
    pub(super) fn deliver_ack(&mut self, qp: usize) {
        if !self.is_path_up(qp) {
            return;
        }
        let pair = &mut self.qps[qp];
        if pair.executed == 0 || pair.acks_lost {
            return;
        }
        pair.executed -= 1;
        pair.retries = 0;
        if let Some(wr) = pair.sends.pop_front().filter(|wr| wr.is_signaled) {
            self.complete(qp, wr.id, Status::SUCCESS, 0, Some(wr.number));
        }
    }

    /// The retransmission timer of `qp` runs out. Returns what is written by a part of a work
    /// request, if the queue pair fails thereby.
    pub(super) fn retry(&mut self, qp: usize) -> Option<Written> {
        let is_up = self.is_path_up(qp);
        let is_far_ready = self.qps[self.qps[qp].far].state == QpState::ReadyToSend;
        let requester = &mut self.qps[qp];
        let is_answered = is_far_ready || requester.executed > 0;
        if requester.sends.is_empty() || (is_up && is_answered && !requester.acks_lost) {
            requester.retries = 0;
            return None;
        }
        requester.retries += 1;
        if requester.retries < MAX_RETRIES {
            None
        } else {
            self.fail(qp, Status::RETRY_EXCEEDED, true)
        }
    }

    /// The most retries of any queue pair.
    pub(super) fn most_retries(&self) -> u32 {
        self.qps.iter().map(|pair| pair.retries).max().unwrap_or(0)
    }

    /// `qp` goes to the error state; its oldest work request fails with `status`, and the others
    /// are flushed. If its last packets `may_be_delayed`, some of those that the other end has not
    /// executed are executed later, and of the first of them a part at once, which is returned.
    pub(super) fn fail(
        &mut self,
        qp: usize,
        status: Status,
        may_be_delayed: bool,
    ) -> Option<Written> {
        let can_execute =
            self.is_path_up(qp) && self.qps[self.qps[qp].far].state == QpState::ReadyToSend;
        let Self { random, qps, .. } = self;
        let pair = &mut qps[qp];
        if pair.state != QpState::ReadyToSend {
            return None;
        }
        pair.state = QpState::Error;
        let (sends, executed) =
            (std::mem::take(&mut pair.sends), std::mem::take(&mut pair.executed));
        let mut part = None;
        if may_be_delayed {
            pair.delay(sends.iter().skip(executed), random);
            part = pair.delayed.front().cloned().filter(|_| can_execute && random.one_in(3));
        }
        let (receives, far) = (std::mem::take(&mut pair.receives), pair.far);
        // Undefined in a receive that is flushed: what would be wrong most is the immediate that
        // has not come.
        let next = qps[far].sends.get(qps[far].executed).and_then(|wr| wr.imm).unwrap_or_default();
        for (i, wr) in sends.into_iter().enumerate() {
            self.complete(qp, wr.id, if i == 0 { status } else { FLUSHED }, 0, Some(wr.number));
        }
        receives.into_iter().for_each(|id| self.complete(qp, id, FLUSHED, next, None));
        // Of what is memory, no part: a clear-to-send is one packet.
        let part = part.filter(|wr| wr.target >= IMAGINARY)?;
        self.execute(far, &WorkRequest { length: part.length / 2, ..part })
    }

    pub(super) fn lose_acks(&mut self, qp: usize) {
        self.qps[qp].acks_lost = true;
    }

    pub(super) fn set_port(&mut self, device: usize, is_up: bool) {
        self.ports[device] = is_up;
    }

    // -- within --

    fn covers(&self, key: u32, device: usize, addr: u64, length: u32) -> bool {
        let region = (key as usize).checked_sub(1).and_then(|place| self.regions.get(place));
        region.is_some_and(|region| {
            region.is_alive
                && region.device == device
                && region.start <= addr
                && addr + u64::from(length) <= region.end
        })
    }

    /// Executes `wr` at the queue pair `far`; `None`: its target is not registered any more.
    fn execute(&self, far: usize, wr: &WorkRequest) -> Option<Written> {
        let WorkRequest { source, target, length, rkey, .. } = *wr;
        if length == 0 {
            return Some(Written::Nothing);
        }
        let place = (rkey as usize).checked_sub(1).unwrap_or_else(|| panic!("no key: {wr:?}"));
        let region = self.regions.get(place).unwrap_or_else(|| panic!("an unknown key: {wr:?}"));
        assert_eq!(region.device, self.qps[far].device, "the key of another rail: {wr:?}");
        let is_inside = region.start <= target && target + u64::from(length) <= region.end;
        assert!(is_inside, "a write outside of {region:?}: {wr:?}");
        if !region.is_alive {
            return None;
        }
        if target >= IMAGINARY {
            return Some(Written::Message { source, target, length });
        }
        assert!(length.is_multiple_of(8) && target.is_multiple_of(8), "words are written: {wr:?}");
        let from = wr.inline.as_ref().map_or(source as *const u8, Vec::as_ptr);
        let words = length as usize / 8;
        // SAFETY: the target is registered, so it is memory of the other end's, which is not
        // borrowed between calls; so is the source, unless it is the copy of inline data.
        let copy = |from: *const u8| {
            (0..words).map(|i| unsafe { from.cast::<u64>().add(i).read_unaligned() }).collect()
        };
        let (before, after): (Vec<u64>, Vec<u64>) = (copy(target as *const u8), copy(from));
        for (i, word) in after.iter().enumerate() {
            // SAFETY: as above.
            unsafe { (target as *mut u64).add(i).write_volatile(*word) };
        }
        Some(Written::Memory { target, before, after })
    }

    fn is_path_up(&self, qp: usize) -> bool {
        let (near, far) = (&self.qps[qp], &self.qps[self.qps[qp].far]);
        self.ports[near.device] && self.ports[far.device]
    }

    fn complete(&mut self, qp: usize, id: u64, status: Status, imm: u32, sent: Option<u32>) {
        let queue = &mut self.queues[self.qps[qp].queue];
        queue.completions.push_back(Completion { id, qp, status, imm, sent });
        if queue.completions.len() > queue.entries {
            self.violated("a completion queue overruns".into());
        }
    }
}

impl WorkRequest {
    /// As it is on its way, with its bytes: its memory may be gone when it arrives.
    fn sent(&self) -> Self {
        let reads_memory = self.length > 0 && self.inline.is_none() && self.source < IMAGINARY;
        // SAFETY: the memory is registered, as was seen when this was posted, and it is not
        // completed.
        let bytes = || {
            unsafe { std::slice::from_raw_parts(self.source as *const u8, self.length as usize) }
                .to_vec()
        };
        Self {
            inline: if reads_memory { Some(bytes()) } else { self.inline.clone() },
            ..self.clone()
        }
    }
}

impl QueuePair {
    /// Any number of the first of `unexecuted` are delayed; the others are lost.
    fn delay<'a>(
        &mut self,
        unexecuted: impl ExactSizeIterator<Item = &'a WorkRequest>,
        random: &mut Random,
    ) {
        let count = random.index(unexecuted.len() + 1);
        self.delayed.extend(unexecuted.take(count).map(WorkRequest::sent));
    }
}
