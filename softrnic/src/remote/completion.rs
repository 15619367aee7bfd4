//! What a producer of completions does to a completion queue, which may be another process's.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::process::fabric::Fabric;
use crate::shm::slots::{CqSlot, armed};

/// Whether a producer may add a completion. If not, the CQ has overrun and is dead.
#[inline]
pub(crate) fn admit(fabric: &Fabric, cq: &CqSlot) -> bool {
    let waiting = cq.pushed.load(Relaxed).wrapping_sub(cq.polled.load(Relaxed)) as i64;
    if cq.dead.load(Relaxed) == 0 && waiting < i64::from(cq.capacity.load(Relaxed)) {
        return true;
    }
    overrun(fabric, cq);
    false
}

/// The CQ takes nothing more, and its QPs fail.
#[cold]
pub(crate) fn overrun(fabric: &Fabric, cq: &CqSlot) {
    if cq.dead.swap(1, SeqCst) == 0 {
        cq.events.store(1, SeqCst);
        fabric.wake(cq.owner.load(SeqCst));
    }
}

/// Tells the owner that QP number `number` has one completion more. `is_urgent`: solicited or failed.
#[inline]
pub(crate) fn announce(fabric: &Fabric, cq: &CqSlot, number: u32, is_urgent: bool) {
    cq.pushed.fetch_add(1, SeqCst);
    cq.bell.fetch_or(1 << (number % 64), SeqCst);
    if cq.armed.load(SeqCst) & arms_fired_by(is_urgent) != 0 {
        notify(fabric, cq, is_urgent);
    }
}

/// The arms that a completion fires.
fn arms_fired_by(is_urgent: bool) -> u32 {
    if is_urgent { armed::FOR_ANY | armed::FOR_SOLICITED } else { armed::FOR_ANY }
}

#[cold]
fn notify(fabric: &Fabric, cq: &CqSlot, is_urgent: bool) {
    let fire = |word: u32| (word & arms_fired_by(is_urgent) != 0).then_some(armed::NOTIFY);
    if cq.armed.fetch_update(SeqCst, SeqCst, fire).is_ok() {
        fabric.wake(cq.owner.load(SeqCst));
    }
}
