//! How much there can be at most: of a fabric, of a device, of a queue.

/// Devices of a fabric.
pub(crate) const DEVICES: usize = 8;
/// Ports of a device.
pub(crate) const PORTS: usize = 2;
/// Ways through the fabric from a port to the others.
pub(crate) const PATHS: usize = 8;
/// Processes of a fabric.
pub(crate) const PROCS: usize = 256;
/// Queue pairs of a device.
pub(crate) const QPS: u32 = 4096;
/// Memory regions of a device.
pub(crate) const MRS: u32 = 16384;
/// Completion queues of a device.
pub(crate) const CQS: u32 = 4096;
/// Shared receive queues of a device.
pub(crate) const SRQS: u32 = 1024;
/// Fault rules in force at a time.
pub(crate) const RULES: usize = 64;
/// Staged copies under way at a time, in the whole fabric: a bit each in a word.
pub(crate) const JOBS: usize = 64;

/// Largest message, in bytes.
pub(crate) const MAX_MESSAGE: u32 = 1 << 30;
/// Most scatter/gather elements of a work request.
pub(crate) const MAX_SGE: u32 = 32;
/// Most inline bytes of a work request.
pub(crate) const MAX_INLINE: u32 = 1024;
/// Most completions of a CQ.
pub(crate) const MAX_CQE: u32 = (1 << 20) - 1;
/// Most work requests of a queue.
pub(crate) const MAX_QP_WR: u32 = 16384;
/// Most outstanding READs of a QP, on either side.
pub(crate) const MAX_READS: u8 = 16;
