//! libionic: the answers of the kernel's driver, and the queues. Numbers are big endian, and little
//! endian where they are places in a queue.
//!
//! | queue | |
//! |---|---|
//! | doorbell | one word for all queues of a kind. It is not read: the calls that post show how many requests there are |
//! | send | 64 to 512 bytes: a header of 16 (place, operation, number of elements, flags, immediate data), what the operation needs in 16, then the data |
//! | data of a send | elements of 16 bytes (address, length, key), or the data itself |
//! | receive | a header of 32, then elements |
//! | completion | 32 bytes; the last word has the queue pair, the kind, whether it is a failure, and a bit of the ring's turn |
//!
//! Elements follow 32 bytes with the length of each, if the flags say so. The completion of a send
//! stands for all sends before it as well. After a completion with the status `FLUSHED` the library
//! reports all that is left in the queue as flushed.

use std::ffi::CStr;
use std::mem::size_of;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Release;

use ibverbs::calls::NO_OPERATION;
use ibverbs::calls::types::{
    DeviceAttr, QpCap, Sge, Status, WC_WITH_IMM, Wc, send_flag, wc_opcode, wr_opcode,
};

use crate::provider::{
    Counts, CqMemory, Done, EMPTY, Label, Provider, QpMemory, Request, address, code_of,
};
use crate::provider::{big_long as long, big_word as word};
use crate::uapi::{Plain, bytes, read};

pub(crate) struct Ionic;

/// The answer when a device is opened.
#[repr(C)]
#[derive(Clone, Copy)]
struct ContextAnswer {
    reserved: u32,
    page_shift: u32,
    doorbells: u64,
    version: u16,
    /// Numbers of operations: of queue pairs, and of the kernel.
    operations: [u8; 2],
    /// Where the doorbells are: of sends, receives, completion queues, and the kernel.
    kinds: [u8; 4],
    longest_shift: u8,
    most_elements: u8,
    engines: u8,
    /// Queues in the card's memory with doorbells in them: none.
    express: [u8; 2],
    reserved2: [u8; 3],
    clock: u64,
}

/// libionic's description of a queue.
#[repr(C)]
#[derive(Clone, Copy)]
struct Queue {
    buffer: u64,
    size: u32,
    mask: u16,
    count_shift: u8,
    entry_shift: u8,
}

/// Of a completion queue, for each of two engines.
#[repr(C)]
#[derive(Clone, Copy)]
struct CqInput {
    queues: [Queue; 2],
    engines: u8,
    reserved: [u8; 7],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct QpInput {
    send: Queue,
    receive: Queue,
    /// Most elements with lengths ahead; whether the queue is to be in the card's memory.
    options: [u8; 4],
    engines: u8,
    reserved: [u8; 3],
}

// SAFETY: whole numbers only, and no padding: the sizes below are the sums of the fields.
unsafe impl Plain for ContextAnswer {}
// SAFETY: as above.
unsafe impl Plain for CqInput {}
// SAFETY: as above.
unsafe impl Plain for QpInput {}
const _: () = assert!(size_of::<ContextAnswer>() == 40 && size_of::<Queue>() == 16);
const _: () = assert!(size_of::<CqInput>() == 40 && size_of::<QpInput>() == 40);

const PAGE: u64 = 4096;
/// Bytes of a completion, and those before the word that is written last.
const CQE: usize = 32;
const LAST: usize = 28;
/// Where the data of a request begins, the shortest request to send, and the longest one.
const DATA: usize = 32;
const SHORTEST: usize = 64;
const LONGEST: usize = 512;
/// Bytes before the elements that have their lengths.
const LENGTHS: usize = 32;
const ELEMENT: usize = 16;
/// The only engine.
const ENGINE: u8 = 1;

impl Provider for Ionic {
    fn context(&self, _: &DeviceAttr) -> Vec<u8> {
        let answer = ContextAnswer {
            reserved: 0,
            page_shift: PAGE.ilog2(),
            doorbells: 0,
            version: 2,
            operations: [operation::BIND_WINDOW + 1, 0],
            kinds: [0, 1, 2, 3],
            longest_shift: LONGEST.ilog2() as u8,
            most_elements: 8,
            engines: 1,
            express: [0; 2],
            reserved2: [0; 3],
            clock: 0,
        };
        bytes(&answer).to_vec()
    }

    fn cq(&self, input: &[u8], _: u32) -> Result<Box<dyn CqMemory>, i32> {
        let CqInput { queues: [queue, _], engines, .. } = read(input);
        let ring = Ring::new(&queue)?;
        if engines != ENGINE || ring.entry != CQE {
            return Err(libc::EINVAL);
        }
        Ok(Box::new(CqRing(ring)))
    }

    fn qp(&self, input: &[u8], asked: QpCap) -> Result<Box<dyn QpMemory>, i32> {
        let QpInput { send, receive, .. } = read(input);
        let (send, receive) = (Ring::new(&send)?, Ring::new(&receive)?);
        if asked.max_send_sge == 0 || asked.max_recv_sge == 0 || send.entry < SHORTEST {
            return Err(libc::EINVAL);
        }
        Ok(Box::new(QpRings { send, receive, counts: Counts::default() }))
    }

    fn has_extended(&self) -> bool {
        true
    }

    fn alias(&self) -> Option<&'static CStr> {
        Some(c"pci:v00001DD8d*")
    }
}

/// The memory of a queue: entries of some size, both powers of two.
struct Ring {
    buffer: *mut u8,
    count: u32,
    entry: usize,
}
// SAFETY: the memory belongs to the provider, which reads and writes it as cards expect: requests
// before it counts them as posted. Completions are written under the lock of their queue.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    fn new(queue: &Queue) -> Result<Self, i32> {
        let Queue { buffer, size, mask, count_shift, entry_shift } = *queue;
        let (count, entry) = (u32::from(mask) + 1, 1 << entry_shift.min(63));
        let is_right = buffer != 0
            && buffer.is_multiple_of(PAGE)
            && count.is_power_of_two()
            && count.ilog2() == count_shift.into()
            && (CQE..=LONGEST).contains(&entry)
            && size as usize >= count as usize * entry;
        if is_right {
            Ok(Self { buffer: address(buffer), count, entry })
        } else {
            Err(libc::EINVAL)
        }
    }

    fn at(&self, index: u32) -> *mut u8 {
        self.buffer.wrapping_add((index & (self.count - 1)) as usize * self.entry)
    }

    /// The request of this index, as long as each is.
    fn request<'a>(&self, index: u32, room: &'a mut [u8; LONGEST]) -> &'a [u8] {
        // SAFETY: within the provider's ring, whose entries are no longer than that.
        unsafe { ptr::copy_nonoverlapping(self.at(index), room.as_mut_ptr(), self.entry) };
        &room[..self.entry]
    }
}

struct CqRing(Ring);

impl CqMemory for CqRing {
    /// A failure takes two completions.
    fn room(&self, _: u32) -> u32 {
        self.0.count / 2
    }

    fn write(&self, written: u32, done: &Done) {
        let (first, last) = encode(done);
        let last = last | u32::from(written & self.0.count == 0);
        let cqe = self.0.at(written);
        // SAFETY: within the provider's ring, and nobody else writes this one.
        unsafe {
            ptr::copy_nonoverlapping(first.as_ptr(), cqe, LAST);
            AtomicU32::from_ptr(cqe.add(LAST).cast()).store(last.to_be(), Release);
        }
    }

    fn answer(&self, number: u32) -> Vec<u8> {
        [number, 0, ENGINE.into(), 0].map(u32::to_le_bytes).concat()
    }
}

/// A completion before its last word, and that word without the bit of the turn.
fn encode(done: &Done) -> ([u8; LAST], u32) {
    const RECEIVED: u32 = 1;
    const SENT: u32 = 2;
    /// Of an operation that has no message.
    const DONE_HERE: u32 = 3;
    const FAILED: u32 = 1 << 1;
    let Done { label, wc, .. } = done;
    let mut cqe = [0; LAST];
    let mut put = |at: usize, bytes: &[u8]| cqe[at..at + bytes.len()].copy_from_slice(bytes);
    let is_flush = wc.status == Status::Flush as u32;
    let kind = if label.is_receive {
        let has_imm = wc.wc_flags & WC_WITH_IMM != 0;
        let operation = match (has_imm, wc.opcode) {
            (false, _) => 0,
            (true, wc_opcode::RECV_RDMA_WITH_IMM) => 3,
            (true, _) => 2,
        };
        put(0, &u64::from(label.index).to_le_bytes());
        put(8, &(operation << 24 | wc.src_qp & 0xff_ffff).to_be_bytes());
        // Bytes of the network, as the peer's program gave them.
        put(20, &wc.imm_data.to_ne_bytes());
        RECEIVED
    } else if is_flush || operation::is_local(label.opcode) {
        put(16, &u64::from(label.index).to_le_bytes());
        DONE_HERE
    } else {
        // How many messages there have been.
        put(4, &u32::from(label.index.wrapping_add(1)).to_be_bytes());
        SENT
    };
    let (failed, length) = match wc.status {
        0 => (0, wc.byte_len),
        status => (FAILED, code_of(status, &STATUS, OTHER).into()),
    };
    put(24, &length.to_be_bytes());
    (cqe, wc.qp_num << 8 | kind << 5 | failed)
}

/// The card's codes of failures.
const OTHER: u8 = 13;
const STATUS: [(Status, u8); 9] = [
    (Status::LocLen, 1),
    (Status::LocQpOp, 2),
    (Status::LocProt, 3),
    (Status::Flush, 4),
    (Status::RemInvReq, 8),
    (Status::RemAccess, 9),
    (Status::RemOp, 10),
    (Status::RetryExceeded, 11),
    (Status::RnrRetryExceeded, 12),
];

struct QpRings {
    send: Ring,
    receive: Ring,
    counts: Counts,
}

impl QpMemory for QpRings {
    fn cap(&self) -> QpCap {
        const MOST: u32 = 16384;
        let elements = |ring: &Ring| ((ring.entry - DATA) / ELEMENT) as u32;
        QpCap {
            max_send_wr: self.send.count.min(MOST),
            max_recv_wr: self.receive.count.min(MOST),
            max_send_sge: elements(&self.send),
            max_recv_sge: elements(&self.receive),
            max_inline_data: (self.send.entry - DATA) as u32,
        }
    }

    /// Neither queue is in the card's memory.
    fn answer(&self, number: u32) -> Vec<u8> {
        [number, 0, 0, 0, 0, 0].map(u32::to_ne_bytes).concat()
    }

    fn counts(&self) -> Option<&Counts> {
        Some(&self.counts)
    }

    fn send(&self, at: u32, request: &mut Request) -> Option<u32> {
        if !self.counts.has(false, at) {
            return None;
        }
        decode(self.send.request(at, &mut [0; LONGEST]), at as u16, request);
        Some(at.wrapping_add(1))
    }

    fn receive(&self, at: u32, elements: &mut Vec<Sge>) -> Option<u32> {
        if !self.counts.has(true, at) {
            return None;
        }
        elements.clear();
        let mut room = [0; LONGEST];
        elements.extend(list(self.receive.request(at, &mut room)).into_iter().flatten());
        Some(at.wrapping_add(1))
    }

    fn after_reset(&self) -> [u32; 2] {
        self.counts.reset();
        [0; 2]
    }

    /// The end of the queue comes at once behind a failure: else the library forgets to report the
    /// rest, if a poll has found as much as it has room for.
    fn done(&self, label: Label, wc: Wc) -> [Option<Done>; 2] {
        const FLUSH: u32 = Status::Flush as u32;
        let places = if label.is_receive { self.receive.count - 1 } else { u16::MAX.into() };
        let label = Label { index: label.index & places as u16, ..label };
        let done = |status: u32| Done { user: 0, label, wc: Wc { status, ..wc } };
        let end = || self.counts.end(label.is_receive).then(|| done(FLUSH));
        match wc.status {
            0 => [Some(done(0)), None],
            FLUSH => [end(), None],
            status => [Some(done(status)), end()],
        }
    }
}

/// The elements of a request, if there is room for as many as it says.
fn list(wqe: &[u8]) -> Option<impl Iterator<Item = Sge>> {
    const HAS_LENGTHS: u8 = 0x30;
    let at = DATA + if wqe[10] & HAS_LENGTHS != 0 { LENGTHS } else { 0 };
    let list = wqe.get(at..at + usize::from(wqe[9]) * ELEMENT)?;
    Some(list.chunks_exact(ELEMENT).map(|element| Sge {
        addr: long(element, 0),
        length: word(element, 8),
        lkey: word(element, 12),
    }))
}

/// Numbers of operations.
mod operation {
    pub(super) const SEND: u8 = 0x20;
    pub(super) const SEND_IMM: u8 = 0x60;
    pub(super) const WRITE: u8 = 0x21;
    pub(super) const WRITE_IMM: u8 = 0x61;
    pub(super) const READ: u8 = 2;
    pub(super) const COMPARE_AND_SWAP: u8 = 4;
    pub(super) const FETCH_AND_ADD: u8 = 5;
    pub(super) const INVALIDATE: u8 = 7;
    pub(super) const BIND_WINDOW: u8 = 8;

    pub(super) fn is_local(opcode: u8) -> bool {
        matches!(opcode, INVALIDATE | BIND_WINDOW)
    }
}

fn decode(wqe: &[u8], index: u16, request: &mut Request) {
    const FENCED: u8 = 1;
    const SOLICITED: u8 = 2;
    const INLINE: u8 = 4;
    const SIGNALED: u8 = 8;
    let (opcode, flags) = (wqe[8], wqe[11]);
    let flag = |bit: u8, flag: u32| if flags & bit != 0 { flag } else { 0 };
    request.label = Label { index, opcode, is_receive: false };
    request.elements.clear();
    request.inline.clear();
    request.is_nothing = false;
    let mut wr = EMPTY;
    wr.send_flags = flag(SIGNALED, send_flag::SIGNALED)
        | flag(SOLICITED, send_flag::SOLICITED)
        | flag(FENCED, send_flag::FENCE)
        | flag(INLINE, send_flag::INLINE);
    wr.imm_data = u32::from_ne_bytes(std::array::from_fn(|at| wqe[12 + at]));
    (wr.remote_addr, wr.rkey) = (long(wqe, 16), word(wqe, 24));
    wr.opcode = match opcode {
        operation::WRITE => wr_opcode::RDMA_WRITE,
        operation::WRITE_IMM => wr_opcode::RDMA_WRITE_WITH_IMM,
        operation::SEND => wr_opcode::SEND,
        operation::SEND_IMM => wr_opcode::SEND_WITH_IMM,
        operation::READ => wr_opcode::RDMA_READ,
        operation::COMPARE_AND_SWAP => wr_opcode::ATOMIC_CMP_SWAP,
        operation::FETCH_AND_ADD => wr_opcode::ATOMIC_FETCH_ADD,
        _ => NO_OPERATION,
    };
    request.wr = wr;
    let is_read = match opcode {
        operation::COMPARE_AND_SWAP | operation::FETCH_AND_ADD => {
            let (swap_or_add, compare) = (long(wqe, 28), long(wqe, 36));
            let is_swap = opcode == operation::COMPARE_AND_SWAP;
            let operands = if is_swap { [compare, swap_or_add] } else { [swap_or_add, 0] };
            request.wr.set_atomic(wr.remote_addr, operands, wr.rkey);
            request.elements.push(Sge { addr: long(wqe, 48), length: 8, lkey: word(wqe, 44) });
            true
        }
        _ if flags & INLINE != 0 => {
            let data = wqe[DATA..].get(..word(wqe, 28) as usize);
            request.inline.extend_from_slice(data.unwrap_or_default());
            data.is_some()
        }
        _ => list(wqe).map(|list| request.elements.extend(list)).is_some(),
    };
    if !is_read || request.wr.opcode == NO_OPERATION {
        request.fails();
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::provider::testing;

    const COUNT: u32 = 16;
    const ENTRY: usize = 256;
    const LONGS: usize = COUNT as usize * ENTRY / 8;

    fn rings(queue: &mut [u64]) -> QpRings {
        let ring = |at: *mut u64| Ring { buffer: at.cast(), count: COUNT, entry: ENTRY };
        let at = queue.as_mut_ptr();
        QpRings { send: ring(at), receive: ring(at), counts: Counts::default() }
    }

    #[test]
    fn a_send_request_has_64_bytes_or_more() {
        let refusal = |entry_shift| {
            let queue = Queue { buffer: PAGE, size: 4096, mask: 15, count_shift: 4, entry_shift };
            let (options, reserved) = ([0; 4], [0; 3]);
            let input = QpInput { send: queue, receive: queue, options, engines: ENGINE, reserved };
            let asked = QpCap { max_send_sge: 1, max_recv_sge: 1, ..QpCap::default() };
            Ionic.qp(bytes(&input), asked).err()
        };
        assert_eq!([5, 6].map(refusal), [Some(libc::EINVAL), None]);
    }

    proptest! {
        #[test]
        fn writes_are_read_as_they_were_written(
            at: u16, imm: u32, rkey: u32, remote: u64, is_inline: bool, is_signaled: bool, has_lengths: bool,
            list in vec((any::<u64>(), any::<u32>(), any::<u32>()), 0..=8), data in vec(any::<u8>(), 0..=224),
        ) {
            let mut wqe = u64::from(at).to_le_bytes().to_vec();
            wqe.extend([0x61, if is_inline { 0 } else { list.len() as u8 }, u8::from(has_lengths) << 4]);
            wqe.push(u8::from(is_inline) << 2 | u8::from(is_signaled) << 3);
            wqe.extend(imm.to_ne_bytes());
            wqe.extend([&remote.to_be_bytes()[..], &rkey.to_be_bytes(), &(data.len() as u32).to_be_bytes()].concat());
            if is_inline {
                wqe.extend(&data);
            } else {
                wqe.resize(wqe.len() + if has_lengths { 32 } else { 0 }, 0x55);
                for (addr, length, key) in &list {
                    wqe.extend([&addr.to_be_bytes()[..], &length.to_be_bytes(), &key.to_be_bytes()].concat());
                }
            }
            wqe.resize(ENTRY, 0x55);
            let mut queue = vec![0; LONGS];
            testing::put(&mut queue, usize::from(at) % COUNT as usize * ENTRY, &wqe);
            let rings = rings(&mut queue);
            let request = testing::last_send(&rings, at);
            prop_assert_eq!(request.label, Label { index: at, opcode: 0x61, is_receive: false });
            let wr = &request.wr;
            prop_assert_eq!((wr.opcode, wr.imm_data), (wr_opcode::RDMA_WRITE_WITH_IMM, imm));
            prop_assert_eq!((wr.remote_addr, wr.rkey), (remote, rkey));
            prop_assert_eq!(wr.send_flags, u32::from(is_signaled) << 1 | u32::from(is_inline) << 3);
            if is_inline {
                prop_assert_eq!(&request.inline, &data);
            } else {
                let found = request.elements.iter().map(|one| (one.addr, one.length, one.lkey));
                prop_assert_eq!(found.collect::<Vec<_>>(), list);
            }
        }

        #[test]
        fn whatever_lies_in_a_queue_is_read_to_some_end(mut words in vec(any::<u64>(), LONGS), at: u32) {
            let sizes = testing::sizes_at(&rings(&mut words), at);
            prop_assert!(sizes.into_iter().zip([224, 14, 14]).all(|(size, most)| size <= most), "{sizes:?}");
        }

        #[test]
        fn completions_say_who_what_and_which_turn(
            written: u32, index: u16, is_receive: bool, qp_num in 0..1_u32 << 24, byte_len: u32, imm_data: u32,
            status in 0..14_u32, src_qp in 0..1_u32 << 24,
        ) {
            let mut buffer = vec![0_u64; LONGS];
            let ring = CqRing(Ring { buffer: buffer.as_mut_ptr().cast(), count: COUNT, entry: CQE });
            let opcode = wc_opcode::RECV_RDMA_WITH_IMM;
            let wc = Wc { status, qp_num, byte_len, imm_data, opcode, src_qp, wc_flags: WC_WITH_IMM, ..Wc::default() };
            let label = Label { index, opcode: operation::WRITE, is_receive };
            ring.write(written, &Done { user: 0, label, wc });
            let cqe = buffer[(written % COUNT) as usize * CQE / 8..].iter().flat_map(|word| word.to_ne_bytes());
            let cqe: Vec<u8> = cqe.take(CQE).collect();
            prop_assert_eq!(cqe[31] & 1 == 1, (written / COUNT).is_multiple_of(2));
            prop_assert_eq!(cqe[31] & 2 == 0, status == 0);
            prop_assert_eq!(word(&cqe, 28) >> 8, qp_num);
            if status == 0 {
                prop_assert_eq!(word(&cqe, 24), byte_len);
            }
            let index_at = |at: usize| u16::from_le_bytes([cqe[at], cqe[at + 1]]);
            match (is_receive, status == Status::Flush as u32) {
                (true, _) => {
                    prop_assert_eq!((cqe[31] >> 5, index_at(0)), (1, index));
                    prop_assert_eq!((word(&cqe, 8), word(&cqe, 20).to_be()), (3 << 24 | src_qp, imm_data));
                }
                (false, true) => prop_assert_eq!((cqe[31] >> 5, index_at(16), word(&cqe, 24)), (3, index, 4)),
                (false, false) => {
                    prop_assert_eq!((cqe[31] >> 5, word(&cqe, 4)), (2, index.wrapping_add(1).into()));
                }
            }
        }

        /// The library flushes the rest of each queue by itself.
        #[test]
        fn one_flush_of_a_queue_stands_for_all(index: u16) {
            let mut queue = vec![0; LONGS];
            let rings = rings(&mut queue);
            let count = |status: Status, is_receive: bool| {
                let wc = Wc { status: status as u32, ..Wc::default() };
                rings.done(Label { index, opcode: 0, is_receive }, wc).iter().flatten().count()
            };
            for is_receive in [false, true] {
                prop_assert_eq!(count(Status::Success, is_receive), 1);
                prop_assert_eq!(count(Status::RemAccess, is_receive), 2);
                prop_assert_eq!(count(Status::Flush, is_receive), 0);
            }
            prop_assert_eq!(rings.after_reset(), [0; 2]);
            for left in [1, 0] {
                prop_assert_eq!(count(Status::Flush, true), left);
            }
        }
    }
}
