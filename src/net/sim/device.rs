//! A libibverbs whose devices are simulated: functions over the [`Fabric`] of the calling thread.
//!
//! Panics do not pass these functions: what a driver would not allow is [noted](Fabric::violated).

#![allow(unsafe_code)]

use super::fabric::{Completion, DEVICES, Event, Fabric, IMAGINARY, WorkRequest};
use crate::verbs::context::{Context, simulated};
use crate::verbs::library::Library;
use crate::verbs::{extended_call, sys};
use libc::{c_char, c_int, c_uint, c_void};
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::ops::Range;
use std::ptr::{NonNull, from_mut, null_mut};
use std::sync::{Arc, LazyLock};

thread_local! {
    static FABRIC: RefCell<Fabric> = RefCell::new(Fabric::new());
    /// What else happens during a command to a device.
    static MEANWHILE: Cell<Option<fn()>> = const { Cell::new(None) };
    /// The devices that the library lists: from one number up to another.
    static LISTED: Cell<(usize, usize)> = const { Cell::new((0, 2 * DEVICES)) };
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
    let (number, losses) = unsafe { (number_of(context), (*open_of(context)).losses) };
    with(|fabric| fabric.losses(number)) != losses
}

/// Whether an event is pending, for which the descriptor would be readable.
fn has_event(context: *mut sys::ibv_context) -> bool {
    // SAFETY: an open context.
    let (number, read) = unsafe { (number_of(context), (*open_of(context)).read_events) };
    with(|fabric| fabric.raised(number)) != read
}

/// The descriptor of the events of all devices, which is never readable: see [`has_event`].
static EVENTS: LazyLock<c_int> = LazyLock::new(|| {
    // SAFETY: no pointers.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }
});

/// Does something with the fabric of this thread.
pub(super) fn with<R>(body: impl FnOnce(&mut Fabric) -> R) -> R {
    FABRIC.with_borrow_mut(body)
}

static LIBRARY: LazyLock<Arc<Library>> = LazyLock::new(|| {
    // SAFETY: the functions below have the signatures of their names.
    let library = unsafe { Library::bind(|name, _| function(name)) };
    Arc::new(library.expect("all required functions are there"))
});

/// Opens the devices with these `numbers`.
pub(super) fn open_all(numbers: Range<usize>) -> Vec<Arc<Context>> {
    simulated::set_has_event(has_event);
    LISTED.set((numbers.start, numbers.end));
    let (contexts, failed) = Context::open_all(&LIBRARY).expect("devices");
    LISTED.set((0, 2 * DEVICES));
    assert!(failed.is_empty());
    contexts
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
    ibv_qp_to_qp_ex = qp_to_qp_ex as unsafe extern "C" fn(_) -> _,
    ibv_fork_init = fork_init as extern "C" fn() -> _,
}

/// What `struct ibv_device` is here. The devices of the sender come first.
struct Device {
    number: usize,
    name: CString,
}

/// What `struct verbs_context` is here.
#[repr(C)]
struct Open {
    /// Functions, found by their distance to the context.
    before: [usize; WORDS_BEFORE],
    raw: sys::ibv_context,
    /// How often the device had been lost before.
    losses: u32,
    /// Events of the device so far, when the last of them was read.
    read_events: u64,
}

/// None of the functions that are used is farther away.
const WORDS_BEFORE: usize = extended_call::ALLOC_PARENT_DOMAIN / size_of::<usize>();

/// The struct that `context` is in.
fn open_of(context: *mut sys::ibv_context) -> *mut Open {
    context.cast::<u8>().wrapping_sub(offset_of!(Open, raw)).cast()
}

/// What `struct ibv_pd` is here, a parent domain too.
struct Domain {
    device: usize,
    context: *mut sys::ibv_context,
}

#[repr(C)]
struct Queue {
    /// Its functions are set if completions are read one after the other.
    raw: MaybeUninit<sys::ibv_cq_ex>,
    context: *mut sys::ibv_context,
    number: usize,
    /// The immediate data of the completion that is read.
    imm: u32,
}

#[repr(C)]
struct QueuePair {
    /// Its functions are set if it was made for certain operations.
    raw: MaybeUninit<sys::ibv_qp_ex>,
    context: *mut sys::ibv_context,
    number: usize,
    /// Those operations.
    operations: u64,
    /// What is posted with the next doorbell, each with the key of its memory.
    post: Option<Vec<(WorkRequest, u32)>>,
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
    let (first, end) = LISTED.get();
    let list = &LIST[first..end];
    // SAFETY: the caller's place.
    unsafe { *count = list.len() as c_int };
    list.as_ptr().cast_mut().cast()
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
    (open.losses, open.read_events) = with(|fabric| (fabric.losses(number), fabric.raised(number)));
    let mut set = |distance: usize, function: *const ()| {
        open.before[WORDS_BEFORE - distance / size_of::<usize>()] = function.expose_provenance();
    };
    set(extended_call::ALLOC_TD, alloc_td as *const ());
    set(extended_call::DEALLOC_TD, dealloc_td as *const ());
    set(extended_call::ALLOC_PARENT_DOMAIN, alloc_parent_domain as *const ());
    set(extended_call::CREATE_CQ_EX, create_cq_ex as *const ());
    set(extended_call::CREATE_QP_EX, create_qp_ex as *const ());
    open.before[WORDS_BEFORE - 1] = size_of::<Open>() - size_of::<usize>();
    let context = &mut open.raw;
    context.device = device;
    context.ops.poll_cq = Some(poll_cq);
    context.ops.post_send = Some(post_send);
    context.ops.post_recv = Some(post_recv);
    context.cmd_fd = -1;
    context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    context.async_fd = *EVENTS;
    let open = Box::into_raw(open);
    // SAFETY: a field of it.
    unsafe { &raw mut (*open).raw }
}

unsafe extern "C" fn close_device(context: *mut sys::ibv_context) -> c_int {
    // SAFETY: of `open_device`, closed once.
    drop(unsafe { Box::from_raw(open_of(context)) });
    0
}

unsafe extern "C" fn get_async_event(
    context: *mut sys::ibv_context,
    event: *mut sys::ibv_async_event,
) -> c_int {
    // SAFETY: an open context, and the caller's place.
    let (number, is_lost, event) = unsafe { (number_of(context), is_lost(context), &mut *event) };
    let Some(next) = with(|fabric| fabric.next_event(number, is_lost)) else { return -1 };
    if !with(|fabric| fabric.has_events(number)) {
        // SAFETY: an open context.
        unsafe { (*open_of(context)).read_events = with(|fabric| fabric.raised(number)) };
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

unsafe extern "C" fn alloc_td(
    context: *mut sys::ibv_context,
    _: *mut sys::ibv_td_init_attr,
) -> *mut sys::ibv_td {
    // SAFETY: an open context.
    let (device, refusal) = unsafe { (number_of(context), command(context)) };
    if refusal != 0 {
        return refused(refusal);
    }
    if !with(|fabric| fabric.alloc_thread(device)) {
        return refused(libc::EOPNOTSUPP);
    }
    Box::into_raw(Box::new(device)).cast()
}

unsafe extern "C" fn dealloc_td(td: *mut sys::ibv_td) -> c_int {
    // SAFETY: of `alloc_td`, given back once.
    drop(unsafe { Box::from_raw(td.cast::<usize>()) });
    with(Fabric::dealloc_thread);
    0
}

unsafe extern "C" fn alloc_parent_domain(
    context: *mut sys::ibv_context,
    attr: *mut sys::ibv_parent_domain_init_attr,
) -> *mut sys::ibv_pd {
    // SAFETY: whole attributes, and a live domain.
    let device = unsafe { (*(*attr).pd.cast::<Domain>()).device };
    Box::into_raw(Box::new(Domain { device, context })).cast()
}

unsafe extern "C" fn create_cq(
    context: *mut sys::ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    _: *mut sys::ibv_comp_channel,
    _: c_int,
) -> *mut sys::ibv_cq {
    // SAFETY: an open context.
    unsafe { new_queue(context, entries as usize, cq_context) }
}

unsafe extern "C" fn create_cq_ex(
    context: *mut sys::ibv_context,
    attr: *mut sys::ibv_cq_init_attr_ex,
) -> *mut sys::ibv_cq_ex {
    // SAFETY: an open context, and whole attributes.
    let (device, attr) = unsafe { (number_of(context), &*attr) };
    if !with(|fabric| fabric.driver_of(device).reads_completions) {
        return refused(libc::EOPNOTSUPP);
    }
    // SAFETY: an open context.
    let queue = unsafe { new_queue(context, attr.cqe as usize, attr.cq_context) };
    let raw = queue.cast::<sys::ibv_cq_ex>();
    if !raw.is_null() {
        // SAFETY: fields of the new queue.
        unsafe {
            (&raw mut (*raw).start_poll).write(start_poll);
            (&raw mut (*raw).next_poll).write(next_poll);
            (&raw mut (*raw).end_poll).write(end_poll);
            (&raw mut (*raw).read_vendor_err).write(read_vendor_err);
            (&raw mut (*raw).read_imm_data).write(read_imm_data);
        }
    }
    raw
}

/// # Safety
/// `context` is open.
unsafe fn new_queue(
    context: *mut sys::ibv_context,
    entries: usize,
    cq_context: *mut c_void,
) -> *mut sys::ibv_cq {
    // SAFETY: an open context.
    let (device, refusal) = unsafe { (number_of(context), command(context)) };
    if refusal != 0 {
        return refused(refusal);
    }
    let queue = Queue { raw: MaybeUninit::zeroed(), context, number: 0, imm: 0 };
    let queue = Box::into_raw(Box::new(queue));
    let raw = queue.cast::<sys::ibv_cq>();
    // SAFETY: the new queue, and fields of its beginning.
    unsafe {
        ((*raw).context, (*raw).cq_context) = (context, cq_context);
        (*queue).number = with(|fabric| fabric.create_queue(device, queue.addr(), entries));
    }
    raw
}

unsafe extern "C" fn destroy_cq(cq: *mut sys::ibv_cq) -> c_int {
    // SAFETY: of `new_queue`, given back once.
    let queue = unsafe { Box::from_raw(cq.cast::<Queue>()) };
    with(|fabric| fabric.destroy_queue(queue.number));
    0
}

unsafe extern "C" fn create_qp(
    pd: *mut sys::ibv_pd,
    attr: *mut sys::ibv_qp_init_attr,
) -> *mut sys::ibv_qp {
    // SAFETY: whole attributes; the domain and the queue are alive.
    unsafe { new_qp(pd, (*attr).send_cq, &mut (*attr).cap).cast() }
}

unsafe extern "C" fn create_qp_ex(
    context: *mut sys::ibv_context,
    attr: *mut sys::ibv_qp_init_attr_ex,
) -> *mut sys::ibv_qp {
    // SAFETY: an open context, and whole attributes.
    let (device, attr) = unsafe { (number_of(context), &mut *attr) };
    if !with(|fabric| fabric.driver_of(device).has_operations) {
        return refused(libc::EOPNOTSUPP);
    }
    // SAFETY: the domain and the queue are alive.
    let qp = unsafe { new_qp(attr.pd, attr.send_cq, &mut attr.cap) };
    // SAFETY: the new queue pair, if there is one.
    if let Some(qp) = unsafe { qp.as_mut() } {
        qp.operations = attr.send_ops_flags;
    }
    qp.cast()
}

/// # Safety
/// The domain and the queue are alive.
unsafe fn new_qp(
    pd: *mut sys::ibv_pd,
    queue: *mut sys::ibv_cq,
    cap: &mut sys::ibv_qp_cap,
) -> *mut QueuePair {
    // SAFETY: as the caller says.
    let (Domain { device, .. }, queue) =
        unsafe { (&*pd.cast::<Domain>(), &*queue.cast::<Queue>()) };
    // SAFETY: a live queue is of an open context.
    let refusal = unsafe { command(queue.context) };
    if refusal != 0 {
        return refused(refusal);
    }
    let caps = (cap.max_send_wr, cap.max_recv_wr);
    let number = with(|fabric| {
        cap.max_inline_data = cap.max_inline_data.min(fabric.inline_bytes[device / DEVICES]);
        fabric.create_qp(*device, queue.number, caps)
    });
    let (raw, context) = (MaybeUninit::zeroed(), queue.context);
    let qp = Box::into_raw(Box::new(QueuePair { raw, context, number, operations: 0, post: None }));
    let raw = qp.cast::<sys::ibv_qp>();
    // SAFETY: fields of the beginning of the new queue pair.
    unsafe { ((*raw).context, (*raw).qp_num) = (context, number as u32) };
    qp
}

unsafe extern "C" fn qp_to_qp_ex(qp: *mut sys::ibv_qp) -> *mut sys::ibv_qp_ex {
    // SAFETY: a live queue pair.
    if unsafe { (*qp.cast::<QueuePair>()).operations } == 0 {
        return null_mut();
    }
    let raw = qp.cast::<sys::ibv_qp_ex>();
    // SAFETY: fields of the queue pair.
    unsafe {
        (&raw mut (*raw).wr_start).write(wr_start);
        (&raw mut (*raw).wr_complete).write(wr_complete);
        (&raw mut (*raw).wr_rdma_write).write(wr_rdma_write);
        (&raw mut (*raw).wr_rdma_write_imm).write(wr_rdma_write_imm);
        (&raw mut (*raw).wr_set_sge).write(wr_set_sge);
        (&raw mut (*raw).wr_set_sge_list).write(wr_set_sge_list);
        (&raw mut (*raw).wr_set_inline_data).write(wr_set_inline_data);
    }
    raw
}

unsafe extern "C" fn modify_qp(
    qp: *mut sys::ibv_qp,
    attr: *mut sys::ibv_qp_attr,
    _: c_int,
) -> c_int {
    // SAFETY: a live queue pair, and whole attributes.
    let (qp, attr) = unsafe { (&*qp.cast::<QueuePair>(), &*attr) };
    // SAFETY: a live queue pair is of an open context.
    let refusal = unsafe { command(qp.context) };
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
    let take = |i, completion: Completion| {
        // SAFETY: the caller's places, as many as it says.
        unsafe {
            let wc = wc.add(i);
            (*wc).wr_id = completion.id;
            (*wc).status = completion.status.0;
            (*wc).vendor_err = 0;
            (*wc).imm_data_invalidated_rkey_union.imm_data = completion.imm;
        }
    };
    let polled = with(|fabric| fabric.poll(queue.number, count as usize, take));
    polled.map_or(-1, |polled| polled as c_int)
}

unsafe extern "C" fn start_poll(cq: *mut sys::ibv_cq_ex, _: *const sys::ibv_poll_cq_attr) -> c_int {
    // SAFETY: a live queue.
    unsafe { read_next(cq, true) }
}

unsafe extern "C" fn next_poll(cq: *mut sys::ibv_cq_ex) -> c_int {
    // SAFETY: a live queue.
    unsafe { read_next(cq, false) }
}

/// Goes to the next completion of a poll, which `begins` with it.
///
/// # Safety
/// The queue is alive.
unsafe fn read_next(cq: *mut sys::ibv_cq_ex, begins: bool) -> c_int {
    // SAFETY: a live queue.
    let number = unsafe { (*cq.cast::<Queue>()).number };
    match with(|fabric| fabric.read(number, begins)) {
        Ok(Some(completion)) => {
            // SAFETY: a live queue.
            unsafe {
                ((*cq).wr_id, (*cq).status) = (completion.id, completion.status.0);
                (*cq.cast::<Queue>()).imm = completion.imm;
            }
            0
        }
        Ok(None) => libc::ENOENT,
        Err(_) => libc::EIO,
    }
}

unsafe extern "C" fn end_poll(cq: *mut sys::ibv_cq_ex) {
    // SAFETY: a live queue.
    let number = unsafe { (*cq.cast::<Queue>()).number };
    with(|fabric| fabric.end_read(number));
}

unsafe extern "C" fn read_vendor_err(_: *mut sys::ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_imm_data(cq: *mut sys::ibv_cq_ex) -> u32 {
    // SAFETY: a live queue.
    unsafe { (*cq.cast::<Queue>()).imm }
}

/// A write without data.
fn write(id: u64, flags: c_uint, (target, rkey): (u64, u32), imm: Option<u32>) -> WorkRequest {
    let is_signaled = flags & sys::IBV_SEND_SIGNALED != 0;
    let (source, length, number) = (0, 0, 0);
    WorkRequest { id, source, target, length, rkey, inline: None, imm, is_signaled, number }
}

/// The copy of inline data.
///
/// # Safety
/// Memory of the caller's, unless it is imaginary.
unsafe fn copy(source: u64, length: u32) -> Vec<u8> {
    if source >= IMAGINARY {
        return Vec::new();
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(source as *const u8, length as usize) }.to_vec()
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
        let has_imm = request.opcode == sys::IBV_WR_RDMA_WRITE_WITH_IMM;
        // SAFETY: the fields of a write.
        let (rdma, imm) =
            unsafe { (request.wr.rdma, request.imm_data_invalidated_rkey_union.imm_data) };
        let to = (rdma.remote_addr, rdma.rkey);
        let bare = write(request.wr_id, request.send_flags, to, has_imm.then_some(imm));
        // SAFETY: memory of the caller's.
        let inline = is_inline.then(|| unsafe { copy(source, length) });
        let wr = WorkRequest { source, length, inline, ..bare };
        with(|fabric| fabric.post(qp.number, wr, lkey));
        next = request.next;
    }
    0
}

/// # Safety
/// A live queue pair.
unsafe fn posting<'a>(qp: *mut sys::ibv_qp_ex) -> &'a mut QueuePair {
    // SAFETY: as the caller says.
    unsafe { &mut *qp.cast::<QueuePair>() }
}

unsafe extern "C" fn wr_start(qp: *mut sys::ibv_qp_ex) {
    // SAFETY: a live queue pair.
    let begun = unsafe { posting(qp) }.post.replace(Vec::new());
    if begun.is_some() {
        with(|fabric| fabric.violated("a post begins in another one".into()));
    }
}

unsafe extern "C" fn wr_complete(qp: *mut sys::ibv_qp_ex) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { posting(qp) };
    for (wr, lkey) in qp.post.take().into_iter().flatten() {
        with(|fabric| fabric.post(qp.number, wr, lkey));
    }
    0
}

/// # Safety
/// A live queue pair.
unsafe fn add(qp: *mut sys::ibv_qp_ex, operation: u64, to: (u64, u32), imm: Option<u32>) {
    // SAFETY: as the caller says.
    let (wr, qp) = unsafe { (write((*qp).wr_id, (*qp).wr_flags, to, imm), posting(qp)) };
    let is_allowed = qp.operations & operation != 0;
    match &mut qp.post {
        Some(post) if is_allowed => post.push((wr, 0)),
        _ => with(|fabric| fabric.violated(format!("{wr:?} may not be posted"))),
    }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut sys::ibv_qp_ex, rkey: u32, target: u64) {
    // SAFETY: a live queue pair.
    unsafe { add(qp, sys::IBV_QP_EX_WITH_RDMA_WRITE, (target, rkey), None) };
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut sys::ibv_qp_ex, rkey: u32, target: u64, imm: u32) {
    // SAFETY: a live queue pair.
    unsafe { add(qp, sys::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, (target, rkey), Some(imm)) };
}

/// # Safety
/// A live queue pair.
unsafe fn set_data(qp: *mut sys::ibv_qp_ex, sge: sys::ibv_sge, inline: Option<Vec<u8>>) {
    // SAFETY: as the caller says.
    let last = unsafe { posting(qp) }.post.as_mut().and_then(|post| post.last_mut());
    match last {
        Some((wr, lkey)) => {
            (wr.source, wr.length, wr.inline, *lkey) = (sge.addr, sge.length, inline, sge.lkey);
        }
        None => with(|fabric| fabric.violated("data of no work request".into())),
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut sys::ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: a live queue pair.
    unsafe { set_data(qp, sys::ibv_sge { addr, length, lkey }, None) };
}

unsafe extern "C" fn wr_set_sge_list(
    qp: *mut sys::ibv_qp_ex,
    count: usize,
    list: *const sys::ibv_sge,
) {
    if count > 0 {
        // SAFETY: a live queue pair, and an element.
        unsafe { set_data(qp, *list, None) };
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut sys::ibv_qp_ex, data: *mut c_void, length: usize) {
    let (addr, length) = (data as u64, length as u32);
    // SAFETY: a live queue pair, and memory of the caller's.
    unsafe { set_data(qp, sys::ibv_sge { addr, length, lkey: 0 }, Some(copy(addr, length))) };
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
