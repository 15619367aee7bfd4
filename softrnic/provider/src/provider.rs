//! The interface to a provider: the layout of its queues in memory, and its own part of the
//! kernel's answers.

use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};

use ibverbs::calls::NO_OPERATION;
use ibverbs::calls::types::{DeviceAttr, QpCap, SendWr, Sge, Status, Wc};

use crate::uapi::Call;

pub(crate) trait Provider: Sync {
    /// Its part of the answer when this device is opened.
    fn context(&self, device: &DeviceAttr) -> Vec<u8>;

    /// The version of the firmware, in the library's format.
    fn firmware(&self, parts: [u16; 4]) -> u64 {
        let parts = parts.map(u64::from);
        parts[0] << 32 | parts[1] << 16 | parts[2]
    }

    /// Its part of the attributes of a device.
    fn device(&self) -> Vec<u8> {
        Vec::new()
    }

    /// A completion queue for this number of completions, as the provider describes it.
    fn cq(&self, input: &[u8], cqe: u32) -> Result<Box<dyn CqMemory>, i32>;

    /// A queue pair, as the provider describes it, for which the program has asked for these sizes.
    fn qp(&self, input: &[u8], asked: QpCap) -> Result<Box<dyn QpMemory>, i32>;

    /// Its part of the answer for a queue pair that has been changed.
    fn modify_answer(&self, _input: &[u8]) -> Vec<u8> {
        Vec::new()
    }

    /// A command to an object that only this provider has. The number counts the pages of doorbell
    /// registers that have been given out.
    fn command(&self, _pages: &AtomicU32, _call: &mut Call<'_>) -> Result<(), i32> {
        Err(libc::EOPNOTSUPP)
    }

    /// Whether queues may be extended ones, with functions of their own.
    fn has_extended(&self) -> bool {
        false
    }

    /// A pattern for the modalias of its cards, if the library finds them only by the number of
    /// their driver. The kernel tells that by netlink, which is not answered here.
    fn alias(&self) -> Option<&'static CStr> {
        None
    }
}

/// The memory of a queue pair, which the provider fills. Indices count without end and wrap.
pub(crate) trait QpMemory: Send + Sync {
    /// Its sizes.
    fn cap(&self) -> QpCap;

    /// The provider's part of the answer when it has this number.
    fn answer(&self, number: u32) -> Vec<u8>;

    /// The number by which the provider identifies it in completions, if it has one of its own.
    fn user(&self) -> u64 {
        0
    }

    /// Its counts, if the library writes nowhere how many requests it has posted.
    fn counts(&self) -> Option<&Counts> {
        None
    }

    /// Reads the send at `at` into `request`, and returns the index of the next one. `None`: no
    /// other has been posted.
    fn send(&self, at: u32, request: &mut Request) -> Option<u32>;

    /// The same for a receive: its elements.
    fn receive(&self, at: u32, elements: &mut Vec<Sge>) -> Option<u32>;

    /// The indices of the next send and the next receive when it has been reset.
    fn after_reset(&self) -> [u32; 2];

    /// What the provider finds for a completion of softrnic's: up to two completions.
    fn done(&self, label: Label, wc: Wc) -> [Option<Done>; 2] {
        [Some(Done { user: self.user(), label, wc }), None]
    }
}

/// What is counted of a queue pair, of sends and of receives, since its last reset.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    posted: [AtomicU32; 2],
    /// Whether the library knows that the rest is flushed.
    is_ended: [AtomicBool; 2],
}

impl Counts {
    /// The library has posted so many more. Calls of several threads may end in another order than
    /// the library has taken them in. As many as are counted are there in any case.
    pub(crate) fn posted(&self, is_receive: bool, count: u32) {
        self.posted[usize::from(is_receive)].fetch_add(count, SeqCst);
    }

    /// Whether the request of this index has been posted.
    pub(crate) fn has(&self, is_receive: bool, at: u32) -> bool {
        at != self.posted[usize::from(is_receive)].load(Acquire)
    }

    /// The rest is flushed. Whether this is new to the library.
    pub(crate) fn end(&self, is_receive: bool) -> bool {
        !self.is_ended[usize::from(is_receive)].swap(true, SeqCst)
    }

    pub(crate) fn reset(&self) {
        self.posted.iter().for_each(|count| count.store(0, SeqCst));
        self.is_ended.iter().for_each(|flag| flag.store(false, SeqCst));
    }
}

/// The memory of a completion queue, which the provider reads.
pub(crate) trait CqMemory: Send + Sync {
    /// The entries reported to a program that has asked for `asked`.
    fn entries(&self, asked: u32) -> u32 {
        asked
    }

    /// Whether [`Self::room`] knows what the provider has polled. Else it has to poll, as often as
    /// something is written, all that is there: most report polls only by a doorbell, which is not
    /// read, or when they ask for an event.
    fn tells_polled(&self) -> bool {
        false
    }

    /// How many more completions fit after this number of them.
    fn room(&self, written: u32) -> u32;

    /// Writes the next one, after this number of them.
    fn write(&self, written: u32, done: &Done);

    /// The provider's part of the answer when it has this number.
    fn answer(&self, number: u32) -> Vec<u8>;
}

/// An address that the library has passed as a number.
pub(crate) fn address(number: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut(number as usize)
}

/// A number of 32 bits at a place, little endian.
pub(crate) fn little_word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// The same of 64 bits.
pub(crate) fn little_long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// A number of 32 bits at a place, big endian.
pub(crate) fn big_word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// The same of 64 bits.
pub(crate) fn big_long(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// A card's code of a status, by a table; `other` if the table has none.
pub(crate) fn code_of(status: u32, table: &[(Status, u8)], other: u8) -> u8 {
    table.iter().find(|(known, _)| *known as u32 == status).map_or(other, |(_, code)| *code)
}

/// A send, as softrnic takes it.
pub(crate) struct Request {
    pub(crate) wr: SendWr,
    /// Data, unless it is inline.
    pub(crate) elements: Vec<Sge>,
    pub(crate) inline: Vec<u8>,
    /// It does nothing, and has no completion.
    pub(crate) is_nothing: bool,
    pub(crate) label: Label,
}

// SAFETY: the pointers in it are set for the time of a call.
unsafe impl Send for Request {}

impl Request {
    /// softrnic has no such operation: it fails.
    pub(crate) fn fails(&mut self) {
        self.elements.clear();
        self.inline.clear();
        self.wr.opcode = NO_OPERATION;
    }
}

impl Default for Request {
    fn default() -> Self {
        Self {
            wr: EMPTY,
            elements: Vec::new(),
            inline: Vec::new(),
            is_nothing: false,
            label: Label::default(),
        }
    }
}

/// A request without any flags or data.
pub(crate) const EMPTY: SendWr = SendWr {
    wr_id: 0,
    next: ptr::null_mut(),
    sg_list: ptr::null(),
    num_sge: 0,
    opcode: 0,
    send_flags: 0,
    imm_data: 0,
    remote_addr: 0,
    rkey: 0,
    rest: [0; 7],
};

/// The parts of a request that its completion has to repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Label {
    /// Where the request lay in its queue.
    pub(crate) index: u16,
    /// The provider's number of the operation.
    pub(crate) opcode: u8,
    pub(crate) is_receive: bool,
}

impl Label {
    /// Together with the number of a queue pair, as softrnic keeps it for a request.
    pub(crate) fn wr_id(self, qp: u32) -> u64 {
        let place = u64::from(self.index) | u64::from(self.opcode) << 16;
        place | u64::from(self.is_receive) << 31 | u64::from(qp) << 32
    }

    /// The reverse.
    pub(crate) fn of(wr_id: u64) -> (u32, Self) {
        let label = Self {
            index: wr_id as u16,
            opcode: (wr_id >> 16) as u8,
            is_receive: wr_id & 1 << 31 != 0,
        };
        ((wr_id >> 32) as u32, label)
    }
}

/// A completion on its way to the provider.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// See [`QpMemory::user`].
    pub(crate) user: u64,
    pub(crate) label: Label,
    pub(crate) wc: Wc,
}

/// What the tests of queues whose requests are counted have in common.
#[cfg(test)]
pub(crate) mod testing {
    use super::{QpMemory, Request};

    /// Puts a request of whole words into the queue, from this byte on.
    pub(crate) fn put(queue: &mut [u64], at: usize, wqe: &[u8]) {
        for (word, bytes) in queue[at / 8..].iter_mut().zip(wqe.chunks_exact(8)) {
            *word = u64::from_ne_bytes(std::array::from_fn(|at| bytes[at]));
        }
    }

    fn post(rings: &impl QpMemory, is_receive: bool, count: u32) {
        rings.counts().expect("they are counted").posted(is_receive, count);
    }

    /// The send of this index. There is none after it.
    pub(crate) fn last_send(rings: &impl QpMemory, at: u16) -> Request {
        let (at, mut request) = (u32::from(at), Request::default());
        post(rings, false, at + 1);
        assert_eq!(rings.send(at, &mut request), Some(at + 1));
        assert_eq!(rings.send(at + 1, &mut Request::default()), None);
        request
    }

    /// What is read at this index: bytes and elements of a send, elements of a receive.
    pub(crate) fn sizes_at(rings: &impl QpMemory, at: u32) -> [usize; 3] {
        let (next, mut request, mut elements) = (at.wrapping_add(1), Request::default(), vec![]);
        [false, true].into_iter().for_each(|is_receive| post(rings, is_receive, next));
        assert_eq!(rings.send(at, &mut request), Some(next));
        assert_eq!(rings.receive(at, &mut elements), Some(next));
        [request.inline.len(), request.elements.len(), elements.len()]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Label;

    proptest! {
        #[test]
        fn a_label_comes_back(index: u16, opcode: u8, is_receive: bool, qp: u32) {
            let label = Label { index, opcode, is_receive };
            prop_assert_eq!(Label::of(label.wr_id(qp)), (qp, label));
        }
    }
}
