//! Moving bytes between this process and the one that owns the other end.
//!
//! Receivers poll memory that a write is about to change, and trust what precedes a word that they
//! have seen change. Many kernels copy with one string instruction of the processor (`rep movsb`),
//! and the processor may make the stores of one such instruction visible in any order; on some, the
//! second 64 bytes of a line of 128 are seen before the first. The stores of successive string
//! instructions are seen in order. `process_vm_writev` copies one local piece after the other, so a
//! piece is what is ordered: a short message is cut into the aligned words of its destination, and
//! of a long one the last word is a piece of its own. By `SOFTRNIC_LINES=1` the last word of each
//! line is. A word may be seen half-written, from its low end, where a NIC writes it at once. All
//! of this is so on x86-64. On 64-bit ARM nothing orders the pieces of a call; only copies within a
//! process have a barrier.

use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, fence};

use crate::host::last_errno;
use crate::limits::MAX_SGE;

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

/// As [`transfer`] outwards, but a reader that sees the last word of an aligned line of 128 bytes
/// sees all that precedes it. Costs a good deal of bandwidth: two parts for each line.
#[cold]
pub(crate) fn transfer_by_lines(
    pid: Option<i32>,
    local: &Pieces,
    remote: &Pieces,
) -> Result<(), CopyError> {
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

/// As [`transfer`] outwards, but in no order: what a device may do to memory with relaxed ordering.
/// `salt` picks one.
#[cold]
pub(crate) fn transfer_shuffled(
    pid: Option<i32>,
    local: &Pieces,
    remote: &Pieces,
    salt: u64,
) -> Result<(), CopyError> {
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
        let call = if direction == Direction::Out {
            libc::process_vm_writev
        } else {
            libc::process_vm_readv
        };
        // SAFETY: both lists are initialised up to their counts; the kernel checks every address in
        // them. What is written to in this process was registered for writing by the application.
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
        unsafe {
            libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) == 1
        }
    })
}

fn within_process(direction: Direction, local: &Pieces, remote: &Pieces, order: Order) {
    let mut moved = 0;
    while moved < local.total {
        let (Some(a), Some(b)) =
            (local.window(moved, u64::MAX).next(), remote.window(moved, u64::MAX).next())
        else {
            return;
        };
        let len = a.len.min(b.len);
        let (from, to) =
            if direction == Direction::Out { (a.addr, b.addr) } else { (b.addr, a.addr) };
        // SAFETY: both ranges were registered by this application for this access and are still
        // registered; that it keeps them mapped until then is its side of the verbs contract.
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
/// Both ranges are valid. They may overlap and others may access them: bytes go through volatile
/// accesses or memmove.
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
        // SAFETY: `at + 8 <= len` or `at < len`, inside both ranges; the destination of a word is
        // aligned.
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
    pub(crate) fn host(addr: u64, len: u64) -> Self {
        Self { addr, len, ..Self::default() }
    }
}

/// Ranges that make up one side of a message: nearly always one, so that it is cheap to hand on.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// Of length 0 if there are none.
    first: Piece,
    rest: Vec<Piece>,
    pub(crate) total: u64,
    /// Some of it is a GPU's.
    pub(crate) has_gpu: bool,
}

impl Pieces {
    #[inline]
    pub(crate) fn one(piece: Piece) -> Self {
        let mut pieces = Self::default();
        pieces.push(piece);
        pieces
    }

    /// Host memory of this process, which needs no key.
    pub(crate) fn host(addr: u64, len: u64) -> Self {
        Self::one(Piece::host(addr, len))
    }

    /// Adds a range; an empty one is left out. At most `MAX_SGE` are added (checked at post), and a
    /// datagram's header.
    #[inline]
    pub(crate) fn push(&mut self, piece: Piece) {
        if piece.len == 0 || self.rest.len() == MAX_SGE as usize {
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
    pub(crate) fn byte(&self, at: u64) -> Option<u64> {
        let at = at.checked_rem(self.total)?;
        self.window(at, 1).next().map(|piece| piece.addr)
    }

    /// `[from, from + len)` of the message.
    pub(crate) fn part(&self, from: u64, len: u64) -> Self {
        let mut part = Self::default();
        self.window(from, len).for_each(|piece| part.push(piece));
        part
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Piece> {
        std::iter::once(&self.first).filter(|first| first.len != 0).chain(&self.rest)
    }

    /// The ranges of `[from, from + len)` of the message.
    pub(crate) fn window(&self, mut from: u64, mut len: u64) -> impl Iterator<Item = Piece> {
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
pub(crate) enum Direction {
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
pub(crate) const SHORT: u64 = 256;
pub(crate) const WORD: u64 = 8;
/// What consumers of flags poll: 128 aligned bytes, of which the last word is the flag.
const LINE: u64 = 128;
/// Bytes of whole lines that make as many parts as a short message has words: two a line.
pub(crate) const LINES_A_CALL: u64 = SHORT / WORD / 2 * LINE;
/// A short message: its words, and up to two odd ends for each element of either side and a
/// datagram's header.
const MAX_PARTS: usize = (SHORT / WORD) as usize + 4 * (MAX_SGE as usize + 1);

type Parts = [MaybeUninit<libc::iovec>; MAX_PARTS];

/// A list of `iovec` under construction.
pub(crate) struct Vector {
    parts: Parts,
    count: usize,
}

impl Vector {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { parts: [const { MaybeUninit::uninit() }; MAX_PARTS], count: 0 }
    }

    #[inline]
    pub(crate) fn push(&mut self, addr: u64, len: u64) {
        self.parts[self.count]
            .write(libc::iovec { iov_base: addr as *mut _, iov_len: len as usize });
        self.count += 1;
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u64 {
        self.count as u64
    }

    pub(crate) fn as_ptr(&self) -> *const libc::iovec {
        self.parts.as_ptr().cast()
    }

    /// Cuts the local side so that the destination fills word by word (short) or with the last word
    /// on its own (long).
    #[inline]
    pub(crate) fn cut(&mut self, local: &Pieces, remote: &Pieces, moved: u64, len: u64) {
        if len > SHORT {
            local.window(moved, len - WORD).for_each(|p| self.push(p.addr, p.len));
            local.window(moved + len - WORD, WORD).for_each(|p| self.push(p.addr, p.len));
            return;
        }
        let start = remote.window(moved, 1).next().map_or(0, |p| p.addr);
        let mut to_boundary = WORD - start % WORD;
        for piece in local.window(moved, len) {
            let (mut addr, end) = (piece.addr, piece.addr + piece.len);
            while addr < end {
                let step = to_boundary.min(end - addr);
                self.push(addr, step);
                addr += step;
                to_boundary = if to_boundary == step { WORD } else { to_boundary - step };
            }
        }
    }

    /// Cuts the local side in front of the last word of each line of the destination, and behind
    /// it. At most `LINES_A_CALL` bytes.
    pub(crate) fn cut_lines(&mut self, local: &Pieces, remote: &Pieces, moved: u64, len: u64) {
        let mut at = moved;
        for piece in remote.window(moved, len) {
            let mut left = piece.len;
            while left > 0 {
                let step = line_step(piece.addr + piece.len - left).min(left);
                local.window(at, step).for_each(|p| self.push(p.addr, p.len));
                at += step;
                left -= step;
            }
        }
    }
}

/// Bytes from `addr` to the last word of its line, or to the end of the line if it lies in that
/// word.
pub(crate) fn line_step(addr: u64) -> u64 {
    let (at, flag) = (addr % LINE, LINE - WORD);
    if at < flag { flag - at } else { LINE - at }
}

#[cfg(test)]
mod tests {
    use crate::copy::transfer::{LINES_A_CALL, Piece, Pieces, Vector, WORD};

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
        vector.cut(&local, &remote, 0, local.total);
        lengths(&vector)
    }

    /// The same by lines, for a message to several ranges.
    fn line_parts(local: &[(u64, u64)], to: &[(u64, u64)]) -> Vec<u64> {
        let (local, remote) = (pieces(local), pieces(to));
        let mut vector = Vector::new();
        vector.cut_lines(&local, &remote, 0, local.total);
        lengths(&vector)
    }

    fn lengths(vector: &Vector) -> Vec<u64> {
        // SAFETY: initialised up to the count.
        vector.parts[..vector.count]
            .iter()
            .map(|p| unsafe { p.assume_init_ref() }.iov_len as u64)
            .collect()
    }

    #[test]
    fn the_last_word_of_each_line_of_the_destination_is_a_part_of_its_own() {
        assert_eq!(line_parts(&[(0x1003, 300)], &[(0x2000, 300)]), [120, WORD, 120, WORD, 44]);
        assert_eq!(line_parts(&[(0x1000, 140)], &[(0x207c, 140)]), [4, 120, WORD, 8]);
        assert_eq!(
            line_parts(&[(0x1000, 130), (0x3000, 126)], &[(0x2000, 256)]),
            [120, WORD, 2, 118, WORD]
        );
        assert_eq!(
            line_parts(&[(0x1000, 256)], &[(0x2040, 100), (0x4000, 156)]),
            [56, WORD, 36, 120, WORD, 28]
        );
        let most = |at: u64| {
            (0..16).map(move |i| (0x1000 * (i + at) + 0x79, LINES_A_CALL / 16)).collect::<Vec<_>>()
        };
        assert_eq!(line_parts(&most(1), &most(0x100)).iter().sum::<u64>(), LINES_A_CALL);
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
