//! Copies between the stage and memory of this process: the host's, or a GPU's.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::engine::{CopyError, Piece, Way, copy_ascending};
use crate::notice::last_errno;

#[derive(Debug)]
pub(crate) struct Ticket;
impl Ticket {
    pub(crate) fn is_done(&self) -> Result<bool, CopyError> {
        Ok(true)
    }
}

/// Copies `piece` to the stage (out) or the stage's bytes to it (in). A GPU only begins to: the ticket says when it is over.
pub(crate) fn copy(piece: &Piece, way: Way, stage: *mut u8) -> Result<Option<Ticket>, CopyError> {
    copy_host(piece, way, stage).map(|()| None)
}

/// Through the kernel, which notices memory that is no longer there; where that is forbidden, directly.
fn copy_host(piece: &Piece, way: Way, stage: *mut u8) -> Result<(), CopyError> {
    static IS_FORBIDDEN: AtomicBool = AtomicBool::new(false);
    let part = |addr: u64, len: u64| libc::iovec { iov_base: addr as *mut _, iov_len: len as usize };
    let mut done = 0;
    while !IS_FORBIDDEN.load(Relaxed) && done < piece.len {
        let theirs = part(piece.addr + done, piece.len - done);
        let ours = part(stage as u64 + done, piece.len - done);
        let call = if way == Way::Out { libc::process_vm_readv } else { libc::process_vm_writev };
        // SAFETY: the stage has as many bytes (the caller's part fits it); the kernel checks the other address, which
        // was registered for this access.
        let rc = unsafe { call(libc::getpid(), &raw const ours, 1, &raw const theirs, 1, 0) };
        match rc {
            1.. => done += rc as u64,
            _ if last_errno() == libc::EFAULT => return Err(CopyError::LocalFault),
            _ => IS_FORBIDDEN.store(true, Relaxed),
        }
    }
    if done < piece.len {
        let (ours, stage) = ((piece.addr + done) as *mut u8, stage.wrapping_add(done as usize));
        let (from, to) = if way == Way::Out { (ours, stage) } else { (stage, ours) };
        // SAFETY: registered by this application for this access and still registered; that it keeps it mapped
        // until then is its side of the verbs contract.
        unsafe { copy_ascending(from, to, (piece.len - done) as usize) };
    }
    Ok(())
}
