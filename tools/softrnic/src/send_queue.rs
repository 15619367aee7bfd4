//! The send queue: requests between post and completion, and their records between completion and poll.
//!
//! ```text
//!   freed <= polled <= acked <= executed <= posted <= freed + max_send_wr
//! ```
//! A request is executed when its bytes are at the peer, and acknowledged when we know it: at once, unless the wire has
//! a latency. A slot is free again only when a completion *after* it has been polled: unsignaled requests hold theirs.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::abi::consts::Status;
use crate::abi::types::{QpCap, Sge};
use crate::engine::Moving;
use crate::faults::Targets;
use crate::route::Route;

/// One posted request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) imm: u32,
    pub(crate) num_sge: u32,
    pub(crate) inline_len: u32,
    pub(crate) rkey: u32,
    pub(crate) remote_addr: u64,
    /// Atomics: value to add, or to compare with and to swap in.
    pub(crate) operands: [u64; 2],
    /// When (monotonic ns) it reaches the peer; 0 is at once.
    pub(crate) due: u64,
}

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
    pub(crate) executed: u64,
    pub(crate) acked: u64,
    /// Value of `posted` when the QP was connected: request number n of the connection is the n-th after it.
    pub(crate) origin: u64,
    pub(crate) link: Link,
    pub(crate) head: Head,
    /// When the last request reaches the peer, as far as the wire has been planned.
    pub(crate) planned: u64,
    /// A failure is on its way back: nothing more is sent.
    pub(crate) is_broken: bool,
    /// The head request, if its bytes pass through the stage.
    pub(crate) moving: Option<Box<Moving>>,
    /// The timer that is set for this queue; `u64::MAX`: none.
    pub(crate) alarm: u64,
    pub(crate) visits: u32,
    /// In the state SQD: an event is wanted when nothing is under way.
    pub(crate) wants_drained: bool,
    pub(crate) targets: Targets,
    mask: u64,
    requests: Box<[Request]>,
    outcomes: VecDeque<Outcome>,
    sges: Box<[Sge]>,
    sges_each: usize,
    inline: Box<[u8]>,
    inline_each: usize,
}

/// How far the oldest request not executed has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Head {
    /// It is not tried before this time (ns); 0 is "at once".
    pub(crate) until: u64,
    /// Transmissions that got no answer, and those that found no receive.
    pub(crate) losses: u32,
    pub(crate) rnr_waits: u32,
    /// A rule has held it up.
    pub(crate) is_delayed: bool,
    /// The peer has executed it, but its acknowledgement was lost.
    pub(crate) is_delivered: bool,
    /// A rule takes the acknowledgement of this transmission away.
    pub(crate) loses_ack: bool,
}

impl Head {
    /// Transmissions so far.
    pub(crate) fn attempts(&self) -> u32 {
        self.losses + self.rnr_waits
    }
}

impl SendQueue {
    pub(crate) fn new(cap: &QpCap) -> Self {
        let entries = entries(cap);
        let (sges_each, inline_each) = (cap.max_send_sge.max(1) as usize, cap.max_inline_data as usize);
        Self {
            posted: 0,
            executed: 0,
            acked: 0,
            origin: 0,
            link: Link::default(),
            head: Head::default(),
            planned: 0,
            is_broken: false,
            moving: None,
            alarm: u64::MAX,
            visits: 0,
            wants_drained: false,
            targets: Targets::default(),
            mask: entries as u64 - 1,
            requests: vec![Request::default(); entries].into(),
            outcomes: VecDeque::new(),
            sges: vec![Sge::default(); entries * sges_each].into(),
            sges_each,
            inline: vec![0; entries * inline_each].into(),
            inline_each,
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
        self.moving.is_some() || self.head.attempts() != 0
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
        self.targets.forget();
    }

    /// Forgets all requests.
    pub(crate) fn discard(&mut self) {
        self.moving = None;
        self.outcomes.clear();
        self.head = Head::default();
        self.is_broken = false;
        self.wants_drained = false;
        self.planned = 0;
        (self.acked, self.executed) = (self.posted, self.posted);
    }
}

fn entries(cap: &QpCap) -> usize {
    (cap.max_send_wr.max(1) as usize).next_power_of_two()
}

/// What became of one request. Two words, so that poller and executor need no lock in common.
#[derive(Debug, Default)]
struct Record {
    wr_id: AtomicU64,
    /// Status | opcode << 8 | has a completion << 16 | byte count << 32.
    rest: AtomicU64,
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
}

impl SendRing {
    pub(crate) fn new(cap: &QpCap) -> Self {
        let entries = entries(cap);
        Self {
            done: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            mask: entries as u64 - 1,
            records: (0..entries).map(|_| Record::default()).collect(),
        }
    }

    /// Requests whose slots are in use, given how many were posted.
    pub(crate) fn in_use(&self, posted: u64) -> u64 {
        posted - self.freed.load(Acquire)
    }

    /// Records the outcome of request number `at`.
    pub(crate) fn record(&self, at: u64, wr_id: u64, status: u32, opcode: u32, byte_len: u32, is_completion: bool) {
        let record = &self.records[(at & self.mask) as usize];
        record.wr_id.store(wr_id, Relaxed);
        let rest = u64::from(status) | u64::from(opcode) << 8 | u64::from(is_completion) << 16;
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
                self.freed.store(at, Release);
                let (status, opcode) = (rest as u32 & 0xff, rest as u32 >> 8 & 0xff);
                return Some(Taken { wr_id, status, opcode, byte_len: (rest >> 32) as u32 });
            }
        }
        self.polled.store(at, Relaxed);
        None
    }

    /// Whether records wait to be looked at.
    pub(crate) fn has_more(&self) -> bool {
        self.polled.load(Relaxed) != self.done.load(Acquire)
    }

    /// Empties the ring up to `posted`; returns how many completions that threw away.
    pub(crate) fn discard(&self, posted: u64) -> u64 {
        let thrown = std::iter::from_fn(|| self.take()).count();
        self.done.store(posted, Relaxed);
        self.polled.store(posted, Relaxed);
        self.freed.store(posted, Release);
        thrown as u64
    }
}
