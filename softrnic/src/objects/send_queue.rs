//! The send queue: requests between post and completion, and their records between completion and
//! poll.
//!
//! ```text
//!   freed <= polled <= acked <= executed <= posted <= freed + max_send_wr
//! ```
//! A request is executed when its bytes are at the peer, and acknowledged when we know it: at once,
//! unless the wire has a latency. A slot is free again only when a completion *after* it has been
//! polled: unsignaled requests hold theirs.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::abi::types::{QpCap, SendWr, Sge, Status, send_flag};
use crate::network::topology::{MTU_4096, mtu_bytes};
use crate::objects::context::Datagram;
use crate::process::fabric::Route;
use crate::remote::responder::Request;
use crate::remote::staged_transfer::StagedTransfer;
use crate::rules::KnownRules;
use crate::shm::slots::NO_PEER;

/// What came of a request that is executed, to be known when its acknowledgement is here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) status: Status,
    pub(crate) ack_at: u64,
}

/// How the requester reaches its peer; set by `ibv_modify_qp`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    /// Name of the peer, see `QpSlot::peer`.
    pub(crate) peer: u64,
    pub(crate) route: Route,
    /// Which of the port's paths its packets take; `None`: paths are not modelled.
    pub(crate) path: Option<u32>,
    pub(crate) psn: u32,
    pub(crate) mtu_bytes: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) reads: u8,
}

impl Link {
    /// Packets that a message of `bytes` takes.
    #[inline]
    pub(crate) fn packets(&self, bytes: u64) -> u32 {
        (bytes as u32).div_ceil(self.mtu_bytes).max(1)
    }
}

/// Requester state, under the queue's lock.
#[derive(Debug)]
pub(crate) struct SendQueue {
    pub(crate) posted: u64,
    /// Blocks that all those posted have taken (`Library::blocks`).
    pub(crate) taken: u64,
    pub(crate) executed: u64,
    pub(crate) acked: u64,
    /// Value of `posted` when the QP was connected: request number n of the connection is the n-th
    /// after it.
    pub(crate) origin: u64,
    pub(crate) link: Link,
    /// Fault rules that concern the connection.
    pub(crate) rules: KnownRules,
    pub(crate) head: Head,
    /// When the last request reaches the peer, as far as the wire has been planned.
    pub(crate) planned: u64,
    /// A failure is on its way back: nothing more is sent.
    pub(crate) is_broken: bool,
    /// The head request, if its bytes are copied through the shared file.
    pub(crate) staged: Option<Box<StagedTransfer>>,
    /// The timer that is set for this queue; `u64::MAX`: none.
    pub(crate) alarm: u64,
    /// How often the peer has been entered.
    pub(crate) entries: u32,
    /// In the state SQD: an event is wanted when nothing is under way.
    pub(crate) wants_drained: bool,
    mask: u64,
    requests: Box<[Request]>,
    outcomes: VecDeque<Outcome>,
    sges: Box<[Sge]>,
    sges_each: usize,
    inline: Box<[u8]>,
    inline_each: usize,
    /// UD: where each request goes. Empty otherwise.
    datagrams: Box<[Datagram]>,
}

/// How far the oldest request not executed has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Head {
    /// It is not tried before this time (ns); 0 is "at once".
    pub(crate) until: u64,
    /// Transmissions that got no answer, and those that found no receive.
    pub(crate) losses: u32,
    pub(crate) rnr_waits: u32,
    /// UD: how often others were at the receiver.
    pub(crate) encounters: u32,
    /// A rule has held it up.
    pub(crate) is_delayed: bool,
    /// The peer has executed it, but its acknowledgement was lost.
    pub(crate) is_delivered: bool,
    /// A rule takes the acknowledgement of this transmission away.
    pub(crate) loses_ack: bool,
    /// It has met no receive, and is in the peer's memory but for its last packet.
    pub(crate) is_placed: bool,
}

impl Head {
    /// Transmissions so far.
    pub(crate) fn attempts(&self) -> u32 {
        self.losses + self.rnr_waits
    }
}

impl SendQueue {
    pub(crate) fn new(cap: &QpCap, is_ud: bool) -> Self {
        let slots = entries(cap);
        let (sges_each, inline_each) =
            (cap.max_send_sge.max(1) as usize, cap.max_inline_data as usize);
        Self {
            posted: 0,
            taken: 0,
            executed: 0,
            acked: 0,
            origin: 0,
            link: Link { peer: NO_PEER, mtu_bytes: mtu_bytes(MTU_4096), ..Link::default() },
            rules: KnownRules::default(),
            head: Head::default(),
            planned: 0,
            is_broken: false,
            staged: None,
            alarm: u64::MAX,
            entries: 0,
            wants_drained: false,
            mask: slots as u64 - 1,
            requests: vec![Request::default(); slots].into(),
            outcomes: VecDeque::new(),
            sges: vec![Sge::default(); slots * sges_each].into(),
            sges_each,
            inline: vec![0; slots * inline_each].into(),
            inline_each,
            datagrams: vec![Datagram::default(); if is_ud { slots } else { 0 }].into(),
        }
    }

    /// The slot of the request that is posted next, with its element and inline storage.
    pub(crate) fn next_slot(&mut self) -> (&mut Request, &mut [Sge], &mut [u8]) {
        let at = (self.posted & self.mask) as usize;
        (
            &mut self.requests[at],
            &mut self.sges[at * self.sges_each..][..self.sges_each],
            &mut self.inline[at * self.inline_each..][..self.inline_each],
        )
    }

    /// UD: the request that is posted next goes there.
    pub(crate) fn address(&mut self, datagram: Datagram) {
        let at = (self.posted & self.mask) as usize;
        self.datagrams[at] = datagram;
        self.lead_to(self.posted);
    }

    /// UD: where request `at` goes.
    pub(crate) fn datagram(&self, at: u64) -> &Datagram {
        &self.datagrams[(at & self.mask) as usize]
    }

    /// UD: the link leads where request `at` goes.
    pub(crate) fn lead_to(&mut self, at: u64) {
        let Datagram { peer, route, path, .. } = *self.datagram(at);
        self.link = Link { peer, route, path, ..self.link };
    }

    /// Request `at`, its elements and its inline data.
    #[inline]
    pub(crate) fn request(&self, at: u64) -> (&Request, &[Sge], &[u8]) {
        let at = (at & self.mask) as usize;
        let request = &self.requests[at];
        (
            request,
            &self.sges[at * self.sges_each..][..request.num_sge as usize],
            &self.inline[at * self.inline_each..][..request.inline_len as usize],
        )
    }

    /// Whether something has been sent that is not over yet.
    pub(crate) fn is_under_way(&self) -> bool {
        self.acked != self.executed || self.is_head_sent()
    }

    /// Whether the head request is on its way, or has been sent and waits to be sent again.
    pub(crate) fn is_head_sent(&self) -> bool {
        self.staged.is_some() || self.head.attempts() != 0
    }

    /// Number of the head request in its connection, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.executed - self.origin + 1
    }

    /// The head request is executed; what came of it is known at `ack_at`.
    pub(crate) fn executed_until(&mut self, status: Status, ack_at: u64) {
        self.is_broken |= status != Status::Success;
        self.outcomes.push_back(Outcome { status, ack_at });
        self.executed += 1;
        self.head = Head::default();
    }

    /// What came of the oldest request not acknowledged, if it is executed.
    #[inline]
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.outcomes.front().copied()
    }

    /// The oldest request not acknowledged has been dealt with.
    #[inline]
    pub(crate) fn advance(&mut self) {
        if self.acked == self.executed {
            self.executed += 1;
            self.head = Head::default();
        } else {
            self.outcomes.pop_front();
        }
        self.acked += 1;
    }

    /// From here on a connection counts its messages.
    pub(crate) fn connected(&mut self) {
        self.origin = self.posted;
    }

    /// Forgets all requests.
    pub(crate) fn discard(&mut self) {
        self.staged = None;
        self.outcomes.clear();
        self.head = Head::default();
        self.is_broken = false;
        self.wants_drained = false;
        self.planned = 0;
        (self.acked, self.executed) = (self.posted, self.posted);
    }
}

/// Slots of a send queue.
pub(crate) fn entries(cap: &QpCap) -> usize {
    (cap.max_send_wr.max(1) as usize).next_power_of_two()
}

/// What became of one request. Some words, so that poller and executor need no lock in common.
#[derive(Debug)]
struct Record {
    wr_id: AtomicU64,
    /// Status | opcode << 8 | has a completion << 16 | says that it had immediate data << 17 | byte
    /// count << 32.
    rest: AtomicU64,
    /// Blocks that have been taken up to and with it.
    blocks: AtomicU64,
}

/// Records of executed requests: filled under the queue's lock, emptied under the CQ's.
#[derive(Debug)]
pub(crate) struct SendRing {
    done: AtomicU64,
    freed: AtomicU64,
    polled: AtomicU64,
    mask: u64,
    records: Box<[Record]>,
}

/// A completion taken from the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) byte_len: u32,
    pub(crate) has_immediate: bool,
}

impl SendRing {
    /// With room for `entries` records, a power of two.
    pub(crate) fn new(entries: usize) -> Self {
        Self {
            done: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            mask: entries as u64 - 1,
            records: (0..entries)
                .map(|_| Record {
                    wr_id: AtomicU64::new(0),
                    rest: AtomicU64::new(0),
                    blocks: AtomicU64::new(0),
                })
                .collect(),
        }
    }

    /// Blocks that are in use, given how many were taken.
    pub(crate) fn in_use(&self, taken: u64) -> u64 {
        // Pairs with the poller's store: a record is not written again before it has been read.
        taken - self.freed.load(Acquire)
    }

    /// Records the outcome of request number `at`.
    pub(crate) fn record(
        &self,
        at: u64,
        (wr_id, blocks): (u64, u64),
        status: u32,
        (opcode, has_immediate): (u32, bool),
        byte_len: u32,
        is_completion: bool,
    ) {
        let record = &self.records[(at & self.mask) as usize];
        record.wr_id.store(wr_id, Relaxed);
        record.blocks.store(blocks, Relaxed);
        let flags = u64::from(is_completion) | u64::from(has_immediate) << 1;
        let rest = u64::from(status) | u64::from(opcode) << 8 | flags << 16;
        record.rest.store(rest | u64::from(byte_len) << 32, Relaxed);
        // Pairs with the poller's load in `take`.
        self.done.store(at + 1, Release);
    }

    /// The next completion, if there is one. Call under the CQ's lock.
    pub(crate) fn take(&self) -> Option<Taken> {
        let done = self.done.load(Acquire);
        let mut at = self.polled.load(Relaxed);
        while at != done {
            let record = &self.records[(at & self.mask) as usize];
            let (wr_id, rest) = (record.wr_id.load(Relaxed), record.rest.load(Relaxed));
            at += 1;
            if rest & 1 << 16 != 0 {
                self.polled.store(at, Relaxed);
                self.freed.store(record.blocks.load(Relaxed), Release);
                let (status, opcode) = (rest as u32 & 0xff, rest as u32 >> 8 & 0xff);
                let has_immediate = rest & 1 << 17 != 0;
                let byte_len = (rest >> 32) as u32;
                return Some(Taken { wr_id, status, opcode, byte_len, has_immediate });
            }
        }
        self.polled.store(at, Relaxed);
        None
    }

    /// Whether records wait to be looked at.
    pub(crate) fn has_more(&self) -> bool {
        self.polled.load(Relaxed) != self.done.load(Acquire)
    }

    /// Empties the ring up to `posted`. `freed`: how many of the taken blocks are free afterwards;
    /// `None`: no more than before. Returns how many completions it discards.
    pub(crate) fn discard(&self, posted: u64, freed: Option<u64>) -> u64 {
        let before = self.freed.load(Relaxed);
        let thrown = std::iter::from_fn(|| self.take()).count();
        self.done.store(posted, Relaxed);
        self.polled.store(posted, Relaxed);
        self.freed.store(freed.unwrap_or(before), Release);
        thrown as u64
    }
}

/// A list that one thread at a time makes.
#[derive(Default)]
pub(crate) struct Making {
    is_made: AtomicBool,
    list: UnsafeCell<WrList>,
}

/// The work requests so far.
#[derive(Default)]
pub(crate) struct WrList {
    /// The first thing that was wrong with it.
    error: Option<i32>,
    requests: Vec<Wr>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
}

struct Wr {
    wr: SendWr,
    data: Data,
}

/// What a work request has in the lists of all.
enum Data {
    None,
    Elements(Range<usize>),
    Inline(Range<usize>),
}

impl Making {
    /// Begins an empty list: waits for other threads.
    pub(crate) fn begin(&self) {
        while self.is_made.swap(true, Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: one thread at a time is between `begin` and `end`.
        let list = unsafe { &mut *self.list.get() };
        list.error = None;
        list.requests.clear();
        list.sges.clear();
        list.inline.clear();
    }

    pub(crate) fn end(&self) {
        self.is_made.store(false, Release);
    }

    /// Looks at the list, or goes on with it.
    ///
    /// # Safety
    /// The calling thread is between `begin` and `end`, and not in `work` of another call.
    pub(crate) unsafe fn with<R>(&self, work: impl FnOnce(&mut WrList) -> R) -> R {
        // SAFETY: by the caller; other threads wait in `begin`.
        work(unsafe { &mut *self.list.get() })
    }
}

impl WrList {
    /// Begins a work request.
    pub(crate) fn push(&mut self, wr: SendWr) {
        self.requests.push(Wr { wr, data: Data::None });
    }

    /// The work request that is made has this data.
    pub(crate) fn set_elements(&mut self, sges: &[Sge]) {
        let from = self.sges.len();
        self.sges.extend_from_slice(sges);
        let range = from..self.sges.len();
        self.set_data(Data::Elements(range));
    }

    /// The work request that is made has a copy of these pieces as its data.
    pub(crate) fn set_inline<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) {
        let from = self.inline.len();
        pieces.for_each(|piece| self.inline.extend_from_slice(piece));
        let range = from..self.inline.len();
        self.set(|Wr { wr, .. }| wr.send_flags |= send_flag::INLINE);
        self.set_data(Data::Inline(range));
    }

    /// It has this data, and had none before.
    fn set_data(&mut self, data: Data) {
        match self.requests.last_mut() {
            Some(wr @ Wr { data: Data::None, .. }) => wr.data = data,
            _ => self.fail(libc::EINVAL),
        }
    }

    /// The work request that is made is a datagram; what names its receiver is in these fields.
    pub(crate) fn set_address(&mut self, ah: u64, qpn: u32, qkey: u32) {
        self.set(|Wr { wr, .. }| (wr.remote_addr, wr.rkey, wr.rest[0]) = (ah, qpn, qkey));
    }

    fn set(&mut self, change: impl FnOnce(&mut Wr)) {
        match self.requests.last_mut() {
            Some(wr) => change(wr),
            None => self.fail(libc::EINVAL),
        }
    }

    /// Something is wrong: nothing of the list will be posted.
    pub(crate) fn fail(&mut self, code: i32) {
        self.error.get_or_insert(code);
    }

    /// The requests with their elements, in order; an error if something is wrong with one. Each
    /// has its data, if only no elements: driver libraries leave out others without a word.
    pub(crate) fn finished(&self) -> Result<impl Iterator<Item = (&SendWr, Elements<'_>)>, i32> {
        let has_data = |wr: &Wr| !matches!(wr.data, Data::None);
        match self.error {
            Some(code) => Err(code),
            None if !self.requests.iter().all(has_data) => Err(libc::EINVAL),
            None => Ok(self.requests.iter().map(|wr| (&wr.wr, self.elements(&wr.data)))),
        }
    }

    fn elements(&self, data: &Data) -> Elements<'_> {
        match data {
            Data::None => Elements::Given(&[]),
            Data::Elements(range) => Elements::Given(&self.sges[range.clone()]),
            Data::Inline(range) => {
                let bytes = &self.inline[range.clone()];
                Elements::Copied([Sge {
                    addr: bytes.as_ptr() as u64,
                    length: bytes.len() as u32,
                    lkey: 0,
                }])
            }
        }
    }
}

/// Where the data of a work request is.
pub(crate) enum Elements<'a> {
    Given(&'a [Sge]),
    /// In the list itself.
    Copied([Sge; 1]),
}

impl Elements<'_> {
    pub(crate) fn as_slice(&self) -> &[Sge] {
        match self {
            Self::Given(sges) => sges,
            Self::Copied([sge]) if sge.length == 0 => &[],
            Self::Copied(one) => one,
        }
    }
}
