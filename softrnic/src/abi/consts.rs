//! Numbers of the verbs interface, under the names of its documentation.

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
