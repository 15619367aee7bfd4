//! The declarations of [`super::sys`] from the package rdma-sys.

#![allow(missing_docs)]

use libc::{c_int, c_uint};
pub use rdma_sys::{
    IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, ibv_ah_attr, ibv_comp_channel, ibv_context,
    ibv_context_ops, ibv_cq, ibv_device, ibv_device_attr, ibv_gid, ibv_gid_entry, ibv_global_route,
    ibv_mr, ibv_parent_domain_init_attr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_td, ibv_td_init_attr, ibv_wc,
    imm_data_invalidated_rkey_union_t, rdma_t, wr_t,
};

/// The values of enumerations.
macro_rules! numbers {
    ($($list:ident as $number:ty { $($name:ident),* $(,)? })*) => {
        $($(pub const $name: $number = rdma_sys::$list::$name as $number;)*)*
    };
}
/// The values of flags, which have their own type there.
macro_rules! flags {
    ($($list:ident as $number:ty { $($name:ident),* $(,)? })*) => {
        $($(pub const $name: $number = rdma_sys::$list::$name.0 as $number;)*)*
    };
}
numbers! {
    ibv_port_state as c_uint { IBV_PORT_ACTIVE }
    ibv_qp_type as c_uint { IBV_QPT_RC }
    ibv_qp_state as c_uint { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR }
    ibv_wr_opcode as c_uint { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ }
}
flags! {
    ibv_access_flags as u32 { IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_RELAXED_ORDERING }
    ibv_qp_init_attr_mask as u32 { IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS }
    ibv_qp_create_send_ops_flags as u64 { IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_RDMA_READ }
    ibv_qp_attr_mask as c_int { IBV_QP_STATE, IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_SQ_PSN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_CAP, IBV_QP_DEST_QPN }
    ibv_send_flags as c_uint { IBV_SEND_SIGNALED, IBV_SEND_INLINE }
}
