//! Structures of librdmacm, byte for byte.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

use crate::abi::types::{CompChannel, Context, Cq, Gid, Pd, Qp, Srq};

/// `struct rdma_event_channel`.
#[repr(C)]
pub(crate) struct EventChannel {
    pub(crate) fd: c_int,
}

/// `struct ibv_sa_path_rec`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct PathRec {
    pub(crate) dgid: Gid,
    pub(crate) sgid: Gid,
    pub(crate) dlid: u16,
    pub(crate) slid: u16,
    pub(crate) raw_traffic: c_int,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) reversible: c_int,
    pub(crate) numb_path: u8,
    pub(crate) pkey: u16,
    pub(crate) sl: u8,
    pub(crate) mtu_selector: u8,
    pub(crate) mtu: u8,
    pub(crate) rest: [u8; 5],
}

/// `struct rdma_route`: addresses as the socket interface has them.
#[repr(C)]
pub(crate) struct Route {
    pub(crate) source: [u64; 16],
    pub(crate) target: [u64; 16],
    pub(crate) sgid: Gid,
    pub(crate) dgid: Gid,
    pub(crate) pkey: u16,
    pub(crate) path_rec: *mut PathRec,
    pub(crate) num_paths: c_int,
}

/// `struct rdma_cm_id`.
#[repr(C)]
pub(crate) struct CmId {
    pub(crate) verbs: *mut Context,
    pub(crate) channel: *mut EventChannel,
    pub(crate) context: *mut c_void,
    pub(crate) qp: *mut Qp,
    pub(crate) route: Route,
    pub(crate) ps: c_int,
    pub(crate) port_num: u8,
    pub(crate) event: *mut CmEvent,
    pub(crate) send_cq_channel: *mut CompChannel,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq_channel: *mut CompChannel,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) pd: *mut Pd,
    pub(crate) qp_type: c_int,
}

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConnParam {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

/// `struct rdma_cm_event`, whose parameters may also be those of datagrams, which are longer.
#[repr(C)]
pub(crate) struct CmEvent {
    pub(crate) id: *mut CmId,
    pub(crate) listen_id: *mut CmId,
    pub(crate) event: u32,
    pub(crate) status: c_int,
    pub(crate) param: ConnParam,
    pub(crate) rest: [u64; 4],
}

/// `struct rdma_addrinfo`.
#[repr(C)]
pub(crate) struct AddrInfo {
    pub(crate) ai_flags: c_int,
    pub(crate) ai_family: c_int,
    pub(crate) ai_qp_type: c_int,
    pub(crate) ai_port_space: c_int,
    pub(crate) ai_src_len: u32,
    pub(crate) ai_dst_len: u32,
    pub(crate) ai_src_addr: *mut libc::sockaddr,
    pub(crate) ai_dst_addr: *mut libc::sockaddr,
    pub(crate) ai_src_canonname: *mut c_char,
    pub(crate) ai_dst_canonname: *mut c_char,
    pub(crate) ai_route_len: usize,
    pub(crate) ai_route: *mut c_void,
    pub(crate) ai_connect_len: usize,
    pub(crate) ai_connect: *mut c_void,
    pub(crate) ai_next: *mut Self,
}

/// `RAI_*`.
pub(crate) mod rai {
    pub(crate) const PASSIVE: i32 = 1;
    pub(crate) const NUMERIC_HOST: i32 = 1 << 1;
    pub(crate) const FAMILY: i32 = 1 << 3;
}

/// `enum rdma_port_space`.
pub(crate) mod port_space {
    pub(crate) const TCP: i32 = 0x106;
    pub(crate) const UDP: i32 = 0x111;
    pub(crate) const IB: i32 = 0x13f;
}

/// `enum rdma_cm_event_type`.
pub(crate) mod event {
    pub(crate) const ADDR_RESOLVED: u32 = 0;
    pub(crate) const ADDR_ERROR: u32 = 1;
    pub(crate) const ROUTE_RESOLVED: u32 = 2;
    pub(crate) const CONNECT_REQUEST: u32 = 4;
    pub(crate) const CONNECT_RESPONSE: u32 = 5;
    pub(crate) const CONNECT_ERROR: u32 = 6;
    pub(crate) const UNREACHABLE: u32 = 7;
    pub(crate) const REJECTED: u32 = 8;
    pub(crate) const ESTABLISHED: u32 = 9;
    pub(crate) const DISCONNECTED: u32 = 10;
}

/// `RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`: as much as there is.
pub(crate) const AS_MUCH_AS_THERE_IS: u8 = 0xff;

const _: () = {
    assert!(
        size_of::<CmId>() == 416 && offset_of!(CmId, route) == 32 && offset_of!(CmId, event) == 352
    );
    assert!(
        size_of::<Route>() == 312
            && offset_of!(Route, path_rec) == 296
            && offset_of!(CmId, pd) == 400
    );
    assert!(size_of::<ConnParam>() == 24 && offset_of!(ConnParam, qp_num) == 16);
    assert!(size_of::<CmEvent>() == 80 && offset_of!(CmEvent, param) == 24);
    assert!(size_of::<AddrInfo>() == 96 && offset_of!(AddrInfo, ai_next) == 88);
    assert!(
        size_of::<PathRec>() == 64
            && offset_of!(PathRec, mtu) == 58
            && offset_of!(PathRec, pkey) == 54
    );
};
