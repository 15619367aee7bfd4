//! Moving bytes between this process and the one that owns the other end.
//!
//! Receivers poll memory that a write is about to change, and trust what precedes a word that they have seen change.
//! Many kernels copy with one string instruction of the processor (`rep movsb`), and the processor may make the stores of
//! one such instruction visible in any order; on some, the second 64 bytes of a line of 128 are seen before the first.
//! The stores of successive string instructions are seen in order. `process_vm_writev` copies one local piece after the
//! other, so a piece is what is ordered: a short message is cut into the aligned words of its destination, and of a long
//! one the last word is a piece of its own. By `SOFTRNIC_LINES=1` the last word of each line is. A word may be seen
//! half-written, from its low end, where a NIC writes it at once. All of this is so on x86-64. On 64-bit ARM nothing orders the pieces of a
//! call; only copies within a process have a barrier.

use crate::copy::piece::{CopyError, Direction, Piece, Pieces};
use crate::copy::vector::{LINES_A_CALL, SHORT, Vector, WORD};
use crate::host::errno::last_errno;
use std::sync::atomic::{Ordering, fence};

/// The kernel moves no more than 2 GiB - 4 KiB a call.
const MAX_CALL: u64 = 1 << 30;

/// Moves `local.total` bytes between `local` and the start of `remote`, which is at least as long.
#[inline]
pub(crate) fn transfer(
    pid: Option<i32>,
    direction: Direction,
    local: &Pieces,
    remote: &Pieces,
) -> Result<(), CopyError> {
    match pid {
        None => {
            within_process(direction, local, remote, Order::Plain);
            Ok(())
        }
        Some(pid) => between_processes(pid, direction, local, remote, Order::Plain),
    }
}

/// As [`transfer`] outwards, but a reader that sees the last word of an aligned line of 128 bytes sees all that precedes it.
/// Costs a good deal of bandwidth: two parts for each line.
#[cold]
pub(crate) fn transfer_by_lines(pid: Option<i32>, local: &Pieces, remote: &Pieces) -> Result<(), CopyError> {
    match pid {
        None => {
            within_process(Direction::Out, local, remote, Order::Lines);
            Ok(())
        }
        Some(pid) => between_processes(pid, Direction::Out, local, remote, Order::Lines),
    }
}

/// What is ordered within a long message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Its last word, after the rest.
    Plain,
    /// The last word of each line, after all before it.
    Lines,
}

/// As [`transfer`] outwards, but in no order: what a device may do to memory with relaxed ordering. `salt` picks one.
#[cold]
pub(crate) fn transfer_shuffled(pid: Option<i32>, local: &Pieces, remote: &Pieces, salt: u64) -> Result<(), CopyError> {
    const LINE: u64 = 64;
    const MOST: u64 = 16;
    let lines = local.total.div_ceil(LINE);
    let step = lines.div_ceil(MOST).max(1) * LINE;
    let count = local.total.div_ceil(step);
    // An odd factor permutes 0..16; what lies beyond the message is left out.
    let order = (0..MOST).map(|i| (i * (2 * salt + 5) + salt) % MOST).filter(|&i| i < count);
    for from in order.map(|i| i * step) {
        let len = step.min(local.total - from);
        transfer(pid, Direction::Out, &local.part(from, len), &remote.part(from, len))?;
    }
    Ok(())
}

fn between_processes(
    pid: i32,
    direction: Direction,
    local: &Pieces,
    remote: &Pieces,
    order: Order,
) -> Result<(), CopyError> {
    let most = if order == Order::Lines { LINES_A_CALL } else { MAX_CALL };
    let mut moved = 0;
    while moved < local.total {
        let len = (local.total - moved).min(most);
        let mut theirs = Vector::new();
        remote.window(moved, len).for_each(|p| theirs.push(p.addr, p.len));
        let mut ours = Vector::new();
        if order == Order::Lines && len > SHORT {
            ours.cut_lines(local, remote, moved, len);
        } else if direction == Direction::Out {
            ours.cut(local, remote, moved, len);
        } else {
            local.window(moved, len).for_each(|p| ours.push(p.addr, p.len));
        }
        let call = if direction == Direction::Out { libc::process_vm_writev } else { libc::process_vm_readv };
        // SAFETY: both lists are initialised up to their counts; the kernel checks every address in them. What is
        // written to in this process was registered for writing by the application.
        let rc = unsafe { call(pid, ours.as_ptr(), ours.len(), theirs.as_ptr(), theirs.len(), 0) };
        if rc <= 0 {
            return Err(classify(last_errno(), local));
        }
        moved += rc as u64;
    }
    Ok(())
}

/// `EFAULT` does not say whose memory it was: see whether ours can be read.
fn classify(code: i32, local: &Pieces) -> CopyError {
    match code {
        libc::ESRCH => CopyError::Gone,
        libc::EFAULT if local.iter().all(is_readable) => CopyError::RemoteFault,
        libc::EFAULT => CopyError::LocalFault,
        code => CopyError::Denied(code),
    }
}

fn is_readable(piece: &Piece) -> bool {
    const PAGE: u64 = 4096;
    let ends = [piece.addr, piece.addr + piece.len - 1];
    let pages = (piece.addr / PAGE + 1..=ends[1] / PAGE).map(|page| page * PAGE);
    ends.into_iter().chain(pages).all(|addr| {
        let mut byte = 0u8;
        let to = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let from = libc::iovec { iov_base: addr as *mut _, iov_len: 1 };
        // SAFETY: writes one byte to `byte`; the kernel checks the address it reads.
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) == 1 }
    })
}

fn within_process(direction: Direction, local: &Pieces, remote: &Pieces, order: Order) {
    let mut moved = 0;
    while moved < local.total {
        let (Some(a), Some(b)) = (local.window(moved, u64::MAX).next(), remote.window(moved, u64::MAX).next()) else {
            return;
        };
        let len = a.len.min(b.len);
        let (from, to) = if direction == Direction::Out { (a.addr, b.addr) } else { (b.addr, a.addr) };
        // SAFETY: both ranges were registered by this application for this access and are still registered; that
        // it keeps them mapped until then is its side of the verbs contract.
        unsafe {
            match order {
                Order::Plain => copy_plain(from as *const u8, to as *mut u8, len as usize),
                Order::Lines => copy_words(from as *const u8, to as *mut u8, len as usize),
            }
        }
        moved += len;
    }
}

/// Up to 256 bytes word by word, in ascending order; of more, the last word after the rest.
///
/// # Safety
/// Both ranges are valid. They may overlap and others may access them: bytes go through volatile accesses or memmove.
pub(crate) unsafe fn copy_plain(from: *const u8, to: *mut u8, len: usize) {
    if len as u64 > SHORT {
        // SAFETY: by the caller; the last word is copied after the rest.
        unsafe {
            std::ptr::copy(from, to, len - WORD as usize);
            fence(Ordering::Release);
            copy_words(from.add(len - WORD as usize), to.add(len - WORD as usize), WORD as usize);
        }
    } else {
        // SAFETY: by the caller.
        unsafe { copy_words(from, to, len) };
    }
}

/// Word by word, in ascending order.
///
/// # Safety
/// As for [`copy_plain`].
pub(crate) unsafe fn copy_words(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    while at < len {
        let is_word = (to as usize + at).is_multiple_of(8) && len - at >= 8;
        // SAFETY: `at + 8 <= len` or `at < len`, inside both ranges; the destination of a word is aligned.
        unsafe {
            if is_word {
                let word = from.add(at).cast::<u64>().read_unaligned();
                to.add(at).cast::<u64>().write_volatile(word);
            } else {
                to.add(at).write_volatile(from.add(at).read_volatile());
            }
        }
        // x86-64 keeps the order of stores by itself.
        fence(Ordering::Release);
        at += if is_word { 8 } else { 1 };
    }
}
