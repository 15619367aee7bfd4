//! What a sender has in its send queues besides stripes in one write.

use super::probe::Probe;
use crate::error::Result;
use crate::net::qp::wr_id::WrId;
use crate::proto::QpIndex;
use crate::proto::requests::RequestId;
use crate::proto::send_queue::SendQueueSpace;

/// Work requests that are not a stripe in one write.
#[derive(Debug, Default)]
pub(super) struct OtherWork {
    /// Room in the send queues for stripes that take more than one write.
    pub(super) room: SendQueueSpace,
    pub(super) probe: Probe,
}

impl OtherWork {
    /// The work request `id` is complete. Returns the stripe that it completes, if it completes one.
    ///
    /// # Errors
    /// The sender has no such work request.
    #[inline(never)]
    pub(super) fn handle_completion(&mut self, id: u64) -> Result<Option<(RequestId, QpIndex)>> {
        match WrId::from_bits(id) {
            WrId::LongData { request, qp, extra } => {
                self.room.handle_completion(QpIndex(qp), extra);
                Ok(Some((request, QpIndex(qp))))
            }
            _ => self.probe.handle_completion(id, "sender").map(|()| None),
        }
    }
}
