//! Atomics: eight bytes of the peer are read, changed and written as one, as far as other atomics to the same device see.
//!
//! The memory may lie in another process, where no processor instruction reaches. So a word in the fabric says who is at
//! it; the word of a process that died is free.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::abi::consts::wr_opcode;
use crate::copy::piece::{CopyError, Direction, Pieces};
use crate::copy::transfer::transfer;
use crate::process::fabric::Fabric;
use crate::remote::guard::RemoteQpGuard;
use crate::remote::outcome::TxOutcome;
use crate::remote::request::Request;
use crate::remote::responder::Admission;

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

/// What an atomic makes of `old`.
fn changed(is_addition: bool, old: u64, operands: [u64; 2]) -> u64 {
    if is_addition {
        old.wrapping_add(operands[0])
    } else if old == operands[0] {
        operands[1]
    } else {
        old
    }
}

/// An atomic on the memory at `at` of this process, whose operands are at `stage`; there goes the old value. False: another
/// one is under way at the device.
///
/// # Safety
/// Both addresses are aligned; there are 8 bytes at `at` and 16 at `stage`.
pub(crate) unsafe fn execute_here(
    fabric: &Fabric,
    device: usize,
    is_addition: bool,
    at: *mut u64,
    stage: *mut u8,
) -> bool {
    let Some(_turn) = Turn::take(fabric, device) else { return false };
    let stage = stage.cast::<[u64; 2]>();
    // SAFETY: by the caller.
    unsafe {
        let old = at.read_volatile();
        at.write_volatile(changed(is_addition, old, stage.read_volatile()));
        stage.write_volatile([old, 0]);
    }
    true
}

/// Executes an atomic that the responder has admitted; the old value goes to `local`.
pub(crate) fn execute(
    guard: &RemoteQpGuard,
    request: &Request,
    local: &Pieces,
    admission: &Admission,
) -> Result<TxOutcome, CopyError> {
    let Some(_turn) = Turn::take(guard.fabric, guard.device) else { return Ok(TxOutcome::Busy) };
    let mut old = 0u64;
    let ours = Pieces::host((&raw mut old) as u64, 8);
    transfer(guard.pid, Direction::In, &ours, &admission.remote)?;
    let new = changed(request.opcode == wr_opcode::ATOMIC_FETCH_ADD, old, request.operands);
    transfer(guard.pid, Direction::Out, &Pieces::host((&raw const new) as u64, 8), &admission.remote)?;
    // Our own memory: both ends are in this process.
    transfer(None, Direction::Out, &Pieces::host((&raw const old) as u64, 8), local)
        .map_err(|_| CopyError::LocalFault)?;
    Ok(TxOutcome::Done)
}
