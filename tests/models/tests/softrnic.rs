//! The protocols without locks, explored by a model checker: every order of the threads' steps, and every value that the
//! memory model lets a load return. The sources are those of the software device, with the checker's atomics in place of the
//! processor's.

// The sources are larger than what is explored.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs, reason = "files of the software device")]

mod host {
    /// In place of `softrnic/src/host/sync.rs`.
    pub mod sync {
        use std::sync::atomic::Ordering;

        use loom::sync::atomic::fence;
        pub use loom::thread::yield_now;

        pub fn spin_loop() {
            yield_now();
        }

        /// The checker takes `SeqCst` accesses for weaker ones, but not `SeqCst` fences. As on x86, what writes carries the
        /// fence, so a load that is weaker than `SeqCst` is not noticed.
        fn fence_after<T>(order: Ordering, write: T) -> T {
            if order == Ordering::SeqCst {
                fence(Ordering::SeqCst);
            }
            write
        }

        /// `looked` is exchanged before each load. The checker keeps only the last access to a word: a thread that loads a word and then
        /// stores to it hides that another one has loaded it before, and the order in which the store comes first is not tried.
        macro_rules! atomic {
            ($name:ident, $value:ty) => {
                #[derive(Debug)]
                pub struct $name {
                    word: loom::sync::atomic::$name,
                    looked: loom::sync::atomic::AtomicBool,
                }

                impl $name {
                    pub fn new(value: $value) -> Self {
                        let looked = loom::sync::atomic::AtomicBool::new(false);
                        Self { word: loom::sync::atomic::$name::new(value), looked }
                    }

                    pub fn load(&self, order: Ordering) -> $value {
                        self.looked.swap(true, Ordering::Relaxed);
                        self.word.load(order)
                    }

                    pub fn store(&self, value: $value, order: Ordering) {
                        fence_after(order, self.word.store(value, order));
                    }

                    pub fn compare_exchange(
                        &self,
                        old: $value,
                        new: $value,
                        order: Ordering,
                        failure: Ordering,
                    ) -> Result<$value, $value> {
                        fence_after(order, self.word.compare_exchange(old, new, order, failure))
                    }

                    pub fn swap(&self, value: $value, order: Ordering) -> $value {
                        fence_after(order, self.word.swap(value, order))
                    }

                    pub fn compare_exchange_weak(
                        &self,
                        old: $value,
                        new: $value,
                        order: Ordering,
                        failure: Ordering,
                    ) -> Result<$value, $value> {
                        self.compare_exchange(old, new, order, failure)
                    }
                }
            };
        }
        atomic!(AtomicU32, u32);
        atomic!(AtomicU64, u64);
    }
}

/// In place of `softrnic/src/abi/types.rs`.
mod abi {
    pub mod types {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Sge {
            pub addr: u64,
            pub length: u32,
            pub lkey: u32,
        }
    }
}

/// In place of `softrnic/src/limits.rs`.
mod limits {
    pub const MAX_SGE: u32 = 1;
}

/// In place of the shared file and of what else its entries have.
mod shm {
    pub(crate) use super::{recv_ring, srq_ring, srq_slot};

    pub mod file {
        use crate::host::sync::AtomicU64;

        pub struct SharedFile(pub &'static [AtomicU64]);

        impl SharedFile {
            pub fn ring_words(&self, _at: u64, _bytes: usize) -> Option<&'static [AtomicU64]> {
                Some(self.0)
            }
        }
    }

    pub mod slots {
        use crate::host::sync::{AtomicU32, AtomicU64};

        pub struct QpSlot {
            pub ring_at: AtomicU64,
            pub ring_bytes: AtomicU32,
            pub ring_mask: AtomicU32,
            pub ring_stride: AtomicU32,
            pub done: AtomicU64,
            pub posted: AtomicU64,
            pub wanted: AtomicU64,
        }
    }
}

#[path = "softrnic/receives.rs"]
mod receives;

#[path = "../../../softrnic/src/shm/recv_ring.rs"]
mod recv_ring;
#[path = "../../../softrnic/src/shm/srq_ring.rs"]
mod srq_ring;
#[path = "../../../softrnic/src/shm/srq_slot.rs"]
mod srq_slot;

#[path = "../../../softrnic/src/shm/job.rs"]
mod job_slot;
#[path = "../../../softrnic/src/shm/mark.rs"]
mod mark;
#[path = "../../../softrnic/src/objects/send_ring.rs"]
mod send_ring;

use std::sync::atomic::Ordering::SeqCst;

use host::sync::{AtomicU32, AtomicU64, yield_now};
use job_slot::{Hold, Job, JobSlot, state, task};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use send_ring::SendRing;

/// The owner of a queue pair forbids entering, waits, and takes its memory away. No peer uses the memory from then on.
#[test]
fn the_owner_of_a_queue_pair_waits_for_the_peer_that_is_in_it() {
    const MARK: u64 = 7;
    loom::model(|| {
        let busy = Arc::new(AtomicU64::new(0));
        let may_enter = Arc::new(AtomicU32::new(1));
        let memory = Arc::new(UnsafeCell::new(0));
        let peer = {
            let (busy, may_enter, memory) = (Arc::clone(&busy), Arc::clone(&may_enter), Arc::clone(&memory));
            thread::spawn(move || {
                assert!(mark::set(&busy, MARK, |_| true), "nobody else is in it");
                if may_enter.load(SeqCst) == 1 {
                    // SAFETY: the checker notices an access at the same time.
                    memory.with_mut(|memory| unsafe { *memory += 1 });
                }
                mark::clear(&busy, MARK);
            })
        };
        may_enter.store(0, SeqCst);
        mark::await_clear(&busy, |_| true);
        // SAFETY: as above.
        memory.with_mut(|memory| unsafe { *memory += 1 });
        peer.join().expect("the peer ends");
    });
}

/// Two processes may want the same queue pair, one of them late: only one at a time is in it.
#[test]
fn only_one_peer_at_a_time_is_in_a_queue_pair() {
    loom::model(|| {
        let busy = Arc::new(AtomicU64::new(0));
        let memory = Arc::new(UnsafeCell::new(0));
        let enter = |mark: u64| {
            let (busy, memory) = (Arc::clone(&busy), Arc::clone(&memory));
            move || {
                assert!(mark::set(&busy, mark, |_| true), "the other one leaves");
                // SAFETY: the checker notices an access at the same time.
                memory.with_mut(|memory| unsafe { *memory += 1 });
                mark::clear(&busy, mark);
            }
        };
        let other = thread::spawn(enter(2));
        enter(1)();
        other.join().expect("the other one ends");
    });
}

/// Completions are polled in order, each once and whole, though slots are used again.
#[test]
fn the_poller_takes_what_the_executor_has_recorded() {
    loom::model(|| {
        let ring = Arc::new(SendRing::new(1));
        let executor = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                ring.record(0, 10, 0, 1, 100, true);
                // As `ibv_post_send`: the slot must be free.
                if ring.in_use(1) == 0 {
                    ring.record(1, 11, 0, 2, 200, true);
                }
            })
        };
        let mut taken = Vec::new();
        for _ in 0..2 {
            taken.extend(ring.take().map(|one| (one.wr_id, one.opcode, one.byte_len)));
        }
        executor.join().expect("the executor ends");
        while let Some(one) = ring.take() {
            taken.push((one.wr_id, one.opcode, one.byte_len));
        }
        assert_eq!(taken, [(10, 1, 100), (11, 2, 200)][..taken.len()]);
        assert!(!taken.is_empty() && !ring.has_more());
    });
}

/// A requester may give a staged copy up at any time: the target does what was asked or nothing, and the slot gets free.
#[test]
fn a_staged_copy_that_is_given_up_leaves_its_slot_free() {
    const REQUESTER: u32 = 3;
    const TARGET: u32 = 5;
    loom::model(|| {
        let idle = Hold { owner: REQUESTER, serial: 9, state: state::IDLE };
        let slot = Arc::new(JobSlot {
            hold: AtomicU64::new(idle.word()),
            target: AtomicU32::new(TARGET),
            task: AtomicU32::new(0),
            device: AtomicU32::new(0),
            key: AtomicU32::new(0),
            addr: AtomicU64::new(0),
            len: AtomicU64::new(0),
            number: AtomicU64::new(0),
        });
        let target = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                let Some(taken) = slot.take(TARGET) else { return };
                let order = std::sync::atomic::Ordering::Relaxed;
                assert_eq!((slot.addr.load(order), slot.len.load(order)), (64, 8), "what was posted");
                slot.leave(taken, state::DONE);
            })
        };
        slot.post(&Job { target: TARGET, task: task::FETCH, device: 0, key: 1, addr: 64, len: 8, number: 1 });
        slot.give_up();
        target.join().expect("the target ends");
        assert_eq!(slot.hold.load(SeqCst), 0, "the slot is free");
    });
}
