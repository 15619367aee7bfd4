//! Atomics: eight bytes of the peer are read, changed and written as one, as far as other atomics to the same device see.
//!
//! The memory may lie in another process, where no processor instruction reaches. So a word in the fabric says who is at
//! it; the word of a process that died is free.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::Verdict;
use super::copy::{CopyError, Pieces, Way, transfer};
use super::responder::Plan;
use super::visit::Visit;
use crate::abi::consts::wr_opcode;
use crate::fabric::Fabric;
use crate::send_queue::Request;

/// Who executes an atomic at a device right now.
struct Turn<'a>(&'a AtomicU32);

impl<'a> Turn<'a> {
    fn take(fabric: &'a Fabric, device: usize) -> Option<Self> {
        let word = &fabric.header().atomic_turn[device];
        let seen = word.load(Relaxed);
        if seen != 0 && seen != fabric.me && fabric.live_process(seen).is_some() {
            return None;
        }
        // Another thread of ours may hold it: then the exchange would succeed wrongly.
        let expected = if seen == fabric.me { 0 } else { seen };
        word.compare_exchange(expected, fabric.me, Acquire, Relaxed).ok().map(|_| Self(word))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(0, Release);
    }
}

/// Executes an atomic that the responder has admitted; the old value goes to `local`.
pub(super) fn execute(visit: &Visit, request: &Request, local: &Pieces, plan: &Plan) -> Result<Verdict, CopyError> {
    let Some(_turn) = Turn::take(visit.fabric, visit.device) else { return Ok(Verdict::Busy) };
    let mut old = 0u64;
    let ours = Pieces::one((&raw mut old) as u64, 8);
    transfer(visit.pid, Way::In, &ours, &plan.remote)?;
    let new = match request.opcode {
        wr_opcode::ATOMIC_FETCH_ADD => old.wrapping_add(request.operands[0]),
        _ if old == request.operands[0] => request.operands[1],
        _ => old,
    };
    transfer(visit.pid, Way::Out, &Pieces::one((&raw const new) as u64, 8), &plan.remote)?;
    // Our own memory: both ends are in this process.
    transfer(None, Way::Out, &Pieces::one((&raw const old) as u64, 8), local).map_err(|_| CopyError::LocalFault)?;
    Ok(Verdict::Done)
}
