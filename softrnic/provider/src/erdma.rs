//! liberdma: the answers of the kernel's driver, and the queues. Numbers are little endian, and big
//! endian in completions.
//!
//! | queue | |
//! |---|---|
//! | records of a queue pair | two words of 64 bits, of sends and of receives; the lowest 16 bits count what has been posted: blocks, receives |
//! | send | blocks of 32 bytes: a header of 64 bits, what the operation needs, then the data |
//! | data of a send | elements of 16 bytes (address, length, key), or the data itself |
//! | receive | 32 bytes, with one element |
//! | completion | 32 bytes; the first one has what came of it, and a bit that changes with each turn of the ring |

use std::mem::size_of;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use ibverbs::calls::NO_OPERATION;
use ibverbs::calls::types::{
    DeviceAttr, QpCap, Sge, Status, WC_WITH_IMM, send_flag, wc_opcode, wr_opcode,
};

use crate::provider::{
    CqMemory, Done, EMPTY, Label, Provider, QpMemory, Request, address, code_of,
};
use crate::provider::{little_long as long, little_word as word};
use crate::uapi::{Plain, bytes, read};

pub(crate) struct Erdma;

/// The answer when a device is opened.
#[repr(C)]
#[derive(Clone, Copy)]
struct ContextAnswer {
    device: u32,
    reserved: u32,
    /// How doorbells of sends lie in their page: by the number of the queue pair.
    kind: u32,
    offset: u32,
    /// Where the pages of doorbells are mapped: of sends, receives and completion queues.
    pages: [u64; 3],
}

/// liberdma's description of a completion queue, and of both queues of a queue pair.
#[repr(C)]
#[derive(Clone, Copy)]
struct Input {
    record: u64,
    buffer: u64,
    length: u32,
    reserved: u32,
}

// SAFETY: whole numbers only, and no padding: the sizes below are the sums of the fields.
unsafe impl Plain for ContextAnswer {}
// SAFETY: as above.
unsafe impl Plain for Input {}
const _: () = assert!(size_of::<ContextAnswer>() == 40 && size_of::<Input>() == 24);

const PAGE: usize = 4096;
/// Bytes of a block of the send queue, of a receive, of a completion.
const BLOCK: usize = 32;
const RECEIVE: usize = 32;
const CQE: usize = 32;
/// The longest send, in blocks; a queue has room for as many of these as it was made for.
const MOST_BLOCKS: u32 = 4;
/// Elements and inline bytes of a send, elements of a receive.
const SEND_SGE: u32 = 6;
const INLINE: u32 = 96;
const RECV_SGE: u32 = 1;

impl Provider for Erdma {
    fn context(&self, _: &DeviceAttr) -> Vec<u8> {
        let pages = [1, 2, 3].map(|page| page * PAGE as u64);
        let answer = ContextAnswer { device: 0, reserved: 0, kind: 0, offset: 0, pages };
        bytes(&answer).to_vec()
    }

    fn cq(&self, input: &[u8], cqe: u32) -> Result<Box<dyn CqMemory>, i32> {
        let Input { buffer, length, .. } = read(input);
        if !cqe.is_power_of_two() || (length as usize / CQE) < cqe as usize {
            return Err(libc::EINVAL);
        }
        Ok(Box::new(CqRing { buffer: address(buffer), size: cqe }))
    }

    fn qp(&self, input: &[u8], asked: QpCap) -> Result<Box<dyn QpMemory>, i32> {
        let Input { record, buffer, length, .. } = read(input);
        let ring =
            |count: Option<u32>| count.and_then(u32::checked_next_power_of_two).ok_or(libc::EINVAL);
        let blocks = ring(asked.max_send_wr.checked_mul(MOST_BLOCKS))?;
        let receives = ring(Some(asked.max_recv_wr))?;
        let receives_at = (blocks as usize * BLOCK).next_multiple_of(PAGE);
        if receives_at + receives as usize * RECEIVE > length as usize {
            return Err(libc::EINVAL);
        }
        let send = address(buffer);
        Ok(Box::new(QpRings {
            send,
            blocks,
            receive: send.wrapping_add(receives_at),
            receives,
            records: address(record).cast(),
        }))
    }
}

struct CqRing {
    buffer: *mut u8,
    size: u32,
}
// SAFETY: the memory belongs to the provider, which reads and writes it as cards expect; what is
// written here is written under the lock of the completion queue.
unsafe impl Send for CqRing {}
// SAFETY: as above.
unsafe impl Sync for CqRing {}

impl CqMemory for CqRing {
    fn room(&self, _: u32) -> u32 {
        self.size
    }

    fn write(&self, written: u32, done: &Done) {
        let place = (written & (self.size - 1)) as usize;
        let is_odd_turn = written & self.size != 0;
        let cqe = encode(done);
        let (first, rest) = cqe.split_at(size_of::<u32>());
        let first = u32::from_ne_bytes(std::array::from_fn(|at| first[at]));
        let owner = if is_odd_turn { 0 } else { OWNER.to_be() };
        // SAFETY: the provider's buffer has `size` completions, and nobody else writes this one.
        unsafe {
            let cqe = self.buffer.add(place * CQE);
            ptr::copy_nonoverlapping(rest.as_ptr(), cqe.add(size_of::<u32>()), rest.len());
            AtomicU32::from_ptr(cqe.cast()).store(first | owner, Release);
        }
    }

    fn answer(&self, number: u32) -> Vec<u8> {
        [number, self.size].map(u32::to_ne_bytes).concat()
    }
}

const OWNER: u32 = 1 << 31;

/// A completion, without the bit of the turn.
fn encode(done: &Done) -> [u8; CQE] {
    let Done { label, wc, .. } = done;
    let has_imm = wc.wc_flags & WC_WITH_IMM != 0;
    let opcode = match (wc.status, label.is_receive) {
        (_, false) => label.opcode,
        (0, true) if wc.opcode == wc_opcode::RECV_RDMA_WITH_IMM => operation::RECEIVED_WRITE,
        (0, true) if has_imm => operation::RECEIVED_IMMEDIATE,
        (_, true) => operation::RECEIVED,
    };
    let header = u32::from(opcode) << 16
        | u32::from(label.is_receive) << 8
        | u32::from(syndrome(wc.status, label.is_receive));
    let mut cqe = [0; CQE];
    let words = [header, label.index.into(), wc.qp_num];
    for (place, word) in cqe.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    cqe[12..16].copy_from_slice(&u32::from_be(wc.imm_data).to_le_bytes());
    cqe[16..20].copy_from_slice(&wc.byte_len.to_be_bytes());
    cqe
}

/// The card's code of what came of a request.
fn syndrome(status: u32, is_receive: bool) -> u8 {
    const OTHER: u8 = 1;
    let table: &[(Status, u8)] = if is_receive {
        &[(Status::Success, 0), (Status::LocLen, 4), (Status::LocProt, 3), (Status::Flush, 15)]
    } else {
        &[
            (Status::Success, 0),
            (Status::LocQpOp, 8),
            (Status::LocProt, 10),
            (Status::RemAccess, 3),
            (Status::Flush, 15),
            (Status::RetryExceeded, 16),
            (Status::RnrRetryExceeded, 16),
        ]
    };
    code_of(status, table, OTHER)
}

struct QpRings {
    send: *mut u8,
    blocks: u32,
    receive: *mut u8,
    receives: u32,
    records: *mut u64,
}
// SAFETY: the memory belongs to the provider, which writes it before it counts it as posted.
unsafe impl Send for QpRings {}
// SAFETY: as above.
unsafe impl Sync for QpRings {}

impl QpRings {
    /// The number of blocks of sends (0), or of receives (1), that have been posted.
    fn posted(&self, which: usize) -> u16 {
        // SAFETY: the provider's record, which stays as long as the queue pair. The lowest bits come
        // first.
        unsafe { AtomicU32::from_ptr(self.records.add(which).cast()) }.load(Acquire) as u16
    }

    fn block(&self, at: u32) -> [u8; BLOCK] {
        let place = (at & (self.blocks - 1)) as usize;
        // SAFETY: within the provider's ring.
        unsafe { self.send.add(place * BLOCK).cast::<[u8; BLOCK]>().read() }
    }
}

impl QpMemory for QpRings {
    fn cap(&self) -> QpCap {
        QpCap {
            max_send_wr: self.blocks,
            max_recv_wr: self.receives,
            max_send_sge: SEND_SGE,
            max_recv_sge: RECV_SGE,
            max_inline_data: INLINE,
        }
    }

    fn answer(&self, number: u32) -> Vec<u8> {
        let receives_at = (self.receive as usize - self.send as usize) as u32;
        [number, self.blocks, self.receives, receives_at].map(u32::to_ne_bytes).concat()
    }

    fn send(&self, at: u32, request: &mut Request) -> Option<u32> {
        if at as u16 == self.posted(0) {
            return None;
        }
        let mut wqe = [0; 8 * BLOCK];
        let count = (long(&self.block(at), 0) >> 52 & 7) as u32 + 1;
        for (place, index) in wqe.chunks_exact_mut(BLOCK).zip(0..count) {
            place.copy_from_slice(&self.block(at.wrapping_add(index)));
        }
        decode(&wqe[..count as usize * BLOCK], at as u16, request);
        Some(at.wrapping_add(count))
    }

    fn receive(&self, at: u32, elements: &mut Vec<Sge>) -> Option<u32> {
        if at as u16 == self.posted(1) {
            return None;
        }
        let place = (at & (self.receives - 1)) as usize;
        // SAFETY: within the provider's ring.
        let wqe = unsafe { self.receive.add(place * RECEIVE).cast::<[u8; RECEIVE]>().read() };
        elements.clear();
        elements.extend(Some(element(&wqe[16..])).filter(|element| element.length != 0));
        Some(at.wrapping_add(1))
    }

    /// The library counts on.
    fn after_reset(&self) -> [u32; 2] {
        [self.posted(0).into(), self.posted(1).into()]
    }
}

fn element(bytes: &[u8]) -> Sge {
    Sge { addr: long(bytes, 0), length: word(bytes, 8), lkey: word(bytes, 12) }
}

/// Numbers of operations, of sends and of completions.
mod operation {
    pub(super) const WRITE: u8 = 0;
    pub(super) const READ: u8 = 1;
    pub(super) const SEND: u8 = 2;
    pub(super) const SEND_IMM: u8 = 3;
    pub(super) const RECEIVED: u8 = 4;
    pub(super) const RECEIVED_WRITE: u8 = 5;
    pub(super) const WRITE_IMM: u8 = 9;
    pub(super) const RECEIVED_IMMEDIATE: u8 = 12;
    pub(super) const COMPARE_AND_SWAP: u8 = 17;
    pub(super) const FETCH_AND_ADD: u8 = 18;
}

/// Reads a send of whole blocks, which begins with this one.
fn decode(wqe: &[u8], index: u16, request: &mut Request) {
    const SIGNALED: u64 = 1 << 22;
    const SOLICITED: u64 = 1 << 23;
    const FENCED: u64 = 1 << 24;
    const HAS_DATA: u64 = 1 << 25;
    let header = long(wqe, 0);
    let opcode = (header >> 27 & 0x1f) as u8;
    let flag = |bit: u64, flag: u32| if header & bit != 0 { flag } else { 0 };
    request.label = Label { index, opcode, is_receive: false };
    request.elements.clear();
    request.inline.clear();
    request.is_nothing = false;
    let mut wr = EMPTY;
    wr.send_flags = flag(SIGNALED, send_flag::SIGNALED)
        | flag(SOLICITED, send_flag::SOLICITED)
        | flag(FENCED, send_flag::FENCE);
    wr.imm_data = u32::from_ne_bytes(std::array::from_fn(|at| wqe[8 + at]));
    let split = |at: usize| u64::from(word(wqe, at)) | u64::from(word(wqe, at + 4)) << 32;
    let (code, data_at, most_at) = match opcode {
        operation::WRITE => (wr_opcode::RDMA_WRITE, BLOCK, BLOCK),
        operation::WRITE_IMM => (wr_opcode::RDMA_WRITE_WITH_IMM, BLOCK, BLOCK),
        operation::SEND => (wr_opcode::SEND, 16, 16),
        operation::SEND_IMM => (wr_opcode::SEND_WITH_IMM, 16, 16),
        operation::READ => (wr_opcode::RDMA_READ, usize::MAX, 48),
        operation::COMPARE_AND_SWAP => (wr_opcode::ATOMIC_CMP_SWAP, usize::MAX, 64),
        operation::FETCH_AND_ADD => (wr_opcode::ATOMIC_FETCH_ADD, usize::MAX, 64),
        _ => (NO_OPERATION, usize::MAX, 0),
    };
    wr.opcode = code;
    request.wr = wr;
    let Some(data) = wqe.get(data_at.min(wqe.len())..).filter(|_| most_at <= wqe.len()) else {
        return request.fails();
    };
    match opcode {
        operation::WRITE | operation::WRITE_IMM => {
            (request.wr.rkey, request.wr.remote_addr) = (word(wqe, 16), split(20));
        }
        operation::READ => {
            let local = Sge { addr: split(20), length: word(wqe, 12), lkey: word(wqe, 16) };
            request.elements.push(local);
            (request.wr.remote_addr, request.wr.rkey) = (long(wqe, 32), word(wqe, 44));
        }
        operation::COMPARE_AND_SWAP | operation::FETCH_AND_ADD => {
            let (swap_or_add, compare) = (long(wqe, 16), long(wqe, 24));
            let is_swap = opcode == operation::COMPARE_AND_SWAP;
            let operands = if is_swap { [compare, swap_or_add] } else { [swap_or_add, 0] };
            request.wr.set_atomic(long(wqe, 32), operands, word(wqe, 44));
            request.elements.push(element(&wqe[48..]));
        }
        _ => {}
    }
    let count = (header >> 56) as usize;
    if code == NO_OPERATION {
        request.fails();
    } else if data_at > wqe.len() {
        // The element is part of the request.
    } else if header & HAS_DATA != 0 {
        let Some(data) = data.get(..count) else { return request.fails() };
        request.inline.extend_from_slice(data);
        request.wr.send_flags |= send_flag::INLINE;
    } else {
        let Some(list) = data.get(..count * 16) else { return request.fails() };
        request.elements.extend(list.chunks_exact(16).map(element));
    }
}

#[cfg(test)]
mod tests {
    use ibverbs::calls::types::Wc;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const BLOCKS: u32 = 64;
    const RECEIVES: u32 = 8;

    struct Memory {
        queues: Vec<u64>,
        records: Vec<u64>,
    }

    impl Memory {
        fn new(queues: Vec<u64>) -> Self {
            Self { queues, records: vec![0; 2] }
        }

        fn rings(&mut self) -> QpRings {
            let send = self.queues.as_mut_ptr().cast::<u8>();
            QpRings {
                send,
                blocks: BLOCKS,
                receive: send.wrapping_add(BLOCKS as usize * BLOCK),
                receives: RECEIVES,
                records: self.records.as_mut_ptr(),
            }
        }
    }

    const LONGS: usize = (BLOCKS as usize * BLOCK + RECEIVES as usize * RECEIVE) / 8;

    proptest! {
        #[test]
        fn writes_are_read_as_they_were_written(
            at: u16, imm: u32, rkey: u32, remote: u64, is_inline: bool, is_signaled: bool,
            list in vec((any::<u64>(), any::<u32>(), any::<u32>()), 0..=6), data in vec(any::<u8>(), 0..=96),
        ) {
            let mut wqe = vec![0; 32];
            let count = if is_inline {
                wqe.extend(&data);
                data.len()
            } else {
                for (addr, length, key) in &list {
                    wqe.extend(addr.to_le_bytes());
                    wqe.extend([length.to_le_bytes(), key.to_le_bytes()].concat());
                }
                list.len()
            };
            wqe.resize(wqe.len().next_multiple_of(32), 0);
            let blocks = wqe.len() / 32;
            let header = (count as u64) << 56 | (blocks as u64 - 1) << 52 | 9 << 27
                | u64::from(is_inline) << 25 | u64::from(is_signaled) << 22;
            wqe[..8].copy_from_slice(&header.to_le_bytes());
            wqe[8..12].copy_from_slice(&imm.to_ne_bytes());
            wqe[16..20].copy_from_slice(&rkey.to_le_bytes());
            wqe[20..28].copy_from_slice(&remote.to_le_bytes());
            let mut memory = Memory::new(vec![0; LONGS]);
            for (index, block) in wqe.chunks(32).enumerate() {
                let place = (usize::from(at) + index) % BLOCKS as usize * 4;
                for (word, bytes) in block.chunks(8).enumerate() {
                    memory.queues[place + word] = long(bytes, 0);
                }
            }
            let next = u32::from(at) + blocks as u32;
            memory.records[0] = u64::from(next as u16);
            let rings = memory.rings();
            let mut request = Request::default();
            prop_assert_eq!(rings.send(at.into(), &mut request), Some(next));
            prop_assert_eq!(rings.send(next, &mut Request::default()), None);
            prop_assert_eq!(request.label, Label { index: at, opcode: 9, is_receive: false });
            let wr = &request.wr;
            prop_assert_eq!((wr.opcode, wr.imm_data), (wr_opcode::RDMA_WRITE_WITH_IMM, imm));
            prop_assert_eq!((wr.remote_addr, wr.rkey), (remote, rkey));
            let flags = u32::from(is_signaled) << 1 | u32::from(is_inline) << 3;
            prop_assert_eq!(wr.send_flags, flags);
            if is_inline {
                prop_assert_eq!(&request.inline, &data);
            } else {
                let found = request.elements.iter().map(|one| (one.addr, one.length, one.lkey));
                prop_assert_eq!(found.collect::<Vec<_>>(), list);
            }
        }

        #[test]
        fn whatever_lies_in_a_queue_is_read_to_some_end(words in vec(any::<u64>(), LONGS), at: u32) {
            let mut memory = Memory::new(words);
            memory.records = vec![u64::from(!(at as u16)); 2];
            let rings = memory.rings();
            let mut request = Request::default();
            let next = rings.send(at, &mut request).expect("one was posted");
            prop_assert!((1..=8).contains(&next.wrapping_sub(at)));
            let mut elements = Vec::new();
            prop_assert_eq!(rings.receive(at, &mut elements), Some(at.wrapping_add(1)));
            prop_assert!(elements.len() <= 1);
        }

        #[test]
        fn completions_say_who_what_and_which_turn(
            written: u32, index: u16, is_receive: bool, qp_num in 0..1_u32 << 24, byte_len: u32, imm_data: u32,
            status in 0..14_u32,
        ) {
            const SIZE: u32 = 64;
            let mut buffer = vec![0_u64; SIZE as usize * CQE / 8];
            let ring = CqRing { buffer: buffer.as_mut_ptr().cast(), size: SIZE };
            let opcode = if is_receive { wc_opcode::RECV_RDMA_WITH_IMM } else { wc_opcode::RDMA_READ };
            let wc = Wc { status, qp_num, byte_len, imm_data, opcode, wc_flags: WC_WITH_IMM, ..Wc::default() };
            let label = Label { index, opcode: 1, is_receive };
            ring.write(written, &Done { user: 0, label, wc });
            let cqe = buffer[(written % SIZE) as usize * CQE / 8..].iter().flat_map(|word| word.to_ne_bytes());
            let cqe: Vec<u8> = cqe.take(CQE).collect();
            let big = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| cqe[at + i]));
            prop_assert_eq!(big(0) >> 31 == 1, (written / SIZE).is_multiple_of(2));
            let wanted = match (is_receive, status) { (true, 0) => 5, (true, _) => 4, (false, _) => 1 };
            prop_assert_eq!(big(0) >> 16 & 0xff, wanted);
            prop_assert_eq!(big(0) >> 8 & 0xff == 1, is_receive);
            prop_assert_eq!(big(0) & 0xff == 0, status == 0);
            prop_assert_eq!((big(4), big(8), big(16)), (index.into(), qp_num, byte_len));
            // The library takes it for little endian, and gives the program big endian.
            prop_assert_eq!(word(&cqe, 12).to_be(), imm_data);
        }
    }
}
