//! Rules for calls: `ibv_modify_qp` to RTR, and registration of memory. They are numbered as they are asked.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::decide::is_chosen;
use super::rule::Action;
use super::table::action_of;
use crate::fabric::Fabric;
use crate::fabric::slots::RuleSlot;

/// What `ibv_modify_qp` to RTR from a port (0: of any) to a peer device has to answer.
pub(crate) fn modify_qp(fabric: &Fabric, device: usize, port: u32, peer: usize) -> Result<(), i32> {
    ask(fabric, |rule, action| match action {
        Action::ModifyQp(code) if is_from(rule, device, port) && is(rule.peer.load(Relaxed), peer as u32 + 1) => {
            Some(code)
        }
        _ => None,
    })
}

/// What a registration at a device has to answer.
pub(crate) fn reg_mr(fabric: &Fabric, device: usize) -> Result<(), i32> {
    ask(fabric, |rule, action| match action {
        Action::RegMr(code) if is_from(rule, device, 0) => Some(code),
        _ => None,
    })
}

fn is(field: u32, value: u32) -> bool {
    field == 0 || field == value
}

fn is_from(rule: &RuleSlot, device: usize, port: u32) -> bool {
    is(rule.device.load(Relaxed), device as u32 + 1) && (port == 0 || is(rule.port.load(Relaxed), port))
}

/// The errno of the first rule that `code_of` finds concerned and whose turn it is.
fn ask(fabric: &Fabric, code_of: impl Fn(&RuleSlot, Action) -> Option<i32>) -> Result<(), i32> {
    if fabric.header().rules_epoch.load(Acquire) == 0 {
        return Ok(());
    }
    for rule in fabric.rules().iter().filter(|rule| rule.id.load(Acquire) != 0) {
        let Some(code) = action_of(rule).and_then(|action| code_of(rule, action)) else { continue };
        let number = rule.hits.fetch_add(1, Relaxed) + 1;
        let times = u64::from(rule.times.load(Relaxed));
        if is_chosen(rule, number) && (times == 0 || number <= times) {
            return Err(code);
        }
    }
    Ok(())
}
