//! The library's functions, with structures written down independently of the crate's own.

use std::ffi::{c_char, c_int};
use std::mem::transmute_copy;

#[path = "library.rs"]
mod library;
#[path = "structs.rs"]
mod structs;
pub use library::*;
pub use structs::{AhAttr, SrqAttr, SrqInit};

/// `verbs!(fn name(args) -> ret)`: a wrapper that calls the versioned symbol.
macro_rules! verbs {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {$(
        pub fn $name($($arg: $ty),*) -> $ret {
            // SAFETY: the type is that of the verbs interface; tests pass what it wants.
            unsafe { function::<unsafe extern "C" fn($($ty),*) -> $ret>(stringify!($name))($($arg),*) }
        }
    )*};
}

verbs! {
    fn ibv_get_device_list(count: *mut c_int) -> *mut Ptr;
    fn ibv_free_device_list(list: *mut Ptr) -> ();
    fn ibv_get_device_name(device: Ptr) -> *const c_char;
    fn ibv_get_device_guid(device: Ptr) -> u64;
    fn ibv_open_device(device: Ptr) -> Ptr;
    fn ibv_close_device(context: Ptr) -> c_int;
    fn ibv_query_device(context: Ptr, out: Ptr) -> c_int;
    fn ibv_query_port(context: Ptr, port: u8, out: Ptr) -> c_int;
    fn ibv_query_gid(context: Ptr, port: u8, index: c_int, out: *mut [u8; 16]) -> c_int;
    fn ibv_alloc_pd(context: Ptr) -> Ptr;
    fn ibv_dealloc_pd(pd: Ptr) -> c_int;
    fn ibv_reg_mr(pd: Ptr, addr: Ptr, length: usize, access: c_int) -> *mut Mr;
    fn ibv_dereg_mr(mr: *mut Mr) -> c_int;
    fn ibv_rereg_mr(mr: *mut Mr, flags: c_int, pd: Ptr, addr: Ptr, length: usize, access: c_int) -> c_int;
    fn ibv_create_cq(context: Ptr, cqe: c_int, user: Ptr, channel: Ptr, vector: c_int) -> *mut Cq;
    fn ibv_destroy_cq(cq: *mut Cq) -> c_int;
    fn ibv_resize_cq(cq: *mut Cq, cqe: c_int) -> c_int;
    fn ibv_create_qp(pd: Ptr, init: *mut QpInit) -> *mut Qp;
    fn ibv_destroy_qp(qp: *mut Qp) -> c_int;
    fn ibv_modify_qp(qp: *mut Qp, attr: *const QpAttr, mask: c_int) -> c_int;
    fn ibv_query_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int, init: *mut QpInit) -> c_int;
    fn ibv_create_ah(pd: Ptr, way: *const AhAttr) -> Ptr;
    fn ibv_create_ah_from_wc(pd: Ptr, wc: *const Wc, header: *const u8, port: u8) -> Ptr;
    fn ibv_init_ah_from_wc(context: Ptr, port: u8, wc: *const Wc, header: *const u8, out: *mut AhAttr) -> c_int;
    fn ibv_destroy_ah(handle: Ptr) -> c_int;
    fn ibv_attach_mcast(qp: *mut Qp, gid: *const [u64; 2], lid: u16) -> c_int;
    fn ibv_detach_mcast(qp: *mut Qp, gid: *const [u64; 2], lid: u16) -> c_int;
    fn ibv_create_srq(pd: Ptr, init: *mut SrqInit) -> Ptr;
    fn ibv_modify_srq(srq: Ptr, attr: *const SrqAttr, mask: c_int) -> c_int;
    fn ibv_query_srq(srq: Ptr, out: *mut SrqAttr) -> c_int;
    fn ibv_destroy_srq(srq: Ptr) -> c_int;
    fn ibv_get_async_event(context: Ptr, event: *mut AsyncEvent) -> c_int;
    fn ibv_ack_async_event(event: *mut AsyncEvent) -> ();
}

/// Slot `index` of the table in an open context, as inlined wrappers call it.
pub fn op(context: Ptr, index: usize) -> Ptr {
    // SAFETY: an open context has the table at byte 8.
    unsafe { *context.cast::<u8>().add(8 + 8 * index).cast::<Ptr>() }
}

/// Whether an asynchronous event comes within so many milliseconds.
pub fn has_event(context: Ptr, wait_ms: c_int) -> bool {
    // SAFETY: an open context has the descriptor at byte 268.
    let fd = unsafe { *context.cast::<u8>().add(268).cast::<c_int>() };
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure.
    unsafe { libc::poll(&mut poll, 1, wait_ms) == 1 }
}

/// The next asynchronous event, acknowledged: its kind and its element.
pub fn next_event(context: Ptr) -> (u32, usize) {
    assert!(has_event(context, 60_000), "no event");
    let mut event = AsyncEvent::default();
    assert_eq!(ibv_get_async_event(context, &mut event), 0);
    ibv_ack_async_event(&mut event);
    (event.kind, event.element)
}

/// What `ibv_query_port` of today's headers gives, or the errno value.
pub fn port_attr(context: Ptr, port: u8) -> Result<PortAttr, c_int> {
    let mut attr = PortAttr::default();
    // SAFETY: the extended context has this function 320 bytes before the context.
    let rc = unsafe {
        let f: unsafe extern "C" fn(Ptr, u8, *mut PortAttr, usize) -> c_int =
            transmute_copy(&*context.cast::<u8>().sub(320).cast::<Ptr>());
        f(context, port, &mut attr, size_of::<PortAttr>())
    };
    if rc == 0 { Ok(attr) } else { Err(rc) }
}

pub fn post_send(qp: *mut Qp, wr: *mut SendWr, bad: &mut *mut SendWr) -> c_int {
    // SAFETY: the verbs interface's slot 25.
    unsafe {
        let f: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int =
            transmute_copy(&op((*qp).context, 25));
        f(qp, wr, bad)
    }
}

pub fn post_recv(qp: *mut Qp, wr: *mut RecvWr, bad: &mut *mut RecvWr) -> c_int {
    // SAFETY: the verbs interface's slot 26.
    unsafe {
        let f: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int =
            transmute_copy(&op((*qp).context, 26));
        f(qp, wr, bad)
    }
}

pub fn poll_cq(cq: *mut Cq, room: c_int, out: *mut Wc) -> c_int {
    // SAFETY: the verbs interface's slot 11.
    unsafe {
        let f: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int =
            transmute_copy(&op((*cq).context, 11));
        f(cq, room, out)
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PortAttr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: c_int,
    pub cap_flags: u32,
    pub max_msg_sz: u32,
    pub counters: [u32; 2],
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm: [u8; 3],
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub cap_flags2: u16,
    pub active_speed_ex: u32,
}

#[repr(C)]
pub struct Mr {
    pub context: Ptr,
    pub pd: Ptr,
    pub addr: Ptr,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct Cq {
    pub context: Ptr,
    pub channel: Ptr,
    pub user: Ptr,
    pub handle: u32,
    pub cqe: c_int,
}

#[repr(C)]
pub struct Qp {
    pub context: Ptr,
    pub user: Ptr,
    pub pd: Ptr,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: Ptr,
    pub handle: u32,
    pub qp_num: u32,
    pub state: u32,
    pub qp_type: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct QpInit {
    pub user: Ptr,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: Ptr,
    pub cap: Cap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

/// 136 bytes: the form without `rate_limit`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct QpAttr {
    pub state: u32,
    pub cur_state: u32,
    pub path_mtu: u32,
    pub mig: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qpn: u32,
    pub access: u32,
    pub cap: Cap,
    pub dgid: [u64; 2],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: [u8; 2],
    pub dlid: u16,
    pub sl: [u8; 3],
    pub is_global: u8,
    pub ah_port: u8,
    pub pad: u8,
    pub alt: [u64; 4],
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub drain: [u8; 2],
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port: [u8; 2],
}

// SAFETY: integers alone.
pub const ATTR: QpAttr = unsafe { std::mem::zeroed() };

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// 80 bytes: the form without the tail for UD, MW and TSO.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut Self,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub flags: u32,
    pub imm: u32,
    pub remote_addr: u64,
    pub rkey: u64,
    pub rest: [u64; 3],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut Self,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AsyncEvent {
    pub element: usize,
    pub kind: u32,
}

const _: () = {
    assert!(size_of::<QpAttr>() == 136 && std::mem::offset_of!(QpAttr, is_global) == 56 + 29);
    assert!(size_of::<SendWr>() == 80 && size_of::<RecvWr>() == 32 && size_of::<Wc>() == 48);
    assert!(size_of::<PortAttr>() == 56 && std::mem::offset_of!(PortAttr, link_layer) == 46);
    assert!(size_of::<QpInit>() == 64 && std::mem::offset_of!(Qp, qp_num) == 52);
};

pub const RESET: u32 = 0;
pub const INIT: u32 = 1;
pub const RTR: u32 = 2;
pub const RTS: u32 = 3;
pub const SQD: u32 = 4;
pub const SQE: u32 = 5;
pub const ERR: u32 = 6;

pub const INIT_MASK: c_int = 1 | 1 << 4 | 1 << 5 | 1 << 3;
pub const RTR_MASK: c_int = 1 | 1 << 7 | 1 << 8 | 1 << 20 | 1 << 12 | 1 << 17 | 1 << 15;
pub const RTS_MASK: c_int = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 16 | 1 << 13;

pub const UC_RTR_MASK: c_int = 1 | 1 << 7 | 1 << 8 | 1 << 20 | 1 << 12;
pub const UC_RTS_MASK: c_int = 1 | 1 << 16;

pub const WRITE: u32 = 0;
pub const WRITE_IMM: u32 = 1;
pub const SEND: u32 = 2;
pub const SEND_IMM: u32 = 3;
pub const READ: u32 = 4;
pub const CMP_SWAP: u32 = 5;
pub const FETCH_ADD: u32 = 6;
pub const BIND_MW: u32 = 8;
pub const SIGNALED: u32 = 2;
pub const INLINE: u32 = 8;

/// Completion statuses.
pub const OK: u32 = 0;
pub const LOC_LEN: u32 = 1;
pub const LOC_PROT: u32 = 4;
pub const FLUSH: u32 = 5;
pub const REM_INV_REQ: u32 = 9;
pub const REM_ACCESS: u32 = 10;
pub const REM_OP: u32 = 11;
pub const RETRY_EXC: u32 = 12;
pub const RNR_EXC: u32 = 13;

/// Asynchronous events.
pub const COMM_EST: u32 = 4;
pub const SQ_DRAINED: u32 = 5;
pub const DEVICE_FATAL: u32 = 8;
pub const PORT_ACTIVE: u32 = 9;
pub const PORT_ERR: u32 = 10;
pub const LID_CHANGE: u32 = 11;
pub const GID_CHANGE: u32 = 18;

/// Local write, remote write, remote read.
pub const ALL_ACCESS: c_int = 7;
pub const REMOTE_ATOMIC: c_int = 8;
