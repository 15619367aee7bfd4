//! Lists of `iovec`, and where a message is cut into the pieces that the kernel copies one after the other.

use std::mem::MaybeUninit;

use crate::copy::piece::Pieces;
use crate::limits::MAX_SGE;

/// Up to here every 8-byte word of a message is a piece of its own.
pub(crate) const SHORT: u64 = 256;
pub(crate) const WORD: u64 = 8;
/// What consumers of flags poll: 128 aligned bytes, of which the last word is the flag.
const LINE: u64 = 128;
/// Bytes of whole lines that make as many parts as a short message has words: two a line.
pub(crate) const LINES_A_CALL: u64 = SHORT / WORD / 2 * LINE;
/// A short message: its words, and up to two odd ends for each element of either side and a datagram's header.
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
        self.parts[self.count].write(libc::iovec { iov_base: addr as *mut _, iov_len: len as usize });
        self.count += 1;
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u64 {
        self.count as u64
    }

    pub(crate) fn as_ptr(&self) -> *const libc::iovec {
        self.parts.as_ptr().cast()
    }

    /// Cuts the local side so that the destination fills word by word (short) or with the last word on its own (long).
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

    /// Cuts the local side in front of the last word of each line of the destination, and behind it. At most
    /// `LINES_A_CALL` bytes.
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

/// Bytes from `addr` to the last word of its line, or to the end of the line if it lies in that word.
pub(crate) fn line_step(addr: u64) -> u64 {
    let (at, flag) = (addr % LINE, LINE - WORD);
    if at < flag { flag - at } else { LINE - at }
}

#[cfg(test)]
mod tests {
    use crate::copy::piece::{Piece, Pieces};
    use crate::copy::vector::{LINES_A_CALL, Vector, WORD};

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
        vector.parts[..vector.count].iter().map(|p| unsafe { p.assume_init_ref() }.iov_len as u64).collect()
    }

    #[test]
    fn the_last_word_of_each_line_of_the_destination_is_a_part_of_its_own() {
        assert_eq!(line_parts(&[(0x1003, 300)], &[(0x2000, 300)]), [120, WORD, 120, WORD, 44]);
        assert_eq!(line_parts(&[(0x1000, 140)], &[(0x207c, 140)]), [4, 120, WORD, 8]);
        assert_eq!(line_parts(&[(0x1000, 130), (0x3000, 126)], &[(0x2000, 256)]), [120, WORD, 2, 118, WORD]);
        assert_eq!(line_parts(&[(0x1000, 256)], &[(0x2040, 100), (0x4000, 156)]), [56, WORD, 36, 120, WORD, 28]);
        let most = |at: u64| (0..16).map(move |i| (0x1000 * (i + at) + 0x79, LINES_A_CALL / 16)).collect::<Vec<_>>();
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
