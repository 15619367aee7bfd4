//! A message whose bytes pass through the staging area, because one end's memory can only be reached by its own process:
//! a GPU's memory, or that of a process which may not be looked into.
//!
//! We copy between our memory and the stage, the peer's process between the stage and its own. The message is cut
//! into parts; several are under way at a time, and they are handed over in ascending order. The peer's queue pair is
//! entered anew each time something is done, and left again: nobody waits for us.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::SeqCst;

use crate::abi::consts::wr_opcode;
use crate::copy::gpu::{self, Ticket};
use crate::copy::piece::{CopyError, Direction, Piece, Pieces};
use crate::process::fabric::Fabric;
use crate::remote::guard::RemoteQpGuard;
use crate::remote::hold::Hold;
use crate::remote::request::Request;
use crate::remote::responder::{Admission, ResponderFault};
use crate::remote::staged_copy::StagedCopy;
use crate::shm::job::task;
use crate::shm::layout::STAGE_BYTES;
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
    hold: Option<Hold>,
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
    /// What the responder has admitted at `guard`: all of it, or the part that gets through by a `fault`.
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
        Self { fabric, path, admission, local, target, begun, parts, task, operands, corrupt, is_cut, hold }
    }

    /// The same, which keeps `hold` until it is over.
    pub(crate) fn holding(self, hold: Hold) -> Self {
        Self { hold: Some(hold), ..self }
    }

    /// Whether it has kept its hold.
    pub(crate) fn is_held(&self) -> bool {
        self.hold.as_ref().is_some_and(Hold::is_kept)
    }

    /// Bytes of the message.
    pub(crate) fn total(&self) -> u64 {
        self.local.total
    }

    /// Whether it reads or writes memory of ours under this key.
    pub(crate) fn uses(&self, key: u32) -> bool {
        self.local.window(0, u64::MAX).any(|piece| piece.key == key)
    }

    /// Does what can be done now; `None`: it is not over yet. Else how it went, and the guard under which it is concluded;
    /// without one the peer's queue pair is no longer what it was.
    pub(crate) fn proceed(&mut self) -> Option<(Option<RemoteQpGuard>, Result<(), CopyError>)> {
        self.path.serial = self.path.serial.wrapping_add(1);
        let guard = RemoteQpGuard::enter(self.fabric, self.path.to, self.path.from, self.path.serial);
        let Some(guard) = guard.filter(|guard| guard.expects(self.path.is_unreliable, self.path.psn)) else {
            // Another sender is there.
            let is_busy = self.path.from == ANY_PEER && RemoteQpGuard::is_open(self.fabric, self.path.to);
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
        let Some(theirs) = self.admission.remote.window(self.begun, STAGE_BYTES as u64).next() else {
            return Ok(false);
        };
        let theirs = Piece { len: theirs.len.min(self.local.total - self.begun), ..theirs };
        let mut part = Part { job, from: self.begun, theirs, is_posted: false, ours: Vec::new(), is_landing: false };
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
            if let Some(bit) = self.corrupt.take().filter(|_| self.admission.direction == Direction::Out) {
                // SAFETY: inside the part's bytes, which are ours until it is posted.
                unsafe { *part.job.stage().add((bit % part.theirs.len) as usize) ^= 1 << (bit % 8) };
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

/// Copies the part's bytes from our memory to the stage (out) or back (in). What a GPU does is not over yet.
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
