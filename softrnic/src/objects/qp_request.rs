//! What `ibv_create_qp` asks for.

use std::ffi::c_void;
use std::sync::Arc;

use crate::abi::consts::{qp_type, wr_opcode};
use crate::abi::init_attr_ex::ALL_OPERATIONS;
use crate::abi::qp_ex::Calls;
use crate::abi::types::QpCap;
use crate::objects::cq::Cq;
use crate::objects::srq::Srq;

/// What `ibv_create_qp` asks for.
pub(crate) struct QpRequest {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    /// Where it receives from, if not from a queue of its own.
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: i32,
    pub(crate) signal_all: bool,
    /// `None`: all.
    pub(crate) operations: Option<u64>,
    /// All 0 if it is not an extended one.
    pub(crate) calls: Calls,
}

impl QpRequest {
    /// The same, without a receive queue of its own if it has a shared one: as mlx5 grants it.
    pub(super) fn without_own_receives(mut self) -> Self {
        if self.srq.is_some() {
            (self.cap.max_recv_wr, self.cap.max_recv_sge) = (0, 0);
        }
        self
    }

    /// Receives in its ring, and elements of each. With a shared queue all receives of that may be taken and not polled.
    pub(super) fn ring(&self) -> (u32, u32) {
        self.srq.as_ref().map_or((self.cap.max_recv_wr, self.cap.max_recv_sge), |srq| (srq.max_wr, srq.max_sge))
    }

    /// What may be posted to the send queue: bit n is `ibv_wr_opcode` n.
    /// `EOPNOTSUPP`: one that was asked for is none of its type.
    pub(super) fn operations(&self, has_atomics: bool) -> Result<u64, i32> {
        const SENDS: u64 = 1 << wr_opcode::SEND | 1 << wr_opcode::SEND_WITH_IMM;
        const WRITES: u64 = 1 << wr_opcode::RDMA_WRITE | 1 << wr_opcode::RDMA_WRITE_WITH_IMM;
        let possible = match self.qp_type {
            qp_type::UD => SENDS,
            qp_type::UC => SENDS | WRITES,
            _ if has_atomics => ALL_OPERATIONS,
            _ => ALL_OPERATIONS & !(1 << wr_opcode::ATOMIC_CMP_SWAP | 1 << wr_opcode::ATOMIC_FETCH_ADD),
        };
        let wanted = self.operations.unwrap_or(possible);
        if wanted & !possible == 0 { Ok(wanted) } else { Err(libc::EOPNOTSUPP) }
    }
}
