//! What a device can do at most.

/// Largest message, in bytes.
pub(crate) const MAX_MESSAGE: u32 = 1 << 30;
/// Most scatter/gather elements of a work request.
pub(crate) const MAX_SGE: u32 = 16;
/// Most inline bytes of a work request.
pub(crate) const MAX_INLINE: u32 = 1024;
/// Most completions of a CQ.
pub(crate) const MAX_CQE: u32 = (1 << 20) - 1;
/// Most work requests of a queue.
pub(crate) const MAX_QP_WR: u32 = 16384;
/// Most outstanding READs of a QP, on either side.
pub(crate) const MAX_READS: u8 = 16;
