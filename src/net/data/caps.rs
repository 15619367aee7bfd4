//! Capacities of the queue pairs of a connection.

use crate::proto::room::SEND_QUEUE_DEPTH;
use crate::proto::wire::Slot;
use crate::proto::{MAX_GROUP, RING_SLOTS};
use crate::verbs::queue_pair::QpCaps;

/// A sender's. Why its send queue never overflows is told in [`crate::proto::room`]. It receives nothing; one receive work
/// request is the least that every device accepts.
pub const SENDER_QP_CAPS: QpCaps = QpCaps { max_send_wr: SEND_QUEUE_DEPTH, max_recv_wr: 1, max_inline_data: 0 };

/// A receiver's. It sends clear-to-sends, inline if the device can, and sometimes a probe. It has receives posted for every
/// message that it has cleared to send.
pub const RECEIVER_QP_CAPS: QpCaps =
    QpCaps { max_send_wr: 128, max_recv_wr: RING_SLOTS as u32, max_inline_data: (MAX_GROUP * Slot::BYTES) as u32 };
