//! The send queue: requests between post and completion, and their records between completion and poll.
//!
//! ```text
//!   freed <= polled <= acked <= executed <= posted <= freed + max_send_wr
//! ```
//! A request is executed when its bytes are at the peer, and acknowledged when we know it: at once, unless the wire has
//! a latency. A slot is free again only when a completion *after* it has been polled: unsignaled requests hold theirs.

use std::collections::VecDeque;

use crate::abi::consts::Status;
use crate::abi::types::{QpCap, Sge};
use crate::network::link::{MTU_4096, mtu_bytes};
use crate::objects::datagram::Datagram;
use crate::process::route::Route;
use crate::remote::request::Request;
use crate::remote::staged_transfer::StagedTransfer;
use crate::rules::known::KnownRules;

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
    pub(crate) executed: u64,
    pub(crate) acked: u64,
    /// Value of `posted` when the QP was connected: request number n of the connection is the n-th after it.
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
        let (sges_each, inline_each) = (cap.max_send_sge.max(1) as usize, cap.max_inline_data as usize);
        Self {
            posted: 0,
            executed: 0,
            acked: 0,
            origin: 0,
            link: Link { mtu_bytes: mtu_bytes(MTU_4096), ..Link::default() },
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
