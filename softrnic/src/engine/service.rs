//! The service thread: one per process, asleep unless something is pending.
//!
//! It runs requests whose time has come when the application does not poll, and passes on what peers left for the
//! application's event descriptors. Its robust futex word is this process's sign of life (see `process::liveness`).

use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::{Arc, Weak, mpsc};
use std::{mem, ptr, thread};

use crate::engine::pump::{finish_failure, flush_at};
use crate::engine::state::Engine;
use crate::host::clock::now_ns;
use crate::host::lock::lock;
use crate::objects::context::Context;
use crate::shm::process_id::slot_of;
use crate::shm::slots::ProcSlot;

/// `struct robust_list_head` of the kernel.
#[repr(C)]
struct RobustHead {
    first: usize,
    futex_offset: isize,
    pending: usize,
}

/// Starts the thread; returns when its sign of life is in place.
pub(crate) fn start(engine: &'static Engine) -> Result<(), i32> {
    let (ready, is_ready) = mpsc::channel();
    let mask = block_signals();
    let spawned = thread::Builder::new().name("softrnic".to_owned()).spawn(move || {
        show_life(engine.fabric.proc(slot_of(engine.fabric.me)));
        let _ = ready.send(());
        serve(engine);
    });
    // SAFETY: restores the mask that `block_signals` found.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut()) };
    spawned.map_err(|e| e.raw_os_error().unwrap_or(libc::EAGAIN))?;
    is_ready.recv().map_err(|_| libc::EAGAIN)
}

/// Blocks all signals, so that the new thread never runs an application's handler; returns the former mask.
fn block_signals() -> libc::sigset_t {
    // SAFETY: a sigset_t may be all zeros; both calls only write to the sets passed.
    unsafe {
        let (mut all, mut former) = (mem::zeroed(), mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut former);
        former
    }
}

/// Has the kernel mark `slot.life` when this thread ends.
fn show_life(slot: &'static ProcSlot) {
    let link = slot.robust_next.as_ptr() as usize;
    let word = slot.life.as_ptr() as usize;
    let head = Box::leak(Box::new(RobustHead { first: link, futex_offset: (word - link) as isize, pending: 0 }));
    // SAFETY: gettid has no preconditions.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    // The list is a ring: head -> link -> head.
    slot.robust_next.store(ptr::from_ref(head) as usize, SeqCst);
    slot.life.store(tid, SeqCst);
    // SAFETY: the head is leaked and the link lies in a mapping that is never unmapped; this thread takes no robust
    // mutex of the C library, whose list this replaces.
    unsafe { libc::syscall(libc::SYS_set_robust_list, ptr::from_ref(head), size_of::<RobustHead>()) };
}

fn serve(engine: &'static Engine) {
    let fabric = engine.fabric;
    let bell = &fabric.proc(slot_of(fabric.me)).bell;
    let mut delivered = 0;
    loop {
        let seen = bell.load(Acquire);
        if fabric.is_gone() {
            return;
        }
        for qp in lock(&engine.qps).iter() {
            if qp.deliver() {
                flush_at(engine, qp, now_ns());
            }
        }
        lock(&engine.cqs).iter().for_each(|cq| cq.deliver());
        lock(&engine.srqs).iter().for_each(|srq| srq.deliver());
        let logged = fabric.header().event_count.load(SeqCst);
        if logged != delivered {
            delivered = logged;
            deliver_logged(engine);
        }
        fabric.run_due();
        if fabric.has_stage() {
            engine.copy_server.serve(fabric);
        }
        let next = fabric.next_task();
        let timeout = (next != u64::MAX).then(|| {
            let ns = next.saturating_sub(now_ns());
            libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
        });
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the futex word lies in the mapping; the timeout outlives the call.
        unsafe { libc::syscall(libc::SYS_futex, bell.as_ptr(), libc::FUTEX_WAIT, seen, timeout, 0, 0) };
    }
}

/// Passes logged events on to the open contexts, and empties the queues of failed devices.
fn deliver_logged(engine: &'static Engine) {
    let contexts: Vec<Arc<Context>> = {
        let mut known = lock(&engine.contexts);
        known.retain(|context| context.strong_count() != 0);
        known.iter().filter_map(Weak::upgrade).collect()
    };
    contexts.iter().for_each(|context| context.deliver());
    let failed: Vec<_> = lock(&engine.qps).iter().filter(|qp| qp.pd.context.is_dead()).cloned().collect();
    for qp in failed {
        finish_failure(engine, &qp);
    }
}
