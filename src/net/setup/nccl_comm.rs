//! What is known of NCCL's communicator (`ncclComm_t`) that a connection is for.

/// One of NCCL's communicators.
#[derive(Debug, Clone, Copy, Default)]
pub struct NcclComm {
    /// NCCL's number of it, the same on all ranks; from version 11 of the interface on.
    pub id: Option<u64>,
    /// Its traffic class, if it has one; from version 10 on.
    pub class: Option<u8>,
}
