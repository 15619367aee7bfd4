//! Capacities of the queue pairs of a connection.

use crate::proto::cts::Cts;
use crate::proto::receives::{MAX_RECEIVES, RECEIVE_BATCH};
use crate::proto::send_queue::SEND_QUEUE_DEPTH;
use crate::verbs::qp_ex::Operations;
use crate::verbs::queue_pair::QpCaps;
use crate::verbs::work::RECV_BATCH;

/// Bytes of a message that a sender asks to send inline. mlx5 lays a write with an immediate out in 64 bytes, and so many fit there beside its
/// header: queues do not grow.
const INLINE_MESSAGE: u32 = 28;

/// A sender's. It sends messages of host memory inline that are short enough. Why its send queue never overflows is told in [`crate::proto::send_queue`]. It receives nothing; one receive work
/// request is the least that every device accepts.
pub const SENDER_QP_CAPS: QpCaps = QpCaps {
    max_send_wr: SEND_QUEUE_DEPTH,
    max_recv_wr: 1,
    max_inline_data: INLINE_MESSAGE,
    operations: Operations::WRITE_AND_IMM,
};

/// Clear-to-sends in one write. A work request with their bytes is the largest that mlx5 writes to the card instead of having it
/// fetched: 256 bytes.
const INLINE_CTS: usize = 6;

/// A receiver's. It sends clear-to-sends, inline if the device can, and sometimes a probe. It has receives posted for every
/// message that it has cleared to send: see [`crate::proto::receives`].
pub const RECEIVER_QP_CAPS: QpCaps = QpCaps {
    max_send_wr: 64,
    max_recv_wr: MAX_RECEIVES,
    max_inline_data: (INLINE_CTS * Cts::BYTES) as u32,
    operations: Operations::WRITE,
};

const _: () = assert!(RECV_BATCH as u32 == RECEIVE_BATCH);
// So a completion queue of 512 entries, which is what is made of 257 and more, is large enough for one queue pair.
const _: () = assert!(RECEIVER_QP_CAPS.max_send_wr + RECEIVER_QP_CAPS.max_recv_wr < 512);
const _: () = assert!(SENDER_QP_CAPS.max_send_wr + SENDER_QP_CAPS.max_recv_wr < 512);
