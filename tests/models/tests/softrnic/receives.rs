//! The rings of receives, of a queue pair and of a shared receive queue.

use std::sync::atomic::Ordering::SeqCst;

use crate::abi::types::Sge;
use crate::host::sync::{AtomicU32, AtomicU64};
use crate::recv_ring::{Received, RecvRing};
use crate::shm::file::SharedFile;
use crate::shm::slots::QpSlot;
use crate::srq_ring::SrqRing;
use crate::srq_slot::{LIMIT_REACHED, SrqSlot};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// Words that stay, as those of the shared file do.
fn words(count: usize) -> SharedFile {
    SharedFile(Box::leak((0..count).map(|_| AtomicU64::new(0)).collect()))
}

/// A queue pair with a ring of one entry.
fn queue_pair() -> (Arc<QpSlot>, RecvRing) {
    let (mask, stride, bytes) = RecvRing::layout((1, 1), false);
    let slot = QpSlot {
        ring_at: AtomicU64::new(0),
        ring_bytes: AtomicU32::new(bytes as u32),
        ring_mask: AtomicU32::new(mask),
        ring_stride: AtomicU32::new(stride),
        done: AtomicU64::new(0),
        posted: AtomicU64::new(0),
        wanted: AtomicU64::new(0),
    };
    let ring = RecvRing::of(&words(bytes / 8), &slot).expect("a sound ring");
    (Arc::new(slot), ring)
}

/// Explores `model` with at most two changes of thread that a thread does not ask for; with `FERRITE_EXPLORE`, as scripts/nightly.sh sets
/// it, with four.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut explorer = loom::model::Builder::new();
    explorer.preemption_bound = Some(if std::env::var_os("FERRITE_EXPLORE").is_some() { 4 } else { 2 });
    explorer.check(model);
}

/// A receive whose numbers all belong together.
fn element(wr_id: u64) -> Sge {
    Sge { addr: 100 + wr_id, length: 200 + wr_id as u32, lkey: 300 + wr_id as u32 }
}

/// As a sender that has entered: takes the receive that is posted. Returns whether there was one.
fn complete(slot: &QpSlot, ring: &RecvRing, memory: &UnsafeCell<u64>) -> bool {
    let (at, is_posted) = RecvRing::oldest(slot);
    if is_posted {
        let elements: Vec<Sge> = ring.elements(at).collect();
        let number = elements.first().map_or(0, |element| element.addr - 100);
        assert_eq!(elements, [element(number)], "what was posted");
        // SAFETY: the checker notices an access at the same time.
        memory.with_mut(|memory| unsafe { *memory = number });
        ring.finish(slot, at, &Received { byte_len: number as u32, imm: number as u32, ..Received::default() });
    }
    is_posted
}

/// As the owner: takes what is done as number `at`, and looks at the data.
fn poll(slot: &QpSlot, ring: &RecvRing, at: u64, memory: &UnsafeCell<u64>) -> Option<u64> {
    let (wr_id, received) = ring.take(slot, at)?;
    assert_eq!(
        (u64::from(received.byte_len), u64::from(received.imm)),
        (wr_id, wr_id),
        "an outcome of another receive"
    );
    // SAFETY: the checker notices an access at the same time.
    memory.with(|memory| assert_eq!(unsafe { *memory }, wr_id, "the data of the message"));
    Some(wr_id)
}

/// Each receive is completed once and whole, with its data, though entries and memory are used again.
#[test]
fn the_owner_polls_what_the_peer_has_completed() {
    loom::model(|| {
        let (slot, ring) = queue_pair();
        let memory = Arc::new(UnsafeCell::new(0));
        ring.post(&slot, 1, &[element(1)]);
        let peer = {
            let (slot, memory) = (Arc::clone(&slot), Arc::clone(&memory));
            thread::spawn(move || (0..2).filter(|_| complete(&slot, &ring, &memory)).count())
        };
        let mut polled = 0;
        if let Some(wr_id) = poll(&slot, &ring, 0, &memory) {
            assert_eq!(wr_id, 1);
            polled = 1;
            ring.post(&slot, 2, &[element(2)]);
        }
        let completed = peer.join().expect("the peer ends");
        for at in polled..completed as u64 {
            assert_eq!(poll(&slot, &ring, at, &memory), Some(at + 1));
        }
    });
}

/// A shared receive queue with a ring of one entry.
fn shared_queue() -> (Arc<SrqSlot>, SrqRing) {
    let (mask, stride, bytes) = SrqRing::layout(1, 1);
    let slot = SrqSlot {
        ring_at: AtomicU64::new(0),
        ring_bytes: AtomicU32::new(bytes as u32),
        ring_mask: AtomicU32::new(mask),
        ring_stride: AtomicU32::new(stride),
        owner: AtomicU32::new(0),
        pd: AtomicU32::new(0),
        limit: AtomicU32::new(0),
        posted: AtomicU64::new(0),
        head: AtomicU64::new(0),
    };
    let ring = SrqRing::of(&words(bytes / 8), &slot).expect("a sound ring");
    (Arc::new(slot), ring)
}

/// Each time a taker is killed after a step, and nobody waits for it: who comes after it finds the receive that it has taken, whole.
#[test]
fn the_receive_of_a_taker_that_has_died_is_found() {
    for (is_posted, is_recovered) in [(false, false), (true, false), (false, true)] {
        explore(move || {
            let ((srq, ring), (qp, queue)) = (shared_queue(), queue_pair());
            ring.post(&srq, 1, &[element(1)]);
            let dead = {
                let (srq, qp) = (Arc::clone(&srq), Arc::clone(&qp));
                thread::spawn(move || match is_posted {
                    true => ring.take(&srq, &qp, 0, &queue),
                    false => ring.mark(0, (&qp, 0), (&queue, 0)),
                })
            };
            let second = is_recovered.then(|| {
                let qp = Arc::clone(&qp);
                thread::spawn(move || ring.recover(&qp, 0))
            });
            let memory = UnsafeCell::new(0);
            let is_found = || RecvRing::oldest(&qp).1 || !is_recovered && ring.recover(&qp, 0);
            let is_seen = is_found() && complete(&qp, &queue, &memory);
            second.into_iter().for_each(|second| assert!(second.join().is_ok(), "it ends"));
            assert!(dead.join().expect("it ends"), "nobody else takes it");
            let is_found = || RecvRing::oldest(&qp).1 || ring.recover(&qp, 0);
            assert!(is_seen || is_found() && complete(&qp, &queue, &memory), "it is lost");
            assert_eq!(poll(&qp, &queue, 0, &memory), Some(1));
        });
    }
}

/// The owner asks to be told when the last receive is taken while somebody takes it: it is told, once.
#[test]
fn the_limit_of_a_shared_queue_is_told_once() {
    explore(|| {
        let ((srq, ring), (qp, queue)) = (shared_queue(), queue_pair());
        ring.post(&srq, 1, &[element(1)]);
        let taker = {
            let srq = Arc::clone(&srq);
            thread::spawn(move || ring.take(&srq, &qp, 0, &queue) && srq.reaches_limit())
        };
        srq.limit.swap(1, SeqCst);
        let is_told = srq.reaches_limit();
        assert_ne!(is_told, taker.join().expect("the taker ends"));
        assert_eq!(srq.limit.load(SeqCst), LIMIT_REACHED);
    });
}

/// The senders to two queue pairs take receives of one shared receive queue, whose owner posts the next one in an entry that is free
/// again: each receive is taken once, and whole, and none is lost.
#[test]
fn each_receive_of_a_shared_queue_is_taken_by_one_queue_pair() {
    explore(|| {
        let (slot, ring) = shared_queue();
        let memories = [1, 2].map(|_| Arc::new(UnsafeCell::new(0)));
        ring.post(&slot, 1, &[element(1)]);
        let pairs = [queue_pair(), queue_pair()];
        let takers = [0, 1].map(|i| {
            let (srq, memory) = (Arc::clone(&slot), Arc::clone(&memories[i]));
            let (qp, queue) = (Arc::clone(&pairs[i].0), pairs[i].1);
            thread::spawn(move || ring.take(&srq, &qp, i as u32, &queue) && complete(&qp, &queue, &memory))
        });
        let look = |i: usize, at: u64| poll(&pairs[i].0, &pairs[i].1, at, &memories[i]);
        let early = [0, 1].map(|i| look(i, 0));
        let mut posted = 1;
        if early != [None, None] {
            ring.post(&slot, 2, &[element(2)]);
            posted = 2;
        }
        takers.into_iter().for_each(|taker| assert!(taker.join().is_ok(), "the taker ends"));
        let mut all: Vec<u64> = [0, 1].iter().filter_map(|i| early[*i].or_else(|| look(*i, 0))).collect();
        // What nobody has taken is left to be taken.
        let next = pairs[0].0.done.load(SeqCst);
        while ring.take(&slot, &pairs[0].0, 0, &pairs[0].1) {
            assert!(complete(&pairs[0].0, &pairs[0].1, &memories[0]));
        }
        all.extend((next..pairs[0].0.done.load(SeqCst)).filter_map(|at| look(0, at)));
        all.sort_unstable();
        assert_eq!(all, [1, 2][..posted]);
    });
}
