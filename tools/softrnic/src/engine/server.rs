//! Staged copies that others have asked this process for. Done by its polls and by its service thread.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::atomic;
use super::copy::{Piece, Way};
use crate::fabric::layout::{JOBS, STAGE_BYTES};
use crate::fabric::process::slot_of;
use crate::fabric::slots::{JobSlot, job, task};
use crate::fabric::{Fabric, lock};
use crate::gpu::{self, Ticket};

/// Copies of our GPUs' memory that are under way, by slot.
#[derive(Debug, Default)]
pub(crate) struct Server {
    active: Mutex<VecDeque<(usize, Ticket)>>,
}

impl Server {
    /// Does what has been asked. True if something is still under way.
    pub(crate) fn serve(&self, fabric: &'static Fabric) -> bool {
        let mut active = lock(&self.active);
        let bits = fabric.proc(slot_of(fabric.me)).jobs.swap(0, SeqCst);
        let mut asked: Vec<usize> = (0..JOBS).filter(|index| bits & 1 << index != 0).collect();
        asked.sort_unstable_by_key(|&index| fabric.jobs()[index].number.load(Relaxed));
        for index in asked {
            let slot = &fabric.jobs()[index];
            if slot.target.load(SeqCst) != fabric.me
                || slot.state.compare_exchange(job::POSTED, job::TAKEN, SeqCst, SeqCst).is_err()
            {
                continue;
            }
            match begin(fabric, index, slot) {
                Begun::Over(state) => end(slot, state),
                Begun::Copies(ticket) => active.push_back((index, ticket)),
                Begun::Later => {
                    let _ = slot.state.compare_exchange(job::TAKEN, job::POSTED, SeqCst, SeqCst);
                    fabric.proc(slot_of(fabric.me)).jobs.fetch_or(1 << index, SeqCst);
                }
            }
        }
        while let Some((index, ticket)) = active.front() {
            match ticket.is_done() {
                Ok(false) => break,
                Ok(true) => end(&fabric.jobs()[*index], job::DONE),
                Err(_) => end(&fabric.jobs()[*index], job::FAILED),
            }
            active.pop_front();
        }
        !active.is_empty()
    }

    /// Waits until no copy is under way. What is asked from then on finds the keys as they are now.
    pub(crate) fn quiesce(&self, fabric: &'static Fabric) {
        while self.serve(fabric) {
            std::hint::spin_loop();
        }
    }
}

/// How far a job has come at once.
enum Begun {
    /// State that it ends in.
    Over(u32),
    /// A GPU copies.
    Copies(Ticket),
    /// It has to wait for another one.
    Later,
}

/// Begins a job. Its requester must live and the memory still be registered.
fn begin(fabric: &'static Fabric, index: usize, slot: &JobSlot) -> Begun {
    let requester = slot.owner.load(SeqCst);
    let is_wanted = requester == fabric.me || fabric.live_process(requester).is_some();
    let (device, key) = (slot.device.load(Relaxed) as usize, slot.key.load(Relaxed));
    let mr = fabric.find_mr(device, key).filter(|mr| is_wanted && mr.owner.load(SeqCst) == fabric.me);
    let Some(mr) = mr else { return Begun::Over(job::DENIED) };
    let (addr, len, gpu) = (slot.addr.load(Relaxed), slot.len.load(Relaxed), mr.gpu.load(Relaxed));
    let offset = addr.wrapping_sub(mr.addr.load(Relaxed));
    let size = mr.length.load(Relaxed);
    if offset > size || len > size - offset || len > STAGE_BYTES as u64 {
        return Begun::Over(job::DENIED);
    }
    let way = match slot.task.load(Relaxed) {
        // Into our memory is what the peer sends out.
        task::FILL => Way::In,
        task::FETCH => Way::Out,
        atomic => return change(fabric, device, atomic, (addr, len), fabric.stage(index)),
    };
    match gpu::copy(&Piece { addr, len, key, gpu }, way, fabric.stage(index)) {
        Ok(None) => Begun::Over(job::DONE),
        Ok(Some(ticket)) => Begun::Copies(ticket),
        Err(_) => Begun::Over(job::FAILED),
    }
}

/// An atomic.
fn change(fabric: &Fabric, device: usize, kind: u32, (addr, len): (u64, u64), stage: *mut u8) -> Begun {
    if len != 8 || !addr.is_multiple_of(8) {
        return Begun::Over(job::DENIED);
    }
    // SAFETY: aligned (checked) and registered; the stage is aligned and longer.
    let is_done = unsafe { atomic::execute_here(fabric, device, kind == task::FETCH_ADD, addr as *mut u64, stage) };
    if is_done { Begun::Over(job::DONE) } else { Begun::Later }
}

/// The job is over.
fn end(slot: &JobSlot, state: u32) {
    let before = slot.state.swap(state, SeqCst);
    if before == job::ORPHANED {
        slot.owner.store(0, SeqCst);
    }
}
