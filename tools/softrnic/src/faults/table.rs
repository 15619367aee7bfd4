//! The rules in force: a table in the fabric. A rule in its slot never changes; it is put there and taken away.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use super::rule::{Action, End, Rule};
use crate::fabric::Fabric;
use crate::fabric::file::Control;
use crate::fabric::layout::RULES;
use crate::fabric::slots::RuleSlot;
use crate::shape::Shape;

/// The ports that rules name must be there. The error is a sentence.
pub(crate) fn require(shape: &Shape, rules: &[Rule]) -> Result<(), String> {
    let (devices, ports) = (shape.devices(), shape.ports());
    let ends = rules.iter().flat_map(|rule| [rule.device, rule.peer]).flatten();
    let mut strangers = ends.filter(|end| end.device >= devices || end.port.is_some_and(|port| port > ports));
    strangers
        .next()
        .map_or(Ok(()), |end| Err(format!("there is no {end} among {devices} device(s) with {ports} port(s) each")))
}

/// Adds rules behind those in force; returns their numbers. Either all fit or none is added.
pub(crate) fn install(fabric: &Fabric, _control: &Control<'_>, rules: &[Rule]) -> Result<Vec<u32>, String> {
    let last = fabric.rules().iter().map(|slot| slot.id.load(Acquire)).max().unwrap_or(0);
    let free: Vec<_> = fabric.rules().iter().filter(|slot| slot.id.load(Acquire) == 0).collect();
    if free.len() < rules.len() {
        return Err(format!("{} fault rules do not fit: {} of {RULES} places are free", rules.len(), free.len()));
    }
    let numbers: Vec<u32> = (last + 1..).take(rules.len()).collect();
    for ((slot, rule), number) in free.iter().zip(rules).zip(&numbers) {
        store(slot, rule);
        slot.id.store(*number, SeqCst);
    }
    fabric.header().rules_epoch.fetch_add(1, SeqCst);
    Ok(numbers)
}

/// Takes rule `number` away. False if there is none of that number.
pub(crate) fn remove(fabric: &Fabric, _control: &Control<'_>, number: u32) -> bool {
    let slot = fabric.rules().iter().find(|slot| number != 0 && slot.id.load(Acquire) == number);
    if let Some(slot) = slot {
        slot.id.store(0, SeqCst);
        fabric.header().rules_epoch.fetch_add(1, SeqCst);
    }
    slot.is_some()
}

/// Takes all rules away.
pub(crate) fn clear(fabric: &Fabric, _control: &Control<'_>) {
    fabric.rules().iter().for_each(|slot| slot.id.store(0, SeqCst));
    fabric.header().rules_epoch.fetch_add(1, SeqCst);
}

/// The rules in force in their order, each with its number and how often it has struck.
pub(crate) fn list(fabric: &Fabric) -> Vec<(u32, Rule, u64)> {
    let numbered = fabric.rules().iter().map(|slot| (slot.id.load(Acquire), slot)).filter(|(id, _)| *id != 0);
    let mut rules: Vec<_> = numbered.filter_map(|(id, slot)| Some((id, load(slot)?, strikes(slot)))).collect();
    rules.sort_by_key(|(id, _, _)| *id);
    rules
}

/// Asked more often than it may strike, a rule counts on.
fn strikes(slot: &RuleSlot) -> u64 {
    let (hits, times) = (slot.hits.load(Relaxed), u64::from(slot.times.load(Relaxed)));
    if times == 0 { hits } else { hits.min(times) }
}

fn store(slot: &RuleSlot, rule: &Rule) {
    let (action, value) = encode(rule.action);
    let end = |end: Option<End>| end.map_or((0, 0), |e| (e.device as u32 + 1, e.port.unwrap_or(0)));
    let (device, port) = end(rule.device);
    let (peer, peer_port) = end(rule.peer);
    slot.action.store(action, Relaxed);
    slot.value.store(value, Relaxed);
    slot.device.store(device, Relaxed);
    slot.port.store(port, Relaxed);
    slot.peer.store(peer, Relaxed);
    slot.peer_port.store(peer_port, Relaxed);
    slot.flow.store(rule.flow.map_or(0, |flow| flow + 1), Relaxed);
    slot.opcodes.store(rule.opcodes, Relaxed);
    slot.first.store(*rule.messages.start(), Relaxed);
    slot.last.store(*rule.messages.end(), Relaxed);
    slot.every.store(rule.every, Relaxed);
    slot.chance.store(rule.chance.map_or(u64::MAX, u64::from), Relaxed);
    slot.attempts.store(rule.attempts, Relaxed);
    slot.times.store(rule.times, Relaxed);
    slot.hits.store(0, Relaxed);
}

fn load(slot: &RuleSlot) -> Option<Rule> {
    let end = |device: u32, port: u32| {
        let device = device.checked_sub(1)? as usize;
        Some(End { device, port: (port != 0).then_some(port) })
    };
    let chance = slot.chance.load(Relaxed);
    Some(Rule {
        action: action_of(slot)?,
        device: end(slot.device.load(Relaxed), slot.port.load(Relaxed)),
        peer: end(slot.peer.load(Relaxed), slot.peer_port.load(Relaxed)),
        flow: slot.flow.load(Relaxed).checked_sub(1),
        opcodes: slot.opcodes.load(Relaxed),
        messages: slot.first.load(Relaxed)..=slot.last.load(Relaxed),
        every: slot.every.load(Relaxed),
        chance: (chance != u64::MAX).then_some(chance as u32),
        attempts: slot.attempts.load(Relaxed),
        times: slot.times.load(Relaxed),
    })
}

/// Number and value of an action.
fn encode(action: Action) -> (u32, u64) {
    match action {
        Action::Drop => (1, 0),
        Action::DropAck => (2, 0),
        Action::Delay(ns) => (3, ns),
        Action::Late(ns) => (4, ns),
        Action::Rnr => (5, 0),
        Action::Corrupt => (6, 0),
        Action::QpError => (7, 0),
        Action::AccessError => (8, 0),
        Action::OperationError => (9, 0),
        Action::CqOverrun => (10, 0),
        Action::PortDown(ns) => (11, ns),
        Action::PortUp => (12, 0),
        Action::Slow(pace) => (13, pace),
        Action::DeviceFatal => (14, 0),
        Action::Kill => (15, 0),
        Action::ModifyQp(code) => (16, code as u64),
        Action::RegMr(code) => (17, code as u64),
    }
}

/// The action of a rule in its slot.
pub(super) fn action_of(slot: &RuleSlot) -> Option<Action> {
    let value = slot.value.load(Relaxed);
    Some(match slot.action.load(Relaxed) {
        1 => Action::Drop,
        2 => Action::DropAck,
        3 => Action::Delay(value),
        4 => Action::Late(value),
        5 => Action::Rnr,
        6 => Action::Corrupt,
        7 => Action::QpError,
        8 => Action::AccessError,
        9 => Action::OperationError,
        10 => Action::CqOverrun,
        11 => Action::PortDown(value),
        12 => Action::PortUp,
        13 => Action::Slow(value),
        14 => Action::DeviceFatal,
        15 => Action::Kill,
        16 => Action::ModifyQp(value as i32),
        17 => Action::RegMr(value as i32),
        _ => return None,
    })
}
