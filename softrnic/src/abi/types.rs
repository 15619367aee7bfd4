//! Structures of the verbs interface, byte for byte.
//!
//! Where rdma-core's own struct is longer than that of an application built against other headers, the mirror here
//! is the **shortest** form in use, so that no access through it can leave the caller's memory:
//!
//! | struct | rdma-core | shortest in use |
//! |---|---|---|
//! | `ibv_send_wr` | 128 | 80 |
//! | `ibv_qp_attr` | 144 | 136 |
//! | `ibv_port_attr` | 56 | 48 |
//! | `ibv_qp_init_attr` | 64 | 64 |

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicI32, AtomicU32};

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

/// `struct verbs_context`: grows downwards, so its fields lie at fixed distances *before* `context`.
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
    /// What an atomic has in place of `rkey`: the value to add or to compare with, the one to swap in; and the key behind them.
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

    /// What a datagram has in place of the remote address: its address handle, and the number and the Q_Key of the queue pair that it is
    /// for.
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
    assert!(size_of::<Device>() == 664 && offset_of!(Device, name) == 24 && offset_of!(Device, dev_path) == 152);
    assert!(size_of::<Context>() == 328 && offset_of!(Context, ops) == 8 && offset_of!(Context, async_fd) == 268);
    assert!(offset_of!(Context, abi_compat) == 320);
    assert!(size_of::<VerbsContext>() == 696);
    assert!(size_of::<Pd>() == 16 && size_of::<Mr>() == 48 && offset_of!(Mr, lkey) == 36);
    assert!(size_of::<CompChannel>() == 16);
    assert!(size_of::<Cq>() == 128 && offset_of!(Cq, cqe) == 28 && offset_of!(Cq, comp_events_completed) == 120);
    assert!(size_of::<Srq>() == 128 && offset_of!(Srq, handle) == 24 && offset_of!(Srq, events_completed) == 120);
    assert!(size_of::<Qp>() == 160 && offset_of!(Qp, qp_num) == 52 && offset_of!(Qp, events_completed) == 152);
    assert!(size_of::<QpInitAttr>() == 64 && offset_of!(QpInitAttr, qp_type) == 52);
    assert!(size_of::<AhAttr>() == 32 && offset_of!(AhAttr, is_global) == 29);
    assert!(size_of::<QpAttr>() == 136 && offset_of!(QpAttr, ah_attr) == 56 && offset_of!(QpAttr, rnr_retry) == 132);
    assert!(size_of::<Ah>() == 24 && offset_of!(Ah, handle) == 16);
    assert!(size_of::<Sge>() == 16 && size_of::<RecvWr>() == 32);
    assert!(size_of::<SendWr>() == 80 && offset_of!(SendWr, remote_addr) == 40 && offset_of!(SendWr, rkey) == 48);
    assert!(size_of::<Wc>() == 48 && offset_of!(Wc, wc_flags) == 36);
    assert!(size_of::<AsyncEvent>() == 16 && size_of::<GidEntry>() == 32);
    assert!(size_of::<PortAttr>() == 56 && offset_of!(PortAttr, flags) == PORT_ATTR_SHORT - 1);
    assert!(offset_of!(PortAttr, active_speed_ex) == 52);
};
