//! The fabric: one shared file that all processes of a job map. It is the state of the NICs.
//!
//! Sharing rule: data path code of one process reads another's entries directly and writes only what `layout` allows
//! a visitor to write; nothing on the data path waits for another process.

pub(crate) mod file;
pub(crate) mod holders;
pub(crate) mod layout;
pub(crate) mod process;
pub(crate) mod reach;
pub(crate) mod slots;
mod stage;
mod tables;

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::{ptr, thread};

use crate::context::Context;
use crate::engine::Server;
use crate::faults;
use crate::notice;
use crate::port;
use crate::qp::Qp;
use crate::settings::Settings;
use crate::shape::Shape;
use crate::timers::Timers;
use file::{Failure, File};
use layout::{DEVICES, PORTS, PORTS_AT, PROCS, PROCS_AT, RULES, RULES_AT, Table};
use slots::{CqSlot, Header, MrSlot, PROC_ALIVE, PortSlot, ProcSlot, QpSlot, RuleSlot};

/// This process's place in a fabric. Lives until the process ends.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(crate) settings: Settings,
    /// What the devices are like.
    pub(crate) shape: Shape,
    pub(crate) file: File,
    /// Our [`ProcSlot::id`].
    pub(crate) me: u32,
    /// This is a forked child that inherited it: nothing may be touched.
    gone: AtomicBool,
    /// All QPs of this process.
    pub(crate) qps: Mutex<Vec<Arc<Qp>>>,
    pub(crate) cqs: Mutex<Vec<Arc<crate::cq::Cq>>>,
    /// Open devices.
    pub(crate) contexts: Mutex<Vec<Weak<Context>>>,
    pub(crate) timers: Timers,
    /// By process slot: the process's id << 2 | how its memory is reached from here.
    reached: Box<[AtomicU64; PROCS]>,
    pub(crate) server: Server,
    /// Queue pairs whose head request passes through the stage.
    pub(crate) movers: Mutex<Vec<Arc<Qp>>>,
}

static CURRENT: AtomicPtr<Fabric> = AtomicPtr::new(ptr::null_mut());
static ATTACHING: AtomicBool = AtomicBool::new(false);
static HANDLERS: Once = Once::new();

impl Fabric {
    /// The fabric of this process; attaches on first use. Failures are told on standard error.
    pub(crate) fn get() -> Result<&'static Self, i32> {
        if let Some(fabric) = Self::current() {
            return Ok(fabric);
        }
        while ATTACHING.swap(true, SeqCst) {
            thread::yield_now();
        }
        let result = Self::current().map_or_else(Self::attach, Ok);
        ATTACHING.store(false, SeqCst);
        result.map_err(|(what, code)| {
            notice::say(format_args!("{what}"));
            code
        })
    }

    fn current() -> Option<&'static Self> {
        // SAFETY: set once from a leaked box, or null.
        unsafe { CURRENT.load(Acquire).as_ref() }
    }

    fn attach() -> Result<&'static Self, Failure> {
        let settings = Settings::from_env().map_err(|what| (what, libc::EINVAL))?;
        let file = File::open(&settings)?;
        let mut fabric = Self::on(file, settings)?;
        fabric.me = fabric.join()?;
        let fabric: &'static Self = Box::leak(Box::new(fabric));
        crate::service::start(fabric).map_err(|code| ("cannot start the service thread".to_owned(), code))?;
        // SAFETY: lets peers of the same user reach our memory where Yama restricts that; fails harmlessly elsewhere.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
        HANDLERS.call_once(|| {
            // SAFETY: both are plain functions of a library that is never unloaded (-z nodelete).
            unsafe {
                libc::atexit(at_exit);
                libc::pthread_atfork(None, None, Some(in_child));
            }
        });
        CURRENT.store(ptr::from_ref(fabric).cast_mut(), SeqCst);
        for name in Settings::strangers() {
            notice::say(format_args!("{name} is no setting, and is ignored; the crate page of softrnic lists them"));
        }
        if !fabric.settings.quiet {
            notice::say(format_args!(
                "a software RDMA device for tests; not for production traffic; {} device(s), fabric {}",
                fabric.shape.devices(),
                fabric.settings.shm_dir.join(&fabric.settings.fabric).display()
            ));
        }
        Ok(fabric)
    }

    /// The fabric in `file`, whose control lock is taken; a new one gets its shape.
    fn on(file: File, settings: Settings) -> Result<Self, Failure> {
        let found = Shape::load(file.header());
        let shape = match &found {
            Some(shape) => shape.admit(&settings.wish, &settings.fabric).map(|()| shape.clone()),
            // Nobody else has seen the file yet.
            None => Shape::decide(&settings.wish).inspect_err(|_| file.unlink()),
        };
        let shape = shape.map_err(|what| (what, libc::EINVAL))?;
        let fabric = Self::made_of(file, settings, shape);
        if found.is_none() {
            port::furnish(&fabric, &fabric.shape);
            fabric.shape.store(fabric.header());
        }
        Ok(fabric)
    }

    fn made_of(file: File, settings: Settings, shape: Shape) -> Self {
        Self {
            settings,
            shape,
            file,
            me: 0,
            gone: AtomicBool::new(false),
            qps: Mutex::default(),
            cqs: Mutex::default(),
            contexts: Mutex::default(),
            timers: Timers::default(),
            reached: Box::new([const { AtomicU64::new(0) }; PROCS]),
            server: Server::default(),
            movers: Mutex::default(),
        }
    }

    /// A fabric that others keep, looked at from outside: takes no process slot. `None`: it makes no sense.
    pub(crate) fn observe(file: File, settings: Settings) -> Option<&'static Self> {
        let shape = Shape::load(file.header())?;
        Some(Box::leak(Box::new(Self::made_of(file, settings, shape))))
    }

    /// Takes a process slot, with the control lock that opening left us.
    fn join(&self) -> Result<u32, Failure> {
        let control = self.file.assume_control();
        self.reap_dead(&control);
        let free = (0..PROCS).find(|&i| self.proc(i).id.load(Acquire) == 0 && self.file.hold(i));
        let Some(index) = free else {
            return Err((
                format!("the fabric has its {PROCS} processes; set SOFTRNIC_FABRIC to another"),
                libc::EUSERS,
            ));
        };
        let slot = self.proc(index);
        let id = process::id_of(index, slot.generation.fetch_add(1, SeqCst).wrapping_add(1));
        slot.life.store(0, SeqCst);
        // SAFETY: getpid has no preconditions.
        slot.pid.store(unsafe { libc::getpid() }, SeqCst);
        slot.jobs.store(0, SeqCst);
        slot.ways.store(0, SeqCst);
        slot.obstacle.store(0, SeqCst);
        slot.id_at.store((&raw const slot.id) as u64, SeqCst);
        slot.id.store(id, SeqCst);
        // Under the control lock, or the next process would take the file for a stale one.
        slot.state.store(PROC_ALIVE, SeqCst);
        faults::bring(self, &control)?;
        Ok(id)
    }

    /// Whether nothing may be touched any more.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    /// Whether `device` has failed for good.
    #[inline]
    pub(crate) fn is_failed(&self, device: usize) -> bool {
        self.header().fatal[device].load(SeqCst) != 0
    }

    pub(crate) fn header(&self) -> &'static Header {
        self.file.header()
    }

    #[inline]
    pub(crate) fn proc(&self, index: usize) -> &'static ProcSlot {
        assert!(index < PROCS);
        // SAFETY: inside the process table (checked), which has storage and consists of atomics.
        unsafe { &*self.file.base().add(PROCS_AT).cast::<ProcSlot>().add(index) }
    }

    /// Port `port` (1 or 2) of `device`.
    #[inline]
    pub(crate) fn port(&self, device: usize, port: u32) -> &'static PortSlot {
        let port = port as usize;
        assert!(device < DEVICES && (1..=PORTS).contains(&port));
        // SAFETY: inside the port table (checked), which has storage and consists of atomics.
        unsafe { &*self.file.base().add(PORTS_AT).cast::<PortSlot>().add(device * PORTS + port - 1) }
    }

    /// All places for fault rules.
    pub(crate) fn rules(&self) -> &'static [RuleSlot; RULES] {
        // SAFETY: the rule table has storage and consists of atomics.
        unsafe { &*self.file.base().add(RULES_AT).cast() }
    }

    #[inline]
    fn entry<T>(&self, table: Table, device: usize, index: u32) -> &'static T {
        assert!(device < DEVICES && index < self.header().grown[device][table as usize].load(Relaxed));
        // SAFETY: inside the part of the table that has storage (checked); `T` is the atomics-only slot type of that
        // table, by the three callers below.
        unsafe { &*self.file.base().add(table.at(device, index)).cast::<T>() }
    }

    #[inline]
    pub(crate) fn qp(&self, device: usize, index: u32) -> &'static QpSlot {
        self.entry(Table::Qp, device, index)
    }

    #[inline]
    pub(crate) fn mr(&self, device: usize, index: u32) -> &'static MrSlot {
        self.entry(Table::Mr, device, index)
    }

    #[inline]
    pub(crate) fn cq(&self, device: usize, index: u32) -> &'static CqSlot {
        self.entry(Table::Cq, device, index)
    }

    /// The QP entry that `qpn` names on `device`, if that part of the table exists.
    #[inline]
    pub(crate) fn find_qp(&self, device: usize, qpn: u32) -> Option<&'static QpSlot> {
        let index = qpn % layout::QPS;
        (index < self.header().grown[device][Table::Qp as usize].load(Relaxed)).then(|| self.qp(device, index))
    }

    /// The MR entry that `key` names on `device`, if it is valid there.
    #[inline]
    pub(crate) fn find_mr(&self, device: usize, key: u32) -> Option<&'static MrSlot> {
        let index = key >> 8;
        if index >= self.header().grown[device][Table::Mr as usize].load(Relaxed) || key == 0 {
            return None;
        }
        let mr = self.mr(device, index);
        (mr.key.load(SeqCst) == key).then_some(mr)
    }

    /// The words `[at, at + bytes)` of the ring area.
    pub(crate) fn ring_words(&self, at: u64, bytes: usize) -> Option<&'static [AtomicU64]> {
        let at = usize::try_from(at).ok()?;
        let fits = at >= layout::RINGS_AT && at.is_multiple_of(8) && at.checked_add(bytes)? <= layout::JOBS_AT;
        // SAFETY: inside the mapping and aligned (checked); the owner allocated storage before publishing the ring.
        fits.then(|| unsafe { std::slice::from_raw_parts(self.file.base().add(at).cast(), bytes / 8) })
    }
}

/// Locks a mutex of this process; a panic elsewhere does not make its data unusable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn at_exit() {
    if let Some(fabric) = Fabric::current() {
        if fabric.settings.stat {
            crate::usage::tell();
        }
        fabric.leave();
    }
}

/// After fork, in the child: what was inherited is dead; a new device list attaches anew.
extern "C" fn in_child() {
    if let Some(fabric) = Fabric::current() {
        fabric.gone.store(true, SeqCst);
        fabric.file.abandon();
    }
    CURRENT.store(ptr::null_mut(), SeqCst);
    ATTACHING.store(false, SeqCst);
}
