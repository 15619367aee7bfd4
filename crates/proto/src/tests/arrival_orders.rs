//! The effect of each immediate on an awaited message, in each state of the message: all orders of
//! a few immediates.

use crate::cts::SlotIndex;
use crate::imm::{Imm, LengthCode};
use crate::recv::{Buffer, RecvFlow};
use crate::stripe::Striping;
use crate::{QpIndex, Violation};
use std::collections::{BTreeMap, BTreeSet};

/// The message may have two stripes. Half of it is one stripe.
const POSTED: u32 = 1 << 20;
const STATES: [&str; 5] = [
    "nothing has come", "a stripe, no length", "low half of the length", "length, not all stripes",
    "whole",
];
/// Names of immediates, and their part of the length.
const EVENTS: [(&str, LengthCode); 7] = [
    ("`Bytes`, one stripe", LengthCode::Bytes(100)),
    ("`Bytes`, two stripes", LengthCode::Bytes(65_000)),
    ("`Full`", LengthCode::Full),
    ("`Stripe`", LengthCode::Stripe),
    ("`Low`", LengthCode::Low(0)),
    ("`High`", LengthCode::High(8)),
    ("`High`, too long", LengthCode::High(17)),
];
/// The results in each state, by event. Two results depend on whether it is the other stripe or the
/// same queue pair.
const FOLLOWING: [[&str; EVENTS.len()]; STATES.len()] = [
    [
        "whole", "length, not all stripes", "length, not all stripes", "a stripe, no length",
        "low half of the length", "error", "error",
    ],
    [
        "error", "error; whole", "error; whole", "a stripe, no length; error",
        "error; low half of the length", "error", "error",
    ],
    [
        "error", "error", "error", "error; low half of the length", "error",
        "error; length, not all stripes; whole", "error",
    ],
    ["error", "error", "error", "error; whole", "error", "error", "error"],
    ["error", "error", "error", "error", "error", "error", "error"],
];
/// Sequence number of the first message.
const FIRST: u32 = 1;
const ERROR: &str = "error";
/// Longer orders lead to no other states.
const LONGEST: usize = 5;

type Table = BTreeMap<(&'static str, &'static str), BTreeSet<&'static str>>;

fn flow() -> RecvFlow {
    let mut flow = RecvFlow::new(Striping::new(1, 2, true));
    let buffer = Buffer { addr: 1, length: POSTED, rkeys: &[1, 0, 0, 0], tag: 0 };
    flow.post(1, |_| Ok::<_, Violation>(buffer)).expect("valid").expect("room");
    flow.poll_cts(8);
    flow
}

/// The flow after the immediates in `order`, each with its queue pair; `None` if one of them has
/// ended the connection.
fn after(order: &[(u8, usize)]) -> Option<RecvFlow> {
    let mut flow = flow();
    for (qp, event) in order {
        flow.handle_immediate(QpIndex(*qp), Imm::new(SlotIndex::of(FIRST), EVENTS[*event].1))
            .ok()?;
    }
    Some(flow)
}

/// Adds everything that can follow `order` to the table.
fn explore(order: &mut Vec<(u8, usize)>, table: &mut Table) {
    let Some(flow) = after(order) else { return };
    let state = flow.state_of(SlotIndex::of(FIRST));
    for qp in 0..2 {
        for (event, (name, _)) in EVENTS.iter().enumerate() {
            order.push((qp, event));
            let next = after(order).map_or(ERROR, |flow| flow.state_of(SlotIndex::of(FIRST)));
            table.entry((state, name)).or_default().insert(next);
            if order.len() < LONGEST {
                explore(order, table);
            }
            order.pop();
        }
    }
}

#[test]
fn each_immediate_leads_from_each_state_to_those_that_follow_or_is_an_error() {
    let mut table = Table::new();
    explore(&mut Vec::new(), &mut table);
    for (state, following) in STATES.into_iter().zip(FOLLOWING) {
        for ((event, _), next) in EVENTS.into_iter().zip(following) {
            let found = table
                .get(&(state, event))
                .map(|found| Vec::from_iter(found.iter().copied()).join("; "));
            assert_eq!(found.as_deref(), Some(next), "{event} in `{state}`");
        }
    }
}
