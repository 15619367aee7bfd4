//! A message whose bytes pass through the staging area, because one end's memory can only be
//! reached by its own process: a GPU's memory, or that of a process which may not be looked into.
//!
//! We copy between our memory and the stage, the peer's process between the stage and its own. The
//! message is cut into parts; several are under way at a time, and they are handed over in
//! ascending order. The peer's queue pair is entered anew each time something is done, and left
//! again: nobody waits for us.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::abi::types::wr_opcode;
use crate::copy::gpu;
use crate::copy::gpu::Ticket;
use crate::copy::transfer::{CopyError, Direction, Piece, Pieces};
use crate::host::{lock, now_ns};
use crate::limits::JOBS;
use crate::process::fabric::{Fabric, Task};
use crate::remote::responder;
use crate::remote::responder::{Admission, QpHold, RemoteQpGuard, Request, ResponderFault};
use crate::shm::file::{STAGE_BYTES, slot_of};
use crate::shm::job::{Hold, Job, JobSlot, state, task};
use crate::shm::slots::ANY_PEER;

/// Parts of a message under way at a time.
const PARTS: usize = 4;
/// Jobs that one process has to do at a time: one that does not do any leaves room for others.
const JOBS_EACH: usize = 16;

/// Whose message it is, and whom it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) is_unreliable: bool,
    pub(crate) psn: u32,
    /// How often the peer has been entered.
    pub(crate) serial: u32,
}

/// A message on its way.
#[derive(Debug)]
pub(crate) struct StagedTransfer {
    fabric: &'static Fabric,
    path: Path,
    pub(crate) admission: Admission,
    local: Pieces,
    /// Process that the peer's queue pair belongs to.
    target: u32,
    /// Bytes in parts that have begun.
    begun: u64,
    parts: VecDeque<Part>,
    /// What the peer's process has to do with each part.
    task: u32,
    /// Of an atomic.
    operands: Option<[u64; 2]>,
    /// A fault: the bit to turn in the first part.
    corrupt: Option<u64>,
    /// A fault: the rest of the message has been lost on its way.
    pub(crate) is_cut: bool,
    /// UD: what keeps other senders away. Behind the parts, which end first.
    hold: Option<QpHold>,
}

/// One part.
#[derive(Debug)]
struct Part {
    job: StagedCopy,
    from: u64,
    theirs: Piece,
    is_posted: bool,
    /// Copies of our GPU's memory from or to the stage.
    ours: Vec<Ticket>,
    /// Its bytes are on their way from the stage to our memory.
    is_landing: bool,
}

impl StagedTransfer {
    /// What the responder has admitted at `guard`: all of it, or the part that gets through by a
    /// `fault`.
    pub(crate) fn new(
        guard: &RemoteQpGuard,
        path: Path,
        admission: Admission,
        local: Pieces,
        request: &Request,
        fault: Option<ResponderFault>,
    ) -> Self {
        let corrupt = if let Some(ResponderFault::Corrupt(bit)) = fault { Some(bit) } else { None };
        let is_cut = matches!(fault, Some(ResponderFault::Cut(_)));
        let (task, operands) = match request.opcode {
            wr_opcode::ATOMIC_CMP_SWAP => (task::CMP_SWAP, Some(request.operands)),
            wr_opcode::ATOMIC_FETCH_ADD => (task::FETCH_ADD, Some(request.operands)),
            _ if admission.direction == Direction::Out => (task::FILL, None),
            _ => (task::FETCH, None),
        };
        let target = guard.slot.owner.load(SeqCst);
        let parts = VecDeque::new();
        let (fabric, begun, hold) = (guard.fabric, 0, None);
        Self {
            fabric,
            path,
            admission,
            local,
            target,
            begun,
            parts,
            task,
            operands,
            corrupt,
            is_cut,
            hold,
        }
    }

    /// The same, which keeps `hold` until it is over.
    pub(crate) fn holding(self, hold: QpHold) -> Self {
        Self { hold: Some(hold), ..self }
    }

    /// Whether it has kept its hold.
    pub(crate) fn is_held(&self) -> bool {
        self.hold.as_ref().is_some_and(QpHold::is_kept)
    }

    /// Bytes of the message.
    pub(crate) fn total(&self) -> u64 {
        self.local.total
    }

    /// Whether it reads or writes memory of ours under this key.
    pub(crate) fn uses(&self, key: u32) -> bool {
        self.local.window(0, u64::MAX).any(|piece| piece.key == key)
    }

    /// Does what can be done now; `None`: it is not over yet. Else how it went, and the guard under
    /// which it is concluded; without one the peer's queue pair is no longer what it was.
    pub(crate) fn proceed(&mut self) -> Option<(Option<RemoteQpGuard>, Result<(), CopyError>)> {
        self.path.serial = self.path.serial.wrapping_add(1);
        let guard =
            RemoteQpGuard::enter(self.fabric, self.path.to, self.path.from, self.path.serial);
        let Some(guard) =
            guard.filter(|guard| guard.expects(self.path.is_unreliable, self.path.psn))
        else {
            // Another sender is there.
            let is_busy =
                self.path.from == ANY_PEER && RemoteQpGuard::is_open(self.fabric, self.path.to);
            return if is_busy { None } else { Some((None, Err(CopyError::Gone))) };
        };
        loop {
            match self.step(guard.device) {
                Ok(true) => {}
                Ok(false) if self.begun == self.local.total && self.parts.is_empty() => {
                    return Some((Some(guard), Ok(())));
                }
                Ok(false) => return None,
                Err(error) => return Some((Some(guard), Err(error))),
            }
        }
    }

    /// Tells the peer's process again what it has to do.
    pub(crate) fn remind(&self) {
        self.parts.iter().filter(|part| part.is_posted).for_each(|part| part.job.remind());
    }

    /// True if something has moved.
    fn step(&mut self, device: usize) -> Result<bool, CopyError> {
        let begun = self.begin()?;
        let posted = self.post_ready(device)?;
        let over = match self.parts.front_mut() {
            Some(part) => finish(part, self.admission.direction, &self.local)?,
            None => false,
        };
        if over {
            self.parts.pop_front();
        }
        Ok(begun || posted || over)
    }

    /// Begins the next part, if there is one and room for it.
    fn begin(&mut self) -> Result<bool, CopyError> {
        let is_full = self.parts.len() == PARTS || self.begun == self.local.total;
        if is_full || self.fabric.jobs_for(self.target) >= JOBS_EACH {
            return Ok(false);
        }
        let Some(job) = StagedCopy::claim(self.fabric) else { return Ok(false) };
        let Some(theirs) = self.admission.remote.window(self.begun, STAGE_BYTES as u64).next()
        else {
            return Ok(false);
        };
        let theirs = Piece { len: theirs.len.min(self.local.total - self.begun), ..theirs };
        let mut part = Part {
            job,
            from: self.begun,
            theirs,
            is_posted: false,
            ours: Vec::new(),
            is_landing: false,
        };
        if let Some(operands) = self.operands {
            // SAFETY: the first bytes of the stage, aligned, ours until the part is posted.
            unsafe { part.job.stage().cast::<[u64; 2]>().write(operands) };
        } else if self.admission.direction == Direction::Out {
            between_stage(&mut part, Direction::Out, &self.local)?;
        }
        self.begun += theirs.len;
        self.parts.push_back(part);
        Ok(true)
    }

    /// Hands over the parts whose bytes are in the stage, none before one in front of it.
    fn post_ready(&mut self, device: usize) -> Result<bool, CopyError> {
        let mut has_posted = false;
        for part in self.parts.iter_mut().filter(|part| !part.is_posted) {
            if !all_done(&mut part.ours)? {
                break;
            }
            if let Some(bit) =
                self.corrupt.take().filter(|_| self.admission.direction == Direction::Out)
            {
                // SAFETY: inside the part's bytes, which are ours until it is posted.
                unsafe {
                    *part.job.stage().add((bit % part.theirs.len) as usize) ^= 1 << (bit % 8)
                };
            }
            part.job.post(self.target, device, self.task, &part.theirs);
            part.is_posted = true;
            has_posted = true;
        }
        Ok(has_posted)
    }
}

/// Whether the part is over; what it has read is put in place.
fn finish(part: &mut Part, direction: Direction, local: &Pieces) -> Result<bool, CopyError> {
    if part.is_landing {
        return all_done(&mut part.ours);
    }
    match part.job.outcome() {
        None => Ok(false),
        Some(Err(error)) => Err(error),
        Some(Ok(())) if direction == Direction::Out => Ok(true),
        Some(Ok(())) => {
            between_stage(part, Direction::In, local)?;
            part.is_landing = true;
            all_done(&mut part.ours)
        }
    }
}

/// Copies the part's bytes from our memory to the stage (out) or back (in). What a GPU does is not
/// over yet.
fn between_stage(part: &mut Part, direction: Direction, local: &Pieces) -> Result<(), CopyError> {
    let mut at = part.job.stage();
    for ours in local.window(part.from, part.theirs.len) {
        // Kept with the part, which waits for them even if one behind them fails.
        part.ours.extend(gpu::copy(&ours, direction, at, false)?);
        // SAFETY: the pieces together are as long as the part, which fits the slot's bytes.
        at = unsafe { at.add(ours.len as usize) };
    }
    Ok(())
}

/// Whether all these copies are over.
fn all_done(tickets: &mut Vec<Ticket>) -> Result<bool, CopyError> {
    while let Some(last) = tickets.last() {
        if !last.is_done()? {
            return Ok(false);
        }
        tickets.pop();
    }
    Ok(true)
}

impl Drop for Part {
    fn drop(&mut self) {
        // The stage and our memory are used until then.
        while !all_done(&mut self.ours).unwrap_or(true) {
            std::hint::spin_loop();
        }
    }
}

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
        if self.slot().hold().state == state::POSTED && now_ns().saturating_sub(last) > ATTENTIVE_NS
        {
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
    /// Does what has been asked of this process, as far as it goes at once; a timer sees to the
    /// rest.
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

    /// Waits for the copies that are under way now. What is asked from here on finds keys and
    /// states as they are now.
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
    let mr =
        fabric.find_mr(device, key).filter(|mr| is_wanted && mr.owner.load(SeqCst) == fabric.me);
    let Some(mr) = mr else { return Begun::Over(state::DENIED) };
    let (addr, len, gpu) = (slot.addr.load(Relaxed), slot.len.load(Relaxed), mr.gpu.load(Relaxed));
    let offset = addr.wrapping_sub(mr.addr.load(Relaxed));
    let size = mr.length.load(Relaxed);
    if offset > size || len > size - offset || len > STAGE_BYTES as u64 {
        return Begun::Over(state::DENIED);
    }
    let piece = Piece { addr, len, key, gpu };
    let direction = match slot.task.load(Relaxed) {
        // Into our memory is what the peer sends out.
        task::FILL => Direction::In,
        task::FETCH => Direction::Out,
        atomic => return change(fabric, device, atomic, &piece, fabric.stage(index)),
    };
    match gpu::copy(&piece, direction, fabric.stage(index), fabric.settings.lines) {
        Ok(None) => Begun::Over(state::DONE),
        Ok(Some(ticket)) => Begun::Copies(ticket),
        Err(_) => Begun::Over(state::FAILED),
    }
}

/// An atomic. A GPU's word goes through the stage, behind the operands, while this thread waits.
fn change(fabric: &Fabric, device: usize, kind: u32, word: &Piece, stage: *mut u8) -> Begun {
    if word.len != 8 || !word.addr.is_multiple_of(8) {
        return Begun::Over(state::DENIED);
    }
    // SAFETY: the stage is longer than the operands and a word.
    let place = if word.gpu == 0 { word.addr as *mut u64 } else { unsafe { stage.add(16).cast() } };
    let copied = |direction| {
        let mut ticket = if word.gpu == 0 {
            Vec::new()
        } else {
            gpu::copy(word, direction, place.cast(), false)?.into_iter().collect()
        };
        while !all_done(&mut ticket)? {
            std::hint::spin_loop();
        }
        Ok(())
    };
    // SAFETY: the place is aligned (checked), and registered or the stage's, which is aligned.
    let end = unsafe {
        responder::execute_here(
            fabric,
            device,
            kind == task::FETCH_ADD,
            stage,
            || copied(Direction::Out).map(|()| place.read_volatile()),
            |new| {
                place.write_volatile(new);
                copied(Direction::In)
            },
        )
    };
    match end {
        Ok(true) => Begun::Over(state::DONE),
        Ok(false) | Err(CopyError::Gone) => Begun::Later,
        Err(_) => Begun::Over(state::FAILED),
    }
}
