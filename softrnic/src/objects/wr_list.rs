//! Work requests of an extended queue pair between `ibv_wr_start` and `ibv_wr_complete`.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::abi::consts::send_flag;
use crate::abi::types::{SendWr, Sge};

/// A list that one thread at a time makes.
#[derive(Default)]
pub(crate) struct Making {
    is_made: AtomicBool,
    list: UnsafeCell<WrList>,
}

/// The work requests so far.
#[derive(Default)]
pub(crate) struct WrList {
    /// The first thing that was wrong with it.
    error: Option<i32>,
    requests: Vec<Wr>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
}

struct Wr {
    wr: SendWr,
    data: Data,
}

/// What a work request has in the lists of all.
enum Data {
    None,
    Elements(Range<usize>),
    Inline(Range<usize>),
}

impl Making {
    /// Begins an empty list: waits for other threads.
    pub(crate) fn begin(&self) {
        while self.is_made.swap(true, Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: one thread at a time is between `begin` and `end`.
        let list = unsafe { &mut *self.list.get() };
        list.error = None;
        list.requests.clear();
        list.sges.clear();
        list.inline.clear();
    }

    pub(crate) fn end(&self) {
        self.is_made.store(false, Release);
    }

    /// Looks at the list, or goes on with it.
    ///
    /// # Safety
    /// The calling thread is between `begin` and `end`, and not in `work` of another call.
    pub(crate) unsafe fn with<R>(&self, work: impl FnOnce(&mut WrList) -> R) -> R {
        // SAFETY: by the caller; other threads wait in `begin`.
        work(unsafe { &mut *self.list.get() })
    }
}

impl WrList {
    /// Begins a work request.
    pub(crate) fn push(&mut self, wr: SendWr) {
        self.requests.push(Wr { wr, data: Data::None });
    }

    /// The work request that is made has this data.
    pub(crate) fn set_elements(&mut self, sges: &[Sge]) {
        let from = self.sges.len();
        self.sges.extend_from_slice(sges);
        let range = from..self.sges.len();
        self.set(|wr| wr.data = Data::Elements(range));
    }

    /// The work request that is made has a copy of these pieces as its data.
    pub(crate) fn set_inline<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) {
        let from = self.inline.len();
        pieces.for_each(|piece| self.inline.extend_from_slice(piece));
        let range = from..self.inline.len();
        self.set(|wr| {
            wr.wr.send_flags |= send_flag::INLINE;
            wr.data = Data::Inline(range);
        });
    }

    /// The work request that is made is a datagram; what names its receiver is in these fields.
    pub(crate) fn set_address(&mut self, ah: u64, qpn: u32, qkey: u32) {
        self.set(|Wr { wr, .. }| (wr.remote_addr, wr.rkey, wr.rest[0]) = (ah, qpn, qkey));
    }

    fn set(&mut self, change: impl FnOnce(&mut Wr)) {
        match self.requests.last_mut() {
            Some(wr) => change(wr),
            None => self.fail(libc::EINVAL),
        }
    }

    /// Something is wrong: nothing of the list will be posted.
    pub(crate) fn fail(&mut self, code: i32) {
        self.error.get_or_insert(code);
    }

    /// The requests with their elements, in order; an error if something is wrong with one.
    pub(crate) fn finished(&self) -> Result<impl Iterator<Item = (&SendWr, Elements<'_>)>, i32> {
        match self.error {
            Some(code) => Err(code),
            None => Ok(self.requests.iter().map(|wr| (&wr.wr, self.elements(&wr.data)))),
        }
    }

    fn elements(&self, data: &Data) -> Elements<'_> {
        match data {
            Data::None => Elements::Given(&[]),
            Data::Elements(range) => Elements::Given(&self.sges[range.clone()]),
            Data::Inline(range) => {
                let bytes = &self.inline[range.clone()];
                Elements::Copied([Sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 }])
            }
        }
    }
}

/// Where the data of a work request is.
pub(crate) enum Elements<'a> {
    Given(&'a [Sge]),
    /// In the list itself.
    Copied([Sge; 1]),
}

impl Elements<'_> {
    pub(crate) fn as_slice(&self) -> &[Sge] {
        match self {
            Self::Given(sges) => sges,
            Self::Copied([sge]) if sge.length == 0 => &[],
            Self::Copied(one) => one,
        }
    }
}
