//! Posting receives, and polls.

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::abi::types::{Sge, Wc, qp_state};
use crate::engine::Engine;
use crate::engine::requester::{flush, flush_recv, flush_soon, pump};
use crate::host::{lock, now_ns};
use crate::objects::cq::{CompletionSource, Cq};
use crate::objects::qp::Qp;
use crate::shm::file::slot_of;

/// Posts one receive, which is the first of its call or not.
pub(crate) fn post_recv(
    engine: &'static Engine,
    qp: &Qp,
    wr_id: u64,
    sges: &[Sge],
    is_first: bool,
) -> Result<(), i32> {
    let _guard = lock(&qp.recv);
    qp.fill_recv(wr_id, sges)?;
    qp.slot.work.posted_receive(is_first);
    if qp.slot.state.load(SeqCst) == qp_state::ERR && !flush_recv(engine, qp) {
        // A peer is still in it.
        flush_soon(engine, qp);
    }
    Ok(())
}

/// A queue pair in its completion queues.
pub(crate) struct Source {
    engine: &'static Engine,
    qp: Arc<Qp>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.qp.fmt(f)
    }
}

impl Source {
    pub(crate) fn new(engine: &'static Engine, qp: &Arc<Qp>) -> Self {
        Self { engine, qp: Arc::clone(qp) }
    }
}

impl CompletionSource for Source {
    fn drain(&self, cq: &Cq, out: &mut [MaybeUninit<Wc>], taken: &mut usize) -> bool {
        let is_in_error = self.qp.slot.state.load(Acquire) == qp_state::ERR;
        let is_flushed = !is_in_error || flush(self.engine, &self.qp);
        self.qp.take_completions(cq, out, taken) || !is_flushed
    }

    fn fail(&self) {
        self.qp.slot.fail();
    }
}

/// Takes completions; returns how many.
#[inline]
pub(crate) fn poll_cq(engine: &'static Engine, cq: &Cq, out: &mut [MaybeUninit<Wc>]) -> usize {
    engine.fabric.run_due();
    if engine.fabric.has_stage() {
        advance_staged(engine);
    }
    cq.poll(out)
}

/// Takes the next completion.
#[inline(never)]
pub(crate) fn poll_one(engine: &'static Engine, cq: &Cq) -> Option<Wc> {
    let mut one = [MaybeUninit::new(Wc::default())];
    // SAFETY: it was initialised.
    (poll_cq(engine, cq, &mut one) == 1).then(|| unsafe { one[0].assume_init() })
}

/// What every poll of a CQ does while copies are staged.
#[cold]
fn advance_staged(engine: &'static Engine) {
    let fabric = engine.fabric;
    fabric.proc(slot_of(fabric.me)).last_poll.store(now_ns(), Relaxed);
    engine.copy_server.serve(fabric);
    let staging = lock(&engine.staging).clone();
    for qp in staging {
        // Another thread may be at it.
        if let Ok(mut queue) = qp.send.try_lock() {
            pump(engine, &qp, &mut queue);
            if queue.staged.is_none() {
                forget(engine, &qp);
            }
        }
    }
}

/// Nothing of `qp` is copied through the shared file any more.
#[cold]
pub(crate) fn forget(engine: &Engine, qp: &Qp) {
    lock(&engine.staging).retain(|known| !std::ptr::eq(&raw const **known, qp));
}
