//! Completion queues.
//!
//! A CQ holds no completions. They stay in the rings of its QPs, which have one producer each, and the CQ holds what
//! all producers share: a doorbell with a bit per QP, and two counters to notice an overrun.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Condvar, Mutex};

use crate::abi::consts::event;
use crate::abi::types::{self, Wc};
use crate::context::Context;
use crate::engine;
use crate::fabric::layout::Table;
use crate::fabric::slots::{CqSlot, armed};
use crate::fabric::{Fabric, lock};
use crate::qp::Qp;
use crate::queue::TokenQueue;

/// What the application holds as `ibv_comp_channel*` is its first field.
#[repr(C)]
pub(crate) struct Channel {
    abi: types::CompChannel,
    pub(crate) context: Arc<Context>,
    /// Application's `ibv_cq*` of each notification.
    pub(crate) tokens: TokenQueue<usize>,
    pub(crate) users: AtomicU32,
}

// SAFETY: `abi` is written once; the application reads it.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub(crate) fn new(context: Arc<Context>) -> Result<Box<Self>, i32> {
        let tokens = TokenQueue::new()?;
        let abi = types::CompChannel { context: context.as_abi(), fd: tokens.fd(), refcnt: 0 };
        Ok(Box::new(Self { abi, context, tokens, users: AtomicU32::new(0) }))
    }

    pub(crate) fn as_abi(&self) -> *mut types::CompChannel {
        (&raw const self.abi).cast_mut()
    }
}

/// What the application holds as `ibv_cq*` is its first field.
#[repr(C)]
pub(crate) struct Cq {
    abi: types::Cq,
    pub(crate) context: Arc<Context>,
    pub(crate) slot: &'static CqSlot,
    pub(crate) index: u32,
    channel: Option<&'static Channel>,
    /// Its QPs by number; bit `number % 64` of the doorbell is theirs.
    members: Mutex<Vec<Option<Arc<Qp>>>>,
    /// Doorbell bits taken but not worked off.
    carry: AtomicU64,
    /// Events given to the application, to be acknowledged before the CQ goes.
    pub(crate) comp_events: AtomicU32,
    pub(crate) async_events: AtomicU32,
    acked: (Mutex<()>, Condvar),
}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cq").field("index", &self.index).finish_non_exhaustive()
    }
}

// SAFETY: `abi` is written once but for its atomics; the rest synchronises itself.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    pub(crate) fn new(
        context: Arc<Context>,
        cqe: u32,
        cq_context: *mut std::ffi::c_void,
        channel: Option<&'static Channel>,
    ) -> Result<Arc<Self>, i32> {
        let (fabric, device) = (context.fabric, context.device.index);
        // Like the common hardware: a power of two less one.
        let capacity = (cqe + 1).next_power_of_two() - 1;
        let control = fabric.file.control();
        let index = fabric.claim(&control, Table::Cq, device, fabric.settings.max_cq)?;
        let slot = fabric.cq(device, index);
        slot.capacity.store(capacity, SeqCst);
        for word in [&slot.bell, &slot.pushed, &slot.polled] {
            word.store(0, SeqCst);
        }
        for word in [&slot.dead, &slot.events, &slot.armed] {
            word.store(0, SeqCst);
        }
        drop(control);
        let abi = types::Cq {
            context: context.as_abi(),
            channel: channel.map_or(std::ptr::null_mut(), Channel::as_abi),
            cq_context,
            handle: index,
            cqe: capacity as i32,
            mutex: [0; 5],
            cond: [0; 6],
            comp_events_completed: AtomicU32::new(0),
            async_events_completed: AtomicU32::new(0),
        };
        if let Some(channel) = channel {
            channel.users.fetch_add(1, SeqCst);
        }
        let cq = Arc::new(Self {
            abi,
            context,
            slot,
            index,
            channel,
            members: Mutex::default(),
            carry: AtomicU64::new(0),
            comp_events: AtomicU32::new(0),
            async_events: AtomicU32::new(0),
            acked: Default::default(),
        });
        lock(&fabric.cqs).push(Arc::clone(&cq));
        Ok(cq)
    }

    pub(crate) fn as_abi(&self) -> *mut types::Cq {
        (&raw const self.abi).cast_mut()
    }

    /// Adds a QP; returns its number here.
    pub(crate) fn join(&self, qp: &Arc<Qp>) -> u32 {
        let mut members = lock(&self.members);
        let free = members.iter().position(Option::is_none).unwrap_or_else(|| {
            members.push(None);
            members.len() - 1
        });
        members[free] = Some(Arc::clone(qp));
        free as u32
    }

    /// Runs `work` while nobody polls this CQ.
    pub(crate) fn while_not_polled<R>(&self, work: impl FnOnce() -> R) -> R {
        let _members = lock(&self.members);
        work()
    }

    /// Removes a QP.
    pub(crate) fn part(&self, qp: &Qp) {
        for member in lock(&self.members).iter_mut() {
            if member.as_ref().is_some_and(|m| std::ptr::eq(&raw const **m, qp)) {
                *member = None;
            }
        }
    }

    /// Takes completions; returns how many.
    pub(crate) fn poll(&self, out: &mut [MaybeUninit<Wc>]) -> usize {
        let fabric = self.context.fabric;
        fabric.timers.run_due(fabric);
        if fabric.has_stage() {
            engine::poll(fabric);
        }
        if self.slot.bell.load(Relaxed) == 0 && self.carry.load(Relaxed) == 0 {
            return 0;
        }
        let members = lock(&self.members);
        let mut bits = self.carry.load(Relaxed) | self.slot.bell.swap(0, Acquire);
        let (mut keep, mut taken) = (0, 0);
        while bits != 0 {
            if taken == out.len() {
                keep |= bits;
                break;
            }
            let bit = bits.trailing_zeros();
            bits &= bits - 1;
            for qp in members.iter().skip(bit as usize).step_by(64).flatten() {
                if qp.drain(self, out, &mut taken) {
                    keep |= 1 << bit;
                }
            }
        }
        self.carry.store(keep, Relaxed);
        if taken != 0 {
            self.slot.polled.fetch_add(taken as u64, SeqCst);
        }
        taken
    }

    /// Takes this CQ out of the fabric; EBUSY while it has QPs.
    pub(crate) fn destroy(&self) -> Result<(), i32> {
        if lock(&self.members).iter().any(Option::is_some) {
            return Err(libc::EBUSY);
        }
        let fabric = self.context.fabric;
        lock(&fabric.cqs).retain(|cq| !std::ptr::eq(&raw const **cq, self));
        let me = self.as_abi() as usize;
        self.context.events.purge(|e| e.element == me);
        if let Some(channel) = self.channel {
            channel.tokens.purge(|&token| token == me);
            channel.users.fetch_sub(1, SeqCst);
        }
        self.await_acks();
        let control = fabric.file.control();
        fabric.free(&control, Table::Cq, self.context.device.index, self.index);
        Ok(())
    }

    fn await_acks(&self) {
        let mut guard = lock(&self.acked.0);
        while self.abi.comp_events_completed.load(SeqCst) != self.comp_events.load(SeqCst)
            || self.abi.async_events_completed.load(SeqCst) != self.async_events.load(SeqCst)
        {
            guard = self.acked.1.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    pub(crate) fn ack_comp_events(&self, count: u32) {
        let _guard = lock(&self.acked.0);
        self.abi.comp_events_completed.fetch_add(count, SeqCst);
        self.acked.1.notify_all();
    }

    pub(crate) fn ack_async_event(&self) {
        let _guard = lock(&self.acked.0);
        self.abi.async_events_completed.fetch_add(1, SeqCst);
        self.acked.1.notify_all();
    }

    /// Asks for a notification of the next completion.
    pub(crate) fn arm(&self, is_for_any: bool) {
        let bit = if is_for_any { armed::FOR_ANY } else { armed::FOR_SOLICITED };
        // What is to be told of an arm before this one is told.
        self.slot.armed.fetch_and(armed::TELL, SeqCst);
        self.slot.armed.fetch_or(bit, SeqCst);
    }

    /// For the service thread: passes on what producers asked to be told.
    pub(crate) fn deliver(&self) {
        if self.slot.events.swap(0, SeqCst) != 0 {
            lock(&self.members).iter().flatten().for_each(|qp| qp.slot.fail());
            self.context.events.push(crate::context::Event { element: self.as_abi() as usize, kind: event::CQ_ERR });
        }
        if self.slot.armed.fetch_and(!armed::TELL, SeqCst) & armed::TELL != 0
            && let Some(channel) = self.channel
        {
            channel.tokens.push(self.as_abi() as usize);
        }
    }
}

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
        fabric.ring(cq.owner.load(SeqCst));
    }
}

/// Tells the owner that QP number `number` has one completion more. `is_urgent`: solicited or failed.
#[inline]
pub(crate) fn announce(fabric: &Fabric, cq: &CqSlot, number: u32, is_urgent: bool) {
    cq.pushed.fetch_add(1, SeqCst);
    cq.bell.fetch_or(1 << (number % 64), SeqCst);
    if cq.armed.load(SeqCst) & concerned(is_urgent) != 0 {
        notify(fabric, cq, is_urgent);
    }
}

/// The arms that a completion fires.
fn concerned(is_urgent: bool) -> u32 {
    if is_urgent { armed::FOR_ANY | armed::FOR_SOLICITED } else { armed::FOR_ANY }
}

#[cold]
fn notify(fabric: &Fabric, cq: &CqSlot, is_urgent: bool) {
    let fire = |word: u32| (word & concerned(is_urgent) != 0).then_some(armed::TELL);
    if cq.armed.fetch_update(SeqCst, SeqCst, fire).is_ok() {
        fabric.ring(cq.owner.load(SeqCst));
    }
}
