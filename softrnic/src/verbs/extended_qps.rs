//! Extended queue pairs: work requests are made call by call, and posted together.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::Relaxed;
use std::{ptr, slice};

use crate::abi::export::export;
use crate::abi::qp_ex::{Calls, DataBuf, call};
use crate::abi::types;
use crate::abi::types::{SendWr, Sge, send_flag, wr_opcode};
use crate::objects::qp::{Qp, SENDING};
use crate::objects::send_queue::WrList;
use crate::verbs::post::post_list;
use crate::verbs::{code, object, pointer};

/// The calls of a queue pair that was created with the operations that it is for.
pub(super) fn calls() -> Calls {
    let mut calls = [unsupported as *const () as usize; _];
    calls[call::ATOMIC_CMP_SWP] = atomic_cmp_swp as *const () as usize;
    calls[call::ATOMIC_FETCH_ADD] = atomic_fetch_add as *const () as usize;
    calls[call::RDMA_READ] = rdma_read as *const () as usize;
    calls[call::RDMA_WRITE] = rdma_write as *const () as usize;
    calls[call::RDMA_WRITE_IMM] = rdma_write_imm as *const () as usize;
    calls[call::SEND] = send as *const () as usize;
    calls[call::SEND_IMM] = send_imm as *const () as usize;
    calls[call::SET_UD_ADDR] = set_ud_addr as *const () as usize;
    calls[call::SET_INLINE_DATA] = set_inline_data as *const () as usize;
    calls[call::SET_INLINE_DATA_LIST] = set_inline_data_list as *const () as usize;
    calls[call::SET_SGE] = set_sge as *const () as usize;
    calls[call::SET_SGE_LIST] = set_sge_list as *const () as usize;
    calls[call::START] = start as *const () as usize;
    calls[call::COMPLETE] = complete as *const () as usize;
    calls[call::ABORT] = abort as *const () as usize;
    calls
}

/// The same queue pair, if it was created with the operations that it is for.
unsafe extern "C" fn qp_to_qp_ex(handle: *mut types::Qp) -> *mut c_void {
    pointer(|| {
        // SAFETY: the caller's handle.
        let qp: &Qp = unsafe { object(handle) };
        if qp.is_extended() { Ok(handle.cast()) } else { Err(libc::EOPNOTSUPP) }
    })
}
export!("ibv_qp_to_qp_ex", "IBVERBS_1.6", qp_to_qp_ex);

unsafe extern "C" fn start(handle: *mut types::Qp) {
    // SAFETY: the caller's handle.
    let qp: &Qp = unsafe { object(handle) };
    qp.sending.enter(SENDING);
    qp.making.begin();
}

unsafe extern "C" fn complete(handle: *mut types::Qp) -> c_int {
    // SAFETY: the caller's handle.
    let qp: &Qp = unsafe { object(handle) };
    // SAFETY: the caller has begun a list.
    let rc = code(|| unsafe { qp.making.with(|list| post_list(qp, list)) });
    end(qp);
    rc
}

unsafe extern "C" fn abort(handle: *mut types::Qp) {
    // SAFETY: the caller's handle.
    end(unsafe { object(handle) });
}

fn end(qp: &Qp) {
    qp.making.end();
    qp.sending.leave();
}

/// Goes on with the list of the queue pair.
///
/// # Safety
/// `handle` is the caller's handle, who has begun a list.
unsafe fn go_on(handle: *mut types::Qp, work: impl FnOnce(&Qp, &mut WrList)) {
    let _ = code(|| {
        // SAFETY: by the caller.
        unsafe {
            let qp: &Qp = object(handle);
            qp.making.with(|list| work(qp, list));
        }
        Ok(())
    });
}

/// Begins a work request, with the identification and the flags that the application has written
/// into the queue pair.
///
/// # Safety
/// As for [`go_on`].
unsafe fn begin(
    handle: *mut types::Qp,
    opcode: u32,
    imm_data: u32,
    fields: impl FnOnce(&mut SendWr),
) {
    // SAFETY: by the caller.
    unsafe {
        go_on(handle, |qp, list| {
            let mut wr = SendWr {
                wr_id: qp.extended.wr_id.load(Relaxed),
                next: ptr::null_mut(),
                sg_list: ptr::null(),
                num_sge: 0,
                opcode,
                send_flags: qp.extended.wr_flags.load(Relaxed) & !send_flag::INLINE,
                imm_data,
                remote_addr: 0,
                rkey: 0,
                rest: [0; 7],
            };
            fields(&mut wr);
            list.push(wr);
        });
    }
}

fn at(rkey: u32, remote_addr: u64) -> impl FnOnce(&mut SendWr) {
    move |wr| (wr.rkey, wr.remote_addr) = (rkey, remote_addr)
}

unsafe extern "C" fn rdma_write(handle: *mut types::Qp, rkey: u32, addr: u64) {
    // SAFETY: the caller's handle, in a list; here and below.
    unsafe { begin(handle, wr_opcode::RDMA_WRITE, 0, at(rkey, addr)) };
}

unsafe extern "C" fn rdma_write_imm(handle: *mut types::Qp, rkey: u32, addr: u64, imm: u32) {
    // SAFETY: as above.
    unsafe { begin(handle, wr_opcode::RDMA_WRITE_WITH_IMM, imm, at(rkey, addr)) };
}

unsafe extern "C" fn rdma_read(handle: *mut types::Qp, rkey: u32, addr: u64) {
    // SAFETY: as above.
    unsafe { begin(handle, wr_opcode::RDMA_READ, 0, at(rkey, addr)) };
}

unsafe extern "C" fn send(handle: *mut types::Qp) {
    // SAFETY: as above.
    unsafe { begin(handle, wr_opcode::SEND, 0, |_| ()) };
}

unsafe extern "C" fn send_imm(handle: *mut types::Qp, imm: u32) {
    // SAFETY: as above.
    unsafe { begin(handle, wr_opcode::SEND_WITH_IMM, imm, |_| ()) };
}

unsafe extern "C" fn atomic_cmp_swp(
    handle: *mut types::Qp,
    rkey: u32,
    addr: u64,
    compare: u64,
    swap: u64,
) {
    let fields = |wr: &mut SendWr| wr.set_atomic(addr, [compare, swap], rkey);
    // SAFETY: as above.
    unsafe { begin(handle, wr_opcode::ATOMIC_CMP_SWAP, 0, fields) };
}

unsafe extern "C" fn atomic_fetch_add(handle: *mut types::Qp, rkey: u32, addr: u64, add: u64) {
    let fields = |wr: &mut SendWr| wr.set_atomic(addr, [add, 0], rkey);
    // SAFETY: as above.
    unsafe { begin(handle, wr_opcode::ATOMIC_FETCH_ADD, 0, fields) };
}

unsafe extern "C" fn set_ud_addr(handle: *mut types::Qp, ah: *mut types::Ah, qpn: u32, qkey: u32) {
    // SAFETY: as above.
    unsafe { go_on(handle, |_, list| list.set_address(ah as u64, qpn, qkey)) };
}

unsafe extern "C" fn set_sge(handle: *mut types::Qp, lkey: u32, addr: u64, length: u32) {
    // SAFETY: as above.
    unsafe { go_on(handle, |_, list| list.set_elements(&[Sge { addr, length, lkey }])) };
}

unsafe extern "C" fn set_sge_list(handle: *mut types::Qp, count: usize, sges: *const Sge) {
    // SAFETY: as above; the caller's array.
    unsafe {
        go_on(handle, |_, list| {
            list.set_elements(if count == 0 { &[] } else { slice::from_raw_parts(sges, count) })
        });
    }
}

unsafe extern "C" fn set_inline_data(handle: *mut types::Qp, addr: *const c_void, length: usize) {
    let one = DataBuf { addr, length };
    // SAFETY: as above.
    unsafe { set_inline_data_list(handle, 1, &raw const one) };
}

unsafe extern "C" fn set_inline_data_list(
    handle: *mut types::Qp,
    count: usize,
    buffers: *const DataBuf,
) {
    // SAFETY: as above; the caller's array, of pieces of the caller's memory.
    unsafe {
        go_on(handle, |qp, list| {
            let buffers = if count == 0 { &[] } else { slice::from_raw_parts(buffers, count) };
            let bytes = buffers.iter().fold(0, |sum: usize, one| sum.saturating_add(one.length));
            if bytes > qp.cap.max_inline_data as usize {
                return list.fail(qp.library.refusals.map_or(libc::EINVAL, |known| known.by_size));
            }
            let pieces = buffers.iter().filter(|one| one.length != 0);
            list.set_inline(pieces.map(|one| slice::from_raw_parts(one.addr.cast(), one.length)));
        });
    }
}

/// An operation that these devices do not have. Its arguments are in registers nobody reads.
unsafe extern "C" fn unsupported(handle: *mut types::Qp) {
    // SAFETY: as above.
    unsafe { go_on(handle, |_, list| list.fail(libc::EOPNOTSUPP)) };
}
