//! Entries of the device tables: allocation, release, and clearing up behind the dead.
//!
//! No free list and no counters exist that a killed process could leave half-written: an entry is
//! in use when its `owner` is not 0, and everything else is derived from that.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use crate::host;
use crate::host::{lock, now_ns};
use crate::limits::{DEVICES, JOBS, PORTS, PROCS};
use crate::process::fabric::Fabric;
use crate::process::settings::Settings;
use crate::rules::load_env;
use crate::shm::file::{
    CHUNK, ControlLock, FILE_BYTES, Failure, JOBS_AT, PAGE, RINGS_AT, SharedFile, Table, id_of,
    slot_of,
};
use crate::shm::job;
use crate::shm::job::{Hold, JobSlot, state};
use crate::shm::slots::{CqSlot, MrSlot, NO_PEER, PROC_ALIVE, PROC_EXITING, ProcSlot, QpSlot};

impl Fabric {
    /// The owner word of entry `index`, if that entry has storage.
    fn owner_of(&self, table: Table, device: usize, index: u32) -> &AtomicU32 {
        match table {
            Table::Qp => &self.qp(device, index).owner,
            Table::Mr => &self.mr(device, index).owner,
            Table::Cq => &self.cq(device, index).owner,
            Table::Srq => &self.srq(device, index).owner,
        }
    }

    /// Finds a free entry below `limit` entries in use, gives it storage and marks it ours.
    pub(crate) fn claim(
        &self,
        control: &ControlLock<'_>,
        table: Table,
        device: usize,
        limit: u32,
    ) -> Result<u32, i32> {
        if self.is_failed(device) {
            return Err(libc::EIO);
        }
        match self.find_free(table, device, limit) {
            Err(libc::ENOMEM) => {
                self.reap_dead(control);
                self.find_free(table, device, limit)
            }
            found => found,
        }
        .inspect(|&index| {
            self.owner_of(table, device, index).store(self.me, SeqCst);
            self.header().hint[device][table as usize].store(index + 1, Relaxed);
            created(table);
        })
    }

    fn find_free(&self, table: Table, device: usize, limit: u32) -> Result<u32, i32> {
        let grown = &self.header().grown[device][table as usize];
        let have = grown.load(Relaxed);
        let is_free = |index: &u32| self.owner_of(table, device, *index).load(Acquire) == 0;
        if limit < table.capacity() && (0..have).filter(|i| !is_free(i)).count() >= limit as usize {
            return Err(libc::ENOMEM);
        }
        let hint = self.header().hint[device][table as usize].load(Relaxed).min(have);
        if let Some(index) = (hint..have).find(is_free).or_else(|| (0..hint).find(is_free)) {
            return Ok(index);
        }
        if have >= table.capacity() {
            return Err(libc::ENOMEM);
        }
        self.file
            .allocate(table.at(device, have), CHUNK)
            .map_err(|code| self.report_no_space(code))?;
        grown.store(have + table.per_chunk(), Release);
        Ok(have)
    }

    pub(crate) fn report_no_space(&self, code: i32) -> i32 {
        static WARNED: AtomicBool = AtomicBool::new(false);
        if !WARNED.swap(true, Relaxed) {
            host::say(format_args!(
                "no room for more shared memory in {}: {}; free some space there",
                self.settings.shm_dir.display(),
                host::errno_text(code)
            ));
        }
        libc::ENOMEM
    }

    /// Gives the entry back. Its other fields no longer matter.
    pub(crate) fn free(&self, _control: &ControlLock<'_>, table: Table, device: usize, index: u32) {
        let hint = &self.header().hint[device][table as usize];
        hint.fetch_min(index, Relaxed);
        // What a dead process left was never counted here.
        if self.owner_of(table, device, index).swap(0, SeqCst) == self.me {
            destroyed(table);
        }
    }

    /// Finds room for a receive ring and gives it storage; 0 bytes need none.
    pub(crate) fn claim_ring(&self, control: &ControlLock<'_>, bytes: usize) -> Result<u64, i32> {
        if bytes == 0 {
            return Ok(RINGS_AT as u64);
        }
        let bytes = bytes.next_multiple_of(PAGE);
        let pages = self.file.ring_pages();
        let at = pages.find(control, bytes).or_else(|| {
            self.reap_dead(control);
            pages.rebuild(control, self.rings());
            pages.find(control, bytes)
        });
        let at = at.ok_or(libc::ENOMEM)?;
        self.file.allocate(at, bytes).map_err(|code| self.report_no_space(code))?;
        pages.take(control, at, bytes);
        Ok(at as u64)
    }

    /// The receive rings in use: where each begins in the file, and its bytes.
    fn rings(&self) -> impl Iterator<Item = (usize, usize)> {
        let all =
            |table| (0..DEVICES).flat_map(move |d| self.entries(table, d).map(move |i| (d, i)));
        let of_qps = all(Table::Qp)
            .map(|(d, i)| self.qp(d, i))
            .map(|qp| (&qp.owner, &qp.ring_at, &qp.ring_bytes));
        let of_srqs = all(Table::Srq)
            .map(|(d, i)| self.srq(d, i))
            .map(|srq| (&srq.owner, &srq.ring_at, &srq.ring_bytes));
        of_qps
            .chain(of_srqs)
            .filter(|(owner, _, bytes)| owner.load(Acquire) != 0 && bytes.load(Acquire) != 0)
            .map(|(_, at, bytes)| (at.load(Acquire) as usize, bytes.load(Acquire) as usize))
    }

    /// Takes a QP entry out of the fabric. No peer enters it any more: the caller has seen to that.
    pub(crate) fn free_qp(&self, control: &ControlLock<'_>, device: usize, index: u32) {
        let qp = self.qp(device, index);
        qp.qpn.store(0, SeqCst);
        qp.peer.store(NO_PEER, SeqCst);
        self.port(device, qp.port.load(Relaxed).clamp(1, PORTS as u32)).past.absorb(&qp.sent);
        self.free_ring(control, &qp.ring_at, &qp.ring_bytes);
        self.free(control, Table::Qp, device, index);
    }

    /// Takes an SRQ entry out of the fabric. No queue pair refers to it any more.
    pub(crate) fn free_srq(&self, control: &ControlLock<'_>, device: usize, index: u32) {
        let srq = self.srq(device, index);
        self.free_ring(control, &srq.ring_at, &srq.ring_bytes);
        self.free(control, Table::Srq, device, index);
    }

    fn free_ring(&self, control: &ControlLock<'_>, at: &AtomicU64, bytes: &AtomicU32) {
        let (at, bytes) = (at.load(Relaxed) as usize, bytes.swap(0, SeqCst) as usize);
        if bytes != 0 {
            self.file.release(at, bytes.next_multiple_of(PAGE));
            self.file.ring_pages().give_back(control, at, bytes);
        }
    }

    /// Frees all that dead processes left, except what a live one is still working on.
    pub(crate) fn reap_dead(&self, control: &ControlLock<'_>) {
        for index in 0..PROCS {
            let proc = self.proc(index);
            let id = proc.id.load(Acquire);
            if id == 0 || id == self.me || self.file.is_held(index) {
                continue;
            }
            if self.reap(control, id) {
                proc.state.store(0, SeqCst);
                proc.id.store(0, SeqCst);
            }
        }
    }

    /// Frees the entries of process `id`; false if a live process is still in one of its QPs.
    fn reap(&self, control: &ControlLock<'_>, id: u32) -> bool {
        let mut clean = true;
        for device in 0..DEVICES {
            for index in self.entries(Table::Qp, device) {
                let qp: &QpSlot = self.qp(device, index);
                if qp.owner.load(Acquire) != id {
                    continue;
                }
                qp.state.store(crate::abi::types::qp_state::RESET, SeqCst);
                if self.is_entered(qp) {
                    clean = false;
                } else {
                    self.free_qp(control, device, index);
                }
            }
        }
        if !clean {
            return false;
        }
        for device in 0..DEVICES {
            for index in self.entries(Table::Mr, device) {
                let mr: &MrSlot = self.mr(device, index);
                if mr.owner.load(Acquire) == id {
                    mr.key.store(0, SeqCst);
                    self.free(control, Table::Mr, device, index);
                }
            }
            for index in self.entries(Table::Srq, device) {
                if self.srq(device, index).owner.load(Acquire) == id {
                    self.free_srq(control, device, index);
                }
            }
            for index in self.entries(Table::Cq, device) {
                let cq: &CqSlot = self.cq(device, index);
                if cq.owner.load(Acquire) == id {
                    self.free(control, Table::Cq, device, index);
                }
            }
        }
        true
    }
}

/// A number and the highest it has been.
#[derive(Debug, Default)]
struct Gauge {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    const fn new() -> Self {
        Self { now: AtomicU64::new(0), peak: AtomicU64::new(0) }
    }

    fn add(&self, count: u64) {
        let now = self.now.fetch_add(count, Relaxed) + count;
        self.peak.fetch_max(now, Relaxed);
    }

    fn take(&self, count: u64) {
        self.now.fetch_sub(count, Relaxed);
    }
}

/// By [`Table`].
static OBJECTS: [Gauge; 4] = [const { Gauge::new() }; 4];
static REGISTERED_BYTES: Gauge = Gauge::new();
/// By [`RegKind`].
static REGIONS: [Gauge; 3] = [const { Gauge::new() }; 3];

/// How memory was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegKind {
    Host,
    GpuByAddress,
    GpuByDmabuf,
}

/// An object of `table` came to be.
pub(crate) fn created(table: Table) {
    OBJECTS[table as usize].add(1);
}

/// An object of `table` is gone.
pub(crate) fn destroyed(table: Table) {
    OBJECTS[table as usize].take(1);
}

/// So many bytes have been registered.
pub(crate) fn registered(bytes: usize, way: RegKind) {
    REGISTERED_BYTES.add(bytes as u64);
    REGIONS[way as usize].add(1);
}

/// So many bytes have been deregistered.
pub(crate) fn deregistered(bytes: usize, way: RegKind) {
    REGISTERED_BYTES.take(bytes as u64);
    REGIONS[way as usize].take(1);
}

/// Prints it.
pub(crate) fn print() {
    let peak = |table: Table| OBJECTS[table as usize].peak.load(Relaxed);
    let regions = |way: RegKind| REGIONS[way as usize].peak.load(Relaxed);
    host::say(format_args!(
        "at most {} queue pairs, {} completion queues, {} memory regions of {} bytes; GPU memory {} by address, {} by dma-buf",
        peak(Table::Qp),
        peak(Table::Cq),
        peak(Table::Mr),
        REGISTERED_BYTES.peak.load(Relaxed),
        regions(RegKind::GpuByAddress),
        regions(RegKind::GpuByDmabuf)
    ));
}

/// Work with a time.
pub(crate) trait Task: Debug + Send {
    /// Does it.
    fn run(self: Box<Self>);
}

/// Tasks by time.
#[derive(Debug)]
pub(crate) struct Timers {
    /// Earliest time in `tasks`; `u64::MAX` if there is none.
    next: AtomicU64,
    /// Key: time, and a serial number that keeps tasks of the same time apart.
    tasks: Mutex<BTreeMap<(u64, u64), Box<dyn Task>>>,
    serial: AtomicU64,
}

impl Default for Timers {
    fn default() -> Self {
        Self { next: AtomicU64::new(u64::MAX), tasks: Mutex::default(), serial: AtomicU64::new(0) }
    }
}

impl Timers {
    /// Adds `task`, to be done at `at` (ns). True if it is the earliest now.
    pub(crate) fn insert(&self, at: u64, task: Box<dyn Task>) -> bool {
        let mut tasks = lock(&self.tasks);
        tasks.insert((at, self.serial.fetch_add(1, Relaxed)), task);
        let is_earliest = at < self.next.load(Relaxed);
        if is_earliest {
            self.next.store(at, SeqCst);
        }
        is_earliest
    }

    /// When the next task is due; `u64::MAX`: never.
    pub(crate) fn next(&self) -> u64 {
        self.next.load(SeqCst)
    }

    /// Runs the tasks that are due.
    #[inline]
    pub(crate) fn run_due(&self) {
        let next = self.next.load(Relaxed);
        if next != u64::MAX && next <= now_ns() {
            self.run();
        }
    }

    #[cold]
    fn run(&self) {
        let mut tasks = lock(&self.tasks);
        let later = tasks.split_off(&(now_ns() + 1, 0));
        let due = std::mem::replace(&mut *tasks, later);
        self.next.store(tasks.keys().next().map_or(u64::MAX, |key| key.0), SeqCst);
        drop(tasks);
        due.into_values().for_each(|task| task.run());
    }
}

impl Fabric {
    /// Gives the slots and their bytes storage, once for the whole fabric.
    pub(crate) fn open_stage(&self) -> Result<(), i32> {
        if self.has_stage() {
            return Ok(());
        }
        let _control = self.file.control();
        self.file
            .allocate(JOBS_AT, FILE_BYTES - JOBS_AT)
            .map_err(|code| self.report_no_space(code))?;
        self.header().is_staging.store(1, SeqCst);
        Ok(())
    }

    /// Takes a free slot, or one whose owner has died.
    pub(crate) fn claim_job(&self) -> Option<usize> {
        (0..JOBS).find(|&index| {
            let slot = &self.jobs()[index];
            let seen = slot.hold();
            let mine =
                Hold { owner: self.me, serial: seen.serial.wrapping_add(1), state: state::IDLE };
            self.is_abandoned(slot, seen) && slot.change(seen, mine)
        })
    }

    /// Whether nobody holds the slot and nobody copies to or from its bytes.
    pub(crate) fn is_abandoned(&self, slot: &JobSlot, seen: Hold) -> bool {
        let copies = |id: u32| self.file.is_helped(slot_of(id));
        let lives = |id: u32| id == self.me || self.live_process(id).is_some() || copies(id);
        match seen.state {
            0 => true,
            state::ORPHANED => !lives(slot.target.load(SeqCst)),
            state::TAKEN => !lives(seen.owner) && !lives(slot.target.load(SeqCst)),
            _ => !lives(seen.owner),
        }
    }

    /// Jobs that wait for process `target` or are being done by it.
    pub(crate) fn jobs_for(&self, target: u32) -> usize {
        let is_busy = |slot: &&JobSlot| {
            matches!(slot.hold().state, state::POSTED | state::TAKEN | state::ORPHANED)
        };
        self.jobs()
            .iter()
            .filter(is_busy)
            .filter(|slot| slot.target.load(Relaxed) == target)
            .count()
    }
}

// Which processes take part in the fabric, and which of them are alive.
//
// Two signs of life: a record lock (the authority, for the control path) and a robust futex word
// that the kernel marks when the service thread dies with its process, however that happens. The
// latter costs a peer one load.

/// Whether `slot` still is process `id` and has not died.
pub(crate) fn is_alive(slot: &ProcSlot, id: u32) -> bool {
    slot.life.load(Acquire) & libc::FUTEX_OWNER_DIED == 0 && slot.id.load(Acquire) == id
}

impl Fabric {
    /// Whether the process in slot `index` takes part, and is neither in its exit handlers nor
    /// dying. The kernel drops the lock of a process that dies after it may have closed its
    /// sockets, from which a peer hears of the death; it marks the word before.
    pub(crate) fn takes_part(&self, index: usize) -> bool {
        let slot = self.proc(index);
        slot.state.load(Acquire) == PROC_ALIVE
            && is_alive(slot, slot.id.load(Acquire))
            && self.file.is_held(index)
    }

    /// The process `id`, if it lives.
    pub(crate) fn live_process(&self, id: u32) -> Option<&'static ProcSlot> {
        let slot = self.proc(slot_of(id));
        is_alive(slot, id).then_some(slot)
    }

    /// Whether a live process is executing against `qp` right now.
    pub(crate) fn is_entered(&self, qp: &QpSlot) -> bool {
        let busy = qp.busy.load(SeqCst);
        busy != 0 && self.live_process(busy as u32).is_some()
    }

    /// Waits until the process that executes against `qp` at this moment has left, or died. The
    /// caller has first changed what a later one will find.
    pub(crate) fn await_remote(&self, qp: &QpSlot) {
        job::await_clear(&qp.busy, |holder| self.live_process(holder as u32).is_some());
    }
}

impl Fabric {
    /// Joins the fabric that the environment names.
    pub(crate) fn attach() -> Result<&'static Self, Failure> {
        let settings = Settings::from_env().map_err(|what| (what, libc::EINVAL))?;
        let file = SharedFile::open(&settings.shm_dir, &settings.fabric)?;
        let mut fabric = Self::on(file, settings)?;
        fabric.me = fabric.join()?;
        Ok(Box::leak(Box::new(fabric)))
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
        let id = id_of(index, slot.generation.fetch_add(1, SeqCst).wrapping_add(1));
        slot.life.store(0, SeqCst);
        // SAFETY: getpid has no preconditions.
        slot.pid.store(unsafe { libc::getpid() }, SeqCst);
        slot.jobs.store(0, SeqCst);
        slot.ways.store(0, SeqCst);
        slot.obstacle.store(0, SeqCst);
        slot.port_queries.store(0, SeqCst);
        slot.commands.iter().for_each(|count| count.store(0, SeqCst));
        slot.id_at.store((&raw const slot.id) as u64, SeqCst);
        slot.id.store(id, SeqCst);
        // Under the control lock, or the next process would take the file for a stale one.
        slot.state.store(PROC_ALIVE, SeqCst);
        load_env(
            self,
            &control,
            &self.topology,
            self.settings.faults.as_deref(),
            self.settings.seed,
        )?;
        Ok(id)
    }

    /// The process is about to exit: the last one removes the file. All still works until it is
    /// really gone.
    pub(crate) fn leave(&self) {
        let _control = self.file.control();
        self.proc(slot_of(self.me)).state.store(PROC_EXITING, SeqCst);
        if !(0..PROCS).any(|index| index != slot_of(self.me) && self.takes_part(index)) {
            self.file.unlink();
        }
    }
}
