//! Structures of the verbs interface, byte for byte.
//!
//! Where rdma-core's own struct is longer than that of an application built against other headers,
//! the mirror here is the **shortest** form in use, so that no access through it can leave the
//! caller's memory:
//!
//! | struct | rdma-core | shortest in use |
//! |---|---|---|
//! | `ibv_send_wr` | 128 | 80 |
//! | `ibv_qp_attr` | 144 | 136 |
//! | `ibv_port_attr` | 56 | 48 |
//! | `ibv_qp_init_attr` | 64 | 64 |

#![allow(missing_docs, missing_debug_implementations, reason = "infiniband/verbs.h names them")]

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// 16 bytes of a GID, network order.
pub type Gid = [u8; 16];

/// `struct ibv_device`.
#[repr(C)]
pub struct Device {
    pub ops: [usize; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

/// `struct ibv_context`; `ops` is a table of 32 function pointers that inlined wrappers call.
#[repr(C)]
pub struct Context {
    pub device: *const Device,
    pub ops: [usize; 32],
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: [u64; 5],
    pub abi_compat: usize,
}

/// Slots of [`Context::ops`].
pub mod op_slot {
    pub const POLL_CQ: usize = 11;
    pub const REQ_NOTIFY_CQ: usize = 12;
    pub const POST_SRQ_RECV: usize = 20;
    pub const POST_SEND: usize = 25;
    pub const POST_RECV: usize = 26;
}

/// `struct verbs_context`: grows downwards, so its fields lie at fixed distances *before*
/// `context`.
#[repr(C)]
pub struct VerbsContext {
    pub lead: [usize; LEAD_WORDS],
    pub context: Context,
}

const LEAD_WORDS: usize = 46;
/// `verbs_context.sz`, 8 bytes before the context.
pub const LEAD_SIZE: usize = LEAD_WORDS - 1;
/// `verbs_context.query_port`, 320 bytes before the context.
pub const LEAD_QUERY_PORT: usize = LEAD_WORDS - 40;
/// `verbs_context.query_device_ex`, 104 bytes before the context.
pub const LEAD_QUERY_DEVICE_EX: usize = LEAD_WORDS - 13;
/// `verbs_context.create_cq_ex`, 120 bytes before the context.
pub const LEAD_CREATE_CQ_EX: usize = LEAD_WORDS - 15;
/// `verbs_context.create_qp_ex`, 56 bytes before the context.
pub const LEAD_CREATE_QP_EX: usize = LEAD_WORDS - 7;
/// `verbs_context.alloc_td`, 192 bytes before the context.
pub const LEAD_ALLOC_TD: usize = LEAD_WORDS - 24;
/// `verbs_context.dealloc_td`, 200 bytes before the context.
pub const LEAD_DEALLOC_TD: usize = LEAD_WORDS - 25;
/// `verbs_context.alloc_parent_domain`, 208 bytes before the context.
pub const LEAD_ALLOC_PARENT_DOMAIN: usize = LEAD_WORDS - 26;
/// `struct ibv_pd`.
#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// `struct ibv_cq`.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
    pub channel: *mut CompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: AtomicI32,
    pub mutex: [u64; 5],
    pub cond: [u64; 6],
    pub comp_events_completed: AtomicU32,
    pub async_events_completed: AtomicU32,
}

/// `struct ibv_srq`.
#[repr(C)]
pub struct Srq {
    pub context: *mut Context,
    pub srq_context: *mut c_void,
    pub pd: *mut Pd,
    pub handle: u32,
    pub mutex: [u64; 5],
    pub cond: [u64; 6],
    pub events_completed: AtomicU32,
}

/// `struct ibv_qp`; `state` is read by applications, hence the atomic.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: AtomicU32,
    pub qp_type: c_int,
    pub mutex: [u64; 5],
    pub cond: [u64; 6],
    pub events_completed: AtomicU32,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AhAttr {
    pub dgid: [u64; 2],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// The first 136 bytes of `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct QpAttr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
}

/// `struct ibv_ah`.
#[repr(C)]
pub struct Ah {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub handle: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// The first 80 bytes of `struct ibv_send_wr`: all that RC, UC and UD need.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut Self,
    pub sg_list: *const Sge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: u32,
    pub imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub rest: [u32; 7],
}

impl SendWr {
    /// What an atomic has in place of `rkey`: the value to add or to compare with, the one to swap
    /// in; and the key behind them.
    pub fn atomic(&self) -> ([u64; 2], u32) {
        let [add_high, swap_low, swap_high, key, ..] = self.rest;
        let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        ([join(self.rkey, add_high), join(swap_low, swap_high)], key)
    }

    /// Makes it an atomic: what [`Self::atomic`] says, at this remote address.
    pub fn set_atomic(&mut self, remote_addr: u64, [first, second]: [u64; 2], key: u32) {
        let halves = |word: u64| [word as u32, (word >> 32) as u32];
        let ([low, add_high], [swap_low, swap_high]) = (halves(first), halves(second));
        (self.remote_addr, self.rkey) = (remote_addr, low);
        self.rest[..4].copy_from_slice(&[add_high, swap_low, swap_high, key]);
    }

    /// What a datagram has in place of the remote address: its address handle, and the number and
    /// the Q_Key of the queue pair that it is for.
    pub fn datagram(&self) -> (*const Ah, u32, u32) {
        (self.remote_addr as *const Ah, self.rkey, self.rest[0])
    }
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut Self,
    pub sg_list: *const Sge,
    pub num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// `struct ibv_gid_entry`.
#[repr(C)]
pub struct GidEntry {
    pub gid: Gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// `struct ibv_async_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AsyncEvent {
    pub element: usize,
    pub event_type: u32,
}

/// `struct ibv_port_attr` with all of its tail; see [`PORT_ATTR_SHORT`].
#[repr(C)]
#[derive(Default)]
pub struct PortAttr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    pub active_speed_ex: u32,
}

/// What `ibv_query_port@IBVERBS_1.1` may write.
pub const PORT_ATTR_SHORT: usize = 48;

const _: () = {
    assert!(
        size_of::<Device>() == 664
            && offset_of!(Device, name) == 24
            && offset_of!(Device, dev_path) == 152
    );
    assert!(
        size_of::<Context>() == 328
            && offset_of!(Context, ops) == 8
            && offset_of!(Context, async_fd) == 268
    );
    assert!(offset_of!(Context, abi_compat) == 320);
    assert!(size_of::<VerbsContext>() == 696);
    assert!(size_of::<Pd>() == 16 && size_of::<Mr>() == 48 && offset_of!(Mr, lkey) == 36);
    assert!(size_of::<CompChannel>() == 16);
    assert!(
        size_of::<Cq>() == 128
            && offset_of!(Cq, cqe) == 28
            && offset_of!(Cq, comp_events_completed) == 120
    );
    assert!(
        size_of::<Srq>() == 128
            && offset_of!(Srq, handle) == 24
            && offset_of!(Srq, events_completed) == 120
    );
    assert!(
        size_of::<Qp>() == 160
            && offset_of!(Qp, qp_num) == 52
            && offset_of!(Qp, events_completed) == 152
    );
    assert!(size_of::<QpInitAttr>() == 64 && offset_of!(QpInitAttr, qp_type) == 52);
    assert!(size_of::<AhAttr>() == 32 && offset_of!(AhAttr, is_global) == 29);
    assert!(
        size_of::<QpAttr>() == 136
            && offset_of!(QpAttr, ah_attr) == 56
            && offset_of!(QpAttr, rnr_retry) == 132
    );
    assert!(size_of::<Ah>() == 24 && offset_of!(Ah, handle) == 16);
    assert!(size_of::<Sge>() == 16 && size_of::<RecvWr>() == 32);
    assert!(
        size_of::<SendWr>() == 80
            && offset_of!(SendWr, remote_addr) == 40
            && offset_of!(SendWr, rkey) == 48
    );
    assert!(size_of::<Wc>() == 48 && offset_of!(Wc, wc_flags) == 36);
    assert!(size_of::<AsyncEvent>() == 16 && size_of::<GidEntry>() == 32);
    assert!(size_of::<PortAttr>() == 56 && offset_of!(PortAttr, flags) == PORT_ATTR_SHORT - 1);
    assert!(offset_of!(PortAttr, active_speed_ex) == 52);
};

/// QP states (`ibv_qp_state`).
pub mod qp_state {
    pub const RESET: u32 = 0;
    pub const INIT: u32 = 1;
    pub const RTR: u32 = 2;
    pub const RTS: u32 = 3;
    pub const SQD: u32 = 4;
    pub const SQE: u32 = 5;
    pub const ERR: u32 = 6;
}

/// QP types (`ibv_qp_type`).
pub mod qp_type {
    pub const RC: i32 = 2;
    pub const UC: i32 = 3;
    pub const UD: i32 = 4;
}

/// Attribute mask bits of `ibv_modify_qp`.
pub mod qp_attr {
    pub const STATE: i32 = 1;
    pub const CUR_STATE: i32 = 1 << 1;
    pub const EN_SQD_ASYNC_NOTIFY: i32 = 1 << 2;
    pub const ACCESS_FLAGS: i32 = 1 << 3;
    pub const PKEY_INDEX: i32 = 1 << 4;
    pub const PORT: i32 = 1 << 5;
    pub const QKEY: i32 = 1 << 6;
    pub const AV: i32 = 1 << 7;
    pub const PATH_MTU: i32 = 1 << 8;
    pub const TIMEOUT: i32 = 1 << 9;
    pub const RETRY_CNT: i32 = 1 << 10;
    pub const RNR_RETRY: i32 = 1 << 11;
    pub const RQ_PSN: i32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: i32 = 1 << 13;
    pub const MIN_RNR_TIMER: i32 = 1 << 15;
    pub const SQ_PSN: i32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    pub const DEST_QPN: i32 = 1 << 20;
}

/// Access flags of memory regions and QPs.
pub mod access {
    pub const LOCAL_WRITE: u32 = 1;
    pub const REMOTE_WRITE: u32 = 1 << 1;
    pub const REMOTE_READ: u32 = 1 << 2;
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    pub const HUGETLB: u32 = 1 << 7;
    pub const RELAXED_ORDERING: u32 = 1 << 20;
    /// Hints a device may ignore; RELAXED_ORDERING is one.
    pub const OPTIONAL: u32 = 0x3ff0_0000;
}

/// Work request opcodes (`ibv_wr_opcode`).
pub mod wr_opcode {
    pub const RDMA_WRITE: u32 = 0;
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub const SEND: u32 = 2;
    pub const SEND_WITH_IMM: u32 = 3;
    pub const RDMA_READ: u32 = 4;
    pub const ATOMIC_CMP_SWAP: u32 = 5;
    pub const ATOMIC_FETCH_ADD: u32 = 6;
}

/// Send flags.
pub mod send_flag {
    pub const FENCE: u32 = 1;
    pub const SIGNALED: u32 = 1 << 1;
    pub const SOLICITED: u32 = 1 << 2;
    pub const INLINE: u32 = 1 << 3;
}

/// Completion opcodes (`ibv_wc_opcode`).
pub mod wc_opcode {
    pub const SEND: u32 = 0;
    pub const RDMA_WRITE: u32 = 1;
    pub const RDMA_READ: u32 = 2;
    pub const COMP_SWAP: u32 = 3;
    pub const FETCH_ADD: u32 = 4;
    pub const RECV: u32 = 128;
    pub const RECV_RDMA_WITH_IMM: u32 = 129;
}

/// Completion flag: the first 40 bytes of the receive are a network header.
pub const WC_GRH: u32 = 1;
/// Completion flag: `imm_data` is valid.
pub const WC_WITH_IMM: u32 = 1 << 1;

/// Completion status (`ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    Success = 0,
    LocLen = 1,
    LocQpOp = 2,
    LocProt = 4,
    Flush = 5,
    RemInvReq = 9,
    RemAccess = 10,
    RemOp = 11,
    RetryExceeded = 12,
    RnrRetryExceeded = 13,
    General = 21,
}

/// Asynchronous events (`ibv_event_type`).
pub mod event {
    pub const CQ_ERR: u32 = 0;
    pub const QP_FATAL: u32 = 1;
    pub const QP_REQ_ERR: u32 = 2;
    pub const QP_ACCESS_ERR: u32 = 3;
    pub const COMM_EST: u32 = 4;
    pub const SQ_DRAINED: u32 = 5;
    pub const DEVICE_FATAL: u32 = 8;
    pub const PORT_ACTIVE: u32 = 9;
    pub const PORT_ERR: u32 = 10;
    pub const LID_CHANGE: u32 = 11;
    pub const SRQ_LIMIT_REACHED: u32 = 15;
    pub const QP_LAST_WQE_REACHED: u32 = 16;
    pub const GID_CHANGE: u32 = 18;
}

/// `struct ibv_cq_ex`: every completion queue is one, and the calls are set in those that were made
/// so.
#[repr(C)]
pub struct CqEx {
    pub base: Cq,
    pub comp_mask: u32,
    /// Of the completion that is looked at.
    pub status: AtomicU32,
    pub wr_id: AtomicU64,
    pub calls: Calls,
}

/// The functions that inlined wrappers reach through an extended completion queue.
pub type Calls = [usize; CALLS];
const CALLS: usize = 18;

/// Places in [`CqEx::calls`].
pub mod call {
    pub const START_POLL: usize = 0;
    pub const NEXT_POLL: usize = 1;
    pub const END_POLL: usize = 2;
    pub const OPCODE: usize = 3;
    pub const VENDOR_ERR: usize = 4;
    pub const BYTE_LEN: usize = 5;
    pub const IMM_DATA: usize = 6;
    pub const QP_NUM: usize = 7;
    pub const SRC_QP: usize = 8;
    pub const WC_FLAGS: usize = 9;
    pub const SLID: usize = 10;
    pub const SL: usize = 11;
    pub const DLID_PATH_BITS: usize = 12;
}

/// What completions are to have: byte count, immediate data, queue pair, and who has sent it.
pub const STANDARD_FLAGS: u64 = 0x7f;
/// `flags` is set.
pub const HAS_FLAGS: u32 = 1;
/// `parent_domain`, behind the first 48 bytes, is set.
pub const HAS_PARENT_DOMAIN: u32 = 1 << 1;
/// One thread alone uses it.
pub const SINGLE_THREADED: u32 = 1;

/// The first 48 bytes of `struct ibv_cq_init_attr_ex`, the shortest form in use.
#[repr(C)]
pub struct CqInitAttrEx {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut CompChannel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
}

/// The whole structure: who sets [`HAS_PARENT_DOMAIN`] has it.
#[repr(C)]
pub struct CqInitAttrExLong {
    pub short: CqInitAttrEx,
    pub parent_domain: *mut Pd,
}

const _: () = {
    assert!(
        size_of::<CqEx>() == 288
            && offset_of!(CqEx, wr_id) == 136
            && offset_of!(CqEx, calls) == 144
    );
    assert!(size_of::<CqInitAttrExLong>() == 56 && size_of::<CqInitAttrEx>() == 48);
    assert!(offset_of!(CqInitAttrEx, comp_mask) == 40);
};

/// `struct ibv_device_attr`.
#[repr(C)]
pub struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: u32,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    /// 1: atomic as other atomics of the same device see it.
    pub atomic_cap: c_int,
    /// `max_ee` up to `max_total_mcast_qp_attach`: features this device does not have.
    pub absent: [c_int; 8],
    pub max_ah: c_int,
    /// `max_fmr`, `max_map_per_fmr`: as `absent`.
    pub absent_too: [c_int; 2],
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// Offset of the number of ports, `uint32_t`, in `struct ibv_device_attr_ex`, which begins with a
/// [`DeviceAttr`].
pub const DEVICE_ATTR_EX_PORTS: usize = 396;

const _: () = {
    assert!(size_of::<DeviceAttr>() == 232 && offset_of!(DeviceAttr, max_qp) == 108);
    assert!(
        offset_of!(DeviceAttr, max_qp_rd_atom) == 144
            && offset_of!(DeviceAttr, atomic_cap) == 164
            && offset_of!(DeviceAttr, max_ah) == 200
            && offset_of!(DeviceAttr, phys_port_cnt) == 227
    );
};

/// `struct ibv_td`.
#[repr(C)]
pub struct Td {
    pub context: *mut Context,
}

/// The application has functions that allocate and free the memory of queues.
pub const HAS_ALLOCATORS: u32 = 1;
/// The application has a word of its own, for these functions.
pub const HAS_PD_CONTEXT: u32 = 1 << 1;

/// The first 24 bytes of `struct ibv_parent_domain_init_attr`: what is read of it.
#[repr(C)]
pub struct ParentDomainInitAttr {
    /// The protection domain.
    pub pd: *mut Pd,
    /// A thread domain, or NULL.
    pub td: *mut Td,
    pub comp_mask: u32,
}

const _: () = {
    assert!(size_of::<Td>() == 8);
    assert!(
        size_of::<ParentDomainInitAttr>() == 24
            && offset_of!(ParentDomainInitAttr, comp_mask) == 16
    );
};

/// The protection domain is named. It has to be.
pub const HAS_PD: u32 = 1;
/// The operations are named.
pub const HAS_OPERATIONS: u32 = 1 << 6;

/// RDMA WRITE, SEND, RDMA READ and the atomics.
pub const ALL_OPERATIONS: u64 = 0x7f;

/// The structure, as it is since rdma-core 24.
#[repr(C)]
pub struct QpInitAttrEx {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
    /// Which of the fields behind it are set.
    pub comp_mask: u32,
    pub pd: *mut Pd,
    pub xrcd: *mut c_void,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_conf: [u64; 3],
    pub source_qpn: u32,
    /// Bit n: `ibv_wr_opcode` n, for those opcodes that these devices have.
    pub send_ops_flags: u64,
}

const _: () = {
    assert!(size_of::<QpInitAttrEx>() == 136 && offset_of!(QpInitAttrEx, comp_mask) == 60);
    assert!(offset_of!(QpInitAttrEx, pd) == 64 && offset_of!(QpInitAttrEx, send_ops_flags) == 128);
};

/// Attribute mask bits of `ibv_modify_srq`.
pub const ATTR_LIMIT: i32 = 1 << 1;

/// `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SrqInitAttr {
    pub srq_context: *mut c_void,
    pub attr: SrqAttr,
}

const _: () = assert!(size_of::<SrqInitAttr>() == 24);
