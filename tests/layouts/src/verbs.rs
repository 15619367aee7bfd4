//! The structs and numbers of libibverbs, against its headers.

use crate::c::Expressions;
use crate::layout;
use nccl_net::testing::layouts::{extended_call, verbs};

const INCLUDES: &str = "#include <infiniband/verbs.h>";

#[test]
fn structs_lie_as_in_c() {
    let mut all = Expressions::default();
    layout!(all, whole "struct ibv_context", verbs::ibv_context {
        device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat
    });
    layout!(all, whole "struct ibv_context_ops", verbs::ibv_context_ops { poll_cq, post_send, post_recv });
    layout!(all, whole "struct ibv_mr", verbs::ibv_mr { context, pd, addr, length, handle, lkey, rkey });
    layout!(all, "struct ibv_cq", verbs::ibv_cq { context, channel, cq_context });
    layout!(
        all,
        "struct ibv_qp",
        verbs::ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num }
    );
    layout!(all, whole "struct ibv_device_attr", verbs::ibv_device_attr {
        fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp, max_mr,
        phys_port_cnt
    });
    // Older headers lack the last member.
    layout!(
        all,
        "struct ibv_port_attr",
        verbs::ibv_port_attr {
            state,
            max_mtu,
            active_mtu,
            gid_tbl_len,
            pkey_tbl_len,
            lid,
            sm_lid,
            active_width,
            active_speed,
            link_layer,
            flags
        }
    );
    layout!(all, whole "union ibv_gid", verbs::ibv_gid { raw });
    layout!(all, whole "struct ibv_gid_entry", verbs::ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex });
    layout!(all, whole "struct ibv_async_event", verbs::ibv_async_event { element, event_type });
    layout!(all, whole "struct ibv_qp_cap", verbs::ibv_qp_cap {
        max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
    });
    layout!(all, whole "struct ibv_qp_init_attr", verbs::ibv_qp_init_attr {
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all
    });
    layout!(all, whole "struct ibv_qp_init_attr_ex", verbs::ibv_qp_init_attr_ex {
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags, max_tso_header,
        rwq_ind_tbl, source_qpn, send_ops_flags
    });
    layout!(
        all,
        "struct ibv_qp_ex",
        verbs::ibv_qp_ex {
            comp_mask,
            wr_id,
            wr_flags,
            wr_rdma_read,
            wr_rdma_write,
            wr_rdma_write_imm,
            wr_set_inline_data,
            wr_set_sge,
            wr_set_sge_list,
            wr_start,
            wr_complete
        }
    );
    layout!(
        all,
        "struct ibv_cq_ex",
        verbs::ibv_cq_ex {
            comp_mask,
            status,
            wr_id,
            start_poll,
            next_poll,
            end_poll,
            read_vendor_err,
            read_imm_data
        }
    );
    layout!(all, whole "struct ibv_poll_cq_attr", verbs::ibv_poll_cq_attr { comp_mask });
    layout!(all, whole "struct ibv_cq_init_attr_ex", verbs::ibv_cq_init_attr_ex {
        cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain
    });
    layout!(all, whole "struct ibv_td_init_attr", verbs::ibv_td_init_attr { comp_mask });
    layout!(all, whole "struct ibv_parent_domain_init_attr", verbs::ibv_parent_domain_init_attr { pd, td, comp_mask });
    layout!(all, whole "struct ibv_global_route", verbs::ibv_global_route {
        dgid, flow_label, sgid_index, hop_limit, traffic_class
    });
    layout!(all, whole "struct ibv_ah_attr", verbs::ibv_ah_attr {
        grh, dlid, sl, src_path_bits, static_rate, is_global, port_num
    });
    layout!(all, whole "struct ibv_qp_attr", verbs::ibv_qp_attr {
        qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr,
        alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic,
        min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit
    });
    layout!(all, whole "struct ibv_ece", verbs::ibv_ece { vendor_id, options, comp_mask });
    layout!(all, whole "struct ibv_sge", verbs::ibv_sge { addr, length, lkey });
    layout!(all, whole "struct ibv_send_wr", verbs::ibv_send_wr {
        wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data_invalidated_rkey_union = "imm_data", wr
    });
    layout!(
        all,
        "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)",
        verbs::rdma_t { remote_addr, rkey }
    );
    layout!(all, whole "struct ibv_recv_wr", verbs::ibv_recv_wr { wr_id, next, sg_list, num_sge });
    layout!(all, whole "struct ibv_wc", verbs::ibv_wc {
        wr_id, status, opcode, vendor_err, byte_len, imm_data_invalidated_rkey_union = "imm_data", qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits
    });
    all.compare(INCLUDES);
}

#[test]
fn calls_in_front_of_a_context_lie_as_in_c() {
    let mut all = Expressions::default();
    let calls = [
        ("sz", extended_call::SIZE),
        ("query_port", extended_call::QUERY_PORT),
        ("create_qp_ex", extended_call::CREATE_QP_EX),
        ("create_cq_ex", extended_call::CREATE_CQ_EX),
        ("alloc_td", extended_call::ALLOC_TD),
        ("dealloc_td", extended_call::DEALLOC_TD),
        ("alloc_parent_domain", extended_call::ALLOC_PARENT_DOMAIN),
    ];
    for (call, distance) in calls {
        let c = format!(
            "offsetof(struct verbs_context, context) - offsetof(struct verbs_context, {call})"
        );
        all.add(&c, distance);
    }
    all.compare(INCLUDES);
}

#[test]
fn numbers_are_those_of_c() {
    let mut all = Expressions::default();
    macro_rules! numbers {
        ($($name:ident),* $(,)?) => { $(all.add(stringify!($name), verbs::$name as usize);)* };
    }
    numbers!(
        IBV_PORT_ACTIVE, IBV_QPF_GRH_REQUIRED, IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_ETHERNET,
        IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2,
    );
    numbers!(
        IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR,
        IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_LID_CHANGE,
        IBV_EVENT_GID_CHANGE,
    );
    numbers!(
        IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
        IBV_ACCESS_RELAXED_ORDERING,
    );
    numbers!(
        IBV_QPT_RC, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_RDMA_READ,
    );
    numbers!(IBV_WC_EX_WITH_IMM, IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CREATE_CQ_ATTR_SINGLE_THREADED,);
    numbers!(
        IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR, IBV_QP_STATE, IBV_QP_ACCESS_FLAGS,
        IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_TIMEOUT,
        IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC,
        IBV_QP_MIN_RNR_TIMER, IBV_QP_SQ_PSN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_CAP,
        IBV_QP_DEST_QPN,
    );
    numbers!(
        IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED,
        IBV_SEND_INLINE,
    );
    all.compare(INCLUDES);
}
