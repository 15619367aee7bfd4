//! The NCCL communicator (`ncclComm_t`) of a connection, as far as known.

/// One of NCCL's communicators.
#[derive(Debug, Clone, Copy, Default)]
pub struct NcclComm {
    /// Its number, the same on all ranks; from version 11 of the interface on.
    pub id: Option<u64>,
    /// Its traffic class, if it has one; from version 10 on.
    pub class: Option<u8>,
}
