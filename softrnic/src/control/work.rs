//! What queues were created with, and what their users have had the driver and the card do.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::process::fabric::Fabric;
use crate::shm::process_id::slot_of;
use crate::shm::slots::{CqSlot, ProcSlot, QpSlot};

/// What a queue pair was asked to have.
#[derive(Clone, Copy, Debug)]
pub struct Capacities {
    /// Send work requests.
    pub sends: u32,
    /// Receive work requests.
    pub receives: u32,
    /// Elements of memory of a send work request.
    pub send_elements: u32,
    /// Elements of memory of a receive work request.
    pub receive_elements: u32,
    /// Bytes of inline data.
    pub inline: u32,
    /// The operations that it was made for (`ibv_create_qp_ex`): bit n is `ibv_wr_opcode` n.
    pub operations: Option<u32>,
    /// It is in a parent domain with a thread domain: one thread at a time posts to it.
    pub thread_domain: bool,
}

impl Capacities {
    pub(crate) fn of(slot: &QpSlot) -> Self {
        let cap = slot.capacities.get();
        Self {
            sends: cap.max_send_wr,
            receives: cap.max_recv_wr,
            send_elements: cap.max_send_sge,
            receive_elements: cap.max_recv_sge,
            inline: cap.max_inline_data,
            operations: slot.capacities.operations(),
            thread_domain: slot.capacities.has_thread(),
        }
    }
}

/// What a queue pair's owner has posted, and what a card of mlx5 would have to do for it. A request that is posted alone and takes
/// 256 bytes at most is pushed: the driver writes it to the card. The card fetches the others from the queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Send work requests.
    pub requests: u64,
    /// Calls that posted some.
    pub doorbells: u64,
    /// Requests with inline data.
    pub inline: u64,
    /// Requests whose data the card reads from memory.
    pub gathered: u64,
    /// These bytes.
    pub gathered_bytes: u64,
    /// Requests that the card fetches.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Bytes of the requests that are pushed.
    pub pushed_bytes: u64,
    /// Messages with immediate data that were acknowledged.
    pub immediates: u64,
    /// Packets of messages that were acknowledged.
    pub packets: u64,
    /// Receive work requests.
    pub receives: u64,
    /// Calls that posted some.
    pub receive_posts: u64,
    /// Calls that posted, and for which mlx5 takes a lock: none in a thread domain, else all.
    pub locks: u64,
}

impl Work {
    pub(crate) fn of(qp: &QpSlot) -> Self {
        let slot = &qp.work;
        let count = |counter: &AtomicU64| counter.load(SeqCst);
        let posts = count(&slot.doorbells) + count(&slot.receive_posts);
        Self {
            requests: count(&slot.requests),
            doorbells: count(&slot.doorbells),
            inline: count(&slot.inline),
            gathered: count(&slot.gathered),
            gathered_bytes: count(&slot.gathered_bytes),
            fetched: count(&slot.fetched),
            fetched_bytes: count(&slot.fetched_bytes),
            pushed_bytes: count(&slot.pushed_bytes),
            immediates: count(&slot.immediates),
            packets: count(&slot.packets),
            receives: count(&slot.receives),
            receive_posts: count(&slot.receive_posts),
            locks: if qp.capacities.has_thread() { 0 } else { posts },
        }
    }
}

/// Commands that a process has had cards carry out. Each takes the time of the card's firmware, while the caller waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Commands {
    /// `ibv_create_qp`.
    pub create_qp: u32,
    /// `ibv_modify_qp`.
    pub modify_qp: u32,
    /// `ibv_destroy_qp`.
    pub destroy_qp: u32,
    /// `ibv_create_cq`.
    pub create_cq: u32,
    /// `ibv_destroy_cq`.
    pub destroy_cq: u32,
    /// `ibv_reg_mr` and its like.
    pub register_mr: u32,
    /// `ibv_dereg_mr`.
    pub deregister_mr: u32,
    /// `ibv_alloc_pd`.
    pub alloc_pd: u32,
    /// `ibv_alloc_td`, for which mlx5 has the card allocate a doorbell page.
    pub alloc_td: u32,
}

impl Commands {
    pub(crate) fn of(slot: &ProcSlot) -> Self {
        let [create_qp, modify_qp, destroy_qp, create_cq, destroy_cq, register_mr, deregister_mr, alloc_pd, alloc_td] =
            std::array::from_fn(|kind| {
                let count: &AtomicU32 = &slot.commands[kind];
                count.load(SeqCst)
            });
        Self { create_qp, modify_qp, destroy_qp, create_cq, destroy_cq, register_mr, deregister_mr, alloc_pd, alloc_td }
    }
}

/// A completion queue.
#[derive(Clone, Copy, Debug)]
pub struct Cq {
    /// The process it belongs to.
    pub pid: i32,
    /// Completions that it was asked to have room for.
    pub entries: u32,
    /// Calls of `ibv_poll_cq` and of `ibv_start_poll`.
    pub polls: u64,
    /// Those that found something.
    pub fruitful_polls: u64,
    /// Completions that were taken.
    pub completions: u64,
    /// Polls for which mlx5 takes a lock: all but `ibv_start_poll` on a queue for a single thread.
    pub locks: u64,
    /// It was created for a single thread.
    pub single_threaded: bool,
}

impl Cq {
    pub(crate) fn of(fabric: &Fabric, slot: &CqSlot) -> Self {
        Self {
            pid: fabric.proc(slot_of(slot.owner.load(SeqCst))).pid.load(SeqCst),
            entries: slot.requested.load(SeqCst),
            polls: slot.polls.load(SeqCst),
            fruitful_polls: slot.fruitful_polls.load(SeqCst),
            completions: slot.polled.load(SeqCst),
            locks: slot.locks.load(SeqCst),
            single_threaded: slot.single_threaded.load(SeqCst) != 0,
        }
    }
}
