//! The data path functions, reached through the context's table.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::{ptr, slice};

use crate::abi::export::export;
use crate::abi::types;
use crate::abi::types::{RecvWr, SendWr, Sge, Wc, send_flag, wr_opcode};
use crate::calls::NO_OPERATION;
use crate::copy::gpu;
use crate::drivers::table::{Refusals, Verb};
use crate::engine::FAILS;
use crate::engine::receive::poll_cq;
use crate::engine::requester::pump;
use crate::engine::{datagrams, receive, requester};
use crate::host::{lock, set_errno};
use crate::objects::context::{Ah, Pd};
use crate::objects::cq::{Cq, SINGLE_THREADED_CQ};
use crate::objects::mr::{Change, Mr, Range};
use crate::objects::qp::{Qp, SENDING, refused};
use crate::objects::send_queue::{SendQueue, WrList};
use crate::process::fabric::Command;
use crate::remote::responder::Request;
use crate::shm::work::Batch;
use crate::verbs::engine::engine_of;
use crate::verbs::{code, context, minus_one, object, pointer, shared};

/// The elements of a work request.
///
/// # Safety
/// `list` is the caller's array of `count` elements.
#[inline(always)]
pub(super) unsafe fn elements<'a>(list: *const Sge, count: c_int) -> Result<&'a [Sge], i32> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: by the caller.
        Ok(count) if !list.is_null() => Ok(unsafe { slice::from_raw_parts(list, count) }),
        _ => Err(libc::EINVAL),
    }
}

pub unsafe extern "C" fn poll(handle: *mut types::Cq, room: c_int, out: *mut Wc) -> c_int {
    // SAFETY: the caller's handle.
    let cq: &Cq = unsafe { object(handle) };
    let Ok(room) = usize::try_from(room) else { return -libc::EINVAL };
    let Ok(engine) = engine_of(cq.context.fabric) else { return -libc::ENODEV };
    // SAFETY: the caller's array of `room` completions.
    let out = unsafe { slice::from_raw_parts_mut(out.cast::<MaybeUninit<Wc>>(), room) };
    let work = || {
        let _polling = cq.polling.while_in(SINGLE_THREADED_CQ);
        let taken =
            engine.faults.on_poll_cq(cq.context.device.index).map(|()| poll_cq(engine, cq, out));
        cq.count_poll(taken.is_ok_and(|taken| taken != 0), true);
        taken
    };
    match catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(libc::EIO)) {
        Ok(taken) => taken as c_int,
        Err(errno) => -errno,
    }
}

pub unsafe extern "C" fn post_recv(
    handle: *mut types::Qp,
    list: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: the caller's handle.
    let qp: &Qp = unsafe { object(handle) };
    let mut at = list;
    let rc = code(|| {
        let _receiving =
            qp.receiving.while_in("the receive queue of a queue pair in a thread domain");
        while !at.is_null() {
            // SAFETY: the caller's structure.
            let wr = unsafe { *at };
            let engine = engine_of(qp.fabric)?;
            // SAFETY: the caller's array.
            let sges = unsafe { elements(wr.sg_list, wr.num_sge) }?;
            receive::post_recv(engine, qp, wr.wr_id, sges, ptr::eq(at, list))?;
            at = wr.next;
        }
        Ok(())
    });

    if rc != 0 {
        // SAFETY: the caller's structure.
        unsafe { bad.write(at) };
    }
    rc
}

pub unsafe extern "C" fn post_send(
    handle: *mut types::Qp,
    list: *mut SendWr,
    bad: *mut *mut SendWr,
) -> c_int {
    // SAFETY: the caller's handle.
    let qp: &Qp = unsafe { object(handle) };
    let mut at = list;
    let rc = code(|| {
        let engine = engine_of(qp.fabric)?;
        let _sending = qp.sending.while_in(SENDING);
        let mut queue = lock(&qp.send);
        let mut batch = Batch::default();
        let mut outcome = Ok(());
        while !at.is_null() && outcome.is_ok() {
            // SAFETY: the caller's structure; the mirror is no longer than the shortest in use.
            let wr = unsafe { &*at };
            // SAFETY: the caller's array.
            let sges = unsafe { elements(wr.sg_list, wr.num_sge) };
            let rule = engine.faults.on_post_send(qp.port().device);
            outcome = sges.and_then(|sges| match (rule, &qp.library.refusals) {
                // The library has taken it already.
                (Err(_), None) => {
                    let wr = SendWr { opcode: NO_OPERATION, ..*wr };
                    enqueue(qp, &mut queue, &wr, &[], &mut batch)
                }
                (rule, _) => rule.and_then(|()| enqueue(qp, &mut queue, wr, sges, &mut batch)),
            });
            if outcome.is_ok() {
                at = wr.next;
                pump(engine, qp, &mut queue);
            }
        }
        qp.slot.work.posted(&batch);
        outcome
    });
    if rc != 0 {
        // SAFETY: the caller's structure.
        unsafe { bad.write(at) };
    }
    rc
}

/// Posts the work requests of an extended queue pair: all of them or none.
pub(super) fn post_list(qp: &Qp, list: &WrList) -> Result<(), i32> {
    let engine = engine_of(qp.fabric)?;
    let mut queue = lock(&qp.send);
    if let Some(refusals) = &qp.library.refusals {
        // Here it is the wrong call, whatever a post of a list says.
        may_send(qp, refusals).map_err(|_| libc::EINVAL)?;
    }
    for (ahead, (wr, elements)) in list.finished()?.enumerate() {
        engine.faults.on_post_send(qp.port().device)?;
        check(qp, &queue, wr, elements.as_slice(), ahead as u64)?;
        if qp.is_ud() {
            // SAFETY: the caller's handle, or NULL.
            let (ah, qpn, _) = unsafe { receiver(wr) }?;
            datagrams::check(qp, ah, qpn)?;
        }
    }
    let mut batch = Batch::default();
    for (wr, elements) in list.finished()? {
        enqueue(qp, &mut queue, wr, elements.as_slice(), &mut batch)?;
        pump(engine, qp, &mut queue);
    }
    qp.slot.work.posted(&batch);
    Ok(())
}

/// Checks a request and puts it into the queue; inline data is copied here, other data when it is
/// executed.
fn enqueue(
    qp: &Qp,
    queue: &mut SendQueue,
    wr: &SendWr,
    sges: &[Sge],
    batch: &mut Batch,
) -> Result<(), i32> {
    let mut bytes = check(qp, queue, wr, sges, 0)?;
    let is_inline = is_inline(qp, wr);
    let (mut sges, mut opcode) = (sges, wr.opcode);
    if is_too_large(qp, is_inline, sges, bytes) {
        // It fails when it is executed.
        (sges, bytes, opcode) = (&[], 0, opcode | FAILS);
    }
    let inline = if is_inline { bytes } else { 0 };
    let elements = if is_inline { 0 } else { sges.len() };
    let taken = queue.taken + (qp.library.blocks)(wr, elements, inline);
    let mut request = Request {
        wr_id: wr.wr_id,
        blocks: taken,
        opcode,
        flags: if is_inline { wr.send_flags } else { wr.send_flags & !send_flag::INLINE },
        imm: wr.imm_data,
        num_sge: if is_inline { 0 } else { sges.len() as u32 },
        inline_len: if is_inline { bytes as u32 } else { 0 },
        rkey: wr.rkey,
        remote_addr: wr.remote_addr,
        ..Request::default()
    };
    if is_atomic(wr) {
        (request.operands, request.rkey) = wr.atomic();
    }
    if qp.is_ud() {
        // SAFETY: the caller's handle, or NULL.
        unsafe { address(qp, queue, wr, bytes) }?;
    }
    request.due = requester::plan(qp, queue, wr.opcode, bytes);
    queue.planned = request.due;
    let (slot, elements, inline) = queue.next_slot();
    *slot = request;
    if is_inline {
        copy_inline(sges, inline);
    } else {
        elements[..sges.len()].copy_from_slice(sges);
    }
    queue.posted += 1;
    queue.taken = taken;
    batch.add(is_inline, bytes, sges.len());
    Ok(())
}

/// A datagram goes where its address handle says.
///
/// # Safety
/// `wr` names the caller's handle, or NULL.
unsafe fn address(qp: &Qp, queue: &mut SendQueue, wr: &SendWr, bytes: u64) -> Result<(), i32> {
    // SAFETY: by the caller.
    let (ah, qpn, qkey) = unsafe { receiver(wr) }?;
    datagrams::address(qp, queue, ah, (qpn, qkey), (bytes, wr.opcode == wr_opcode::SEND_WITH_IMM))
}

/// Address handle, number and Q_Key of the queue pair that a datagram is for.
///
/// # Safety
/// As for [`address`].
unsafe fn receiver<'a>(wr: &SendWr) -> Result<(&'a Ah, u32, u32), i32> {
    let (ah, qpn, qkey) = wr.datagram();
    if ah.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: by the caller.
    Ok((unsafe { object(ah) }, qpn, qkey))
}

/// Whether the data is taken now.
fn is_inline(qp: &Qp, wr: &SendWr) -> bool {
    wr.send_flags & send_flag::INLINE != 0
        && qp.takes_inline
        && (qp.library.has_inline_answers || wr.opcode < wr_opcode::RDMA_READ)
}

fn is_atomic(wr: &SendWr) -> bool {
    matches!(wr.opcode, wr_opcode::ATOMIC_CMP_SWAP | wr_opcode::ATOMIC_FETCH_ADD)
}

/// Whether the request may be posted behind so many others, and how many bytes it has.
fn check(qp: &Qp, queue: &SendQueue, wr: &SendWr, sges: &[Sge], ahead: u64) -> Result<u64, i32> {
    let bytes = sges.iter().map(|s| u64::from(s.length)).sum();
    let is_full = qp.send_ring.in_use(queue.taken + ahead) >= u64::from(qp.cap.max_send_wr);
    let Some(refusals) = &qp.library.refusals else {
        return if is_full { Err(libc::ENOMEM) } else { Ok(bytes) };
    };
    may_send(qp, refusals)?;
    if wr.opcode > wr_opcode::ATOMIC_FETCH_ADD {
        return Err(refusals.by_opcode);
    }
    let (is_inline, has_answer) = (is_inline(qp, wr), wr.opcode >= wr_opcode::RDMA_READ);
    if has_answer && is_inline {
        refused(refusals.inline_answers)?;
    }
    if !refusals.is_lenient {
        let known =
            send_flag::FENCE | send_flag::SIGNALED | send_flag::SOLICITED | send_flag::INLINE;
        if has_answer && qp.is_unreliable()
            || qp.operations & 1 << wr.opcode == 0
            || wr.send_flags & !known != 0
        {
            return Err(libc::EINVAL);
        }
    }
    if is_full {
        return Err(refusals.full);
    }
    let is_left_to_card = refusals.takes_long_inline && !has_too_many(qp, sges);
    if is_too_large(qp, is_inline, sges, bytes) && !is_left_to_card {
        return Err(refusals.by_size);
    }
    Ok(bytes)
}

/// Whether the state of the queue pair allows requests.
fn may_send(qp: &Qp, refusals: &Refusals) -> Result<(), i32> {
    refused((refusals.sends)(qp.states()))
}

/// Whether it has more elements or inline data than there is room for.
fn is_too_large(qp: &Qp, is_inline: bool, sges: &[Sge], bytes: u64) -> bool {
    let has_any = is_inline && qp.library.refusals.is_some_and(|refusals| refusals.has_any_inline);
    let is_too_long = is_inline && bytes > u64::from(qp.cap.max_inline_data);
    is_too_long || !has_any && has_too_many(qp, sges)
}

fn has_too_many(qp: &Qp, sges: &[Sge]) -> bool {
    sges.len() > qp.cap.max_send_sge as usize
}

/// Copies the elements of an inline request to its slot; they fit (checked).
fn copy_inline(sges: &[Sge], slot: &mut [u8]) {
    let mut at = 0;
    for sge in sges.iter().filter(|s| s.length != 0) {
        // SAFETY: inline elements name the caller's own memory; no key is involved.
        let bytes = unsafe { slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) };
        slot[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    }
}

pub unsafe extern "C" fn alloc_pd(handle: *mut types::Context) -> *mut types::Pd {
    pointer(|| {
        // SAFETY: the caller's handle.
        let pd = Pd::new(unsafe { context(handle) }?)?;
        pd.context.carry_out(Command::AllocPd);
        let handle = pd.as_abi();
        // Given back by `dealloc_pd`.
        let _ = Arc::into_raw(pd);
        Ok(handle)
    })
}
export!("ibv_alloc_pd", "IBVERBS_1.1", alloc_pd);

pub unsafe extern "C" fn dealloc_pd(handle: *mut types::Pd) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let pd: &Pd = unsafe { object(handle) };
        // A parent domain is none of the device's.
        if pd.context.is_refusing() && !pd.is_parent() {
            return Ok(());
        }
        if pd.users.load(SeqCst) != 0 && !pd.context.fabric.is_gone() {
            return Err(libc::EBUSY);
        }
        pd.release();
        // SAFETY: takes back what `alloc_pd` or `alloc_parent_domain` leaked.
        drop(unsafe { Arc::from_raw(handle.cast::<Pd>()) });
        Ok(())
    })
}
export!("ibv_dealloc_pd", "IBVERBS_1.1", dealloc_pd);

fn register(pd: *mut types::Pd, range: Range, flags: u32) -> *mut types::Mr {
    pointer(|| {
        // SAFETY: the caller's handle.
        let pd: Arc<Pd> = unsafe { shared(pd) };
        let engine = engine_of(pd.context.fabric)?;
        let mr = engine.register(&pd, range, flags)?;
        pd.context.carry_out(Command::RegisterMr);
        let handle = mr.as_abi();
        // Given back by `dereg_mr`.
        let _ = Box::into_raw(mr);
        Ok(handle)
    })
}

fn host(addr: *mut c_void, length: usize, iova: u64) -> Range {
    Range { addr: addr as u64, length, iova, dmabuf: None }
}

unsafe extern "C" fn reg_mr(
    pd: *mut types::Pd,
    addr: *mut c_void,
    length: usize,
    flags: c_int,
) -> *mut types::Mr {
    register(pd, host(addr, length, addr as u64), flags as u32)
}
export!("ibv_reg_mr", "IBVERBS_1.1", reg_mr);

unsafe extern "C" fn reg_mr_iova(
    pd: *mut types::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_int,
) -> *mut types::Mr {
    register(pd, host(addr, length, iova), flags as u32)
}
export!("ibv_reg_mr_iova", "IBVERBS_1.7", reg_mr_iova);

pub unsafe extern "C" fn reg_mr_iova2(
    pd: *mut types::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> *mut types::Mr {
    register(pd, host(addr, length, iova), flags)
}
export!("ibv_reg_mr_iova2", "IBVERBS_1.8", reg_mr_iova2);

/// Callers probe with no descriptor and look at errno: EBADF where dma-bufs can be registered, else
/// EOPNOTSUPP.
pub unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut types::Pd,
    _offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    flags: c_int,
) -> *mut types::Mr {
    // A probe has no length either.
    if fd < 0 {
        // SAFETY: the caller's handle.
        let pd: Arc<Pd> = unsafe { shared(pd) };
        return pointer(|| gpu::find_dmabuf(pd.context.fabric, fd, iova, 0).and(Err(libc::EBADF)));
    }
    register(pd, Range { addr: iova, length, iova, dmabuf: Some(fd) }, flags as u32)
}
export!("ibv_reg_dmabuf_mr", "IBVERBS_1.12", reg_dmabuf_mr);

/// What `ibv_rereg_mr` changes.
mod rereg {
    pub(super) const TRANSLATION: i32 = 1;
    pub(super) const PD: i32 = 1 << 1;
    pub(super) const ACCESS: i32 = 1 << 2;
}
/// `IBV_REREG_MR_ERR_INPUT`: the region is as it was.
const WRONG_INPUT: c_int = -1;
/// `IBV_REREG_MR_ERR_CMD`.
const FAILED: c_int = -4;

unsafe extern "C" fn rereg_mr(
    handle: *mut types::Mr,
    flags: c_int,
    pd: *mut types::Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let changes = |what| flags & what != 0;
    let is_wrong = flags & !(rereg::TRANSLATION | rereg::PD | rereg::ACCESS) != 0
        || (changes(rereg::TRANSLATION) && (length == 0 || addr.is_null()))
        || (access != 0 && !changes(rereg::ACCESS));
    if is_wrong {
        set_errno(libc::EINVAL);
        return WRONG_INPUT;
    }
    let rc = minus_one(|| {
        // SAFETY: the caller's handle, which nobody else uses meanwhile.
        let mr: &mut Mr = unsafe { &mut *handle.cast() };
        let engine = engine_of(mr.pd().context.fabric)?;
        engine.fabric.settings.driver.require(Verb::ReregMr)?;
        let change = Change {
            range: changes(rereg::TRANSLATION).then(|| host(addr, length, addr as u64)),
            // SAFETY: the caller's handle.
            pd: changes(rereg::PD).then(|| unsafe { shared(pd) }),
            access: changes(rereg::ACCESS).then_some(access as u32),
        };
        engine.reregister(mr, change)?;
        mr.pd().context.carry_out(Command::RegisterMr);
        Ok(())
    });
    if rc == 0 { 0 } else { FAILED }
}
export!("ibv_rereg_mr", "IBVERBS_1.1", rereg_mr);

pub unsafe extern "C" fn dereg_mr(handle: *mut types::Mr) -> c_int {
    code(|| {
        // SAFETY: the caller's handle. The parent domain that it was registered with may be gone.
        let pd = Arc::clone(unsafe { object::<Mr, _>(handle) }.pd());
        if pd.context.is_refusing() {
            return Ok(());
        }
        if let Ok(engine) = engine_of(pd.context.fabric) {
            // SAFETY: takes back what `register` leaked.
            engine.deregister(*unsafe { Box::from_raw(handle.cast::<Mr>()) });
            pd.context.carry_out(Command::DeregisterMr);
        }
        Ok(())
    })
}
export!("ibv_dereg_mr", "IBVERBS_1.1", dereg_mr);
