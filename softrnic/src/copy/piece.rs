//! Ranges of memory that a message is read from or written to, and why a copy can fail.

use crate::limits::MAX_SGE;

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

    /// Adds a range; an empty one is left out. At most `MAX_SGE` are added (checked at post), and a datagram's header.
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
