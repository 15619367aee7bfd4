//! A process's view of a fabric: the shared file, what its devices are like, and the settings of this process.
//!
//! Sharing rule: data path code of one process reads another's entries directly and writes only what `shm::slots` allows
//! a peer to write; nothing on the data path waits for another process.

use std::ops::Deref;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::limits::PROCS;
use crate::network::port;
use crate::network::topology::Topology;
use crate::process::settings::Settings;
use crate::process::timers::{Task, Timers};
use crate::shm::file::{Failure, SharedFile};
use crate::shm::process_id::slot_of;

/// This process's membership in a fabric. Lives until the process ends.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(crate) settings: Settings,
    /// What the devices are like.
    pub(crate) topology: Topology,
    pub(crate) file: SharedFile,
    /// Our [`ProcSlot::id`](crate::shm::slots::ProcSlot); 0: we only observe.
    pub(crate) me: u32,
    /// This is a forked child that inherited it: nothing may be touched.
    gone: AtomicBool,
    timers: Timers,
    /// By process slot: the process's id << 2 | how its memory is reached from here.
    pub(crate) reached: Box<[AtomicU64; PROCS]>,
}

/// The entries of the shared file are read and written through the fabric.
impl Deref for Fabric {
    type Target = SharedFile;

    fn deref(&self) -> &SharedFile {
        &self.file
    }
}

impl Fabric {
    /// The fabric in `file`, whose control lock is taken; a new one gets its topology.
    pub(crate) fn on(file: SharedFile, settings: Settings) -> Result<Self, Failure> {
        let found = Topology::load(file.header());
        let topology = match &found {
            Some(topology) => topology.admit(&settings.requested, &settings.fabric).map(|()| topology.clone()),
            // Nobody else has seen the file yet.
            None => Topology::decide(&settings.requested).inspect_err(|_| file.unlink()),
        };
        let topology = topology.map_err(|what| (what, libc::EINVAL))?;
        if found.is_none() {
            port::set_up_all(&file, &topology);
            topology.store(file.header());
        }
        Ok(Self::new(file, settings, topology))
    }

    fn new(file: SharedFile, settings: Settings, topology: Topology) -> Self {
        Self {
            settings,
            topology,
            file,
            me: 0,
            gone: AtomicBool::new(false),
            timers: Timers::default(),
            reached: Box::new([const { AtomicU64::new(0) }; PROCS]),
        }
    }

    /// A fabric that others keep, looked at from outside: takes no process slot. `None`: it makes no sense.
    pub(crate) fn observe(file: SharedFile, settings: Settings) -> Option<&'static Self> {
        let topology = Topology::load(file.header())?;
        Some(Box::leak(Box::new(Self::new(file, settings, topology))))
    }

    /// Whether nothing may be touched any more.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    /// For a forked child: what it inherited may not be touched any more.
    pub(crate) fn abandon(&self) {
        self.gone.store(true, SeqCst);
        self.file.abandon();
    }

    /// Wakes the service thread of process `id`.
    pub(crate) fn wake(&self, id: u32) {
        let slot = self.proc(slot_of(id));
        slot.bell.fetch_add(1, SeqCst);
        // SAFETY: the futex word lies in the mapping, which is never unmapped.
        unsafe { libc::syscall(libc::SYS_futex, slot.bell.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
    }

    /// Has `task` done at `at` (ns). Our service thread is woken if that is earlier than what it waits for.
    pub(crate) fn arm(&self, at: u64, task: Box<dyn Task>) {
        if self.timers.insert(at, task) {
            self.wake(self.me);
        }
    }

    /// Runs the tasks that are due.
    #[inline]
    pub(crate) fn run_due(&self) {
        self.timers.run_due();
    }

    /// When the next task is due; `u64::MAX`: never.
    pub(crate) fn next_task(&self) -> u64 {
        self.timers.next()
    }
}
