//! A libibverbs whose devices are simulated: functions over the [`Fabric`] of the calling thread.
//!
//! Panics do not pass these functions: what a driver would not allow is [noted](Fabric::violated).

#![allow(unsafe_code)]

use super::fabric::{DEVICES, Event, Fabric, IMAGINARY, WorkRequest};
use crate::verbs::library::Library;
use crate::verbs::sys;
use libc::{c_char, c_int, c_void};
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::ptr::{NonNull, from_mut, null_mut};
use std::sync::{Arc, LazyLock};

thread_local! {
    static FABRIC: RefCell<Fabric> = RefCell::new(Fabric::new());
    /// What else happens during a command to a device.
    static MEANWHILE: Cell<Option<fn()>> = const { Cell::new(None) };
    /// The devices that are open, each with the descriptor of its events.
    static BELLS: RefCell<Vec<(usize, c_int)>> = const { RefCell::new(Vec::new()) };
}

/// From now on `body` runs during each command to a device.
pub(super) fn set_meanwhile(body: Option<fn()>) {
    MEANWHILE.set(body);
}

fn meanwhile() {
    let Some(body) = MEANWHILE.get() else { return };
    if std::panic::catch_unwind(body).is_err() {
        with(|fabric| fabric.violated("a law is broken during a command: see above".into()));
    }
}

/// A command to a device. Returns the errno if the device refuses it.
///
/// # Safety
/// `context` is open.
unsafe fn command(context: *mut sys::ibv_context) -> c_int {
    meanwhile();
    // SAFETY: as the caller says.
    let (number, is_lost) = unsafe { (number_of(context), is_lost(context)) };
    if with(|fabric| fabric.refuses(number)) || is_lost { libc::EIO } else { 0 }
}

/// Whether the device has been lost since it was opened so.
///
/// # Safety
/// `context` is open.
unsafe fn is_lost(context: *mut sys::ibv_context) -> bool {
    // SAFETY: as the caller says.
    let (number, losses) = unsafe { (number_of(context), (*context.cast::<Open>()).losses) };
    with(|fabric| fabric.losses(number)) != losses
}

/// Makes the descriptor of the events of `device` readable.
pub(super) fn ring(device: usize) {
    BELLS.with_borrow(|bells| {
        for (_, bell) in bells.iter().filter(|(of, _)| *of == device) {
            // SAFETY: eight bytes, to the descriptor of an open device.
            let _ = unsafe { libc::write(*bell, (&raw const ONE).cast(), 8) };
        }
    });
}

static ONE: u64 = 1;

/// Does something with the fabric of this thread.
pub(super) fn with<R>(body: impl FnOnce(&mut Fabric) -> R) -> R {
    FABRIC.with_borrow_mut(body)
}

/// The library.
pub(super) fn library() -> Arc<Library> {
    // SAFETY: the functions below have the signatures of their names.
    Arc::new(
        unsafe { Library::bind(|name, _| function(name)) }
            .expect("all required functions are there"),
    )
}

macro_rules! functions {
    ($($name:ident = $function:expr),* $(,)?) => {
        fn function(name: &str) -> Option<NonNull<c_void>> {
            let address = match name {
                $(stringify!($name) => $function as *const () as *mut c_void,)*
                _ => return None,
            };
            NonNull::new(address)
        }
    };
}

functions! {
    ibv_get_device_list = get_device_list as unsafe extern "C" fn(_) -> _,
    ibv_free_device_list = free_device_list as extern "C" fn(_),
    ibv_get_device_name = get_device_name as unsafe extern "C" fn(_) -> _,
    ibv_get_device_guid = get_device_guid as unsafe extern "C" fn(_) -> _,
    ibv_open_device = open_device as unsafe extern "C" fn(_) -> _,
    ibv_close_device = close_device as unsafe extern "C" fn(_) -> _,
    ibv_get_async_event = get_async_event as unsafe extern "C" fn(_, _) -> _,
    ibv_ack_async_event = ack_async_event as extern "C" fn(_),
    ibv_query_device = query_device as unsafe extern "C" fn(_, _) -> _,
    ibv_query_port = query_port as unsafe extern "C" fn(_, _, _) -> _,
    ibv_query_pkey = query_pkey as unsafe extern "C" fn(_, _, _, _) -> _,
    ibv_query_gid = query_gid as unsafe extern "C" fn(_, _, _, _) -> _,
    _ibv_query_gid_ex = query_gid_ex as unsafe extern "C" fn(_, _, _, _, _, _) -> _,
    ibv_alloc_pd = alloc_pd as unsafe extern "C" fn(_) -> _,
    ibv_dealloc_pd = dealloc_pd as unsafe extern "C" fn(_) -> _,
    ibv_reg_mr = reg_mr as unsafe extern "C" fn(_, _, _, _) -> _,
    ibv_dereg_mr = dereg_mr as unsafe extern "C" fn(_) -> _,
    ibv_create_cq = create_cq as unsafe extern "C" fn(_, _, _, _, _) -> _,
    ibv_destroy_cq = destroy_cq as unsafe extern "C" fn(_) -> _,
    ibv_create_qp = create_qp as unsafe extern "C" fn(_, _) -> _,
    ibv_modify_qp = modify_qp as unsafe extern "C" fn(_, _, _) -> _,
    ibv_query_qp = query_qp as extern "C" fn(_, _, _, _) -> _,
    ibv_destroy_qp = destroy_qp as unsafe extern "C" fn(_) -> _,
    ibv_fork_init = fork_init as extern "C" fn() -> _,
}

/// What `struct ibv_device` is here. The devices of the sender come first.
struct Device {
    number: usize,
    name: CString,
}

/// What `struct ibv_context` is here.
#[repr(C)]
struct Open {
    raw: sys::ibv_context,
    /// How often the device had been lost before.
    losses: u32,
}

/// What `struct ibv_pd` is here.
struct Domain {
    device: usize,
    context: *mut sys::ibv_context,
}

#[repr(C)]
struct Queue {
    raw: sys::ibv_cq,
    number: usize,
}

#[repr(C)]
struct QueuePair {
    raw: sys::ibv_qp,
    number: usize,
}

static LIST: LazyLock<Vec<usize>> = LazyLock::new(|| {
    let device = |number: usize| {
        let name =
            CString::new(format!("sim{}_{}", number / DEVICES, number % DEVICES)).expect("no zero");
        from_mut(Box::leak(Box::new(Device { number, name }))).addr()
    };
    (0..2 * DEVICES).map(device).collect()
});

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut sys::ibv_device {
    // SAFETY: the caller's place.
    unsafe { *count = LIST.len() as c_int };
    LIST.as_ptr().cast_mut().cast()
}

extern "C" fn free_device_list(_: *mut *mut sys::ibv_device) {}

/// # Safety
/// `device` is of the list.
unsafe fn device_of<'a>(device: *mut sys::ibv_device) -> &'a Device {
    // SAFETY: as the caller says; devices live for ever.
    unsafe { &*device.cast::<Device>() }
}

/// # Safety
/// `context` is open.
unsafe fn number_of(context: *mut sys::ibv_context) -> usize {
    // SAFETY: as the caller says.
    unsafe { device_of((*context).device) }.number
}

unsafe extern "C" fn get_device_name(device: *mut sys::ibv_device) -> *const c_char {
    // SAFETY: the caller's device.
    unsafe { device_of(device) }.name.as_ptr()
}

unsafe extern "C" fn get_device_guid(device: *mut sys::ibv_device) -> u64 {
    // SAFETY: the caller's device.
    1 + unsafe { device_of(device) }.number as u64
}

/// # Safety
/// All zero is valid for `T`.
unsafe fn zeroed<T>() -> Box<T> {
    // SAFETY: as the caller says.
    Box::new(unsafe { std::mem::zeroed() })
}

unsafe extern "C" fn open_device(device: *mut sys::ibv_device) -> *mut sys::ibv_context {
    // SAFETY: the caller's device.
    let number = unsafe { device_of(device) }.number;
    if with(|fabric| fabric.is_lost(number)) {
        return null_mut();
    }
    // SAFETY: a struct of numbers and pointers.
    let mut open: Box<Open> = unsafe { zeroed() };
    open.losses = with(|fabric| fabric.losses(number));
    let context = &mut open.raw;
    context.device = device;
    context.ops.poll_cq = Some(poll_cq);
    context.ops.post_send = Some(post_send);
    context.ops.post_recv = Some(post_recv);
    context.cmd_fd = -1;
    // SAFETY: no pointers.
    context.async_fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    BELLS.with_borrow_mut(|bells| bells.push((number, context.async_fd)));
    Box::into_raw(open).cast()
}

unsafe extern "C" fn close_device(context: *mut sys::ibv_context) -> c_int {
    // SAFETY: of `open_device`, closed once.
    let context = unsafe { Box::from_raw(context.cast::<Open>()) }.raw;
    BELLS.with_borrow_mut(|bells| bells.retain(|(_, bell)| *bell != context.async_fd));
    // SAFETY: opened there.
    unsafe { libc::close(context.async_fd) }
}

unsafe extern "C" fn get_async_event(
    context: *mut sys::ibv_context,
    event: *mut sys::ibv_async_event,
) -> c_int {
    // SAFETY: an open context, and the caller's place.
    let (number, is_lost, event) = unsafe { (number_of(context), is_lost(context), &mut *event) };
    let Some(next) = with(|fabric| fabric.next_event(number, is_lost)) else { return -1 };
    if !with(|fabric| fabric.has_events(number)) {
        let mut count = [0_u8; 8];
        // SAFETY: an open descriptor, and room for its number.
        let _ = unsafe { libc::read((*context).async_fd, count.as_mut_ptr().cast(), 8) };
    }
    (event.element, event.event_type) = match next {
        Event::PortUp => (1, sys::IBV_EVENT_PORT_ACTIVE),
        Event::PortDown => (1, sys::IBV_EVENT_PORT_ERR),
        Event::QpFatal => (0, sys::IBV_EVENT_QP_FATAL),
        Event::QueueFailed(queue) => (queue as u64, sys::IBV_EVENT_CQ_ERR),
        Event::DeviceFatal => (0, sys::IBV_EVENT_DEVICE_FATAL),
    };
    0
}

extern "C" fn ack_async_event(_: *mut sys::ibv_async_event) {}

unsafe extern "C" fn query_device(
    _: *mut sys::ibv_context,
    attr: *mut sys::ibv_device_attr,
) -> c_int {
    // SAFETY: the caller's place, which is zeroed.
    let attr = unsafe { &mut *attr };
    (attr.phys_port_cnt, attr.max_qp, attr.max_mr) = (1, 1 << 20, 1 << 20);
    0
}

unsafe extern "C" fn query_port(
    context: *mut sys::ibv_context,
    _: u8,
    attr: *mut sys::ibv_port_attr,
) -> c_int {
    // SAFETY: an open context.
    let number = unsafe { number_of(context) };
    let is_up = with(|fabric| fabric.is_port_up(number));
    // SAFETY: an open context.
    if unsafe { is_lost(context) } {
        return libc::EIO;
    }
    let rail = number % DEVICES;
    // SAFETY: the caller's place, which is valid.
    let attr = unsafe { &mut *attr };
    attr.state = if is_up { sys::IBV_PORT_ACTIVE } else { 1 };
    attr.link_layer = sys::IBV_LINK_LAYER_ETHERNET;
    (attr.max_mtu, attr.active_mtu) = (5, 5 - rail as u32);
    (attr.gid_tbl_len, attr.pkey_tbl_len) = (1, 1);
    // Four lanes; the first rail is the fastest.
    (attr.active_width, attr.active_speed) = (2, 128 >> rail);
    0
}

unsafe extern "C" fn query_pkey(_: *mut sys::ibv_context, _: u8, _: c_int, key: *mut u16) -> c_int {
    // SAFETY: the caller's place.
    unsafe { *key = 0xffff };
    0
}

fn gid_of(number: usize) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1 + number as u8]);
    gid
}

unsafe extern "C" fn query_gid(
    context: *mut sys::ibv_context,
    _: u8,
    _: c_int,
    gid: *mut sys::ibv_gid,
) -> c_int {
    // SAFETY: an open context, and the caller's place.
    unsafe { (*gid).raw = gid_of(number_of(context)) };
    0
}

unsafe extern "C" fn query_gid_ex(
    context: *mut sys::ibv_context,
    _: u32,
    index: u32,
    entry: *mut sys::ibv_gid_entry,
    _: u32,
    _: usize,
) -> c_int {
    if index != 0 {
        return libc::ENODATA;
    }
    // SAFETY: the caller's place.
    let entry = unsafe { &mut *entry };
    // SAFETY: an open context.
    entry.gid.raw = gid_of(unsafe { number_of(context) });
    entry.gid_type = sys::IBV_GID_TYPE_ROCE_V2;
    0
}

unsafe extern "C" fn alloc_pd(context: *mut sys::ibv_context) -> *mut sys::ibv_pd {
    // SAFETY: an open context.
    let device = unsafe { number_of(context) };
    Box::into_raw(Box::new(Domain { device, context })).cast()
}

unsafe extern "C" fn dealloc_pd(pd: *mut sys::ibv_pd) -> c_int {
    // SAFETY: of `alloc_pd`, given back once.
    drop(unsafe { Box::from_raw(pd.cast::<Domain>()) });
    0
}

unsafe extern "C" fn reg_mr(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    _: c_int,
) -> *mut sys::ibv_mr {
    // SAFETY: a live domain.
    let Domain { device, context } = unsafe { &*pd.cast::<Domain>() };
    // SAFETY: a live domain is of an open context.
    if unsafe { is_lost(*context) } {
        return refused(libc::EIO);
    }
    let key = with(|fabric| fabric.register(*device, addr as u64, length));
    // SAFETY: a struct of numbers and pointers.
    let mut mr: Box<sys::ibv_mr> = unsafe { zeroed() };
    (mr.lkey, mr.rkey) = (key, key);
    Box::into_raw(mr)
}

unsafe extern "C" fn dereg_mr(mr: *mut sys::ibv_mr) -> c_int {
    // SAFETY: of `reg_mr`, given back once.
    let mr = unsafe { Box::from_raw(mr) };
    with(|fabric| fabric.deregister(mr.lkey));
    0
}

unsafe extern "C" fn create_cq(
    context: *mut sys::ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    _: *mut sys::ibv_comp_channel,
    _: c_int,
) -> *mut sys::ibv_cq {
    // SAFETY: a struct of numbers and pointers.
    let mut queue: Box<Queue> = unsafe { zeroed() };
    (queue.raw.context, queue.raw.cq_context) = (context, cq_context);
    // SAFETY: an open context.
    let (device, refusal) = unsafe { (number_of(context), command(context)) };
    if refusal != 0 {
        return refused(refusal);
    }
    let name = (&raw const *queue).addr();
    queue.number = with(|fabric| fabric.create_queue(device, name, entries as usize));
    Box::into_raw(queue).cast()
}

unsafe extern "C" fn destroy_cq(cq: *mut sys::ibv_cq) -> c_int {
    // SAFETY: of `create_cq`, given back once.
    let queue = unsafe { Box::from_raw(cq.cast::<Queue>()) };
    with(|fabric| fabric.destroy_queue(queue.number));
    0
}

unsafe extern "C" fn create_qp(
    pd: *mut sys::ibv_pd,
    attr: *mut sys::ibv_qp_init_attr,
) -> *mut sys::ibv_qp {
    // SAFETY: a live domain, whole attributes, and their queue, which is alive.
    let (Domain { device, .. }, attr, queue) =
        unsafe { (&*pd.cast::<Domain>(), &mut *attr, &*(*attr).send_cq.cast::<Queue>()) };
    // SAFETY: a live queue is of an open context.
    let refusal = unsafe { command(queue.raw.context) };
    if refusal != 0 {
        return refused(refusal);
    }
    let caps = (attr.cap.max_send_wr, attr.cap.max_recv_wr);
    let number = with(|fabric| {
        attr.cap.max_inline_data =
            attr.cap.max_inline_data.min(fabric.inline_bytes[device / DEVICES]);
        fabric.create_qp(*device, queue.number, caps)
    });
    // SAFETY: a struct of numbers and pointers.
    let mut qp: Box<QueuePair> = unsafe { zeroed() };
    (qp.raw.context, qp.raw.qp_num, qp.number) = (queue.raw.context, number as u32, number);
    Box::into_raw(qp).cast()
}

unsafe extern "C" fn modify_qp(
    qp: *mut sys::ibv_qp,
    attr: *mut sys::ibv_qp_attr,
    _: c_int,
) -> c_int {
    // SAFETY: a live queue pair, and whole attributes.
    let (qp, attr) = unsafe { (&*qp.cast::<QueuePair>(), &*attr) };
    // SAFETY: a live queue pair is of an open context.
    let refusal = unsafe { command(qp.raw.context) };
    if refusal != 0 {
        return refusal;
    }
    with(|fabric| match attr.qp_state {
        sys::IBV_QPS_RTR => fabric.connect(qp.number, attr.dest_qp_num as usize),
        sys::IBV_QPS_RTS => fabric.start(qp.number),
        sys::IBV_QPS_ERR => fabric.end(qp.number),
        _ => {}
    });
    0
}

extern "C" fn query_qp(
    _: *mut sys::ibv_qp,
    _: *mut sys::ibv_qp_attr,
    _: c_int,
    _: *mut sys::ibv_qp_init_attr,
) -> c_int {
    0
}

unsafe extern "C" fn destroy_qp(qp: *mut sys::ibv_qp) -> c_int {
    // SAFETY: of `create_qp`, given back once.
    let qp = unsafe { Box::from_raw(qp.cast::<QueuePair>()) };
    meanwhile();
    with(|fabric| fabric.destroy_qp(qp.number));
    0
}

/// No object, and that errno.
fn refused<T>(errno: c_int) -> *mut T {
    // SAFETY: of this thread.
    unsafe { *libc::__errno_location() = errno };
    null_mut()
}

extern "C" fn fork_init() -> c_int {
    0
}

unsafe extern "C" fn poll_cq(cq: *mut sys::ibv_cq, count: c_int, wc: *mut sys::ibv_wc) -> c_int {
    // SAFETY: a live queue.
    let queue = unsafe { &*cq.cast::<Queue>() };
    let polled = with(|fabric| fabric.poll(queue.number, count as usize));
    for (i, completion) in polled.iter().enumerate() {
        // SAFETY: the caller's places, as many as it says.
        unsafe {
            let wc = wc.add(i);
            (*wc).wr_id = completion.id;
            (*wc).status = completion.status.0;
            (*wc).vendor_err = 0;
            (*wc).imm_data_invalidated_rkey_union.imm_data = completion.imm;
        }
    }
    polled.len() as c_int
}

unsafe extern "C" fn post_send(
    qp: *mut sys::ibv_qp,
    mut next: *mut sys::ibv_send_wr,
    _: *mut *mut sys::ibv_send_wr,
) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { &*qp.cast::<QueuePair>() };
    // SAFETY: a chain of work requests.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: its element, if it has one.
        let sge = (request.num_sge > 0).then(|| unsafe { *request.sg_list });
        let (source, length, lkey) = sge.map_or((0, 0, 0), |sge| (sge.addr, sge.length, sge.lkey));
        let is_inline = request.send_flags & sys::IBV_SEND_INLINE != 0;
        // SAFETY: memory of the caller's, unless it is imaginary.
        let copy =
            || unsafe { std::slice::from_raw_parts(source as *const u8, length as usize) }.to_vec();
        let inline = is_inline.then(|| if source < IMAGINARY { copy() } else { Vec::new() });
        let has_imm = request.opcode == sys::IBV_WR_RDMA_WRITE_WITH_IMM;
        // SAFETY: the fields of a write.
        let (rdma, imm) =
            unsafe { (request.wr.rdma, request.imm_data_invalidated_rkey_union.imm_data) };
        let wr = WorkRequest {
            id: request.wr_id,
            source,
            target: rdma.remote_addr,
            length,
            rkey: rdma.rkey,
            inline,
            imm: has_imm.then_some(imm),
            is_signaled: request.send_flags & sys::IBV_SEND_SIGNALED != 0,
            number: 0,
        };
        with(|fabric| fabric.post(qp.number, wr, lkey));
        next = request.next;
    }
    0
}

unsafe extern "C" fn post_recv(
    qp: *mut sys::ibv_qp,
    mut next: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { &*qp.cast::<QueuePair>() };
    // SAFETY: the caller's place.
    unsafe { *bad = null_mut() };
    // SAFETY: a chain of work requests.
    while let Some(request) = unsafe { next.as_ref() } {
        with(|fabric| fabric.post_receive(qp.number, request.wr_id));
        next = request.next;
    }
    0
}
