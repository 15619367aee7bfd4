//! Memory that can be registered: the host's, or a GPU's, as a GPUDirect NIC would; and copies
//! between it and the stage.
//!
//! `cuda` is the driver, and a GPU that is ready for copies. These are done by this process, or by
//! a `helper`, another process that shares the memory; `order` is what both say to each other.

mod cuda;
pub(crate) mod helper;
mod order;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::copy::gpu::cuda::Flight;
use crate::copy::transfer::{CopyError, Direction, Piece, copy_plain, copy_words, line_step};
use crate::host;
use crate::host::last_errno;
use crate::process::fabric::Fabric;
use cuda::{Code, Cuda, DEINITIALIZED};
use helper::Pending;

/// A range that an application wants to register by its address. `Ok`: its `MrSlot::gpu`; EFAULT
/// where that is not possible.
pub(crate) fn find(fabric: &Fabric, addr: u64, len: u64) -> Result<u32, i32> {
    match Cuda::in_use().and_then(|cuda| Some((cuda, cuda.owner_of(addr)?))) {
        None => Ok(0),
        Some((cuda, ordinal)) if fabric.settings.gpu.by_address => {
            make_ready(fabric, cuda, ordinal, (addr, len))
        }
        // No page of it is the host's.
        Some(_) => Err(libc::EFAULT),
    }
}

/// The same by the dma-buf `fd`, whose address as the application knows it is `addr`. EBADF for no
/// descriptor: that is how support is probed.
pub(crate) fn find_dmabuf(fabric: &Fabric, fd: i32, addr: u64, len: u64) -> Result<u32, i32> {
    if !fabric.settings.gpu.by_dmabuf {
        return Err(libc::EOPNOTSUPP);
    }
    // SAFETY: no memory is involved.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(libc::EBADF);
    }
    let owner = Cuda::in_use().and_then(|cuda| Some((cuda, cuda.owner_of(addr)?)));
    let Some((cuda, ordinal)) = owner else {
        host::say(format_args!(
            "a dma-buf can be registered only if its iova is the address of a GPU's memory in this process; {addr:#x} is not"
        ));
        return Err(libc::EOPNOTSUPP);
    };
    make_ready(fabric, cuda, ordinal, (addr, len))
}

fn make_ready(
    fabric: &Fabric,
    cuda: &'static Cuda,
    ordinal: usize,
    range: (u64, u64),
) -> Result<u32, i32> {
    fabric.open_stage()?;
    let ready = match &fabric.settings.gpu_helper {
        Some(program) => helper::share(fabric, program, cuda, ordinal, range),
        // SAFETY: the fabric's mapping is never unmapped, and its stage has storage.
        None => unsafe { cuda::make_ready(fabric.whole_stage(), cuda, ordinal) }.map(drop),
    };
    ready.map(|()| ordinal as u32 + 1).map_err(|what| {
        host::say(format_args!("{what}"));
        libc::EIO
    })
}

/// What [`find`] or [`find_dmabuf`] has found is not registered any more.
pub(crate) fn give_back(addr: u64, len: u64) {
    helper::give_back(addr, len);
}

/// For a forked child, which has lost what it inherited.
pub(crate) fn abandon() {
    helper::abandon();
}

/// A copy that a GPU has been asked for.
#[derive(Debug)]
pub(crate) enum Ticket {
    /// By this process.
    Own(Flight<'static>),
    /// By the helper.
    Helper(Pending),
}

impl Ticket {
    pub(crate) fn is_done(&self) -> Result<bool, CopyError> {
        match self {
            Self::Own(flight) => flight.is_over().map_err(|code| failed(flight.card(), code)),
            Self::Helper(pending) => pending.is_done(),
        }
    }
}

fn failed(card: &cuda::Card, code: Code) -> CopyError {
    if code == DEINITIALIZED {
        // The process is about to end.
        return CopyError::Gone;
    }
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Relaxed) {
        host::say(format_args!("a copy of a GPU's memory failed: {}", card.name_of(code)));
    }
    CopyError::LocalFault
}

/// Copies `piece` to the stage (out) or the stage's bytes to it (in). A GPU only begins to: the
/// ticket says when it is over.
pub(crate) fn copy(
    piece: &Piece,
    direction: Direction,
    stage: *mut u8,
    by_lines: bool,
) -> Result<Option<Ticket>, CopyError> {
    let Some(ordinal) = piece.gpu.checked_sub(1) else {
        return copy_host(piece, direction, stage, by_lines && direction == Direction::In)
            .map(|()| None);
    };
    if let Some(helper) = helper::started() {
        return helper.copy(piece, direction, stage).map(|pending| Some(Ticket::Helper(pending)));
    }
    let card = cuda::get(ordinal as usize).ok_or(CopyError::LocalFault)?;
    // SAFETY: the memory is registered, and deregistration waits for copies under way; the stage is
    // never unmapped, and the holder of the ticket holds the stage's slot.
    let flight = unsafe { card.begin((piece.addr, piece.len as usize), direction, stage) };
    flight.map(|flight| Some(Ticket::Own(flight))).map_err(|code| failed(card, code))
}

/// Through the kernel, which notices memory that is no longer there; where that is forbidden,
/// directly. By lines: the last word of each line of 128 bytes after all before it.
fn copy_host(
    piece: &Piece,
    direction: Direction,
    stage: *mut u8,
    by_lines: bool,
) -> Result<(), CopyError> {
    static IS_FORBIDDEN: AtomicBool = AtomicBool::new(false);
    let part =
        |addr: u64, len: u64| libc::iovec { iov_base: addr as *mut _, iov_len: len as usize };
    let mut done = 0;
    while !IS_FORBIDDEN.load(Relaxed) && done < piece.len {
        let (addr, left) = (piece.addr + done, piece.len - done);
        let len = if by_lines { line_step(addr).min(left) } else { left };
        let (theirs, ours) = (part(addr, len), part(stage as u64 + done, len));
        let call = if direction == Direction::Out {
            libc::process_vm_readv
        } else {
            libc::process_vm_writev
        };
        // SAFETY: the stage has as many bytes (the caller's part fits it); the kernel checks the
        // other address, which was registered for this access.
        let rc = unsafe { call(libc::getpid(), &raw const ours, 1, &raw const theirs, 1, 0) };
        match rc {
            1.. => done += rc as u64,
            _ if last_errno() == libc::EFAULT => return Err(CopyError::LocalFault),
            _ => IS_FORBIDDEN.store(true, Relaxed),
        }
    }
    if done < piece.len {
        let (ours, stage) = ((piece.addr + done) as *mut u8, stage.wrapping_add(done as usize));
        let (from, to) = if direction == Direction::Out { (ours, stage) } else { (stage, ours) };
        // SAFETY: registered by this application for this access and still registered; that it
        // keeps it mapped until then is its side of the verbs contract.
        unsafe {
            let copy = if by_lines { copy_words } else { copy_plain };
            copy(from, to, (piece.len - done) as usize);
        }
    }
    Ok(())
}
