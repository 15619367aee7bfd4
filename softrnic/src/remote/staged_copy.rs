//! A staged copy, as the requester sees it: a slot of the fabric that is ours.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::copy::piece::{CopyError, Piece};
use crate::host::clock::now_ns;
use crate::process::fabric::Fabric;
use crate::shm::job::{Job, JobSlot, state};
use crate::shm::process_id::slot_of;

/// A process that has polled so recently looks for jobs itself; others are woken.
const ATTENTIVE_NS: u64 = 50_000;

/// A claimed slot. Dropped, it is given back; if the target copies just then, by the target.
#[derive(Debug)]
pub(crate) struct StagedCopy {
    fabric: &'static Fabric,
    index: usize,
    target: u32,
}

impl StagedCopy {
    pub(crate) fn claim(fabric: &'static Fabric) -> Option<Self> {
        Some(Self { fabric, index: fabric.claim_job()?, target: 0 })
    }

    fn slot(&self) -> &'static JobSlot {
        &self.fabric.jobs()[self.index]
    }

    /// Where its bytes are.
    pub(crate) fn stage(&self) -> *mut u8 {
        self.fabric.stage(self.index)
    }

    /// Has process `target` do `task` between the stage and its memory on `device`.
    pub(crate) fn post(&mut self, target: u32, device: usize, task: u32, theirs: &Piece) {
        let slot = self.slot();
        self.target = target;
        slot.post(&Job {
            target,
            task,
            device: device as u32,
            key: theirs.key,
            addr: theirs.addr,
            len: theirs.len,
            number: self.fabric.header().jobs_begun.fetch_add(1, SeqCst),
        });
        self.fabric.proc(slot_of(target)).jobs.fetch_or(1 << self.index, SeqCst);
        self.remind();
    }

    /// Wakes the target's service thread, unless its application polls.
    pub(crate) fn remind(&self) {
        let last = self.fabric.proc(slot_of(self.target)).last_poll.load(Relaxed);
        if self.slot().hold().state == state::POSTED && now_ns().saturating_sub(last) > ATTENTIVE_NS {
            self.fabric.wake(self.target);
        }
    }

    /// How it went; `None`: not over yet.
    pub(crate) fn outcome(&self) -> Option<Result<(), CopyError>> {
        match self.slot().hold().state {
            state::DONE => Some(Ok(())),
            state::FAILED => Some(Err(CopyError::RemoteFault)),
            state::DENIED => Some(Err(CopyError::Forbidden)),
            _ => None,
        }
    }
}

impl Drop for StagedCopy {
    fn drop(&mut self) {
        let slot = self.slot();
        // Nobody will free what a dead target was copying.
        if let Some(orphan) = slot.give_up()
            && self.fabric.is_abandoned(slot, orphan)
        {
            slot.release(orphan);
        }
    }
}
