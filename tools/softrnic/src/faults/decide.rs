//! Whether a rule strikes a message.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::apply::{Effect, apply};
use super::rule::Action;
use super::{table, trace};
use crate::fabric::slots::RuleSlot;
use crate::qp::Qp;
use crate::route::Place;
use crate::send_queue::SendQueue;

/// The rules that concern one connection.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    epoch: u32,
    /// Each with its identity and its action.
    rules: Vec<(&'static RuleSlot, u32, Action)>,
}

impl Targets {
    /// The connection is a new one.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// The fault that strikes the head request of `queue` this time, if one does; what it does beyond the message is done.
#[inline]
pub(crate) fn decide(qp: &Qp, queue: &mut SendQueue) -> Option<Effect> {
    let epoch = qp.fabric.header().rules_epoch.load(Acquire);
    if epoch != queue.targets.epoch {
        aim(qp, queue, epoch);
    }
    if queue.targets.rules.is_empty() { None } else { strike(qp, queue) }
}

/// Finds the rules for this connection.
#[cold]
fn aim(qp: &Qp, queue: &mut SendQueue, epoch: u32) {
    let (from, to) = (qp.place(), Place::of_name(queue.link.peer));
    let flow = qp.slot.flow.load(Relaxed);
    let concerns = |rule: &&RuleSlot| {
        let is = |field: u32, value: u32| field == 0 || field == value;
        is(rule.device.load(Relaxed), from.device as u32 + 1)
            && is(rule.port.load(Relaxed), from.port)
            && is(rule.peer.load(Relaxed), to.device as u32 + 1)
            && is(rule.peer_port.load(Relaxed), to.port)
            && is(rule.flow.load(Relaxed), flow + 1)
    };
    let rules = qp.fabric.rules().iter().filter(|rule| rule.id.load(Acquire) != 0).filter(concerns);
    let rules = rules.filter_map(|rule| Some((rule, rule.id.load(Acquire), table::action_of(rule)?)));
    let mut rules: Vec<_> = rules.filter(|(_, _, action)| !action.is_for_calls()).collect();
    // In the order in which they were put into force, wherever there was room for them.
    rules.sort_unstable_by_key(|(_, id, _)| *id);
    queue.targets = Targets { epoch, rules };
}

#[cold]
fn strike(qp: &Qp, queue: &mut SendQueue) -> Option<Effect> {
    let (number, attempt) = (queue.number(), queue.head.attempts());
    let opcode = queue.request(queue.executed).0.opcode;
    let is_delayed = queue.head.is_delayed;
    let path = path_of(qp, queue);
    let struck = queue.targets.rules.iter().find(|(rule, id, action)| {
        let is_over = matches!(action, Action::Delay(_)) && is_delayed;
        !is_over
            && rule.id.load(Relaxed) == *id
            && rule.opcodes.load(Relaxed) & 1 << opcode.min(31) != 0
            && attempt < rule.attempts.load(Relaxed)
            && is_chosen(rule, number)
            && is_drawn(qp, rule, *id, (path, number, attempt))
            && takes_a_turn(rule)
    });
    let (_, id, action) = *struck?;
    qp.slot.sent.faults.store(qp.slot.sent.faults.load(Relaxed) + 1, Relaxed);
    trace::tell(qp, queue, number, attempt, action);
    let salt = random(qp.fabric.header().seed.load(Relaxed), &[path, number, u64::from(id), 1]);
    Some(apply(qp, action, salt))
}

/// Ports and number of the connection in one word.
fn path_of(qp: &Qp, queue: &SendQueue) -> u64 {
    u64::from(qp.slot.flow.load(Relaxed)) << 32 | (qp.name() >> 32) << 16 | queue.link.peer >> 32
}

/// Whether `number` is among the rule's messages.
pub(super) fn is_chosen(rule: &RuleSlot, number: u64) -> bool {
    let first = rule.first.load(Relaxed);
    let every = rule.every.load(Relaxed).max(1);
    (first..=rule.last.load(Relaxed)).contains(&number) && (number - first).is_multiple_of(every)
}

fn is_drawn(qp: &Qp, rule: &RuleSlot, id: u32, (path, number, attempt): (u64, u64, u32)) -> bool {
    let chance = rule.chance.load(Relaxed);
    if chance == u64::MAX {
        return true;
    }
    let seed = qp.fabric.header().seed.load(Relaxed);
    random(seed, &[path, number, u64::from(id), u64::from(attempt) << 1]) >> 32 < chance
}

/// Counts a strike; false if the rule has had all of its own.
pub(super) fn takes_a_turn(rule: &RuleSlot) -> bool {
    let before = rule.hits.fetch_add(1, Relaxed);
    let times = rule.times.load(Relaxed);
    times == 0 || before < u64::from(times)
}

/// A number that depends on nothing but its arguments, and on every bit of them.
fn random(seed: u64, words: &[u64]) -> u64 {
    words.iter().fold(mix(seed), |state, word| mix(state ^ mix(*word)))
}

/// The finaliser of splitmix64.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
