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
use crate::verbs::clock;
use crate::verbs::status::Status;
use std::collections::VecDeque;
use std::mem::{replace, take};
use std::time::{Duration, Instant};

/// Devices of each end, one for each rail.
pub(super) const DEVICES: usize = 4;
/// Addresses from here on are no memory.
pub(super) const IMAGINARY: u64 = 1 << 60;
/// A queue pair fails when its oldest work request has been sent again so many times.
pub(super) const MAX_RETRIES: u32 = 20;

/// A completion can be polled at most so long after what it reports.
const LATE: Duration = Duration::from_micros(30);

pub(super) const REMOTE_ACCESS_ERROR: Status = Status(10);
pub(super) const FLUSHED: Status = Status(5);

/// One of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum End {
    Sender,
    Receiver,
}

impl End {
    pub(super) const BOTH: [Self; 2] = [Self::Sender, Self::Receiver];

    pub(super) fn other(self) -> Self {
        if self == Self::Sender { Self::Receiver } else { Self::Sender }
    }

    /// The device of a rail.
    pub(super) fn device(self, rail: usize) -> usize {
        self as usize * DEVICES + rail
    }
}

/// An RDMA WRITE.
#[derive(Debug, Clone)]
pub(super) struct WorkRequest {
    pub(super) id: u64,
    /// Where its bytes are, and where they go.
    pub(super) source: u64,
    pub(super) target: u64,
    pub(super) length: u32,
    pub(super) rkey: u32,
    /// Its bytes, if they are inline, or have been read from memory and are on their way.
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
    /// When it can be polled.
    ready: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QpState {
    /// It is not connected.
    New,
    ReadyToSend,
    Error,
    /// Its device is lost.
    Lost,
    Destroyed,
}

/// An asynchronous event of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    PortUp,
    PortDown,
    QpFatal,
    /// A completion queue, as libibverbs names it, reports nothing more.
    QueueFailed(usize),
    DeviceFatal,
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
    /// Whether it has failed in use, and its device has reported that.
    is_reported: bool,
    /// Whether it has executed a message of the other end.
    has_received: bool,
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

/// What the driver of an end's devices can do besides the basic verbs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Driver {
    /// It has thread domains.
    has_threads: bool,
    /// It has completion queues whose completions are read one after the other.
    pub(super) reads_completions: bool,
    /// It has queue pairs with a function for each operation.
    pub(super) has_operations: bool,
}

/// Polling a completion queue has failed.
#[derive(Debug)]
pub(super) struct PollError;

/// Faults of the polls of an end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Polls {
    /// Whether one has failed.
    pub(super) have_failed: bool,
    /// Whether one has lost the completion of a message.
    pub(super) have_lost: bool,
}

#[derive(Debug)]
struct Queue {
    /// As libibverbs names it.
    name: usize,
    device: usize,
    completions: VecDeque<Completion>,
    /// Whether a completion is being read.
    is_read: bool,
    /// Whether the next poll fails, and whether it loses a completion, if there is one by then.
    breaks: Option<bool>,
    has_failed: bool,
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
    /// Those that are not destroyed, and those with delayed work requests.
    live: Vec<usize>,
    detained: Vec<usize>,
    queues: Vec<Queue>,
    regions: Vec<Region>,
    /// Whether the port of each device is up, what it sends is lost without a word, and the device
    /// is lost.
    ports: [bool; 2 * DEVICES],
    cuts: [bool; 2 * DEVICES],
    lost: [bool; 2 * DEVICES],
    losses: [u32; 2 * DEVICES],
    /// Events of each device that have not been read, and how many there have been.
    events: [VecDeque<Event>; 2 * DEVICES],
    raised: [u64; 2 * DEVICES],
    /// How many more commands the devices of each end refuse.
    refusals: [u32; 2],
    /// Whether a command that brings a queue pair to the error state flushes what has arrived there
    /// and has not been polled.
    flushes_arrivals: bool,
    /// Whether completions may be late, by up to [`LATE`].
    is_slow: bool,
    /// Whether the receiver's devices acknowledge messages and lose them.
    forgets: bool,
    /// Whether a queue of each end fails next, once all that was sent over it is complete.
    idle_queue_fails: [bool; 2],
    /// Commands so far, and how often anything has changed.
    pub(super) commands: u64,
    pub(super) changes: u64,
    /// The sources of messages that have been posted and not looked at.
    posted: Vec<u64>,
    /// The most inline data that the devices of each end grant.
    pub(super) inline_bytes: [u32; 2],
    drivers: [Driver; 2],
    /// Thread domains.
    threads: u32,
    /// Whether a completion was read one after the other, or polled in a batch.
    pub(super) polled: [bool; 2],
    /// Faults of polls, at each end.
    pub(super) polls: [Polls; 2],
    /// The first thing that a driver would not allow.
    violation: Option<String>,
}

impl Fabric {
    pub(super) fn new() -> Self {
        Self {
            random: Random::new(0),
            qps: Vec::new(),
            live: Vec::new(),
            detained: Vec::new(),
            queues: Vec::new(),
            regions: Vec::new(),
            ports: [true; 2 * DEVICES],
            cuts: [false; 2 * DEVICES],
            lost: [false; 2 * DEVICES],
            losses: [0; 2 * DEVICES],
            events: Default::default(),
            raised: [0; 2 * DEVICES],
            refusals: [0; 2],
            flushes_arrivals: false,
            is_slow: false,
            forgets: false,
            idle_queue_fails: [false; 2],
            commands: 0,
            changes: 0,
            posted: Vec::new(),
            inline_bytes: [0; 2],
            drivers: [Driver::default(); 2],
            threads: 0,
            polled: [false; 2],
            polls: [Polls::default(); 2],
            violation: None,
        }
    }

    /// Begins a run.
    pub(super) fn begin(&mut self, mut random: Random) {
        const INLINE: [u32; 4] = [0, 28, 64, 220];
        *self = Self::new();
        self.inline_bytes = [INLINE[random.index(4)], INLINE[random.index(4)]];
        // Most have all, as mlx5.
        self.drivers = [0; 2].map(|_| Driver {
            has_threads: !random.one_in(4),
            reads_completions: !random.one_in(8),
            has_operations: !random.one_in(8),
        });
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
            (qps, queues, regions, self.threads),
            (0, 0, 0, 0),
            "queue pairs, queues, memory regions and thread domains are left"
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

    /// `name` is what libibverbs calls it.
    pub(super) fn create_queue(&mut self, device: usize, name: usize, entries: usize) -> usize {
        self.queues.push(Queue {
            name,
            device,
            completions: VecDeque::new(),
            is_read: false,
            breaks: None,
            has_failed: false,
            entries,
            is_alive: true,
        });
        self.queues.len() - 1
    }

    /// What the driver of `device` can do.
    pub(super) fn driver_of(&self, device: usize) -> Driver {
        self.drivers[device / DEVICES]
    }

    /// Whether `device` has one more thread domain now.
    pub(super) fn alloc_thread(&mut self, device: usize) -> bool {
        let has_threads = self.driver_of(device).has_threads;
        self.threads += u32::from(has_threads);
        has_threads
    }

    pub(super) fn dealloc_thread(&mut self) {
        self.threads -= 1;
    }

    pub(super) fn destroy_queue(&mut self, queue: usize) {
        let Queue { name, device, is_alive, .. } = &mut self.queues[queue];
        *is_alive = false;
        self.events[*device].retain(|event| *event != Event::QueueFailed(*name));
    }

    /// Whether a command to `device` is refused.
    pub(super) fn refuses(&mut self, device: usize) -> bool {
        self.commands += 1;
        self.changes += 1;
        let left = &mut self.refusals[device / DEVICES];
        let is_refused = *left > 0;
        *left = left.saturating_sub(1);
        is_refused
    }

    /// The next event of a device, for the one who has opened it; where that `is_lost` since, its
    /// loss, which comes first.
    pub(super) fn next_event(&mut self, device: usize, is_lost: bool) -> Option<Event> {
        let is_next = |event: &&Event| is_lost == (**event == Event::DeviceFatal);
        let event = self.events[device].front().filter(is_next).copied();
        self.events[device].drain(..usize::from(event.is_some()));
        self.changes += u64::from(event.is_some());
        event
    }

    pub(super) fn has_events(&self, device: usize) -> bool {
        !self.events[device].is_empty()
    }

    /// How many events of a device there have been.
    pub(super) fn raised(&self, device: usize) -> u64 {
        self.raised[device]
    }

    pub(super) fn has_event_of(&self, end: End) -> bool {
        let mut events = self.events.iter().skip(end.device(0)).take(DEVICES);
        events.any(|events| !events.is_empty())
    }

    /// How often `device` has been lost.
    pub(super) fn losses(&self, device: usize) -> u32 {
        self.losses[device]
    }

    pub(super) fn is_lost(&self, device: usize) -> bool {
        self.lost[device]
    }

    /// How much later than the receiver's end the sender's is made.
    pub(super) fn time_between_ends(&mut self) -> Duration {
        Duration::from_nanos(self.random.below(10 * LATE.as_nanos() as u64))
    }

    pub(super) fn is_port_up(&self, device: usize) -> bool {
        self.ports[device]
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
            is_reported: false,
            has_received: false,
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
        self.live.push(self.qps.len() - 1);
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
        let (sends, executed) = (take(&mut pair.sends), take(&mut pair.executed));
        pair.delay(sends.iter().skip(executed), random);
        // Some drivers keep what a queue pair had completed, and the last of it has only come now:
        // here those of odd numbers.
        let (keeps, now) = (qp % 2 == 1, clock::now());
        queues[pair.queue].completions.retain_mut(|one| {
            one.ready = if one.qp == qp { one.ready.min(now) } else { one.ready };
            one.qp != qp || keeps
        });
        self.live.retain(|other| *other != qp);
        self.note_delayed(qp);
        if self.forgets && self.live_of(End::Receiver).next().is_none() {
            self.forgets = false;
        }
    }

    fn note_delayed(&mut self, qp: usize) {
        if !self.qps[qp].delayed.is_empty() && !self.detained.contains(&qp) {
            self.detained.push(qp);
        }
    }

    pub(super) fn post(&mut self, qp: usize, mut wr: WorkRequest, lkey: u32) {
        let device = self.qps[qp].device;
        let is_lost = self.qps[qp].state == QpState::Lost;
        let reads_memory = wr.length > 0 && wr.inline.is_none() && !is_lost;
        if reads_memory && !self.covers(lkey, device, wr.source, wr.length) {
            self.violated(format!(
                "the local key of {wr:?} is not that of its memory on device {device}"
            ));
        }
        self.changes += 1;
        if wr.source >= IMAGINARY && wr.length > 0 {
            self.posted.push(wr.source);
        }
        let pair = &mut self.qps[qp];
        wr.number = pair.posted;
        pair.posted += 1;
        let is_full = pair.posted - pair.freed > pair.max_sends;
        match pair.state {
            _ if is_full => self.violated(format!("the send queue of queue pair {qp} overflows")),
            QpState::ReadyToSend => pair.sends.push_back(wr),
            QpState::Error => self.complete(qp, wr.id, FLUSHED, 0, Some(wr.number)),
            QpState::Lost => {}
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
            QpState::Lost => {}
            _ => pair.receives.push_back(id),
        }
    }

    /// Takes at most `limit` completions: as many as there happen to be by now. Returns how many.
    pub(super) fn poll(
        &mut self,
        queue: usize,
        limit: usize,
        mut put: impl FnMut(usize, Completion),
    ) -> Result<usize, PollError> {
        let count = 1 + self.random.index(limit);
        let mut polled = 0;
        while polled < count {
            match self.take(queue) {
                Ok(Some(completion)) => {
                    put(polled, completion);
                    polled += 1;
                }
                Ok(None) => break,
                Err(error) if polled == 0 => return Err(error),
                Err(_) => {
                    self.queues[queue].breaks = Some(false);
                    break;
                }
            }
        }
        self.polled[1] |= polled > 0;
        Ok(polled)
    }

    /// Takes the next completion, if there happens to be one by now, of a poll that `begins` with
    /// it.
    pub(super) fn read(
        &mut self,
        queue: usize,
        begins: bool,
    ) -> Result<Option<Completion>, PollError> {
        if self.queues[queue].is_read == begins {
            self.violated("a completion queue is polled twice at once, or not".into());
        }
        if !begins && self.random.one_in(8) {
            return Ok(None);
        }
        let taken = self.take(queue)?;
        self.queues[queue].is_read |= taken.is_some();
        self.polled[0] |= taken.is_some();
        Ok(taken)
    }

    /// A poll ends.
    pub(super) fn end_read(&mut self, queue: usize) {
        if !replace(&mut self.queues[queue].is_read, false) {
            self.violated("a poll ends that has not begun".into());
        }
    }

    fn take(&mut self, queue: usize) -> Result<Option<Completion>, PollError> {
        let taken = self.take_next(queue);
        if let Ok(Some(completion)) = &taken
            && self.idle_queue_fails[self.queues[queue].device / DEVICES]
        {
            self.fail_if_idle(queue, completion.qp);
        }
        taken
    }

    fn take_next(&mut self, queue: usize) -> Result<Option<Completion>, PollError> {
        let Self { qps, queues, changes, drivers, violation, polls, .. } = self;
        let queue = &mut queues[queue];
        if queue.has_failed {
            return Ok(None);
        }
        let polls = &mut polls[queue.device / DEVICES];
        if queue.breaks == Some(false) {
            (queue.breaks, polls.have_failed) = (None, true);
            return Err(PollError);
        }
        let now = clock::now();
        if queue.completions.front().is_none_or(|completion| completion.ready > now) {
            return Ok(None);
        }
        *changes += 1;
        let taken = queue.completions.pop_front();
        if let Some(completion) = &taken {
            let pair = &mut qps[completion.qp];
            match completion.sent {
                Some(number) => pair.freed = number + 1,
                None => pair.taken_receives -= 1,
            }
            // Without thread domains a driver may look for the queue pair where it was.
            if pair.state == QpState::Destroyed && !drivers[pair.device / DEVICES].has_threads {
                violation.get_or_insert("a destroyed queue pair's completion is polled".into());
            }
        }
        if queue.breaks.take().is_none() {
            return Ok(taken);
        }
        polls.have_failed = true;
        let is_arrival = |one: &Completion| one.sent.is_none() && one.status == Status::SUCCESS;
        polls.have_lost |= taken.as_ref().is_some_and(is_arrival);
        Err(PollError)
    }

    // -- what the schedule picks --

    /// Has the other end of `qp` execute its next work request. Returns what that has written, if
    /// it was executed. If its target is not registered any more, the queue pair fails at both
    /// ends.
    pub(super) fn deliver(&mut self, qp: usize) -> Option<Written> {
        if !self.is_path_up(qp) || self.cuts[self.qps[qp].device] {
            return None;
        }
        let far = self.qps[qp].far;
        let is_far_ready = self.qps[far].state == QpState::ReadyToSend;
        let requester = &mut self.qps[qp];
        let is_ready = requester.state == QpState::ReadyToSend;
        let late = if is_ready { None } else { Some(requester.delayed.pop_front()?) };
        if late.is_some() && requester.delayed.is_empty() {
            self.detained.retain(|other| *other != qp);
        }
        if !is_far_ready {
            return None;
        }
        let requester = &self.qps[qp];
        let next = || requester.sends.get(requester.executed);
        let wr = late.as_ref().or_else(next)?;
        let imm = wr.imm;
        let is_forgotten = self.forgets && requester.device < DEVICES;
        let executed = if is_forgotten { None } else { Some(self.execute(far, wr)) };
        self.changes += 1;
        if executed.as_ref().is_none_or(Option::is_some) {
            self.qps[qp].executed += usize::from(is_ready);
        }
        let Some(written) = executed? else {
            self.fail(qp, REMOTE_ACCESS_ERROR, false);
            self.fail(far, REMOTE_ACCESS_ERROR, false);
            return None;
        };
        if let Some(imm) = imm {
            self.qps[far].has_received = true;
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
        if !self.is_path_up(qp) || self.cuts[self.qps[self.qps[qp].far].device] {
            return;
        }
        let pair = &mut self.qps[qp];
        if pair.executed == 0 || pair.acks_lost {
            return;
        }
        self.changes += 1;
        pair.executed -= 1;
        pair.retries = 0;
        if let Some(wr) = pair.sends.pop_front().filter(|wr| wr.is_signaled) {
            self.complete(qp, wr.id, Status::SUCCESS, 0, Some(wr.number));
        }
    }

    /// The retransmission timer of `qp` runs out. Returns what is written by a part of a work
    /// request, if the queue pair fails thereby.
    pub(super) fn retry(&mut self, qp: usize) -> Option<Written> {
        let far = self.qps.get(self.qps[qp].far)?;
        let is_cut = self.cuts[self.qps[qp].device] || self.cuts[far.device];
        let is_far_ready = far.state == QpState::ReadyToSend;
        let is_up = self.is_path_up(qp) && !is_cut;
        let requester = &mut self.qps[qp];
        let is_answered = is_far_ready || requester.executed > 0;
        if requester.state != QpState::ReadyToSend
            || requester.sends.is_empty()
            || (is_up && is_answered && !requester.acks_lost)
        {
            requester.retries = 0;
            return None;
        }
        self.changes += 1;
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
        let can_execute = self.is_path_up(qp)
            && !self.cuts[self.qps[qp].device]
            && !self.forgets
            && self.qps[self.qps[qp].far].state == QpState::ReadyToSend;
        let Self { random, qps, .. } = self;
        let pair = &mut qps[qp];
        if pair.state != QpState::ReadyToSend {
            return None;
        }
        pair.state = QpState::Error;
        self.changes += 1;
        let (sends, executed) = (take(&mut pair.sends), take(&mut pair.executed));
        let mut part = None;
        if may_be_delayed {
            pair.delay(sends.iter().skip(executed), random);
            part = pair.delayed.front().cloned().filter(|_| can_execute && random.one_in(3));
        }
        let (receives, far) = (take(&mut pair.receives), pair.far);
        // Undefined in a receive that is flushed: what would be wrong most is the immediate that
        // has not come.
        let next = qps[far].sends.get(qps[far].executed).and_then(|wr| wr.imm).unwrap_or_default();
        for (i, wr) in sends.into_iter().enumerate() {
            self.complete(qp, wr.id, if i == 0 { status } else { FLUSHED }, 0, Some(wr.number));
        }
        receives.into_iter().for_each(|id| self.complete(qp, id, FLUSHED, next, None));
        self.note_delayed(qp);
        // Of what is memory, no part: a clear-to-send is one packet.
        let part = part.filter(|wr| wr.target >= IMAGINARY)?;
        self.execute(far, &WorkRequest { length: part.length / 2, ..part })
    }

    /// A command brings `qp` to the error state.
    pub(super) fn end(&mut self, qp: usize) {
        if self.flushes_arrivals {
            let queue = &mut self.queues[self.qps[qp].queue];
            let of_qp = |completion: &&mut Completion| completion.qp == qp;
            let arrivals = queue.completions.iter_mut().filter(of_qp);
            arrivals.filter(|completion| completion.sent.is_none()).for_each(|completion| {
                completion.status = FLUSHED;
            });
        }
        drop(self.fail(qp, FLUSHED, true));
    }

    /// As ionic's driver does.
    pub(super) fn flush_arrivals(&mut self) {
        self.flushes_arrivals = true;
    }

    /// From now on completions may be late.
    pub(super) fn be_slow(&mut self) {
        self.is_slow = true;
    }

    pub(super) fn lose_acks(&mut self, qp: usize) {
        self.qps[qp].acks_lost = true;
    }

    pub(super) fn set_port(&mut self, device: usize, is_up: bool) {
        if replace(&mut self.ports[device], is_up) != is_up {
            self.raise(device, if is_up { Event::PortUp } else { Event::PortDown });
        }
    }

    /// What `device` sends is lost without a word, or no longer.
    pub(super) fn cut(&mut self, device: usize, is_cut: bool) {
        self.cuts[device] = is_cut;
    }

    /// Something has made `qp` fail, which its device reports.
    pub(super) fn fail_loudly(&mut self, qp: usize) -> Option<Written> {
        let part = self.fail(qp, FLUSHED, true);
        self.qps[qp].is_reported |= self.qps[qp].has_received;
        self.raise(self.qps[qp].device, Event::QpFatal);
        part
    }

    /// The queue of `qp` fails: it reports nothing more.
    pub(super) fn fail_queue(&mut self, qp: usize) {
        let QueuePair { queue, device, .. } = self.qps[qp];
        let queue = &mut self.queues[queue];
        queue.completions.clear();
        if !replace(&mut queue.has_failed, true) {
            let event = Event::QueueFailed(queue.name);
            self.raise(device, event);
        }
    }

    /// A queue of `end` fails once all that was sent over it is complete.
    pub(super) fn fail_next_idle_queue(&mut self, end: End) {
        self.idle_queue_fails[end as usize] = true;
    }

    /// `queue`, which is that of `qp`, fails if all that was sent over it is complete.
    fn fail_if_idle(&mut self, queue: usize, qp: usize) {
        let is_done = |one: &QueuePair| one.queue != queue || one.freed == one.posted;
        if self.live.iter().all(|one| is_done(&self.qps[*one])) {
            self.idle_queue_fails[self.queues[queue].device / DEVICES] = false;
            self.fail_queue(qp);
        }
    }

    /// The next poll of the queue of `qp` fails; or the next one that finds a completion fails and
    /// `loses` it.
    pub(super) fn break_queue(&mut self, qp: usize, loses: bool) {
        let queue = self.qps[qp].queue;
        self.queues[queue].breaks = Some(loses);
    }

    /// `device` is lost, with all that is on it.
    pub(super) fn lose(&mut self, device: usize) {
        if replace(&mut self.lost[device], true) {
            return;
        }
        self.losses[device] += 1;
        for i in 0..self.live.len() {
            let qp = self.live[i];
            if self.qps[qp].device == device {
                let Self { random, qps, .. } = &mut *self;
                let pair = &mut qps[qp];
                pair.state = QpState::Lost;
                let (sends, executed) = (take(&mut pair.sends), take(&mut pair.executed));
                pair.delay(sends.iter().skip(executed), random);
                self.note_delayed(qp);
            }
        }
        self.regions.iter_mut().filter(|region| region.device == device).for_each(|region| {
            region.is_alive = false;
        });
        self.events[device].clear();
        self.raise(device, Event::DeviceFatal);
    }

    /// A lost device can be opened again.
    pub(super) fn bring_back(&mut self, device: usize) {
        self.lost[device] = false;
    }

    /// The next `count` commands to the devices of `end` are refused.
    pub(super) fn refuse(&mut self, end: End, count: u32) {
        self.refusals[end as usize] = count;
    }

    /// The receiver's devices lose what they acknowledge, until all of its queue pairs are
    /// destroyed.
    pub(super) fn forget(&mut self) {
        self.forgets = true;
    }

    fn raise(&mut self, device: usize, event: Event) {
        if self.lost[device] && event != Event::DeviceFatal {
            return;
        }
        self.changes += 1;
        self.events[device].push_back(event);
        self.raised[device] += 1;
    }

    // -- what a schedule of recovery looks at --

    /// The queue pairs that are not destroyed.
    pub(super) fn live(&self) -> &[usize] {
        &self.live
    }

    /// Queue pairs with delayed work requests.
    pub(super) fn detained(&self) -> &[usize] {
        &self.detained
    }

    /// The live queue pairs of an end.
    pub(super) fn live_of(&self, end: End) -> impl Iterator<Item = usize> {
        self.live.iter().copied().filter(move |qp| self.qps[*qp].device / DEVICES == end as usize)
    }

    /// The live queue pairs, for messages.
    pub(super) fn describe(&self) -> String {
        let pair = |qp: &usize| {
            let QueuePair { device, state, far, sends, executed, retries, .. } = &self.qps[*qp];
            let sends = sends.len();
            format!("{qp} of {device} to {far}: {state:?}, {executed} of {sends}, {retries}")
        };
        self.live.iter().map(pair).collect::<Vec<_>>().join("; ")
    }

    /// How many queue pairs there have ever been.
    pub(super) fn qp_count(&self) -> usize {
        self.qps.len()
    }

    /// The sources of messages that have been posted since the last call.
    pub(super) fn take_posted(&mut self) -> Vec<u64> {
        take(&mut self.posted)
    }

    /// What `qp` would send next.
    pub(super) fn next_source(&self, qp: usize) -> Option<u64> {
        let pair = &self.qps[qp];
        let wr = pair.sends.get(pair.executed).filter(|_| pair.state == QpState::ReadyToSend)?;
        (wr.length > 0).then_some(wr.source)
    }

    /// No queue pair that carried messages to the receiver is left.
    pub(super) fn check_receiver_fenced(&self) {
        let old = self.live_of(End::Receiver).find(|qp| self.qps[*qp].has_received);
        assert_eq!(old, None, "the receiver lists what is missing, and may still receive");
    }

    /// The sender has no queue pairs but new ones.
    pub(super) fn check_sender_fenced(&self) {
        let old = self.live_of(End::Sender).find(|qp| self.qps[*qp].far != usize::MAX);
        assert_eq!(old, None, "the sender offers new queue pairs, and has old ones");
    }

    /// Whether both ends have the same queue pairs, over so many rails.
    pub(super) fn is_whole(&self, rails: usize) -> bool {
        let mut devices: Vec<_> = self.live_of(End::Sender).map(|qp| self.qps[qp].device).collect();
        devices.sort_unstable();
        devices.dedup();
        // With the sender's, nobody sees it before the next message, nor if the completions come
        // after the event.
        if !self.is_slow && self.live_of(End::Receiver).any(|qp| self.qps[qp].is_reported) {
            return false;
        }
        let is_paired = |qp: usize| {
            let far = self.qps[qp].far;
            self.qps.get(far).is_some_and(|other| other.far == qp) && self.live.contains(&far)
        };
        self.live.iter().all(|qp| is_paired(*qp)) && devices == (0..rails).collect::<Vec<_>>()
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
        let copy = |from: *const u8| {
            // SAFETY: the target is registered, so it is memory of the other end's, which is not
            // borrowed between calls; so is the source, unless it is the copy of inline data.
            let word = |i| unsafe { from.cast::<u64>().add(i).read_unaligned() };
            (0..words).map(word).collect()
        };
        let (before, after): (Vec<u64>, Vec<u64>) = (copy(target as *const u8), copy(from));
        for (i, word) in after.iter().enumerate() {
            // SAFETY: as above.
            unsafe { (target as *mut u64).add(i).write_volatile(*word) };
        }
        Some(Written::Memory { target, before, after })
    }

    fn is_path_up(&self, qp: usize) -> bool {
        let near = &self.qps[qp];
        let is_up = |device: usize| self.ports[device] && !self.lost[device];
        is_up(near.device) && self.qps.get(near.far).is_some_and(|far| is_up(far.device))
    }

    fn complete(&mut self, qp: usize, id: u64, status: Status, imm: u32, sent: Option<u32>) {
        let late = if self.is_slow { self.random.below(LATE.as_nanos() as u64 + 1) } else { 0 };
        let ready = clock::now() + Duration::from_nanos(late);
        let queue = &mut self.queues[self.qps[qp].queue];
        if queue.has_failed {
            return;
        }
        queue.completions.push_back(Completion { id, qp, status, imm, sent, ready });
        if queue.completions.len() > queue.entries {
            self.violated("a completion queue overruns".into());
        }
    }
}

impl WorkRequest {
    /// As it is on its way, with its bytes: its memory may be gone when it arrives.
    fn sent(&self) -> Self {
        let reads_memory = self.length > 0 && self.inline.is_none() && self.source < IMAGINARY;
        let bytes = || {
            let (from, length) = (self.source as *const u8, self.length as usize);
            // SAFETY: the memory is registered, as was seen when this was posted, and it is not
            // completed.
            unsafe { std::slice::from_raw_parts(from, length) }.to_vec()
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
