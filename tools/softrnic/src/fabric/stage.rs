//! Room for staged copies: slots that describe them and bytes that they pass through.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use super::Fabric;
use super::layout::{FILE_BYTES, JOBS, JOBS_AT, STAGE_AT, STAGE_BYTES};
use super::slots::{JobSlot, job};

impl Fabric {
    /// Gives the slots and their bytes storage, once for the whole fabric.
    pub(crate) fn open_stage(&self) -> Result<(), i32> {
        if self.has_stage() {
            return Ok(());
        }
        let _control = self.file.control();
        self.file.allocate(JOBS_AT, FILE_BYTES - JOBS_AT).map_err(|code| self.complain_of_space(code))?;
        self.header().is_staging.store(1, SeqCst);
        Ok(())
    }

    /// Whether copies may be staged in this fabric.
    #[inline]
    pub(crate) fn has_stage(&self) -> bool {
        self.header().is_staging.load(Acquire) != 0
    }

    /// All slots. Only while [`Self::has_stage`].
    pub(crate) fn jobs(&self) -> &'static [JobSlot; JOBS] {
        // SAFETY: inside the mapping; the slots have storage (the caller has looked) and consist of atomics.
        unsafe { &*self.file.base().add(JOBS_AT).cast() }
    }

    /// The bytes of slot `index`: [`STAGE_BYTES`] of them.
    pub(crate) fn stage(&self, index: usize) -> *mut u8 {
        assert!(index < JOBS);
        // SAFETY: inside the mapping (checked).
        unsafe { self.file.base().add(STAGE_AT + index * STAGE_BYTES) }
    }

    /// Where all staging bytes begin.
    pub(crate) fn whole_stage(&self) -> (*mut u8, usize) {
        (self.stage(0), JOBS * STAGE_BYTES)
    }

    /// Takes a free slot, or one whose owner has died.
    pub(crate) fn claim_job(&self) -> Option<usize> {
        (0..JOBS).find(|&index| {
            let slot = &self.jobs()[index];
            let owner = slot.owner.load(Relaxed);
            let is_free = owner == 0 || (self.live_process(owner).is_none() && !self.is_copied(slot));
            let is_ours = is_free && slot.owner.compare_exchange(owner, self.me, SeqCst, Relaxed).is_ok();
            if is_ours {
                slot.state.store(job::IDLE, SeqCst);
            }
            is_ours
        })
    }

    /// Whether a live process is copying to or from the slot's bytes.
    fn is_copied(&self, slot: &JobSlot) -> bool {
        matches!(slot.state.load(SeqCst), job::TAKEN | job::ORPHANED)
            && self.live_process(slot.target.load(SeqCst)).is_some()
    }
}
