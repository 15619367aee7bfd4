//! The rules in force: a table in the shared file. A rule in its slot never changes; it is put there and taken away.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::limits::RULES;
use crate::network::topology::Topology;
use crate::rules::action::{Action, ActionKind};
use crate::rules::gid_return::{GidChange, GidReturn};
use crate::rules::rule::{FaultRule, RuleEnd};
use crate::shm::file::{ControlLock, SharedFile};
use crate::shm::slots::RuleSlot;

/// The ports and paths that rules name must be there. The error is a sentence.
pub(crate) fn require(topology: &Topology, rules: &[FaultRule]) -> Result<(), String> {
    let (devices, ports, paths) = (topology.devices(), topology.ports(), topology.paths());
    if let Some(path) = rules.iter().filter_map(|rule| rule.path).find(|path| *path >= paths) {
        return Err(format!("there is no path {path} among {paths}; SOFTRNIC_PATHS says how many there are"));
    }
    let ends = rules.iter().flat_map(|rule| [rule.device, rule.peer]).flatten();
    let mut absent = ends.filter(|end| end.device >= devices || end.port.is_some_and(|port| port > ports));
    absent
        .next()
        .map_or(Ok(()), |end| Err(format!("there is no {end} among {devices} device(s) with {ports} port(s) each")))
}

/// Adds rules behind those in force; returns their numbers. Either all fit or none is added.
pub(crate) fn install(file: &SharedFile, _control: &ControlLock<'_>, rules: &[FaultRule]) -> Result<Vec<u32>, String> {
    let last = file.rules().iter().map(|slot| slot.id.load(Acquire)).max().unwrap_or(0);
    let free: Vec<_> = file.rules().iter().filter(|slot| slot.id.load(Acquire) == 0).collect();
    if free.len() < rules.len() {
        return Err(format!("{} fault rules do not fit: {} of {RULES} places are free", rules.len(), free.len()));
    }
    let numbers: Vec<u32> = (last + 1..).take(rules.len()).collect();
    for ((slot, rule), number) in free.iter().zip(rules).zip(&numbers) {
        store(slot, rule);
        slot.id.store(*number, SeqCst);
    }
    file.header().rules_epoch.fetch_add(1, SeqCst);
    Ok(numbers)
}

/// Takes rule `number` away. False if there is none of that number.
pub(crate) fn remove(file: &SharedFile, _control: &ControlLock<'_>, number: u32) -> bool {
    let slot = file.rules().iter().find(|slot| number != 0 && slot.id.load(Acquire) == number);
    if let Some(slot) = slot {
        slot.id.store(0, SeqCst);
        file.header().rules_epoch.fetch_add(1, SeqCst);
    }
    slot.is_some()
}

/// Takes all rules away.
pub(crate) fn clear(file: &SharedFile, _control: &ControlLock<'_>) {
    file.rules().iter().for_each(|slot| slot.id.store(0, SeqCst));
    file.header().rules_epoch.fetch_add(1, SeqCst);
}

/// The rules in force in their order, each with its number and how often it has been applied.
pub(crate) fn list(file: &SharedFile) -> Vec<(u32, FaultRule, u64)> {
    let numbered = file.rules().iter().map(|slot| (slot.id.load(Acquire), slot)).filter(|(id, _)| *id != 0);
    let mut rules: Vec<_> = numbered.filter_map(|(id, slot)| Some((id, load(slot)?, hits(slot)))).collect();
    rules.sort_by_key(|(id, _, _)| *id);
    rules
}

/// How often a rule has been applied. One that is asked more often than it may be counts on.
fn hits(slot: &RuleSlot) -> u64 {
    let hits = slot.hits.load(Relaxed);
    if action_of(slot).is_some_and(Action::is_for_calls) {
        return applied(slot, hits);
    }
    at_most(slot.times.load(Relaxed), hits)
}

/// How often a rule for calls is applied in the first so many of them.
pub(crate) fn applied(slot: &RuleSlot, calls: u64) -> u64 {
    let (first, every) = (slot.first.load(Relaxed).max(1), slot.every.load(Relaxed).max(1));
    let last = slot.last.load(Relaxed).min(calls);
    at_most(slot.times.load(Relaxed), last.checked_sub(first).map_or(0, |after| after / every + 1))
}

/// `times` is of a rule: 0 is any number.
fn at_most(times: u32, count: u64) -> u64 {
    if times == 0 { count } else { count.min(times.into()) }
}

fn store(slot: &RuleSlot, rule: &FaultRule) {
    let end = |end: Option<RuleEnd>| end.map_or((0, 0), |e| (e.device as u32 + 1, e.port.unwrap_or(0)));
    let (device, port) = end(rule.device);
    let (peer, peer_port) = end(rule.peer);
    slot.action.store(rule.action.kind as u32, Relaxed);
    slot.value.store(rule.action.value, Relaxed);
    slot.gid_after.store(rule.action.gids.after, Relaxed);
    slot.gid_change.store(rule.action.gids.change as u16, Relaxed);
    slot.refuses.store(rule.action.refuses, Relaxed);
    slot.device.store(device, Relaxed);
    slot.port.store(port, Relaxed);
    slot.peer.store(peer, Relaxed);
    slot.peer_port.store(peer_port, Relaxed);
    slot.flow.store(rule.flow.map_or(0, |flow| flow + 1), Relaxed);
    slot.path.store(rule.path.map_or(0, |path| path + 1), Relaxed);
    slot.opcodes.store(rule.opcodes, Relaxed);
    slot.larger.store(rule.larger.unwrap_or(0), Relaxed);
    slot.first.store(*rule.messages.start(), Relaxed);
    slot.last.store(*rule.messages.end(), Relaxed);
    slot.every.store(rule.every, Relaxed);
    slot.chance.store(rule.chance.map_or(u64::MAX, u64::from), Relaxed);
    slot.attempts.store(rule.attempts, Relaxed);
    slot.times.store(rule.times, Relaxed);
    slot.lasts.store(rule.lasts, Relaxed);
    slot.ends_at.store(0, Relaxed);
    slot.hits.store(0, Relaxed);
}

fn load(slot: &RuleSlot) -> Option<FaultRule> {
    let end = |device: u32, port: u32| {
        let device = device.checked_sub(1)? as usize;
        Some(RuleEnd { device, port: (port != 0).then_some(port) })
    };
    let (chance, larger) = (slot.chance.load(Relaxed), slot.larger.load(Relaxed));
    Some(FaultRule {
        action: action_of(slot)?,
        device: end(slot.device.load(Relaxed), slot.port.load(Relaxed)),
        peer: end(slot.peer.load(Relaxed), slot.peer_port.load(Relaxed)),
        flow: slot.flow.load(Relaxed).checked_sub(1),
        path: slot.path.load(Relaxed).checked_sub(1),
        opcodes: slot.opcodes.load(Relaxed),
        larger: (larger != 0).then_some(larger),
        messages: slot.first.load(Relaxed)..=slot.last.load(Relaxed),
        every: slot.every.load(Relaxed),
        chance: (chance != u64::MAX).then_some(chance as u32),
        attempts: slot.attempts.load(Relaxed),
        times: slot.times.load(Relaxed),
        lasts: slot.lasts.load(Relaxed),
    })
}

/// The action of a rule in its slot.
pub(crate) fn action_of(slot: &RuleSlot) -> Option<Action> {
    let change = GidChange::decode(slot.gid_change.load(Relaxed).into());
    let gids = GidReturn { after: slot.gid_after.load(Relaxed), change };
    let kind = ActionKind::decode(slot.action.load(Relaxed))?;
    Some(Action { kind, value: slot.value.load(Relaxed), gids, refuses: slot.refuses.load(Relaxed) })
}
