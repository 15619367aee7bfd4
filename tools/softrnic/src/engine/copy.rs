//! Moving bytes between this process and the one that owns the other end, in ascending order of address.
//!
//! Receivers poll memory that a write is about to change, and expect what real NICs give: whoever sees a byte sees all
//! before it. `process_vm_writev` fills one local piece after the other, so a short message is cut into the aligned words
//! of its destination, and of a long one the last word is a piece of its own. Real NICs write such a word at once; here
//! it may be seen half-written, from its low end, because many kernels copy with the processor's string instruction.

use std::mem::MaybeUninit;

use crate::device::MAX_SGE;
use crate::notice::last_errno;

/// A range of memory: in this process or in the peer's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Piece {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// Of its memory region; 0: needs none.
    pub(crate) key: u32,
    /// 0: the host's memory; else ordinal + 1 of a GPU.
    pub(crate) gpu: u32,
}

impl Piece {
    /// Host memory of this process.
    pub(super) fn host(addr: u64, len: u64) -> Self {
        Self { addr, len, ..Self::default() }
    }
}

/// Ranges that make up one side of a message: nearly always one, so that it is cheap to hand on.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// Of length 0 if there are none.
    first: Piece,
    rest: Vec<Piece>,
    pub(super) total: u64,
    /// Some of it is a GPU's.
    pub(super) has_gpu: bool,
}

impl Pieces {
    #[inline]
    pub(super) fn one(piece: Piece) -> Self {
        let mut pieces = Self::default();
        pieces.push(piece);
        pieces
    }

    /// Host memory of this process, which needs no key.
    pub(super) fn host(addr: u64, len: u64) -> Self {
        Self::one(Piece::host(addr, len))
    }

    /// Adds a range; an empty one is left out. At most `MAX_SGE` are added (checked at post).
    #[inline]
    pub(super) fn push(&mut self, piece: Piece) {
        if piece.len == 0 || self.rest.len() + 1 == MAX_SGE as usize {
            return;
        }
        if self.total == 0 {
            self.first = piece;
        } else {
            self.rest.push(piece);
        }
        self.total += piece.len;
        self.has_gpu |= piece.gpu != 0;
    }

    /// Address of byte `at` of the message, counted round.
    pub(super) fn byte(&self, at: u64) -> Option<u64> {
        let at = at.checked_rem(self.total)?;
        self.window(at, 1).next().map(|piece| piece.addr)
    }

    /// `[from, from + len)` of the message.
    fn part(&self, from: u64, len: u64) -> Self {
        let mut part = Self::default();
        self.window(from, len).for_each(|piece| part.push(piece));
        part
    }

    fn iter(&self) -> impl Iterator<Item = &Piece> {
        std::iter::once(&self.first).filter(|first| first.len != 0).chain(&self.rest)
    }

    /// The ranges of `[from, from + len)` of the message.
    pub(super) fn window(&self, mut from: u64, mut len: u64) -> impl Iterator<Item = Piece> {
        self.iter().filter_map(move |piece| {
            let skip = from.min(piece.len);
            from -= skip;
            let take = len.min(piece.len - skip);
            len -= take;
            (take != 0).then_some(Piece { addr: piece.addr + skip, len: take, ..*piece })
        })
    }
}

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Local to peer.
    Out,
    /// Peer to local.
    In,
}

/// Why bytes could not be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyError {
    /// The peer's process is no more.
    Gone,
    /// Memory that was registered is no longer there, on our side or the peer's.
    LocalFault,
    RemoteFault,
    /// The peer has deregistered the memory meanwhile.
    Forbidden,
    /// The system does not let us; errno.
    Denied(i32),
}

/// Up to here every 8-byte word of a message is a piece of its own.
const SHORT: u64 = 256;
const WORD: u64 = 8;
/// The kernel moves no more than 2 GiB - 4 KiB a call.
const MAX_CALL: u64 = 1 << 30;
/// A short message: its words, and up to two odd ends for each element of either side.
const MAX_PARTS: usize = (SHORT / WORD) as usize + 4 * MAX_SGE as usize;

/// Moves `local.total` bytes between `local` and the start of `remote`, which is at least as long.
#[inline]
pub(super) fn transfer(pid: Option<i32>, way: Way, local: &Pieces, remote: &Pieces) -> Result<(), CopyError> {
    match pid {
        None => {
            within_process(way, local, remote);
            Ok(())
        }
        Some(pid) => between_processes(pid, way, local, remote),
    }
}

/// As [`transfer`] outwards, but in no order: what a device may do to memory with relaxed ordering. `salt` picks one.
#[cold]
pub(super) fn transfer_shuffled(pid: Option<i32>, local: &Pieces, remote: &Pieces, salt: u64) -> Result<(), CopyError> {
    const LINE: u64 = 64;
    const MOST: u64 = 16;
    let lines = local.total.div_ceil(LINE);
    let step = lines.div_ceil(MOST).max(1) * LINE;
    let count = local.total.div_ceil(step);
    // An odd factor permutes 0..16; what lies beyond the message is left out.
    let order = (0..MOST).map(|i| (i * (2 * salt + 5) + salt) % MOST).filter(|&i| i < count);
    for from in order.map(|i| i * step) {
        let len = step.min(local.total - from);
        transfer(pid, Way::Out, &local.part(from, len), &remote.part(from, len))?;
    }
    Ok(())
}

type Parts = [MaybeUninit<libc::iovec>; MAX_PARTS];

/// A list of `iovec` under construction.
struct Vector {
    parts: Parts,
    count: usize,
}

impl Vector {
    #[inline]
    fn new() -> Self {
        Self { parts: [const { MaybeUninit::uninit() }; MAX_PARTS], count: 0 }
    }

    #[inline]
    fn push(&mut self, addr: u64, len: u64) {
        self.parts[self.count].write(libc::iovec { iov_base: addr as *mut _, iov_len: len as usize });
        self.count += 1;
    }

    fn as_ptr(&self) -> *const libc::iovec {
        self.parts.as_ptr().cast()
    }
}

fn between_processes(pid: i32, way: Way, local: &Pieces, remote: &Pieces) -> Result<(), CopyError> {
    let mut moved = 0;
    while moved < local.total {
        let len = (local.total - moved).min(MAX_CALL);
        let mut theirs = Vector::new();
        remote.window(moved, len).for_each(|p| theirs.push(p.addr, p.len));
        let mut ours = Vector::new();
        if way == Way::Out {
            cut(&mut ours, local, remote, moved, len);
        } else {
            local.window(moved, len).for_each(|p| ours.push(p.addr, p.len));
        }
        let call = if way == Way::Out { libc::process_vm_writev } else { libc::process_vm_readv };
        // SAFETY: both lists are initialised up to their counts; the kernel checks every address in them. What is
        // written to in this process was registered for writing by the application.
        let rc = unsafe { call(pid, ours.as_ptr(), ours.count as u64, theirs.as_ptr(), theirs.count as u64, 0) };
        if rc <= 0 {
            return Err(classify(last_errno(), local));
        }
        moved += rc as u64;
    }
    Ok(())
}

/// Cuts the local side so that the destination fills word by word (short) or with the last word on its own (long).
#[inline]
fn cut(ours: &mut Vector, local: &Pieces, remote: &Pieces, moved: u64, len: u64) {
    if len > SHORT {
        local.window(moved, len - WORD).for_each(|p| ours.push(p.addr, p.len));
        local.window(moved + len - WORD, WORD).for_each(|p| ours.push(p.addr, p.len));
        return;
    }
    let start = remote.window(moved, 1).next().map_or(0, |p| p.addr);
    let mut to_boundary = WORD - start % WORD;
    for piece in local.window(moved, len) {
        let (mut addr, end) = (piece.addr, piece.addr + piece.len);
        while addr < end {
            let step = to_boundary.min(end - addr);
            ours.push(addr, step);
            addr += step;
            to_boundary = if to_boundary == step { WORD } else { to_boundary - step };
        }
    }
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

fn within_process(way: Way, local: &Pieces, remote: &Pieces) {
    let mut moved = 0;
    while moved < local.total {
        let (Some(a), Some(b)) = (local.window(moved, u64::MAX).next(), remote.window(moved, u64::MAX).next()) else {
            return;
        };
        let len = a.len.min(b.len);
        let (from, to) = if way == Way::Out { (a.addr, b.addr) } else { (b.addr, a.addr) };
        // SAFETY: both ranges were registered by this application for this access and are still registered; that
        // it keeps them mapped until then is its side of the verbs contract.
        unsafe { copy_ascending(from as *const u8, to as *mut u8, len as usize) };
        moved += len;
    }
}

/// # Safety
/// Both ranges are valid. They may overlap and others may access them: bytes go through volatile accesses or memmove.
pub(crate) unsafe fn copy_ascending(from: *const u8, to: *mut u8, len: usize) {
    if len as u64 > SHORT {
        // SAFETY: by the caller; the last word is copied after the rest.
        unsafe {
            std::ptr::copy(from, to, len - WORD as usize);
            copy_words(from.add(len - WORD as usize), to.add(len - WORD as usize), WORD as usize);
        }
    } else {
        // SAFETY: by the caller.
        unsafe { copy_words(from, to, len) };
    }
}

/// # Safety
/// As for [`copy_ascending`].
unsafe fn copy_words(from: *const u8, to: *mut u8, len: usize) {
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
        at += if is_word { 8 } else { 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::{Piece, Pieces, Vector, WORD, cut};

    fn pieces(list: &[(u64, u64)]) -> Pieces {
        let mut pieces = Pieces::default();
        list.iter().for_each(|(addr, len)| pieces.push(Piece::host(*addr, *len)));
        pieces
    }

    /// Lengths of the local parts for a message to address `to`.
    fn parts(local: &[(u64, u64)], to: u64) -> Vec<u64> {
        let local = pieces(local);
        let remote = Pieces::host(to, local.total);
        let mut vector = Vector::new();
        cut(&mut vector, &local, &remote, 0, local.total);
        // SAFETY: initialised up to the count.
        vector.parts[..vector.count].iter().map(|p| unsafe { p.assume_init_ref() }.iov_len as u64).collect()
    }

    #[test]
    fn short_messages_are_cut_at_the_words_of_their_destination() {
        assert_eq!(parts(&[(0x1003, 24)], 0x2000), [8, 8, 8]);
        assert_eq!(parts(&[(0x1000, 20)], 0x2005), [3, 8, 8, 1]);
        assert_eq!(parts(&[(0x1000, 3)], 0x2000), [3]);
        assert_eq!(parts(&[(0x1000, 5), (0x3000, 13)], 0x2000), [5, 3, 8, 2]);
        assert_eq!(parts(&[(0x1000, 256)], 0x2001).iter().sum::<u64>(), 256);
    }

    #[test]
    fn the_last_word_of_a_long_message_is_a_part_of_its_own() {
        assert_eq!(parts(&[(0x1000, 257)], 0x2000), [249, WORD]);
        assert_eq!(parts(&[(0x1000, 300), (0x3000, 4)], 0x2000), [296, 4, 4]);
    }

    #[test]
    fn the_most_elements_fit() {
        let local: Vec<_> = (0..16).map(|i| (0x1000 * (i + 1) + 5, 16)).collect();
        assert_eq!(parts(&local, 0x2003).iter().sum::<u64>(), 256);
    }
}
