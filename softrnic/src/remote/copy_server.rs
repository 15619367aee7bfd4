//! Staged copies that others have asked this process for. Done by its polls and by its service thread.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::copy::gpu::{self, Ticket};
use crate::copy::piece::{CopyError, Direction, Piece};
use crate::host::clock::now_ns;
use crate::host::lock::lock;
use crate::limits::JOBS;
use crate::process::fabric::Fabric;
use crate::process::timers::Task;
use crate::remote::atomic;
use crate::shm::job::{Hold, state, task};
use crate::shm::layout::STAGE_BYTES;
use crate::shm::process_id::slot_of;

/// How soon to look again at copies that are under way, in ns.
const SOON: u64 = 50_000;

/// Copies of our GPUs' memory that are under way, in the order in which they were asked for.
#[derive(Debug, Default)]
pub(crate) struct CopyServer {
    active: Mutex<VecDeque<Active>>,
    begun: AtomicU64,
    /// A [`Serve`] is among the tasks.
    is_armed: AtomicBool,
}

/// Looks again at copies that are under way.
#[derive(Debug)]
struct Serve {
    server: &'static CopyServer,
    fabric: &'static Fabric,
}

impl Task for Serve {
    fn run(self: Box<Self>) {
        self.server.is_armed.store(false, SeqCst);
        self.server.serve(self.fabric);
    }
}

#[derive(Debug)]
struct Active {
    index: usize,
    hold: Hold,
    ticket: Ticket,
    number: u64,
}

impl CopyServer {
    /// Does what has been asked of this process, as far as it goes at once; a timer sees to the rest.
    pub(crate) fn serve(&'static self, fabric: &'static Fabric) {
        let mut active = lock(&self.active);
        let asked = &fabric.proc(slot_of(fabric.me)).jobs;
        if asked.load(Relaxed) != 0 {
            self.take(fabric, asked.swap(0, SeqCst), &mut active);
        }
        while let Some(one) = active.front() {
            match one.ticket.is_done() {
                Ok(false) => break,
                Ok(true) => {
                    fabric.jobs()[one.index].leave(one.hold, state::DONE);
                }
                // The driver is gone, and soon we are: a NIC would fall silent.
                Err(CopyError::Gone) => {}
                Err(_) => {
                    fabric.jobs()[one.index].leave(one.hold, state::FAILED);
                }
            }
            active.pop_front();
        }
        if !active.is_empty() || asked.load(Relaxed) != 0 {
            self.arm(fabric, now_ns() + SOON);
        }
    }

    /// Has staged copies looked at again at `at`, if that is not arranged yet.
    fn arm(&'static self, fabric: &'static Fabric, at: u64) {
        if !self.is_armed.swap(true, SeqCst) {
            fabric.arm(at, Box::new(Serve { server: self, fabric }));
        }
    }

    fn take(&self, fabric: &'static Fabric, bits: u64, active: &mut VecDeque<Active>) {
        let mut asked: Vec<usize> = (0..JOBS).filter(|index| bits & 1 << index != 0).collect();
        asked.sort_unstable_by_key(|&index| fabric.jobs()[index].number.load(Relaxed));
        for index in asked {
            let slot = &fabric.jobs()[index];
            let Some(hold) = slot.take(fabric.me) else { continue };
            match begin(fabric, index, hold.owner) {
                Begun::Over(state) => {
                    slot.leave(hold, state);
                }
                Begun::Copies(ticket) => {
                    let number = self.begun.fetch_add(1, Relaxed);
                    active.push_back(Active { index, hold, ticket, number });
                }
                Begun::Later => {
                    if slot.leave(hold, state::POSTED) {
                        fabric.proc(slot_of(fabric.me)).jobs.fetch_or(1 << index, SeqCst);
                    }
                }
            }
        }
    }

    /// Whether copies are under way.
    pub(crate) fn is_busy(&self) -> bool {
        !lock(&self.active).is_empty()
    }

    /// Waits for the copies that are under way now. What is asked from here on finds keys and states as they are now.
    pub(crate) fn quiesce(&'static self, fabric: &'static Fabric) {
        self.serve(fabric);
        let Some(last) = lock(&self.active).back().map(|one| one.number) else { return };
        while lock(&self.active).front().is_some_and(|one| one.number <= last) {
            self.serve(fabric);
            std::hint::spin_loop();
        }
    }
}

/// How far a job has come at once.
enum Begun {
    /// State that it ends in.
    Over(u8),
    /// A GPU copies.
    Copies(Ticket),
    /// It has to wait for another one.
    Later,
}

/// Begins the job in slot `index`. Its requester must live and the memory still be registered.
fn begin(fabric: &'static Fabric, index: usize, requester: u32) -> Begun {
    let slot = &fabric.jobs()[index];
    let is_wanted = requester == fabric.me || fabric.live_process(requester).is_some();
    let (device, key) = (slot.device.load(Relaxed) as usize, slot.key.load(Relaxed));
    let mr = fabric.find_mr(device, key).filter(|mr| is_wanted && mr.owner.load(SeqCst) == fabric.me);
    let Some(mr) = mr else { return Begun::Over(state::DENIED) };
    let (addr, len, gpu) = (slot.addr.load(Relaxed), slot.len.load(Relaxed), mr.gpu.load(Relaxed));
    let offset = addr.wrapping_sub(mr.addr.load(Relaxed));
    let size = mr.length.load(Relaxed);
    if offset > size || len > size - offset || len > STAGE_BYTES as u64 {
        return Begun::Over(state::DENIED);
    }
    let direction = match slot.task.load(Relaxed) {
        // Into our memory is what the peer sends out.
        task::FILL => Direction::In,
        task::FETCH => Direction::Out,
        atomic => return change(fabric, device, atomic, (addr, len), fabric.stage(index)),
    };
    match gpu::copy(&Piece { addr, len, key, gpu }, direction, fabric.stage(index), fabric.settings.lines) {
        Ok(None) => Begun::Over(state::DONE),
        Ok(Some(ticket)) => Begun::Copies(ticket),
        Err(_) => Begun::Over(state::FAILED),
    }
}

/// An atomic.
fn change(fabric: &Fabric, device: usize, kind: u32, (addr, len): (u64, u64), stage: *mut u8) -> Begun {
    if len != 8 || !addr.is_multiple_of(8) {
        return Begun::Over(state::DENIED);
    }
    // SAFETY: aligned (checked) and registered; the stage is aligned and longer.
    let is_done = unsafe { atomic::execute_here(fabric, device, kind == task::FETCH_ADD, addr as *mut u64, stage) };
    if is_done { Begun::Over(state::DONE) } else { Begun::Later }
}
