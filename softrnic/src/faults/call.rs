//! Rules for calls: `ibv_modify_qp` to RTR, registration of memory, `ibv_poll_cq` and `ibv_post_send`. They are numbered as they are asked.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::faults::matching::{is_in_time, is_over};
use crate::network::port_id::PortId;
use crate::process::fabric::Fabric;
use crate::rules::action::{Action, ActionKind};
use crate::rules::table::{action_of, applied};
use crate::shm::slots::RuleSlot;

/// What `ibv_modify_qp` to RTR from one port to another has to answer.
pub(crate) fn modify_qp(fabric: &Fabric, from: PortId, to: PortId) -> Result<(), i32> {
    ask(fabric, |rule, action| match action.kind {
        ActionKind::ModifyQp => {
            let is_ours = is_at([&rule.device, &rule.port], from) && is_at([&rule.peer, &rule.peer_port], to);
            is_ours.then_some(action.value as i32)
        }
        _ => None,
    })
}

/// What a registration at a device has to answer.
pub(crate) fn reg_mr(fabric: &Fabric, device: usize) -> Result<(), i32> {
    ask(fabric, |rule, action| match action.kind {
        ActionKind::RegMr if is(&rule.device, device as u32 + 1) => Some(action.value as i32),
        _ => None,
    })
}

/// Whether there is a rule for polls or posts.
pub(crate) fn has_polls_or_posts(fabric: &Fabric) -> bool {
    let mut rules = fabric.rules().iter().filter(|rule| rule.id.load(Acquire) != 0);
    let is_one = |action: Action| matches!(action.kind, ActionKind::PollCq | ActionKind::PostSend);
    rules.any(|rule| action_of(rule).is_some_and(is_one))
}

/// What a poll of a completion queue of a device has to answer.
pub(crate) fn poll_cq(fabric: &Fabric, device: usize) -> Result<(), i32> {
    ask(fabric, |rule, action| match action.kind {
        ActionKind::PollCq if is(&rule.device, device as u32 + 1) => Some(action.value as i32),
        _ => None,
    })
}

/// What posting a work request to a send queue of a device has to answer.
pub(crate) fn post_send(fabric: &Fabric, device: usize) -> Result<(), i32> {
    ask(fabric, |rule, action| match action.kind {
        ActionKind::PostSend if is(&rule.device, device as u32 + 1) => Some(action.value as i32),
        _ => None,
    })
}

fn is(field: &AtomicU32, value: u32) -> bool {
    let field = field.load(Relaxed);
    field == 0 || field == value
}

fn is_at([device, port]: [&AtomicU32; 2], end: PortId) -> bool {
    is(device, end.device as u32 + 1) && is(port, end.port)
}

/// The errno of the first rule that `code_of` finds concerned and that applies to this call.
fn ask(fabric: &Fabric, code_of: impl Fn(&RuleSlot, Action) -> Option<i32>) -> Result<(), i32> {
    if fabric.header().rules_epoch.load(Acquire) == 0 {
        return Ok(());
    }
    let mut rules: Vec<_> = fabric.rules().iter().filter(|rule| rule.id.load(Acquire) != 0).collect();
    rules.sort_unstable_by_key(|rule| rule.id.load(Acquire));
    for rule in rules {
        let Some(code) = action_of(rule).and_then(|action| code_of(rule, action)) else { continue };
        if is_over(rule) {
            continue;
        }
        let before = rule.hits.fetch_add(1, Relaxed);
        if applied(rule, before + 1) > applied(rule, before) && is_in_time(rule) {
            return Err(code);
        }
    }
    Ok(())
}
