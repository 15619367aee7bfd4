//! What an application has had the driver and the card do: counted for each queue pair and each
//! completion queue.
//!
//! How many bytes a work request takes, and whether the driver pushes it to the card itself, are
//! those of mlx5: a request that is posted alone and takes 256 bytes at most is written to the card
//! (BlueFlame). Others are announced by a doorbell of 8 bytes, and the card reads them.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::abi::types::QpCap;

/// Work requests begin at multiples of so many bytes.
const BLOCK: u64 = 64;
/// Control segment, remote address, and one element of memory.
const CONTROL: u64 = 16;
const REMOTE: u64 = 16;
const ELEMENT: u64 = 16;
/// In front of inline data.
const INLINE_HEAD: u64 = 4;
/// Largest work request that is pushed.
const MOST_PUSHED: u64 = 256;

/// Of one queue pair. Written by its owner: the first ones with the send queue locked, the last two
/// with the receive queue locked.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct WorkCounters {
    /// Send work requests.
    pub(crate) requests: AtomicU64,
    /// Calls that posted some: one doorbell each.
    pub(crate) doorbells: AtomicU64,
    /// Requests whose data the driver copied into them.
    pub(crate) inline: AtomicU64,
    /// Requests whose data the card reads from memory, and these bytes.
    pub(crate) gathered: AtomicU64,
    pub(crate) gathered_bytes: AtomicU64,
    /// Requests that the card reads from the queue, and their bytes.
    pub(crate) fetched: AtomicU64,
    pub(crate) fetched_bytes: AtomicU64,
    /// Bytes of the requests that the driver writes to the card.
    pub(crate) pushed_bytes: AtomicU64,
    /// Messages with immediate data that were acknowledged.
    pub(crate) immediates: AtomicU64,
    /// Packets of the messages that were acknowledged.
    pub(crate) packets: AtomicU64,
    /// Receive work requests.
    pub(crate) receives: AtomicU64,
    /// Calls that posted some.
    pub(crate) receive_posts: AtomicU64,
}

/// The send work requests of one call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Batch {
    requests: u64,
    inline: u64,
    gathered: u64,
    gathered_bytes: u64,
    bytes: u64,
}

impl Batch {
    /// Takes in a request with `bytes` of data in `elements` elements of memory.
    #[inline]
    pub(crate) fn add(&mut self, is_inline: bool, bytes: u64, elements: usize) {
        self.requests += 1;
        let data = if is_inline {
            (INLINE_HEAD + bytes).next_multiple_of(16)
        } else {
            ELEMENT * elements as u64
        };
        self.bytes += (CONTROL + REMOTE + data).next_multiple_of(BLOCK);
        if is_inline {
            self.inline += 1;
        } else if bytes != 0 {
            self.gathered += 1;
            self.gathered_bytes += bytes;
        }
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Relaxed) + count, Relaxed);
}

impl WorkCounters {
    pub(crate) fn all(&self) -> [&AtomicU64; 12] {
        [
            &self.requests, &self.doorbells, &self.inline, &self.gathered, &self.gathered_bytes,
            &self.fetched, &self.fetched_bytes, &self.pushed_bytes, &self.immediates,
            &self.packets, &self.receives, &self.receive_posts,
        ]
    }

    /// One call has posted `batch`. Call with the send queue locked.
    #[inline]
    pub(crate) fn posted(&self, batch: &Batch) {
        let Batch { requests, inline, gathered, gathered_bytes, bytes } = *batch;
        if requests == 0 {
            return;
        }
        add(&self.doorbells, 1);
        add(&self.requests, requests);
        add(&self.inline, inline);
        add(&self.gathered, gathered);
        add(&self.gathered_bytes, gathered_bytes);
        if requests == 1 && bytes <= MOST_PUSHED {
            add(&self.pushed_bytes, bytes);
        } else {
            add(&self.fetched, requests);
            add(&self.fetched_bytes, bytes);
        }
    }

    /// A message of so many `packets` was acknowledged. Call with the send queue locked.
    #[inline]
    pub(crate) fn acknowledged(&self, packets: u32, has_immediate: bool) {
        add(&self.packets, packets.into());
        add(&self.immediates, has_immediate.into());
    }

    /// A receive was posted, as the first of its call or not. Call with the receive queue locked.
    #[inline]
    pub(crate) fn posted_receive(&self, is_first: bool) {
        add(&self.receives, 1);
        add(&self.receive_posts, is_first.into());
    }
}

/// What a queue pair was created with, as it was asked for. Written by its owner.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Capacities {
    words: [AtomicU32; 5],
    /// The operations that it was made for: bit n is `ibv_wr_opcode` n. 0: that was not said.
    operations: AtomicU32,
    /// 1: it is in a thread domain.
    has_thread: AtomicU32,
}

impl Capacities {
    pub(crate) fn set(&self, cap: &QpCap, operations: Option<u64>, has_thread: bool) {
        let given = [
            cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge,
            cap.max_inline_data,
        ];
        for (word, value) in self.words.iter().zip(given) {
            word.store(value, Relaxed);
        }
        self.operations.store(operations.unwrap_or(0) as u32, Relaxed);
        self.has_thread.store(has_thread.into(), Relaxed);
    }

    /// Whether it is in a thread domain.
    pub(crate) fn has_thread(&self) -> bool {
        self.has_thread.load(Relaxed) != 0
    }

    pub(crate) fn operations(&self) -> Option<u32> {
        Some(self.operations.load(Relaxed)).filter(|operations| *operations != 0)
    }

    pub(crate) fn get(&self) -> QpCap {
        let [max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data] =
            [0, 1, 2, 3, 4].map(|index: usize| self.words[index].load(Relaxed));
        QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(requests: &[(bool, u64, usize)]) -> (u64, u64, u64) {
        // SAFETY: atomics that are all zeros, as in a new file.
        let counters: WorkCounters = unsafe { std::mem::zeroed() };
        let mut batch = Batch::default();
        requests
            .iter()
            .for_each(|(is_inline, bytes, elements)| batch.add(*is_inline, *bytes, *elements));
        counters.posted(&batch);
        let [fetched, fetched_bytes, pushed] =
            [&counters.fetched, &counters.fetched_bytes, &counters.pushed_bytes];
        (fetched.load(Relaxed), fetched_bytes.load(Relaxed), pushed.load(Relaxed))
    }

    #[test]
    fn one_small_request_is_pushed_and_chains_and_large_ones_are_fetched() {
        assert_eq!(counted(&[]), (0, 0, 0));
        assert_eq!(counted(&[(false, 4096, 1)]), (0, 0, 64), "32 bytes and one element");
        assert_eq!(
            counted(&[(true, 28, 1)]),
            (0, 0, 64),
            "28 bytes of data are the most that one block takes"
        );
        assert_eq!(counted(&[(true, 29, 1)]), (0, 0, 128));
        assert_eq!(counted(&[(true, 220, 1)]), (0, 0, 256));
        assert_eq!(counted(&[(true, 221, 1)]), (1, 320, 0), "more than 256 bytes");
        assert_eq!(counted(&[(false, 8, 1), (false, 0, 0)]), (2, 128, 0), "a chain");
    }
}
