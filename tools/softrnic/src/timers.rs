//! What has to be done later: by a poll of the application or by the service thread, whoever comes first.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use crate::engine::{self, Ghost};
use crate::fabric::{Fabric, lock};
use crate::qp::Qp;

/// Monotonic time in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Work with a time.
#[derive(Debug)]
pub(crate) enum Task {
    /// A send queue that waits for something.
    Pump(Arc<Qp>),
    /// A QP that fails, whose queues are to be flushed even if nobody polls.
    Flush(Arc<Qp>),
    /// A packet that lingers in the network.
    Arrive(Box<Ghost>),
    /// Staged copies for others that are under way.
    Serve,
    /// Device and port that come up again.
    PortUp(usize, u32),
}

/// Tasks by time.
#[derive(Debug)]
pub(crate) struct Timers {
    /// Earliest time in `tasks`; `u64::MAX` if there is none.
    next: AtomicU64,
    /// Key: time, and a serial number that keeps tasks of the same time apart.
    tasks: Mutex<BTreeMap<(u64, u64), Task>>,
    serial: AtomicU64,
    /// A look at staged copies is among the tasks.
    is_serving: AtomicBool,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            next: AtomicU64::new(u64::MAX),
            tasks: Mutex::default(),
            serial: AtomicU64::new(0),
            is_serving: AtomicBool::new(false),
        }
    }
}

impl Timers {
    /// Has `task` done at `at` (ns). The service thread is woken if that is earlier than what it waits for.
    pub(crate) fn arm(&self, fabric: &Fabric, at: u64, task: Task) {
        let mut tasks = lock(&self.tasks);
        tasks.insert((at, self.serial.fetch_add(1, Relaxed)), task);
        if at < self.next.load(Relaxed) {
            self.next.store(at, SeqCst);
            drop(tasks);
            fabric.ring(fabric.me);
        }
    }

    /// Has staged copies looked at again at `at`, if that is not arranged yet.
    pub(crate) fn arm_serving(&self, fabric: &Fabric, at: u64) {
        if !self.is_serving.swap(true, SeqCst) {
            self.arm(fabric, at, Task::Serve);
        }
    }

    /// When the next task is due; `u64::MAX`: never.
    pub(crate) fn next(&self) -> u64 {
        self.next.load(SeqCst)
    }

    /// Works off what is due.
    #[inline]
    pub(crate) fn run_due(&self, fabric: &'static Fabric) {
        let next = self.next.load(Relaxed);
        if next != u64::MAX && next <= now_ns() {
            self.run(fabric);
        }
    }

    #[cold]
    fn run(&self, fabric: &'static Fabric) {
        let mut tasks = lock(&self.tasks);
        let later = tasks.split_off(&(now_ns() + 1, 0));
        let due = std::mem::replace(&mut *tasks, later);
        self.next.store(tasks.keys().next().map_or(u64::MAX, |key| key.0), SeqCst);
        drop(tasks);
        for task in due.into_values() {
            match task {
                Task::Pump(qp) => engine::wake(&qp),
                Task::Flush(qp) => qp.see_failure_through(),
                Task::Arrive(ghost) => ghost.arrive(fabric),
                Task::Serve => {
                    self.is_serving.store(false, SeqCst);
                    fabric.server.serve(fabric);
                }
                Task::PortUp(device, port) => crate::faults::raise_port(fabric, device, port),
            }
        }
    }
}
