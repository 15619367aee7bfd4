//! A message whose bytes pass through the stage, because one end's memory can only be reached by its own process:
//! a GPU's memory, or that of a process which may not be looked into.
//!
//! We copy between our memory and the stage, the peer's process between the stage and its own. The message is cut
//! into parts; several are under way at a time, and they are handed over in ascending order. Meanwhile the peer's
//! queue pair stays entered, so that what was agreed with it holds.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::SeqCst;

use super::copy::{CopyError, Piece, Pieces, Way};
use super::job::Job;
use super::responder::Plan;
use super::visit::Visit;
use crate::abi::consts::wr_opcode;
use crate::fabric::layout::STAGE_BYTES;
use crate::fabric::slots::task;
use crate::gpu::{self, Ticket};
use crate::send_queue::Request;

/// Parts of a message under way at a time.
const PARTS: usize = 4;

/// A message on its way.
#[derive(Debug)]
pub(crate) struct Moving {
    pub(super) visit: Visit,
    pub(super) plan: Plan,
    local: Pieces,
    /// Bytes in parts that have begun.
    begun: u64,
    parts: VecDeque<Part>,
    /// What the peer's process has to do with each part.
    task: u32,
    /// Of an atomic.
    operands: Option<[u64; 2]>,
    /// A fault: the bit to turn in the first part.
    spoil: Option<u64>,
}

/// One part.
#[derive(Debug)]
struct Part {
    job: Job,
    from: u64,
    theirs: Piece,
    is_posted: bool,
    /// Copies of our GPU's memory from or to the stage.
    ours: Vec<Ticket>,
    /// Its bytes are on their way from the stage to our memory.
    is_landing: bool,
}

impl Moving {
    /// `spoil`: a fault, the bit to turn.
    pub(super) fn new(visit: Visit, plan: Plan, local: Pieces, request: &Request, spoil: Option<u64>) -> Self {
        let (task, operands) = match request.opcode {
            wr_opcode::ATOMIC_CMP_SWAP => (task::CMP_SWAP, Some(request.operands)),
            wr_opcode::ATOMIC_FETCH_ADD => (task::FETCH_ADD, Some(request.operands)),
            _ if plan.way == Way::Out => (task::FILL, None),
            _ => (task::FETCH, None),
        };
        Self { visit, plan, local, begun: 0, parts: VecDeque::new(), task, operands, spoil }
    }

    /// Bytes of the message.
    pub(super) fn total(&self) -> u64 {
        self.local.total
    }

    /// Does what can be done now; `None`: it is not over yet.
    pub(super) fn proceed(&mut self) -> Option<Result<(), CopyError>> {
        if self.visit.is_owner_dead() || !self.visit.is_still_welcome() {
            return Some(Err(CopyError::Gone));
        }
        loop {
            match self.step() {
                Ok(true) => {}
                Ok(false) if self.begun == self.local.total && self.parts.is_empty() => return Some(Ok(())),
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Tells the peer's process again what it has to do.
    pub(super) fn remind(&self) {
        self.parts.iter().filter(|part| part.is_posted).for_each(|part| part.job.remind());
    }

    /// True if something has moved.
    fn step(&mut self) -> Result<bool, CopyError> {
        let begun = self.begin()?;
        let posted = self.post_ready()?;
        let over = match self.parts.front_mut() {
            Some(part) => finish(part, self.plan.way, &self.local)?,
            None => false,
        };
        if over {
            self.parts.pop_front();
        }
        Ok(begun || posted || over)
    }

    /// Begins the next part, if there is one and room for it.
    fn begin(&mut self) -> Result<bool, CopyError> {
        if self.parts.len() == PARTS || self.begun == self.local.total {
            return Ok(false);
        }
        let Some(job) = Job::claim(self.visit.fabric) else { return Ok(false) };
        let Some(theirs) = self.plan.remote.window(self.begun, STAGE_BYTES as u64).next() else { return Ok(false) };
        let theirs = Piece { len: theirs.len.min(self.local.total - self.begun), ..theirs };
        let mut part = Part { job, from: self.begun, theirs, is_posted: false, ours: Vec::new(), is_landing: false };
        if let Some(operands) = self.operands {
            // SAFETY: the first bytes of the stage, aligned, ours until the part is posted.
            unsafe { part.job.stage().cast::<[u64; 2]>().write(operands) };
        } else if self.plan.way == Way::Out {
            part.ours = between_stage(&part, Way::Out, &self.local)?;
        }
        self.begun += theirs.len;
        self.parts.push_back(part);
        Ok(true)
    }

    /// Hands over the parts whose bytes are in the stage, none before one in front of it.
    fn post_ready(&mut self) -> Result<bool, CopyError> {
        let mut has_posted = false;
        for part in self.parts.iter_mut().filter(|part| !part.is_posted) {
            if !all_done(&mut part.ours)? {
                break;
            }
            if let Some(bit) = self.spoil.take().filter(|_| self.plan.way == Way::Out) {
                // SAFETY: inside the part's bytes, which are ours until it is posted.
                unsafe { *part.job.stage().add((bit % part.theirs.len) as usize) ^= 1 << (bit % 8) };
            }
            part.job.post(self.visit.slot.owner.load(SeqCst), self.visit.device, self.task, &part.theirs);
            part.is_posted = true;
            has_posted = true;
        }
        Ok(has_posted)
    }
}

/// Whether the part is over; what it brings is put in place.
fn finish(part: &mut Part, way: Way, local: &Pieces) -> Result<bool, CopyError> {
    if part.is_landing {
        return all_done(&mut part.ours);
    }
    match part.job.outcome() {
        None => Ok(false),
        Some(Err(error)) => Err(error),
        Some(Ok(())) if way == Way::Out => Ok(true),
        Some(Ok(())) => {
            part.ours = between_stage(part, Way::In, local)?;
            part.is_landing = true;
            all_done(&mut part.ours)
        }
    }
}

/// Copies the part's bytes from our memory to the stage (out) or back (in). What a GPU does is not over yet.
fn between_stage(part: &Part, way: Way, local: &Pieces) -> Result<Vec<Ticket>, CopyError> {
    let mut at = part.job.stage();
    let mut tickets = Vec::new();
    for ours in local.window(part.from, part.theirs.len) {
        tickets.extend(gpu::copy(&ours, way, at)?);
        // SAFETY: the pieces together are as long as the part, which fits the slot's bytes.
        at = unsafe { at.add(ours.len as usize) };
    }
    Ok(tickets)
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
