//! A message that is longer than its receive is cut, and that is reported once for each connection: data is lost.

use super::sender::SendPath;
use crate::net::operations::seen::Seen;
use crate::proto::transfer::Transfer;
use crate::stats::labels::Labels;

impl SendPath {
    /// A message of `length` bytes has been cut to those of `transfer`.
    #[cold]
    #[inline(never)]
    pub(super) fn handle_cut(&mut self, length: u32, transfer: &Transfer) {
        self.has_cut = true;
        let operation = Seen::now().operation_of(&Labels::of(&self.stats));
        let within = operation.map(|operation| format!(" in {operation}")).unwrap_or_default();
        log::warn!(
            "{}: a message of {length} bytes to {}{within} is longer than its receive of {} bytes, and is cut to that size: the two ranks differ \
             in the count, the data type or the order of their operations, or in a buffer size (NCCL_BUFFSIZE, NCCL_P2P_NET_CHUNKSIZE, \
             NCCL_CHUNK_SIZE). It is reported once for each connection",
            self.qps.name,
            self.peer.peer(),
            transfer.length,
        );
    }
}
