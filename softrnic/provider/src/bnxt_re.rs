//! libbnxt_re: the answers of the kernel's driver, and the queues. Numbers are little endian.
//!
//! | queue | |
//! |---|---|
//! | doorbell | one word for all queues of a device. It is not read: the calls that post show how many requests there are |
//! | send | 128 bytes: a header of 16 (operation, flags, length in pieces of 16 bytes), what the operation needs in 16, then the data |
//! | data of a send | elements of 16 bytes (address, key, length), or the data itself |
//! | receive | 128 bytes: a header of 32, then elements |
//! | completion | 32 bytes; the word at 24 has kind, status, flags, and a bit of the ring's turn |
//!
//! The completion of a send stands for all sends before it as well. After the kind `END` the
//! library reports all that is left in both queues of a queue pair as flushed.

use std::mem::size_of;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Release, SeqCst};

use ibverbs::calls::NO_OPERATION;
use ibverbs::calls::types::{
    DeviceAttr, QpCap, Sge, Status, WC_WITH_IMM, Wc, send_flag, wc_opcode, wr_opcode,
};

use crate::provider::{
    Counts, CqMemory, Done, EMPTY, Label, Provider, QpMemory, Request, address, code_of,
};
use crate::provider::{little_long as long, little_word as word};
use crate::uapi::{Plain, bytes, read};

pub(crate) struct BnxtRe;

/// The answer when a device is opened.
#[repr(C)]
#[derive(Clone, Copy)]
struct ContextAnswer {
    device: u32,
    max_qp: u32,
    page_size: u32,
    cqe_size: u32,
    max_cqe: u32,
    reserved: u32,
    comp_mask: u64,
    /// Of the chip: its number, and its revision in the higher half.
    chip: [u32; 2],
    mode: u32,
    reserved2: u32,
}

/// Of `comp_mask`: the answer names the chip.
const HAS_CHIP: u64 = 1;

/// libbnxt_re's description of a completion queue.
#[repr(C)]
#[derive(Clone, Copy)]
struct CqInput {
    buffer: u64,
    user: u64,
}

/// libbnxt_re's description of a queue pair.
#[repr(C)]
#[derive(Clone, Copy)]
struct QpInput {
    send: u64,
    receive: u64,
    user: u64,
}

// SAFETY: whole numbers only, and no padding: the sizes below are the sums of the fields.
unsafe impl Plain for ContextAnswer {}
// SAFETY: as above.
unsafe impl Plain for CqInput {}
// SAFETY: as above.
unsafe impl Plain for QpInput {}
const _: () = assert!(size_of::<ContextAnswer>() == 48);
const _: () = assert!(size_of::<CqInput>() == 16 && size_of::<QpInput>() == 24);

/// Bytes of a request, of a piece of it, of the header of a receive, of a completion.
const WQE: usize = 128;
const PIECE: usize = 16;
const HEADER: usize = 32;
const CQE: usize = 32;
/// Where a completion has its kind: this word is written after all others.
const LAST: usize = 24;
/// Places of a send queue that stay free, besides one of each queue.
const RESERVED: u32 = 128;

fn ring(count: u32, spare: u32) -> Result<u32, i32> {
    let entries = count.checked_add(1 + spare).and_then(u32::checked_next_power_of_two);
    entries.ok_or(libc::EINVAL)
}

impl Provider for BnxtRe {
    fn context(&self, device: &DeviceAttr) -> Vec<u8> {
        let answer = ContextAnswer {
            device: 0,
            max_qp: device.max_qp as u32,
            page_size: 4096,
            cqe_size: CQE as u32,
            max_cqe: device.max_cqe as u32,
            reserved: 0,
            comp_mask: HAS_CHIP,
            chip: [device.vendor_part_id, 0],
            mode: 0,
            reserved2: 0,
        };
        bytes(&answer).to_vec()
    }

    /// Four bytes, in the order in which they are shown.
    fn firmware(&self, parts: [u16; 4]) -> u64 {
        let [a, b, c, d] = parts.map(|part| part as u8);
        u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
    }

    fn cq(&self, input: &[u8], cqe: u32) -> Result<Box<dyn CqMemory>, i32> {
        let CqInput { buffer, .. } = read(input);
        Ok(Box::new(CqRing { buffer: address(buffer), size: ring(cqe, 0)? }))
    }

    fn qp(&self, input: &[u8], asked: QpCap) -> Result<Box<dyn QpMemory>, i32> {
        let QpInput { send, receive, user } = read(input);
        Ok(Box::new(QpRings {
            send: address(send),
            sends: ring(asked.max_send_wr, RESERVED)?,
            receive: address(receive),
            // The library has two if none are asked for.
            receives: ring(asked.max_recv_wr, 0)?.max(2),
            user,
            asked,
            counts: Counts::default(),
            completed: AtomicU32::new(0),
        }))
    }
}

/// Kinds of completions.
mod kind {
    pub(super) const SENT: u32 = 0;
    pub(super) const RECEIVED: u32 = 1;
    pub(super) const END: u32 = 14;
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
    fn entries(&self, _: u32) -> u32 {
        self.size
    }

    /// A failure may take two completions.
    fn room(&self, _: u32) -> u32 {
        self.size / 2
    }

    fn write(&self, written: u32, done: &Done) {
        let place = (written & (self.size - 1)) as usize;
        let is_even_turn = written & self.size == 0;
        let (first, last) = encode(done);
        let last = (last | u32::from(is_even_turn)).to_le();
        // SAFETY: the provider's buffer has `size` completions, and nobody else writes this one.
        unsafe {
            let cqe = self.buffer.add(place * CQE);
            ptr::copy_nonoverlapping(first.as_ptr(), cqe, LAST);
            AtomicU32::from_ptr(cqe.add(LAST).cast()).store(last, Release);
        }
    }

    /// The first place, and the bit of the first turn.
    fn answer(&self, number: u32) -> Vec<u8> {
        [number, 0, 1, 0].map(u32::to_ne_bytes).concat()
    }
}

/// A completion before the word that is written last, and that word without the bit of the turn.
fn encode(done: &Done) -> ([u8; LAST], u32) {
    const HAS_IMMEDIATE: u32 = 2;
    const IS_WRITE: u32 = 8;
    let Done { user, label, wc } = done;
    let mut cqe = [0; LAST];
    let mut put = |at: usize, bytes: &[u8]| cqe[at..at + bytes.len()].copy_from_slice(bytes);
    if wc.status == Status::Flush as u32 {
        put(0, &user.to_le_bytes());
        return (cqe, kind::END << 1);
    }
    let status = status(wc.status, label.is_receive) << 8;
    if !label.is_receive {
        put(0, &user.to_le_bytes());
        put(8, &u32::from(label.index.wrapping_add(1)).to_le_bytes());
        return (cqe, status | kind::SENT << 1);
    }
    put(0, &wc.byte_len.to_le_bytes());
    put(4, &u32::from_be(wc.imm_data).to_le_bytes());
    put(8, &user.to_le_bytes());
    let has_imm = wc.status == 0 && wc.wc_flags & WC_WITH_IMM != 0;
    let is_write = has_imm && wc.opcode == wc_opcode::RECV_RDMA_WITH_IMM;
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    let flags = flag(has_imm, HAS_IMMEDIATE) | flag(is_write, IS_WRITE);
    (cqe, flags << 16 | status | kind::RECEIVED << 1)
}

/// The card's code of a status.
fn status(status: u32, is_receive: bool) -> u32 {
    const OTHER: u8 = 0x7f;
    let table: &[(Status, u8)] = if is_receive {
        &[
            (Status::Success, 0),
            (Status::LocLen, 2),
            (Status::LocProt, 3),
            (Status::LocQpOp, 4),
            (Status::RemInvReq, 6),
        ]
    } else {
        &[
            (Status::Success, 0),
            (Status::LocLen, 2),
            (Status::LocQpOp, 3),
            (Status::LocProt, 4),
            (Status::RemInvReq, 6),
            (Status::RemAccess, 7),
            (Status::RemOp, 8),
            (Status::RnrRetryExceeded, 9),
            (Status::RetryExceeded, 10),
        ]
    };
    code_of(status, table, OTHER).into()
}

struct QpRings {
    send: *mut u8,
    sends: u32,
    receive: *mut u8,
    receives: u32,
    user: u64,
    asked: QpCap,
    counts: Counts,
    /// The send after the last one that the library knows to have completed.
    completed: AtomicU32,
}
// SAFETY: the memory belongs to the provider, which writes it before it counts it as posted.
unsafe impl Send for QpRings {}
// SAFETY: as above.
unsafe impl Sync for QpRings {}

/// The request at this index of a ring.
///
/// # Safety
/// The ring has `count` requests, a power of two.
unsafe fn request(ring: *const u8, count: u32, at: u32) -> [u8; WQE] {
    // SAFETY: by the caller.
    unsafe { ring.add((at & (count - 1)) as usize * WQE).cast::<[u8; WQE]>().read() }
}

impl QpMemory for QpRings {
    fn cap(&self) -> QpCap {
        QpCap { max_send_wr: self.sends, max_recv_wr: self.receives, ..self.asked }
    }

    fn answer(&self, number: u32) -> Vec<u8> {
        [number, 0].map(u32::to_ne_bytes).concat()
    }

    fn counts(&self) -> Option<&Counts> {
        Some(&self.counts)
    }

    fn send(&self, at: u32, request: &mut Request) -> Option<u32> {
        if !self.counts.has(false, at) {
            return None;
        }
        // SAFETY: the provider's ring.
        let wqe = unsafe { self::request(self.send, self.sends, at) };
        decode(&wqe, at as u16, request);
        Some(at.wrapping_add(1))
    }

    fn receive(&self, at: u32, elements: &mut Vec<Sge>) -> Option<u32> {
        if !self.counts.has(true, at) {
            return None;
        }
        // SAFETY: the provider's ring.
        let wqe = unsafe { request(self.receive, self.receives, at) };
        elements.clear();
        // A receive without elements has an empty one.
        elements.extend(list(&wqe).filter(|element| element.length != 0));
        Some(at.wrapping_add(1))
    }

    fn after_reset(&self) -> [u32; 2] {
        self.counts.reset();
        self.completed.store(0, SeqCst);
        [0; 2]
    }

    /// The library takes a failure for that of the first send which it does not know to have
    /// completed. So the sends before it complete first. One `END` flushes the rest of a queue.
    fn done(&self, label: Label, wc: Wc) -> [Option<Done>; 2] {
        let done = Done { user: self.user, label, wc };
        if wc.status == Status::Flush as u32 {
            return [self.counts.end(label.is_receive).then_some(done), None];
        }
        if label.is_receive {
            return [Some(done), None];
        }
        let next = u32::from(label.index.wrapping_add(1));
        let from = self.completed.swap(next, SeqCst);
        let is_behind = (from ^ u32::from(label.index)) & (self.sends - 1) != 0;
        let before = Label { index: label.index.wrapping_sub(1), ..label };
        let before = Done { user: self.user, label: before, wc: Wc::default() };
        [(is_behind && wc.status != 0).then_some(before), Some(done)]
    }
}

/// The elements of a request.
fn list(wqe: &[u8; WQE]) -> impl Iterator<Item = Sge> {
    let end = (usize::from(wqe[2]) * PIECE).clamp(HEADER, WQE);
    wqe[HEADER..end].chunks_exact(PIECE).map(|element| Sge {
        addr: long(element, 0),
        lkey: word(element, 8),
        length: word(element, 12),
    })
}

/// Numbers of operations.
mod operation {
    pub(super) const SEND: u8 = 0;
    pub(super) const SEND_IMM: u8 = 1;
    pub(super) const WRITE: u8 = 4;
    pub(super) const WRITE_IMM: u8 = 5;
    pub(super) const READ: u8 = 6;
    pub(super) const COMPARE_AND_SWAP: u8 = 8;
    pub(super) const FETCH_AND_ADD: u8 = 11;
}

fn decode(wqe: &[u8; WQE], index: u16, request: &mut Request) {
    const SIGNALED: u8 = 1;
    const FENCED: u8 = 4;
    const SOLICITED: u8 = 8;
    const INLINE: u8 = 0x10;
    let (opcode, flags) = (wqe[0], wqe[1]);
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
    wr.imm_data = word(wqe, 4).to_be();
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
    let is_inline = flags & INLINE != 0;
    let has_answer = wr.opcode >= wr_opcode::RDMA_READ;
    match opcode {
        operation::COMPARE_AND_SWAP | operation::FETCH_AND_ADD => {
            let (swap_or_add, compare) = (long(wqe, 16), long(wqe, 24));
            let is_swap = opcode == operation::COMPARE_AND_SWAP;
            let operands = if is_swap { [compare, swap_or_add] } else { [swap_or_add, 0] };
            wr.set_atomic(long(wqe, 8), operands, word(wqe, 4));
        }
        operation::SEND | operation::SEND_IMM => {}
        _ => (wr.remote_addr, wr.rkey) = (long(wqe, 16), word(wqe, 24)),
    }
    request.wr = wr;
    if !is_inline {
        request.elements.extend(list(wqe));
    } else if let Some(data) = wqe[HEADER..].get(..word(wqe, 8) as usize) {
        request.inline.extend_from_slice(data);
    }
    let is_too_long = is_inline && word(wqe, 8) as usize > WQE - HEADER;
    if wr.opcode == NO_OPERATION || is_too_long || is_inline && has_answer {
        request.fails();
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::provider::testing;

    const SENDS: u32 = 8;
    const RECEIVES: u32 = 4;
    const LONGS: usize = (SENDS + RECEIVES) as usize * WQE / 8;

    fn rings(queues: &mut [u64]) -> QpRings {
        let send = queues.as_mut_ptr().cast::<u8>();
        QpRings {
            send,
            sends: SENDS,
            receive: send.wrapping_add(SENDS as usize * WQE),
            receives: RECEIVES,
            user: 7,
            asked: QpCap::default(),
            counts: Counts::default(),
            completed: AtomicU32::new(0),
        }
    }

    proptest! {
        #[test]
        fn writes_are_read_as_they_were_written(
            at: u16, imm: u32, rkey: u32, remote: u64, is_inline: bool, is_signaled: bool,
            list in vec((any::<u64>(), any::<u32>(), any::<u32>()), 0..=6), data in vec(any::<u8>(), 0..=96),
        ) {
            let mut wqe = vec![5, u8::from(is_inline) << 4 | u8::from(is_signaled), 2, 0];
            wqe.extend(imm.to_le_bytes());
            wqe.extend((data.len() as u64).to_le_bytes());
            wqe.extend([&remote.to_le_bytes()[..], &rkey.to_le_bytes(), &[0; 4]].concat());
            if is_inline {
                wqe.extend(&data);
            } else {
                wqe[2] += list.len() as u8;
                for (addr, key, length) in &list {
                    wqe.extend([&addr.to_le_bytes()[..], &key.to_le_bytes(), &length.to_le_bytes()].concat());
                }
            }
            wqe.resize(WQE, 0x55);
            let mut queues = vec![0; LONGS];
            testing::put(&mut queues, usize::from(at) % SENDS as usize * WQE, &wqe);
            let rings = rings(&mut queues);
            let request = testing::last_send(&rings, at);
            prop_assert_eq!(request.label, Label { index: at, opcode: 5, is_receive: false });
            let wr = &request.wr;
            prop_assert_eq!((wr.opcode, u32::from_be(wr.imm_data)), (wr_opcode::RDMA_WRITE_WITH_IMM, imm));
            prop_assert_eq!((wr.remote_addr, wr.rkey), (remote, rkey));
            prop_assert_eq!(wr.send_flags, u32::from(is_signaled) << 1 | u32::from(is_inline) << 3);
            if is_inline {
                prop_assert_eq!(&request.inline, &data);
            } else {
                let found = request.elements.iter().map(|one| (one.addr, one.lkey, one.length));
                prop_assert_eq!(found.collect::<Vec<_>>(), list);
            }
        }

        #[test]
        fn whatever_lies_in_a_queue_is_read_to_some_end(mut words in vec(any::<u64>(), LONGS), at: u32) {
            let sizes = testing::sizes_at(&rings(&mut words), at);
            prop_assert!(sizes.into_iter().zip([96, 6, 6]).all(|(size, most)| size <= most), "{sizes:?}");
        }

        #[test]
        fn completions_say_who_what_and_which_turn(
            written: u32, index: u16, is_receive: bool, user: u64, byte_len: u32, imm_data: u32, status in 0..14_u32,
        ) {
            const SIZE: u32 = 64;
            let mut buffer = vec![0_u64; SIZE as usize * CQE / 8];
            let ring = CqRing { buffer: buffer.as_mut_ptr().cast(), size: SIZE };
            let opcode = wc_opcode::RECV_RDMA_WITH_IMM;
            let wc = Wc { status, byte_len, imm_data, opcode, wc_flags: WC_WITH_IMM, ..Wc::default() };
            ring.write(written, &Done { user, label: Label { index, opcode: 1, is_receive }, wc });
            let cqe = buffer[(written % SIZE) as usize * CQE / 8..].iter().flat_map(|word| word.to_ne_bytes());
            let cqe: Vec<u8> = cqe.take(CQE).collect();
            prop_assert_eq!(cqe[24] & 1 == 1, (written / SIZE).is_multiple_of(2));
            let is_flush = status == Status::Flush as u32;
            let wanted = if is_flush { 14 } else { u8::from(is_receive) };
            prop_assert_eq!(cqe[24] >> 1, wanted);
            prop_assert_eq!(cqe[25] == 0, status == 0 || is_flush);
            prop_assert_eq!(long(&cqe, if is_receive && !is_flush { 8 } else { 0 }), user);
            if is_receive && !is_flush {
                prop_assert_eq!(word(&cqe, 0), byte_len);
                // The library takes it for little endian, and gives the program big endian.
                prop_assert_eq!(word(&cqe, 4).to_be(), imm_data);
                prop_assert_eq!(cqe[26], if status == 0 { 10 } else { 0 });
            } else if !is_flush {
                prop_assert_eq!(word(&cqe, 8), u32::from(index.wrapping_add(1)));
            }
        }

        /// The library finds each failure at the send that has failed, and an `END` for each queue.
        #[test]
        fn sends_before_a_failed_one_complete_first(first in 0..8_u16, unsignaled in 0..3_u16) {
            let mut queues = vec![0; LONGS];
            let rings = rings(&mut queues);
            let found = |index: u16, status: Status, is_receive: bool| {
                let label = Label { index, opcode: 0, is_receive };
                let wc = Wc { status: status as u32, ..Wc::default() };
                rings.done(label, wc).into_iter().flatten().map(|done| (done.label.index, done.wc.status)).collect::<Vec<_>>()
            };
            prop_assert_eq!(found(first, Status::Success, false), vec![(first, 0)]);
            let at = first + 1 + unsignaled;
            let mut wanted = vec![(at, 13)];
            if unsignaled > 0 {
                wanted.insert(0, (at - 1, 0));
            }
            prop_assert_eq!(found(at, Status::RnrRetryExceeded, false), wanted);
            for is_receive in [false, true] {
                prop_assert_eq!(found(at + 1, Status::Flush, is_receive), vec![(at + 1, 5)]);
                prop_assert_eq!(found(at + 2, Status::Flush, is_receive), vec![]);
            }
            prop_assert_eq!(rings.after_reset(), [0; 2]);
            prop_assert_eq!(found(0, Status::RemOp, false), vec![(0, 11)]);
            prop_assert_eq!(found(1, Status::Flush, true), vec![(1, 5)]);
        }
    }
}
