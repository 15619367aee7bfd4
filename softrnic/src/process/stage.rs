//! Room for staged copies: slots that describe them and bytes that they pass through.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::limits::JOBS;
use crate::process::fabric::Fabric;
use crate::shm::job::{Hold, JobSlot, state};
use crate::shm::layout::{FILE_BYTES, JOBS_AT};
use crate::shm::process_id::slot_of;

impl Fabric {
    /// Gives the slots and their bytes storage, once for the whole fabric.
    pub(crate) fn open_stage(&self) -> Result<(), i32> {
        if self.has_stage() {
            return Ok(());
        }
        let _control = self.file.control();
        self.file.allocate(JOBS_AT, FILE_BYTES - JOBS_AT).map_err(|code| self.report_no_space(code))?;
        self.header().is_staging.store(1, SeqCst);
        Ok(())
    }

    /// Takes a free slot, or one whose owner has died.
    pub(crate) fn claim_job(&self) -> Option<usize> {
        (0..JOBS).find(|&index| {
            let slot = &self.jobs()[index];
            let seen = slot.hold();
            let mine = Hold { owner: self.me, serial: seen.serial.wrapping_add(1), state: state::IDLE };
            self.is_abandoned(slot, seen) && slot.change(seen, mine)
        })
    }

    /// Whether nobody holds the slot and nobody copies to or from its bytes.
    pub(crate) fn is_abandoned(&self, slot: &JobSlot, seen: Hold) -> bool {
        let copies = |id: u32| self.file.is_helped(slot_of(id));
        let lives = |id: u32| id == self.me || self.live_process(id).is_some() || copies(id);
        match seen.state {
            0 => true,
            state::ORPHANED => !lives(slot.target.load(SeqCst)),
            state::TAKEN => !lives(seen.owner) && !lives(slot.target.load(SeqCst)),
            _ => !lives(seen.owner),
        }
    }

    /// Jobs that wait for process `target` or are being done by it.
    pub(crate) fn jobs_for(&self, target: u32) -> usize {
        let is_busy = |slot: &&JobSlot| matches!(slot.hold().state, state::POSTED | state::TAKEN | state::ORPHANED);
        self.jobs().iter().filter(is_busy).filter(|slot| slot.target.load(Relaxed) == target).count()
    }
}
