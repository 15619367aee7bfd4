//! What `ibv_create_qp` asks for.

use std::ffi::c_void;
use std::sync::Arc;

use crate::abi::consts::{qp_type, wr_opcode};
use crate::abi::init_attr_ex::ALL_OPERATIONS;
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
    pub(super) fn operations(&self) -> u64 {
        const SENDS: u64 = 1 << wr_opcode::SEND | 1 << wr_opcode::SEND_WITH_IMM;
        let possible = if self.qp_type == qp_type::UD { SENDS } else { ALL_OPERATIONS };
        self.operations.unwrap_or(possible) & possible
    }
}
