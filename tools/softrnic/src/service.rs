//! The service thread: one per process, asleep unless something is pending.
//!
//! It runs requests whose time has come when the application does not poll, and passes on what peers left for the
//! application's event descriptors. Its robust futex word is this process's sign of life (see `fabric::process`).

use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::mpsc;
use std::{mem, ptr, thread};

use crate::fabric::process::slot_of;
use crate::fabric::slots::ProcSlot;
use crate::fabric::{Fabric, lock};
use crate::timers::now_ns;

/// `struct robust_list_head` of the kernel.
#[repr(C)]
struct RobustHead {
    first: usize,
    futex_offset: isize,
    pending: usize,
}

/// Starts the thread; returns when its sign of life is in place.
pub(crate) fn start(fabric: &'static Fabric) -> Result<(), i32> {
    let (ready, is_ready) = mpsc::channel();
    let mask = block_signals();
    let spawned = thread::Builder::new().name("softrnic".to_owned()).spawn(move || {
        show_life(fabric.proc(slot_of(fabric.me)));
        let _ = ready.send(());
        serve(fabric);
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

fn serve(fabric: &'static Fabric) {
    let bell = &fabric.proc(slot_of(fabric.me)).bell;
    let mut heard = 0;
    loop {
        let seen = bell.load(Acquire);
        if fabric.is_gone() {
            return;
        }
        lock(&fabric.qps).iter().for_each(|qp| qp.deliver());
        lock(&fabric.cqs).iter().for_each(|cq| cq.deliver());
        let news = fabric.header().news_count.load(SeqCst);
        if news != heard {
            heard = news;
            fabric.hear();
        }
        fabric.timers.run_due(fabric);
        if fabric.has_stage() {
            fabric.server.serve(fabric);
        }
        let next = fabric.timers.next();
        let timeout = (next != u64::MAX).then(|| {
            let ns = next.saturating_sub(now_ns());
            libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
        });
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the futex word lies in the mapping; the timeout outlives the call.
        unsafe { libc::syscall(libc::SYS_futex, bell.as_ptr(), libc::FUTEX_WAIT, seen, timeout, 0, 0) };
    }
}
