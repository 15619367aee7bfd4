//! libmlx5: the answers of the kernel's driver, and the queues. Numbers in the queues are big
//! endian.
//!
//! | queue | |
//! |---|---|
//! | record of a queue pair | two words of 32 bits: receives posted, blocks of sends posted, 16 bits each |
//! | send | blocks of 64 bytes: a control segment of 16, for remote memory 16, for an atomic 16, then the data |
//! | data of a send | elements of 16 bytes (length, key, address), or 4 bytes of length with its highest bit set, and the data itself |
//! | receive | elements of 16 bytes; key 0x100 ends the list |
//! | record of a completion queue | completions polled, 24 bits |
//! | completion | 64 bytes; the last one has the kind, and a bit that changes with each turn of the ring |

use std::mem::size_of;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

use ibverbs::calls::NO_OPERATION;
use ibverbs::calls::types::{
    DeviceAttr, QpCap, Sge, Status, WC_WITH_IMM, send_flag, wc_opcode, wr_opcode,
};

use crate::provider::{
    CqMemory, Done, EMPTY, Label, Provider, QpMemory, Request, address, code_of,
};
use crate::provider::{big_long as long, big_word as word};
use crate::uapi::{Call, Plain, bytes, read};

pub(crate) struct Mlx5;

/// The answer when a device is opened.
#[repr(C)]
#[derive(Clone, Copy)]
struct ContextAnswer {
    qp_tab_size: u32,
    bf_reg_size: u32,
    /// 0: pages of doorbell registers are objects, not mapped with the device.
    tot_bfregs: u32,
    cache_line_size: u32,
    max_sq_desc_sz: u16,
    max_rq_desc_sz: u16,
    max_send_wqebb: u32,
    max_recv_wr: u32,
    max_srq_recv_wr: u32,
    num_ports: u16,
    flow_action_flags: u16,
    comp_mask: u32,
    response_length: u32,
    cqe_version: u8,
    cmds_supp_uhw: u8,
    eth_min_inline: u8,
    clock_info_versions: u8,
    hca_core_clock_offset: u64,
    log_uar_size: u32,
    num_uars_per_page: u32,
    num_dyn_bfregs: u32,
    dump_fill_mkey: u32,
}

/// Of `comp_mask`: options of enhanced connection establishment, and the step from SQD to RTS.
const HAS_ECE: u32 = 4;
const HAS_SQD_TO_RTS: u32 = 8;

/// libmlx5's description of a completion queue.
#[repr(C)]
#[derive(Clone, Copy)]
struct CqInput {
    buffer: u64,
    record: u64,
    cqe_size: u32,
    /// Compressed completions: whether, and in which format.
    compression: [u8; 2],
    flags: u16,
    page: u32,
    reserved: u32,
}

/// libmlx5's description of a queue pair.
#[repr(C)]
#[derive(Clone, Copy)]
struct QpInput {
    /// Of the receive queue, which the send queue follows.
    buffer: u64,
    record: u64,
    send_blocks: u32,
    receives: u32,
    receive_shift: u32,
    flags: u32,
    user: u32,
    register: u32,
    send_buffer: u64,
    ece: u32,
    streams: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct QpAnswer {
    register: u32,
    ece: u32,
    rest: [u64; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ModifyInput {
    comp_mask: u32,
    burst: [u32; 2],
    ece: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ModifyAnswer {
    response_length: u32,
    dctn: u32,
    ece: u32,
    reserved: u32,
}

// SAFETY: whole numbers only, and no padding: the sizes below are the sums of the fields.
unsafe impl Plain for ContextAnswer {}
// SAFETY: as above.
unsafe impl Plain for CqInput {}
// SAFETY: as above.
unsafe impl Plain for QpInput {}
// SAFETY: as above.
unsafe impl Plain for QpAnswer {}
// SAFETY: as above.
unsafe impl Plain for ModifyInput {}
// SAFETY: as above.
unsafe impl Plain for ModifyAnswer {}

const _: () = {
    assert!(size_of::<ContextAnswer>() == 72 && size_of::<CqInput>() == 32);
    assert!(size_of::<QpInput>() == 56 && size_of::<QpAnswer>() == 40);
    assert!(size_of::<ModifyInput>() == 16 && size_of::<ModifyAnswer>() == 16);
};

/// Objects of libmlx5's own, and their methods.
const DEVX: u16 = 0x1000;
const UAR: u16 = 0x1008;
const FIRST: u16 = 0x1000;
const SECOND: u16 = 0x1001;
/// Attributes of both.
const INPUT_OR_HANDLE: u16 = 0x1000;
const OUTPUT: u16 = 0x1001;
const UAR_OFFSET: u16 = 0x1002;
const UAR_LENGTH: u16 = 0x1003;
const UAR_PAGE: u16 = 0x1004;
/// A command of the firmware: what the card can do beyond the verbs.
const QUERY_HCA_CAP: [u8; 2] = [1, 0];
const PAGE: u32 = 4096;

/// The option that these cards offer for enhanced connection establishment.
const ECE: u32 = 1;

impl Provider for Mlx5 {
    fn context(&self, device: &DeviceAttr) -> Vec<u8> {
        let answer = ContextAnswer {
            qp_tab_size: 1 << 18,
            bf_reg_size: 512,
            tot_bfregs: 0,
            cache_line_size: 64,
            max_sq_desc_sz: 1024,
            max_rq_desc_sz: 512,
            max_send_wqebb: 32768,
            max_recv_wr: 32768,
            max_srq_recv_wr: 32767,
            num_ports: device.phys_port_cnt.into(),
            flow_action_flags: 0,
            comp_mask: HAS_ECE | HAS_SQD_TO_RTS,
            response_length: size_of::<ContextAnswer>() as u32,
            cqe_version: 1,
            cmds_supp_uhw: 3,
            eth_min_inline: 1,
            clock_info_versions: 0,
            hca_core_clock_offset: 0,
            log_uar_size: PAGE.ilog2(),
            num_uars_per_page: 1,
            num_dyn_bfregs: 0,
            dump_fill_mkey: 0,
        };
        bytes(&answer).to_vec()
    }

    /// No offloads; a mask, and the length of the answer.
    fn device(&self) -> Vec<u8> {
        let mut answer = vec![0; 104];
        answer[4] = answer.len() as u8;
        answer
    }

    fn cq(&self, input: &[u8], cqe: u32) -> Result<Box<dyn CqMemory>, i32> {
        let input: CqInput = read(input);
        let size = cqe.wrapping_add(1);
        if !size.is_power_of_two() || input.cqe_size as usize != CQE || input.compression[0] != 0 {
            return Err(libc::EINVAL);
        }
        let (buffer, record) = (address(input.buffer), address(input.record));
        Ok(Box::new(CqRing { buffer, record: record.cast(), size }))
    }

    fn qp(&self, input: &[u8], asked: QpCap) -> Result<Box<dyn QpMemory>, i32> {
        const SIGNATURE: u32 = 1;
        let input: QpInput = read(input);
        let QpInput { buffer, record, send_blocks, receives, receive_shift, flags, user, .. } =
            input;
        let is_ring = |count: u32| count == 0 || count.is_power_of_two();
        if !is_ring(send_blocks)
            || !is_ring(receives)
            || send_blocks > 32768
            || receives > 32768
            || receive_shift > 10
            || flags & SIGNATURE != 0
        {
            return Err(libc::EINVAL);
        }
        let receive = address(buffer);
        Ok(Box::new(QpRings {
            receive,
            receives,
            receive_shift,
            send: receive.wrapping_add((receives << receive_shift) as usize),
            send_blocks,
            record: address(record).cast(),
            user,
            asked,
            answer: QpAnswer {
                register: input.register,
                ece: if input.ece == 0 { 0 } else { ECE },
                rest: [0; 4],
            },
        }))
    }

    fn modify_answer(&self, input: &[u8]) -> Vec<u8> {
        let input: ModifyInput = read(input);
        let response_length = size_of::<ModifyAnswer>() as u32;
        let answer = ModifyAnswer { response_length, dctn: 0, ece: input.ece & ECE, reserved: 0 };
        bytes(&answer).to_vec()
    }

    fn has_extended(&self) -> bool {
        true
    }

    fn command(&self, pages: &AtomicU32, call: &mut Call<'_>) -> Result<(), i32> {
        match call.what {
            (UAR, FIRST) => {
                let page = pages.fetch_add(1, SeqCst) + 1;
                call.set(INPUT_OR_HANDLE, page.into());
                call.output(UAR_OFFSET, &u64::from(page * PAGE).to_ne_bytes());
                call.output(UAR_LENGTH, &PAGE.to_ne_bytes());
                call.output(UAR_PAGE, &page.to_ne_bytes());
                Ok(())
            }
            (UAR, SECOND) => Ok(()),
            (DEVX, FIRST) if call.input(INPUT_OR_HANDLE)?.starts_with(&QUERY_HCA_CAP) => {
                call.output(OUTPUT, &[]);
                Ok(())
            }
            _ => Err(libc::EOPNOTSUPP),
        }
    }
}

/// Bytes of a completion.
const CQE: usize = 64;
/// Its last word is written after all others.
const LAST: usize = CQE - size_of::<u64>();
/// Kinds of completions.
mod kind {
    pub(super) const REQUEST: u8 = 0;
    pub(super) const RECEIVED_WRITE: u8 = 1;
    pub(super) const RECEIVED: u8 = 2;
    pub(super) const RECEIVED_IMMEDIATE: u8 = 3;
    pub(super) const FAILED_REQUEST: u8 = 13;
    pub(super) const FAILED_RECEIVE: u8 = 14;
}

struct CqRing {
    buffer: *mut u8,
    record: *mut u32,
    size: u32,
}
// SAFETY: the memory belongs to the provider, which reads and writes it as cards expect; what is
// written here is written under the lock of the completion queue.
unsafe impl Send for CqRing {}
// SAFETY: as above.
unsafe impl Sync for CqRing {}

impl CqMemory for CqRing {
    fn tells_polled(&self) -> bool {
        true
    }

    fn room(&self, written: u32) -> u32 {
        // SAFETY: the provider's record, which stays as long as the completion queue.
        let polled = u32::from_be(unsafe { AtomicU32::from_ptr(self.record) }.load(Acquire));
        self.size.saturating_sub(written.wrapping_sub(polled) & 0xff_ffff)
    }

    fn write(&self, written: u32, done: &Done) {
        let mut cqe = encode(done);
        cqe[CQE - 1] |= u8::from(written & self.size != 0);
        let place = (written & (self.size - 1)) as usize;
        let (first, last) = cqe.split_at(LAST);
        let last = u64::from_ne_bytes(std::array::from_fn(|at| last[at]));
        // SAFETY: the provider's buffer has `size` completions, and nobody else writes this one.
        unsafe {
            let cqe = self.buffer.add(place * CQE);
            ptr::copy_nonoverlapping(first.as_ptr(), cqe, LAST);
            AtomicU64::from_ptr(cqe.add(LAST).cast()).store(last, Release);
        }
    }

    fn answer(&self, number: u32) -> Vec<u8> {
        [number.to_ne_bytes(), [0; 4]].concat()
    }
}

/// A completion, for an even turn of the ring.
fn encode(done: &Done) -> [u8; CQE] {
    let Done { user, label, wc } = done;
    let mut cqe = [0; CQE];
    let mut put = |at: usize, bytes: &[u8]| cqe[at..at + bytes.len()].copy_from_slice(bytes);
    let has_imm = wc.wc_flags & WC_WITH_IMM != 0;
    let kind = match (wc.status, label.is_receive) {
        (0, false) => kind::REQUEST,
        (0, true) if wc.opcode == wc_opcode::RECV_RDMA_WITH_IMM => kind::RECEIVED_WRITE,
        (0, true) if has_imm => kind::RECEIVED_IMMEDIATE,
        (0, true) => kind::RECEIVED,
        (_, false) => kind::FAILED_REQUEST,
        (_, true) => kind::FAILED_RECEIVE,
    };
    put(32, &(*user as u32).to_be_bytes());
    if wc.status == 0 {
        put(24, &(wc.src_qp & 0xff_ffff).to_be_bytes());
        // Bytes of the network, as the peer's program gave them.
        put(36, &wc.imm_data.to_ne_bytes());
        put(44, &wc.byte_len.to_be_bytes());
    } else {
        put(54, &[wc.vendor_err as u8, syndrome(wc.status)]);
    }
    put(56, &(u32::from(label.opcode) << 24 | wc.qp_num & 0xff_ffff).to_be_bytes());
    put(60, &label.index.to_be_bytes());
    put(63, &[kind << 4]);
    cqe
}

/// The card's code of a failure.
fn syndrome(status: u32) -> u8 {
    const OTHER: u8 = 0x22;
    let table = [
        (Status::LocLen, 0x01),
        (Status::LocQpOp, 0x02),
        (Status::LocProt, 0x04),
        (Status::Flush, 0x05),
        (Status::RemInvReq, 0x12),
        (Status::RemAccess, 0x13),
        (Status::RemOp, 0x14),
        (Status::RetryExceeded, 0x15),
        (Status::RnrRetryExceeded, 0x16),
    ];
    code_of(status, &table, OTHER)
}

/// Bytes of a block; each send begins with a new one.
const BLOCK: usize = 64;
/// Bytes of a segment, and of an element.
const SEGMENT: usize = 16;
/// The longest send: 63 segments.
const LONGEST: usize = 63 * SEGMENT;
/// A length with this bit is followed by the data itself.
const INLINE: u32 = 1 << 31;
/// The key that ends a list of elements.
const END: u32 = 0x100;

struct QpRings {
    receive: *mut u8,
    receives: u32,
    receive_shift: u32,
    send: *mut u8,
    send_blocks: u32,
    record: *mut u32,
    user: u32,
    asked: QpCap,
    answer: QpAnswer,
}
// SAFETY: the memory belongs to the provider, which writes it before it counts it as posted.
unsafe impl Send for QpRings {}
// SAFETY: as above.
unsafe impl Sync for QpRings {}

impl QpRings {
    /// The number of receives (0), or of blocks of sends (1), that have been posted.
    fn posted(&self, which: usize) -> u16 {
        // SAFETY: the provider's record, which stays as long as the queue pair.
        let word = unsafe { AtomicU32::from_ptr(self.record.add(which)) }.load(Acquire);
        u32::from_be(word) as u16
    }

    /// The segment that begins this number of bytes after a block of the send queue.
    fn segment(&self, block: u32, offset: usize) -> [u8; SEGMENT] {
        let ring = self.send_blocks as usize * BLOCK;
        let at = (block as usize * BLOCK + offset) & (ring - 1);
        // SAFETY: within the provider's ring, whose length is a multiple of a segment's.
        unsafe { self.send.add(at).cast::<[u8; SEGMENT]>().read() }
    }
}

impl QpMemory for QpRings {
    fn cap(&self) -> QpCap {
        const MOST_SENDS: u32 = 16384;
        const MOST_INLINE: u32 = 1024;
        let QpCap { max_send_sge, max_inline_data, .. } = self.asked;
        // libmlx5 grants what fills up the blocks of a request: without elements, -4 bytes inline.
        let elements = max_send_sge.saturating_mul(SEGMENT as u32);
        let data = max_inline_data.wrapping_add(4).max(elements).saturating_add(BLOCK as u32);
        QpCap {
            max_send_wr: self.send_blocks.min(MOST_SENDS),
            max_recv_wr: self.receives,
            max_send_sge,
            max_recv_sge: ((1_usize << self.receive_shift) / SEGMENT) as u32,
            max_inline_data: data.min(MOST_INLINE),
        }
    }

    fn answer(&self, _: u32) -> Vec<u8> {
        bytes(&self.answer).to_vec()
    }

    /// The library begins anew.
    fn after_reset(&self) -> [u32; 2] {
        [0; 2]
    }

    fn user(&self) -> u64 {
        self.user.into()
    }

    fn send(&self, at: u32, request: &mut Request) -> Option<u32> {
        if self.send_blocks == 0 || at as u16 == self.posted(1) {
            return None;
        }
        let count = usize::from(self.segment(at, 0)[7] & 0x3f).max(1);
        let mut wqe = [0; LONGEST];
        for (segment, place) in wqe
            .chunks_exact_mut(SEGMENT)
            .take(count)
            .enumerate()
            .map(|(index, place)| (self.segment(at, index * SEGMENT), place))
        {
            place.copy_from_slice(&segment);
        }
        decode(&wqe[..count * SEGMENT], request);
        Some(at.wrapping_add((count * SEGMENT).div_ceil(BLOCK) as u32))
    }

    fn receive(&self, at: u32, elements: &mut Vec<Sge>) -> Option<u32> {
        if self.receives == 0 || at as u16 == self.posted(0) {
            return None;
        }
        elements.clear();
        let place = ((at & (self.receives - 1)) as usize) << self.receive_shift;
        for index in 0..(1_usize << self.receive_shift) / SEGMENT {
            // SAFETY: within the provider's ring.
            let segment: [u8; SEGMENT] =
                unsafe { self.receive.add(place + index * SEGMENT).cast::<[u8; SEGMENT]>().read() };
            let element = element(&segment);
            if element.lkey == END {
                break;
            }
            elements.push(element);
        }
        Some(at.wrapping_add(1))
    }
}

fn element(segment: &[u8]) -> Sge {
    let length = word(segment, 0) & !INLINE;
    Sge { addr: long(segment, 8), length, lkey: word(segment, 4) }
}

/// Numbers of operations.
mod operation {
    pub(super) const NOP: u8 = 0;
    pub(super) const WRITE: u8 = 8;
    pub(super) const WRITE_IMM: u8 = 9;
    pub(super) const SEND: u8 = 0x0a;
    pub(super) const SEND_IMM: u8 = 0x0b;
    pub(super) const READ: u8 = 0x10;
    pub(super) const COMPARE_AND_SWAP: u8 = 0x11;
    pub(super) const FETCH_AND_ADD: u8 = 0x12;
}

/// Reads a send of whole segments.
fn decode(wqe: &[u8], request: &mut Request) {
    const SIGNALED: u8 = 8;
    const SOLICITED: u8 = 2;
    const FENCES: u8 = 0xe0;
    const SMALL_FENCE: u8 = 0x20;
    request.elements.clear();
    request.inline.clear();
    let (opcode, flags) = (wqe[3], wqe[11]);
    let index = (word(wqe, 0) >> 8) as u16;
    request.label = Label { index, opcode, is_receive: false };
    // Bytes of the network, as the program gave them.
    let imm_data = u32::from_ne_bytes(std::array::from_fn(|at| wqe[12 + at]));
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    let is_fenced = flags & FENCES > SMALL_FENCE;
    request.is_nothing = false;
    request.wr = EMPTY;
    let mut wr = EMPTY;
    wr.imm_data = imm_data;
    wr.send_flags = flag(flags & SIGNALED != 0, send_flag::SIGNALED)
        | flag(flags & SOLICITED != 0, send_flag::SOLICITED)
        | flag(is_fenced, send_flag::FENCE);
    let (code, remote) = match opcode {
        operation::WRITE => (wr_opcode::RDMA_WRITE, 1),
        operation::WRITE_IMM => (wr_opcode::RDMA_WRITE_WITH_IMM, 1),
        operation::SEND => (wr_opcode::SEND, 0),
        operation::SEND_IMM => (wr_opcode::SEND_WITH_IMM, 0),
        operation::READ => (wr_opcode::RDMA_READ, 1),
        operation::COMPARE_AND_SWAP => (wr_opcode::ATOMIC_CMP_SWAP, 2),
        operation::FETCH_AND_ADD => (wr_opcode::ATOMIC_FETCH_ADD, 2),
        operation::NOP if flags & SIGNALED == 0 => return request.is_nothing = true,
        _ => (NO_OPERATION, 0),
    };
    wr.opcode = code;
    let mut at = SEGMENT * (1 + remote);
    if wqe.len() < at {
        return request.fails();
    }
    if remote > 0 {
        (wr.remote_addr, wr.rkey) = (long(wqe, 16), word(wqe, 24));
    }
    if remote > 1 {
        let (swap_or_add, compare) = (long(wqe, 32), long(wqe, 40));
        let is_swap = opcode == operation::COMPARE_AND_SWAP;
        let operands = if is_swap { [compare, swap_or_add] } else { [swap_or_add, 0] };
        wr.set_atomic(wr.remote_addr, operands, wr.rkey);
    }
    while at + SEGMENT <= wqe.len() {
        let length = word(wqe, at);
        if length & INLINE == 0 {
            request.elements.push(element(&wqe[at..]));
            at += SEGMENT;
            continue;
        }
        let length = (length & !INLINE) as usize;
        let Some(data) = wqe.get(at + 4..at + 4 + length) else {
            return request.fails();
        };
        request.inline.extend_from_slice(data);
        wr.send_flags |= send_flag::INLINE;
        at += (4 + length).next_multiple_of(SEGMENT);
    }
    request.wr = wr;
    if code == NO_OPERATION {
        request.fails();
    }
}

#[cfg(test)]
mod tests {
    use ibverbs::calls::types::Wc;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A send, as it is written.
    #[derive(Clone, Debug)]
    struct Sent {
        opcode: u8,
        flags: u8,
        imm: [u8; 4],
        remote: (u64, u32),
        operands: [u64; 2],
        data: Data,
    }

    #[derive(Clone, Debug)]
    enum Data {
        Elements(Vec<(u32, u32, u64)>),
        Inline(Vec<u8>),
    }

    fn sends() -> impl Strategy<Value = Sent> {
        let opcodes = prop::sample::select(vec![8_u8, 9, 0x0a, 0x0b, 0x10, 0x11, 0x12]);
        let elements = vec((1..1_u32 << 31, any::<u32>(), any::<u64>()), 0..=16);
        let data = prop_oneof![
            elements.prop_map(Data::Elements),
            vec(any::<u8>(), 1..400).prop_map(Data::Inline),
        ];
        let flags = prop::sample::select(vec![0_u8, 2, 8, 0x0a, 0x80, 0x88, 0x20]);
        (opcodes, flags, any::<[u8; 4]>(), any::<(u64, u32)>(), any::<[u64; 2]>(), data).prop_map(
            |(opcode, flags, imm, remote, operands, data)| Sent {
                opcode,
                flags,
                imm,
                remote,
                operands,
                data,
            },
        )
    }

    impl Sent {
        /// As libmlx5 lays it out, at this block.
        fn bytes(&self, block: u32) -> Vec<u8> {
            let mut rest = Vec::new();
            if !matches!(self.opcode, 0x0a | 0x0b) {
                rest.extend(self.remote.0.to_be_bytes());
                rest.extend(self.remote.1.to_be_bytes());
                rest.extend([0; 4]);
            }
            if matches!(self.opcode, 0x11 | 0x12) {
                rest.extend(self.operands.iter().flat_map(|word| word.to_be_bytes()));
            }
            match &self.data {
                Data::Elements(list) => {
                    for (length, key, address) in list {
                        rest.extend(length.to_be_bytes());
                        rest.extend(key.to_be_bytes());
                        rest.extend(address.to_be_bytes());
                    }
                }
                Data::Inline(data) => {
                    rest.extend((data.len() as u32 | 0x8000_0000).to_be_bytes());
                    rest.extend(data);
                }
            }
            let segments = 1 + rest.len().div_ceil(16);
            let mut all =
                (block << 8 & 0x00ff_ff00 | u32::from(self.opcode)).to_be_bytes().to_vec();
            all.extend((0x1234 << 8 | segments as u32).to_be_bytes());
            all.extend([0, 0, 0, self.flags]);
            all.extend(self.imm);
            all.extend(rest);
            all.resize(segments * 16, 0);
            all
        }

        fn check(&self, request: &Request, block: u32) -> Result<(), TestCaseError> {
            let wr = &request.wr;
            prop_assert!(!request.is_nothing);
            let label = Label { index: block as u16, opcode: self.opcode, is_receive: false };
            prop_assert_eq!(request.label, label);
            let code = [(8, 0), (9, 1), (0x0a, 2), (0x0b, 3), (0x10, 4), (0x11, 5), (0x12, 6)];
            let (_, code) = code.iter().find(|(known, _)| *known == self.opcode).expect("known");
            prop_assert_eq!(wr.opcode, *code);
            prop_assert_eq!(wr.imm_data.to_ne_bytes(), self.imm);
            let is_inline = matches!(self.data, Data::Inline(_));
            let flags = u32::from(self.flags & 8 != 0) << 1
                | u32::from(self.flags & 2 != 0) << 2
                | u32::from(self.flags & 0x80 != 0)
                | u32::from(is_inline) << 3;
            prop_assert_eq!(wr.send_flags, flags);
            let words = |first: u64, second: u64| [first, second];
            match self.opcode {
                0x0a | 0x0b => {}
                0x11 | 0x12 => {
                    let (operands, key) = wr.atomic();
                    let [first, second] = self.operands;
                    let wanted =
                        if self.opcode == 0x11 { words(second, first) } else { words(first, 0) };
                    prop_assert_eq!(
                        (wr.remote_addr, operands, key),
                        (self.remote.0, wanted, self.remote.1)
                    );
                }
                _ => prop_assert_eq!((wr.remote_addr, wr.rkey), self.remote),
            }
            match &self.data {
                Data::Inline(data) => prop_assert_eq!(&request.inline, data),
                Data::Elements(list) => {
                    let found = request.elements.iter().map(|one| (one.length, one.lkey, one.addr));
                    prop_assert_eq!(&found.collect::<Vec<_>>(), list);
                }
            }
            Ok(())
        }
    }

    /// The memory of a queue pair with 64 blocks of sends and 8 receives of 64 bytes.
    struct Memory {
        queues: Vec<u64>,
        record: Vec<u32>,
    }

    const BLOCKS: u32 = 64;
    const RECEIVES: u32 = 8;

    impl Memory {
        fn new() -> Self {
            Self { queues: vec![0; (RECEIVES + BLOCKS) as usize * BLOCK / 8], record: vec![0; 2] }
        }

        fn rings(&mut self) -> QpRings {
            let receive = self.queues.as_mut_ptr().cast::<u8>();
            QpRings {
                receive,
                receives: RECEIVES,
                receive_shift: 6,
                send: receive.wrapping_add(RECEIVES as usize * BLOCK),
                send_blocks: BLOCKS,
                record: self.record.as_mut_ptr(),
                user: 7,
                asked: QpCap::default(),
                answer: QpAnswer { register: 0, ece: 0, rest: [0; 4] },
            }
        }
    }

    /// Writes into a ring that is so long, from there on, around its end.
    fn write(ring: *mut u8, length: usize, from: usize, bytes: &[u8]) {
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: within the ring.
            unsafe { ring.add((from + at) % length).write(*byte) };
        }
    }

    proptest! {
        #[test]
        fn sends_are_read_as_they_were_written(first: u16, list in vec(sends(), 1..40)) {
            let mut memory = Memory::new();
            let rings = memory.rings();
            let mut at = u32::from(first);
            let mut request = Request::default();
            for sent in &list {
                let bytes = sent.bytes(at);
                let (length, from) = (BLOCKS as usize * BLOCK, at as usize % BLOCKS as usize * BLOCK);
                write(rings.send, length, from, &bytes);
                let next = at + bytes.len().div_ceil(BLOCK) as u32;
                // SAFETY: the record above.
                unsafe { rings.record.add(1).write((next & 0xffff).to_be()) };
                prop_assert_eq!(rings.send(at, &mut request), Some(next));
                sent.check(&request, at)?;
                at = next;
            }
            prop_assert_eq!(rings.send(at, &mut request), None);
        }

        #[test]
        fn whatever_lies_in_a_queue_is_read_to_some_end(words in vec(any::<u64>(), 8 * 72), at: u32) {
            let mut memory = Memory { queues: words, record: vec![0; 2] };
            memory.record = vec![u32::from(!(at as u16)).to_be(); 2];
            let rings = memory.rings();
            let mut request = Request::default();
            let next = rings.send(at, &mut request).expect("one was posted");
            prop_assert!((1..=16).contains(&next.wrapping_sub(at)));
            prop_assert!(request.inline.len() < LONGEST && request.elements.len() < 63);
            let mut elements = Vec::new();
            prop_assert_eq!(rings.receive(at, &mut elements), Some(at.wrapping_add(1)));
            prop_assert!(elements.len() <= 4);
        }

        #[test]
        fn receives_end_with_their_key(list in vec((0..1_u32 << 31, 0x101_u32.., any::<u64>()), 0..=4), at: u32) {
            let mut memory = Memory::new();
            let rings = memory.rings();
            let mut bytes: Vec<u8> = list
                .iter()
                .flat_map(|(length, key, address)| {
                    [&length.to_be_bytes()[..], &key.to_be_bytes(), &address.to_be_bytes()].concat()
                })
                .collect();
            bytes.extend([[0, 0, 0, 0], [0, 0, 1, 0], [9; 4], [9; 4]].concat());
            bytes.truncate(BLOCK);
            let ring = RECEIVES as usize * BLOCK;
            write(rings.receive, ring, (at % RECEIVES) as usize * BLOCK, &bytes);
            // SAFETY: the record above.
            unsafe { rings.record.write((at.wrapping_add(1) & 0xffff).to_be()) };
            let mut elements = Vec::new();
            prop_assert_eq!(rings.receive(at, &mut elements), Some(at.wrapping_add(1)));
            let found = elements.iter().map(|one| (one.length, one.lkey, one.addr));
            prop_assert_eq!(found.collect::<Vec<_>>(), list);
        }

        #[test]
        fn completions_say_who_what_and_which_turn(
            written: u32, index: u16, opcode in 1_u8..0x20, is_receive: bool, user in 0..1_u32 << 24,
            qp_num in 0..1_u32 << 24, byte_len: u32, imm_data: u32, kind in 0..3_u32, status in 0..14_u32,
        ) {
            const SIZE: u32 = 16;
            let mut buffer = vec![0_u64; SIZE as usize * CQE / 8];
            let mut record = vec![0_u32];
            let (buffer, record) = (buffer.as_mut_ptr().cast::<u8>(), record.as_mut_ptr());
            let ring = CqRing { buffer, record, size: SIZE };
            let wc_flags = if kind == 1 { 0 } else { WC_WITH_IMM };
            let received = if kind == 0 { wc_opcode::RECV_RDMA_WITH_IMM } else { wc_opcode::RECV };
            let wc = Wc {
                status, qp_num, byte_len, imm_data, wc_flags, opcode: received, vendor_err: 0x77,
                ..Wc::default()
            };
            let label = Label { index, opcode, is_receive };
            ring.write(written, &Done { user: user.into(), label, wc });
            // SAFETY: within the buffer.
            let cqe: [u8; CQE] =
                unsafe { buffer.add((written % SIZE) as usize * CQE).cast::<[u8; CQE]>().read() };
            prop_assert_eq!(word(&cqe, 32), user);
            prop_assert_eq!(word(&cqe, 56), u32::from(opcode) << 24 | qp_num);
            prop_assert_eq!(u16::from_be_bytes([cqe[60], cqe[61]]), index);
            prop_assert_eq!(cqe[63] & 1, u8::from(written / SIZE % 2 == 1));
            let kinds = [(1, is_receive && kind == 0), (2, is_receive && kind == 1), (3, is_receive && kind == 2)];
            let good = kinds.iter().find(|(_, is_it)| *is_it).map_or(0, |(kind, _)| *kind);
            let bad = if is_receive { 14 } else { 13 };
            prop_assert_eq!(cqe[63] >> 4, if status == 0 { good } else { bad });
            if status == 0 {
                prop_assert_eq!(word(&cqe, 44), byte_len);
                prop_assert_eq!(&cqe[36..40], &imm_data.to_ne_bytes());
            } else {
                prop_assert_eq!(cqe[54], 0x77);
                prop_assert!(cqe[55] != 0);
            }
        }

        #[test]
        fn a_ring_has_room_for_what_has_been_polled(polled in 0..1_u32 << 24, waiting in 0..=16_u32) {
            let mut record = vec![polled.to_be()];
            let ring = CqRing { buffer: ptr::null_mut(), record: record.as_mut_ptr(), size: 16 };
            prop_assert_eq!(ring.room(polled.wrapping_add(waiting)), 16 - waiting);
            prop_assert_eq!(ring.room((polled + waiting) | 0xff00_0000 & polled), 16 - waiting);
        }
    }
}
