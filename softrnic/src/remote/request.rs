//! A posted send request.

use crate::abi::consts::wr_opcode;

/// One posted request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) imm: u32,
    pub(crate) num_sge: u32,
    pub(crate) inline_len: u32,
    pub(crate) rkey: u32,
    pub(crate) remote_addr: u64,
    /// Atomics: value to add, or to compare with and to swap in.
    pub(crate) operands: [u64; 2],
    /// When (monotonic ns) it reaches the peer; 0 is at once.
    pub(crate) due: u64,
}

/// Whether the peer's answer to `opcode` carries data.
pub(crate) fn brings_data(opcode: u32) -> bool {
    matches!(opcode, wr_opcode::RDMA_READ..=wr_opcode::ATOMIC_FETCH_ADD)
}

/// Whether the request carries immediate data.
pub(crate) fn has_imm(request: &Request) -> bool {
    matches!(request.opcode, wr_opcode::RDMA_WRITE_WITH_IMM | wr_opcode::SEND_WITH_IMM)
}
