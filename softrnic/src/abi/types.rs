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

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// 16 bytes of a GID, network order.
pub(crate) type Gid = [u8; 16];

/// `struct ibv_device`.
#[repr(C)]
pub(crate) struct Device {
    pub(crate) ops: [usize; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

/// `struct ibv_context`; `ops` is a table of 32 function pointers that inlined wrappers call.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) device: *const Device,
    pub(crate) ops: [usize; 32],
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: [u64; 5],
    pub(crate) abi_compat: usize,
}

/// Slots of [`Context::ops`].
pub(crate) mod op_slot {
    pub(crate) const POLL_CQ: usize = 11;
    pub(crate) const REQ_NOTIFY_CQ: usize = 12;
    pub(crate) const POST_SRQ_RECV: usize = 20;
    pub(crate) const POST_SEND: usize = 25;
    pub(crate) const POST_RECV: usize = 26;
}

/// `struct verbs_context`: grows downwards, so its fields lie at fixed distances *before*
/// `context`.
#[repr(C)]
pub(crate) struct VerbsContext {
    pub(crate) lead: [usize; LEAD_WORDS],
    pub(crate) context: Context,
}

const LEAD_WORDS: usize = 46;
/// `verbs_context.sz`, 8 bytes before the context.
pub(crate) const LEAD_SIZE: usize = LEAD_WORDS - 1;
/// `verbs_context.query_port`, 320 bytes before the context.
pub(crate) const LEAD_QUERY_PORT: usize = LEAD_WORDS - 40;
/// `verbs_context.query_device_ex`, 104 bytes before the context.
pub(crate) const LEAD_QUERY_DEVICE_EX: usize = LEAD_WORDS - 13;
/// `verbs_context.create_cq_ex`, 120 bytes before the context.
pub(crate) const LEAD_CREATE_CQ_EX: usize = LEAD_WORDS - 15;
/// `verbs_context.create_qp_ex`, 56 bytes before the context.
pub(crate) const LEAD_CREATE_QP_EX: usize = LEAD_WORDS - 7;
/// `verbs_context.alloc_td`, 192 bytes before the context.
pub(crate) const LEAD_ALLOC_TD: usize = LEAD_WORDS - 24;
/// `verbs_context.dealloc_td`, 200 bytes before the context.
pub(crate) const LEAD_DEALLOC_TD: usize = LEAD_WORDS - 25;
/// `verbs_context.alloc_parent_domain`, 208 bytes before the context.
pub(crate) const LEAD_ALLOC_PARENT_DOMAIN: usize = LEAD_WORDS - 26;
/// `struct ibv_pd`.
#[repr(C)]
pub(crate) struct Pd {
    pub(crate) context: *mut Context,
    pub(crate) handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(crate) struct CompChannel {
    pub(crate) context: *mut Context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

/// `struct ibv_cq`.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
    pub(crate) channel: *mut CompChannel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: AtomicI32,
    pub(crate) mutex: [u64; 5],
    pub(crate) cond: [u64; 6],
    pub(crate) comp_events_completed: AtomicU32,
    pub(crate) async_events_completed: AtomicU32,
}

/// `struct ibv_srq`.
#[repr(C)]
pub(crate) struct Srq {
    pub(crate) context: *mut Context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut Pd,
    pub(crate) handle: u32,
    pub(crate) mutex: [u64; 5],
    pub(crate) cond: [u64; 6],
    pub(crate) events_completed: AtomicU32,
}

/// `struct ibv_qp`; `state` is read by applications, hence the atomic.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut Pd,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: AtomicU32,
    pub(crate) qp_type: c_int,
    pub(crate) mutex: [u64; 5],
    pub(crate) cond: [u64; 6],
    pub(crate) events_completed: AtomicU32,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct QpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AhAttr {
    pub(crate) dgid: [u64; 2],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// The first 136 bytes of `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: u32,
    pub(crate) cur_qp_state: u32,
    pub(crate) path_mtu: u32,
    pub(crate) path_mig_state: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: u32,
    pub(crate) cap: QpCap,
    pub(crate) ah_attr: AhAttr,
    pub(crate) alt_ah_attr: AhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
}

/// `struct ibv_ah`.
#[repr(C)]
pub(crate) struct Ah {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Pd,
    pub(crate) handle: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// The first 80 bytes of `struct ibv_send_wr`: all that RC, UC and UD need.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *const Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: u32,
    pub(crate) send_flags: u32,
    pub(crate) imm_data: u32,
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    pub(crate) rest: [u32; 7],
}

impl SendWr {
    /// What an atomic has in place of `rkey`: the value to add or to compare with, the one to swap
    /// in; and the key behind them.
    pub(crate) fn atomic(&self) -> ([u64; 2], u32) {
        let [add_high, swap_low, swap_high, key, ..] = self.rest;
        let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        ([join(self.rkey, add_high), join(swap_low, swap_high)], key)
    }

    /// Makes it an atomic: what [`Self::atomic`] says, at this remote address.
    pub(crate) fn set_atomic(&mut self, remote_addr: u64, [first, second]: [u64; 2], key: u32) {
        let halves = |word: u64| [word as u32, (word >> 32) as u32];
        let ([low, add_high], [swap_low, swap_high]) = (halves(first), halves(second));
        (self.remote_addr, self.rkey) = (remote_addr, low);
        self.rest[..4].copy_from_slice(&[add_high, swap_low, swap_high, key]);
    }

    /// What a datagram has in place of the remote address: its address handle, and the number and
    /// the Q_Key of the queue pair that it is for.
    pub(crate) fn datagram(&self) -> (*const Ah, u32, u32) {
        (self.remote_addr as *const Ah, self.rkey, self.rest[0])
    }
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *const Sge,
    pub(crate) num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// `struct ibv_gid_entry`.
#[repr(C)]
pub(crate) struct GidEntry {
    pub(crate) gid: Gid,
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

/// `struct ibv_async_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsyncEvent {
    pub(crate) element: usize,
    pub(crate) event_type: u32,
}

/// `struct ibv_port_attr` with all of its tail; see [`PORT_ATTR_SHORT`].
#[repr(C)]
#[derive(Default)]
pub(crate) struct PortAttr {
    pub(crate) state: u32,
    pub(crate) max_mtu: u32,
    pub(crate) active_mtu: u32,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) port_cap_flags2: u16,
    pub(crate) active_speed_ex: u32,
}

/// What `ibv_query_port@IBVERBS_1.1` may write.
pub(crate) const PORT_ATTR_SHORT: usize = 48;

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
pub(crate) mod qp_state {
    pub(crate) const RESET: u32 = 0;
    pub(crate) const INIT: u32 = 1;
    pub(crate) const RTR: u32 = 2;
    pub(crate) const RTS: u32 = 3;
    pub(crate) const SQD: u32 = 4;
    pub(crate) const SQE: u32 = 5;
    pub(crate) const ERR: u32 = 6;
}

/// QP types (`ibv_qp_type`).
pub(crate) mod qp_type {
    pub(crate) const RC: i32 = 2;
    pub(crate) const UC: i32 = 3;
    pub(crate) const UD: i32 = 4;
}

/// Attribute mask bits of `ibv_modify_qp`.
pub(crate) mod qp_attr {
    pub(crate) const STATE: i32 = 1;
    pub(crate) const CUR_STATE: i32 = 1 << 1;
    pub(crate) const EN_SQD_ASYNC_NOTIFY: i32 = 1 << 2;
    pub(crate) const ACCESS_FLAGS: i32 = 1 << 3;
    pub(crate) const PKEY_INDEX: i32 = 1 << 4;
    pub(crate) const PORT: i32 = 1 << 5;
    pub(crate) const QKEY: i32 = 1 << 6;
    pub(crate) const AV: i32 = 1 << 7;
    pub(crate) const PATH_MTU: i32 = 1 << 8;
    pub(crate) const TIMEOUT: i32 = 1 << 9;
    pub(crate) const RETRY_CNT: i32 = 1 << 10;
    pub(crate) const RNR_RETRY: i32 = 1 << 11;
    pub(crate) const RQ_PSN: i32 = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: i32 = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: i32 = 1 << 15;
    pub(crate) const SQ_PSN: i32 = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    pub(crate) const DEST_QPN: i32 = 1 << 20;
}

/// Access flags of memory regions and QPs.
pub(crate) mod access {
    pub(crate) const LOCAL_WRITE: u32 = 1;
    pub(crate) const REMOTE_WRITE: u32 = 1 << 1;
    pub(crate) const REMOTE_READ: u32 = 1 << 2;
    pub(crate) const REMOTE_ATOMIC: u32 = 1 << 3;
    pub(crate) const HUGETLB: u32 = 1 << 7;
    pub(crate) const RELAXED_ORDERING: u32 = 1 << 20;
    /// Hints a device may ignore; RELAXED_ORDERING is one.
    pub(crate) const OPTIONAL: u32 = 0x3ff0_0000;
}

/// Work request opcodes (`ibv_wr_opcode`).
pub(crate) mod wr_opcode {
    pub(crate) const RDMA_WRITE: u32 = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub(crate) const SEND: u32 = 2;
    pub(crate) const SEND_WITH_IMM: u32 = 3;
    pub(crate) const RDMA_READ: u32 = 4;
    pub(crate) const ATOMIC_CMP_SWAP: u32 = 5;
    pub(crate) const ATOMIC_FETCH_ADD: u32 = 6;
}

/// Send flags.
pub(crate) mod send_flag {
    pub(crate) const FENCE: u32 = 1;
    pub(crate) const SIGNALED: u32 = 1 << 1;
    pub(crate) const SOLICITED: u32 = 1 << 2;
    pub(crate) const INLINE: u32 = 1 << 3;
}

/// Completion opcodes (`ibv_wc_opcode`).
pub(crate) mod wc_opcode {
    pub(crate) const SEND: u32 = 0;
    pub(crate) const RDMA_WRITE: u32 = 1;
    pub(crate) const RDMA_READ: u32 = 2;
    pub(crate) const COMP_SWAP: u32 = 3;
    pub(crate) const FETCH_ADD: u32 = 4;
    pub(crate) const RECV: u32 = 128;
    pub(crate) const RECV_RDMA_WITH_IMM: u32 = 129;
}

/// Completion flag: the first 40 bytes of the receive are a network header.
pub(crate) const WC_GRH: u32 = 1;
/// Completion flag: `imm_data` is valid.
pub(crate) const WC_WITH_IMM: u32 = 1 << 1;

/// Completion status (`ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Status {
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
pub(crate) mod event {
    pub(crate) const CQ_ERR: u32 = 0;
    pub(crate) const QP_FATAL: u32 = 1;
    pub(crate) const QP_REQ_ERR: u32 = 2;
    pub(crate) const QP_ACCESS_ERR: u32 = 3;
    pub(crate) const COMM_EST: u32 = 4;
    pub(crate) const SQ_DRAINED: u32 = 5;
    pub(crate) const DEVICE_FATAL: u32 = 8;
    pub(crate) const PORT_ACTIVE: u32 = 9;
    pub(crate) const PORT_ERR: u32 = 10;
    pub(crate) const LID_CHANGE: u32 = 11;
    pub(crate) const SRQ_LIMIT_REACHED: u32 = 15;
    pub(crate) const QP_LAST_WQE_REACHED: u32 = 16;
    pub(crate) const GID_CHANGE: u32 = 18;
}

/// `struct ibv_cq_ex`: every completion queue is one, and the calls are set in those that were made
/// so.
#[repr(C)]
pub(crate) struct CqEx {
    pub(crate) base: Cq,
    pub(crate) comp_mask: u32,
    /// Of the completion that is looked at.
    pub(crate) status: AtomicU32,
    pub(crate) wr_id: AtomicU64,
    pub(crate) calls: Calls,
}

/// The functions that inlined wrappers reach through an extended completion queue.
pub(crate) type Calls = [usize; CALLS];
const CALLS: usize = 18;

/// Places in [`CqEx::calls`].
pub(crate) mod call {
    pub(crate) const START_POLL: usize = 0;
    pub(crate) const NEXT_POLL: usize = 1;
    pub(crate) const END_POLL: usize = 2;
    pub(crate) const OPCODE: usize = 3;
    pub(crate) const VENDOR_ERR: usize = 4;
    pub(crate) const BYTE_LEN: usize = 5;
    pub(crate) const IMM_DATA: usize = 6;
    pub(crate) const QP_NUM: usize = 7;
    pub(crate) const SRC_QP: usize = 8;
    pub(crate) const WC_FLAGS: usize = 9;
    pub(crate) const SLID: usize = 10;
    pub(crate) const SL: usize = 11;
    pub(crate) const DLID_PATH_BITS: usize = 12;
}

/// What completions are to have: byte count, immediate data, queue pair, and who has sent it.
pub(crate) const STANDARD_FLAGS: u64 = 0x7f;
/// `flags` is set.
pub(crate) const HAS_FLAGS: u32 = 1;
/// `parent_domain`, behind the first 48 bytes, is set.
pub(crate) const HAS_PARENT_DOMAIN: u32 = 1 << 1;
/// One thread alone uses it.
pub(crate) const SINGLE_THREADED: u32 = 1;

/// The first 48 bytes of `struct ibv_cq_init_attr_ex`, the shortest form in use.
#[repr(C)]
pub(crate) struct CqInitAttrEx {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut CompChannel,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
}

/// The whole structure: who sets [`HAS_PARENT_DOMAIN`] has it.
#[repr(C)]
pub(crate) struct CqInitAttrExLong {
    pub(crate) short: CqInitAttrEx,
    pub(crate) parent_domain: *mut Pd,
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
pub(crate) struct DeviceAttr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: u32,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    /// 1: atomic as other atomics of the same device see it.
    pub(crate) atomic_cap: c_int,
    /// `max_ee` up to `max_total_mcast_qp_attach`: features this device does not have.
    pub(crate) absent: [c_int; 8],
    pub(crate) max_ah: c_int,
    /// `max_fmr`, `max_map_per_fmr`: as `absent`.
    pub(crate) absent_too: [c_int; 2],
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

/// Offset of the number of ports, `uint32_t`, in `struct ibv_device_attr_ex`, which begins with a
/// [`DeviceAttr`].
pub(crate) const DEVICE_ATTR_EX_PORTS: usize = 396;

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
pub(crate) struct Td {
    pub(crate) context: *mut Context,
}

/// The application has functions that allocate and free the memory of queues.
pub(crate) const HAS_ALLOCATORS: u32 = 1;
/// The application has a word of its own, for these functions.
pub(crate) const HAS_PD_CONTEXT: u32 = 1 << 1;

/// The first 24 bytes of `struct ibv_parent_domain_init_attr`: what is read of it.
#[repr(C)]
pub(crate) struct ParentDomainInitAttr {
    /// The protection domain.
    pub(crate) pd: *mut Pd,
    /// A thread domain, or NULL.
    pub(crate) td: *mut Td,
    pub(crate) comp_mask: u32,
}

const _: () = {
    assert!(size_of::<Td>() == 8);
    assert!(
        size_of::<ParentDomainInitAttr>() == 24
            && offset_of!(ParentDomainInitAttr, comp_mask) == 16
    );
};

/// The protection domain is named. It has to be.
pub(crate) const HAS_PD: u32 = 1;
/// The operations are named.
pub(crate) const HAS_OPERATIONS: u32 = 1 << 6;

/// RDMA WRITE, SEND, RDMA READ and the atomics.
pub(crate) const ALL_OPERATIONS: u64 = 0x7f;

/// The structure, as it is since rdma-core 24.
#[repr(C)]
pub(crate) struct QpInitAttrEx {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
    /// Which of the fields behind it are set.
    pub(crate) comp_mask: u32,
    pub(crate) pd: *mut Pd,
    pub(crate) xrcd: *mut c_void,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: *mut c_void,
    pub(crate) rx_hash_conf: [u64; 3],
    pub(crate) source_qpn: u32,
    /// Bit n: `ibv_wr_opcode` n, for those opcodes that these devices have.
    pub(crate) send_ops_flags: u64,
}

const _: () = {
    assert!(size_of::<QpInitAttrEx>() == 136 && offset_of!(QpInitAttrEx, comp_mask) == 60);
    assert!(offset_of!(QpInitAttrEx, pd) == 64 && offset_of!(QpInitAttrEx, send_ops_flags) == 128);
};

/// Attribute mask bits of `ibv_modify_srq`.
pub(crate) const ATTR_LIMIT: i32 = 1 << 1;

/// `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SrqAttr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: SrqAttr,
}

const _: () = assert!(size_of::<SrqInitAttr>() == 24);
