//! What a run does: the two ends and what they agree on, the messages and their buffers.

use crate::endpoint::{Ece, Endpoint, QpEnd, RailEnd, SinkEnd};
use crate::handshake::{Hello, Negotiated, Reply, Ring};
use crate::identity::Identity;
use crate::rail_weights::RailWeights;
use crate::random::Random;
use crate::recovery::rail_mask::RailMask;
use crate::send::SendFlow;
use crate::stripe::Striping;
use crate::{MAX_GROUP, MAX_RAILS};
use std::ops::Range;

/// Message number i of a run is for buffer number i: it is the k-th message of its tag, for the
/// k-th buffer of that tag.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message {
    pub(super) tag: u32,
    /// Bytes that the sender passes to `isend`.
    pub(super) length: u32,
    /// Bytes of the buffer.
    pub(super) posted: u32,
}

impl Message {
    /// Bytes that are to arrive.
    pub(super) fn arriving(&self) -> u32 {
        self.length.min(self.posted)
    }
}

/// All that is fixed before the first step.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) striping: Striping,
    pub(super) weights: RailWeights,
    /// Whether the sender's queue pairs are lanes.
    pub(super) has_lanes: bool,
    pub(super) messages: Vec<Message>,
    /// The messages of each grouped receive.
    pub(super) groups: Vec<Range<usize>>,
    /// Longer stripes end in a trailing immediate write.
    pub(super) trailing_above: u32,
    /// Extra work requests that each send queue has space for.
    pub(super) max_extra: u16,
    /// Remote keys of each buffer, by rail.
    pub(super) keys: Vec<[u32; MAX_RAILS]>,
}

impl Plan {
    /// A plan of at most `most_groups` grouped receives.
    pub(super) fn new(random: &mut Random, most_groups: u64) -> Self {
        let mut end = || {
            let rails = if random.one_in(2) { 1 } else { 1 + random.index(MAX_RAILS) };
            endpoint(rails, 1 + random.index(4), !random.one_in(3))
        };
        let (near, far) = (end(), end());
        let striping = Negotiated::agree(&near, &far).expect("ends of one link layer").striping;
        // What another simulator drew here: seeds keep their meaning.
        if random.one_in(2) {
            for _ in 0..MAX_RAILS {
                let _ = random.below(16);
            }
        }
        let _ = (random.one_in(3), random.one_in(4));
        let trailing_above = if random.one_in(2) { u32::MAX } else { 1000 };
        let max_extra = 2 + random.below(8) as u16;
        let mut messages = Vec::new();
        let groups =
            (0..1 + random.below(most_groups)).map(|_| group(random, &mut messages)).collect();
        let keys = (0..messages.len()).map(|i| std::array::from_fn(|rail| rkey(i, rail))).collect();
        let weights = near.rail_weights_with(&far);
        let has_lanes = striping.is_split() && max_extra.is_multiple_of(2);
        Self { striping, weights, has_lanes, messages, groups, trailing_above, max_extra, keys }
    }

    /// The sending end.
    pub(super) fn send_flow(&self) -> SendFlow {
        let mut flow = SendFlow::new(self.striping, self.weights);
        if self.has_lanes {
            flow.use_lanes();
        }
        flow
    }

    /// Queue pairs on each rail.
    pub(super) fn per_rail(&self) -> usize {
        self.qps() / self.rails()
    }

    pub(super) fn rails(&self) -> usize {
        self.striping.rails().into()
    }

    pub(super) fn qps(&self) -> usize {
        self.striping.qp_count().into()
    }
}

/// Adds the messages of one grouped receive, with consecutive tags.
fn group(random: &mut Random, messages: &mut Vec<Message>) -> Range<usize> {
    let count = if random.one_in(2) { 1 } else { 1 + random.index(MAX_GROUP) };
    let (first, first_tag) = (messages.len(), random.below(3) as u32);
    for tag in first_tag..first_tag + count as u32 {
        let length = length(random);
        let posted = if random.one_in(2) { length } else { self::length(random) };
        messages.push(Message { tag, length, posted });
    }
    first..first + count
}

fn length(random: &mut Random) -> u32 {
    let limit = [1, 200, 9_000, 70_000, 3 << 20, 20 << 20][random.index(6)];
    random.below(limit) as u32
}

/// Remote key of buffer `i` on a rail.
pub(super) fn rkey(i: usize, rail: usize) -> u32 {
    (i * MAX_RAILS + rail + 1) as u32
}

/// Address of buffer `i`.
pub(super) fn address(i: usize) -> u64 {
    (i as u64 + 1) << 32
}

/// The buffer that has the address `addr`, and the offset in it.
pub(super) fn buffer_at(addr: u64) -> (usize, u32) {
    ((addr >> 32) as usize - 1, addr as u32)
}

/// An end with `qps` queue pairs on each of `rails` rails.
pub(crate) fn endpoint(rails: usize, qps: usize, split: bool) -> Endpoint {
    let rail = |rail: usize| RailEnd {
        name: format!("rdma{rail} port 1"),
        infiniband: false,
        lid: 0,
        gid: [3 + rail as u8; 16],
        mtu: 5 - rail as u8,
        speed_mbps: 400_000 >> rail,
        ring_key: 77 + rail as u32,
        sink: SinkEnd { addr: (rail as u64 + 1) << 40, key: 177 + rail as u32 },
        qps: (0..qps as u32).map(|i| queue_pair(rail as u32, i)).collect(),
    };
    let rails = (0..rails).map(rail).collect();
    Endpoint {
        name: "rdma of process 42 on host".into(),
        adaptive_routing: qps == 2,
        split,
        failover: true,
        rails,
    }
}

fn queue_pair(rail: u32, i: u32) -> QpEnd {
    let ece = Ece { vendor_id: 0x15b3, options: rail << 8 | i, comp_mask: 0 };
    QpEnd { qpn: 100 * rail + i, psn: 7 * i, ece: Some(ece).filter(|_| i % 2 == 1) }
}

/// The first message of a sender with this end, which can use all of its rails.
pub(crate) fn hello(endpoint: Endpoint, ring: Ring) -> Hello {
    let count = endpoint.rails.len() as u8;
    let (rails, left_out) = (RailMask::first(count), String::new());
    Hello { token: [6; 16], count, rails, left_out, endpoint, ring, identity: identity() }
}

/// The reply of a receiver with this end to that, for these rails.
pub(crate) fn reply(hello: &Hello, rails: RailMask, mut endpoint: Endpoint) -> Reply {
    let offered = hello.endpoint.over(hello.rails, rails);
    let terms = Negotiated::agree(&offered, &endpoint).expect("they fit").over(hello.count, rails);
    endpoint.truncate(rails.count().into(), terms.qps_per_rail());
    Reply { rails, left_out: String::new(), endpoint, terms, identity: identity() }
}

/// The process of such an end.
pub(crate) fn identity() -> Identity {
    Identity { host: "host".into(), pid: 42, rank: Some(3), label: None }
}
