//! What ends say at set-up, for tests.

#![allow(clippy::expect_used)]

use crate::endpoint::{Ece, Endpoint, QpEnd, RailEnd, SinkEnd};
use crate::handshake::{Hello, Negotiated, Reply, Ring};
use crate::identity::Identity;
use crate::recovery::rail_mask::RailMask;

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
