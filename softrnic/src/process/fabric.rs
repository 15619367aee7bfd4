//! A process's view of a fabric: the shared file, what its devices are like, and the settings of
//! this process; entries of the device tables: allocation, release, and removal after a death.
//!
//! Sharing rule: data path code of one process reads another's entries directly and writes only
//! what `shm::slots` allows a peer to write; nothing on the data path waits for another process.
//!
//! No free list and no counters exist that a killed process could leave half-written: an entry is
//! in use when its `owner` is not 0, and everything else is derived from that.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;
use std::{hint, thread};

use crate::abi::types::{AhAttr, Gid};
use crate::host;
use crate::host::{last_errno, lock, now_ns};
use crate::limits::{DEVICES, JOBS, PORTS, PROCS};
use crate::network::header::{GidType, TypedGid};
use crate::network::topology::{PortId, Topology};
use crate::network::{header, topology};
use crate::process::settings::{LoopbackDown, OwnPortDown, Settings};
use crate::rules::load_env;
use crate::shm::file::{
    CHUNK, ControlLock, FILE_BYTES, Failure, JOBS_AT, PAGE, RINGS_AT, SharedFile, Table, id_of,
    slot_of,
};
use crate::shm::job;
use crate::shm::job::{Hold, JobSlot, state};
use crate::shm::slots::{
    CqSlot, EVENTS, GIDS, MrSlot, NO_PEER, PROC_ALIVE, PROC_EXITING, PortSlot, ProcSlot, QpSlot,
};

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
            Some(topology) => {
                topology.admit(&settings.requested, &settings.fabric).map(|()| topology.clone())
            }
            // Nobody else has seen the file yet.
            None => Topology::decide(&settings.requested).inspect_err(|_| file.unlink()),
        };
        let topology = topology.map_err(|what| (what, libc::EINVAL))?;
        if found.is_none() {
            topology::set_up_all(&file, &topology);
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

    /// A fabric that others keep, looked at from outside: takes no process slot. `None`: it makes
    /// no sense.
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
        unsafe {
            libc::syscall(libc::SYS_futex, slot.bell.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0)
        };
    }

    /// Has `task` done at `at` (ns). Our service thread is woken if that is earlier than what it
    /// waits for.
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

impl Fabric {
    /// Waits as long as address resolution tries to find an address; false if it does not try.
    #[cold]
    pub(crate) fn await_address(&self) -> bool {
        let time =
            Duration::from_millis(self.settings.resolve_ms).mul_f64(self.settings.time_scale);
        thread::sleep(time);
        !time.is_zero()
    }
}

/// The global part of an address vector.
#[derive(Clone, Copy, Debug)]
struct Global {
    index: usize,
    source: TypedGid,
    target: Gid,
    flow_label: u32,
}

/// A way through the network.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Route {
    from: PortId,
    /// `None`: leads nowhere.
    to: Option<PortId>,
    global: Option<Global>,
    lid: u16,
    mtu_bytes: u32,
    /// It leads from a queue pair back to the same.
    is_loop: bool,
    /// The state of the network by which it was checked; see
    /// [`Header::changes`](crate::shm::slots::Header).
    checked_at: u64,
    /// Messages below this size get through.
    limit: u64,
    /// Its own end alone keeps packets from leaving, and the device says so.
    is_refused: bool,
}

impl Route {
    /// The way that an address vector describes. RoCE resolves the address, as the kernel does;
    /// InfiniBand believes it.
    pub(crate) fn find(fabric: &Fabric, from: PortId, vector: &AhAttr) -> Result<Self, i32> {
        Self::begin(fabric, from, vector)?.resolve(fabric)
    }

    /// As [`Self::find`], for datagrams, which may be for a group: nobody gets these.
    pub(crate) fn of_datagrams(
        fabric: &Fabric,
        from: PortId,
        vector: &AhAttr,
    ) -> Result<Self, i32> {
        let route = Self::begin(fabric, from, vector)?;
        if route.global.is_some_and(|global| header::is_multicast(&global.target)) {
            return Ok(route);
        }
        route.resolve(fabric)
    }

    /// What the vector says.
    fn begin(fabric: &Fabric, from: PortId, vector: &AhAttr) -> Result<Self, i32> {
        if u32::from(vector.port_num) != from.port {
            return Err(libc::EINVAL);
        }
        let mine = fabric.port(from.device, from.port);
        let mut route = Self { from, lid: vector.dlid, checked_at: u64::MAX, ..Self::default() };
        if vector.is_global != 0 {
            let index = usize::from(vector.sgid_index);
            // As in the kernel: an entry that is empty has another errno than one beyond the table,
            // on every device.
            let source =
                mine.gid(index).ok_or(if index < GIDS { libc::ENODATA } else { libc::EINVAL })?;
            let mut target = [0; 16];
            target[..8].copy_from_slice(&vector.dgid[0].to_ne_bytes());
            target[8..].copy_from_slice(&vector.dgid[1].to_ne_bytes());
            route.global = Some(Global { index, source, target, flow_label: vector.flow_label });
        }
        if mine.is_infiniband() {
            return Ok(route);
        }
        let global = route.global.ok_or(libc::EINVAL)?;
        if header::is_mapped(&global.source.gid) != header::is_mapped(&global.target) {
            return Err(libc::EINVAL);
        }
        Ok(route)
    }

    /// Finds the port that has the address. Where nobody answers, that takes as long as
    /// `SOFTRNIC_RESOLVE_MS` says, and is looked at once more.
    fn resolve(self, fabric: &Fabric) -> Result<Self, i32> {
        match self.look_up(fabric) {
            Err(libc::ETIMEDOUT) if fabric.await_address() => self.look_up(fabric),
            found => found,
        }
    }

    fn look_up(mut self, fabric: &Fabric) -> Result<Self, i32> {
        let mine = fabric.port(self.from.device, self.from.port);
        if mine.is_infiniband() {
            let lid = u32::from(self.lid);
            self.to =
                self.find_port(fabric, |slot| slot.is_infiniband() && slot.lid.load(SeqCst) == lid);
            return Ok(self);
        }
        let target = self.global.map(|global| global.target).ok_or(libc::EINVAL)?;
        let bits = fabric.settings.network_bits;
        if self.global.is_some_and(|global| header::are_apart(&global.source.gid, &target, bits)) {
            return Err(libc::ETIMEDOUT);
        }
        self.to = self.find_port(fabric, |slot| !slot.is_infiniband() && slot.has_gid(&target));
        // What address resolution says where nobody answers.
        let theirs = self.to.map(|to| fabric.port(to.device, to.port)).ok_or(libc::ETIMEDOUT)?;
        if mine.is_active() && theirs.is_active() { Ok(self) } else { Err(libc::ETIMEDOUT) }
    }

    fn find_port(&self, fabric: &Fabric, is_it: impl Fn(&PortSlot) -> bool) -> Option<PortId> {
        let topology = &fabric.topology;
        let all = (0..topology.devices())
            .flat_map(|device| (1..=topology.ports()).map(move |port| PortId { device, port }));
        all.into_iter().find(|port| is_it(fabric.port(port.device, port.port)))
    }

    /// The same way with packets of up to `mtu_bytes`.
    pub(crate) fn with_mtu(self, mtu_bytes: u32) -> Self {
        Self { mtu_bytes, checked_at: u64::MAX, ..self }
    }

    /// The same way, which leads from a queue pair back to the same if `is_loop`.
    pub(crate) fn looped(self, is_loop: bool) -> Self {
        Self { is_loop, ..self }
    }

    /// The name of the queue pair at its end.
    pub(crate) fn peer(&self, qpn: u32) -> u64 {
        self.to.map_or(NO_PEER, |to| to.qp_name(qpn))
    }

    /// The addresses of a global vector: the sender's, with what its packets look like, and the
    /// target's.
    pub(crate) fn addresses(&self) -> Option<(TypedGid, Gid)> {
        self.global.map(|global| (global.source, global.target))
    }

    /// Where it leads, if anywhere.
    pub(crate) fn to(&self) -> Option<PortId> {
        self.to
    }

    /// Which of the paths of the sending port the packets of queue pair `local` take to `remote` of
    /// the port where this leads; `None`: there is but one way, or none. InfiniBand does not choose
    /// by a hash.
    pub(crate) fn path(&self, fabric: &Fabric, local: u32, remote: u32) -> Option<u32> {
        let paths = fabric.topology.paths();
        let Global { source, target, flow_label, .. } = self.global?;
        let is_within_port = self.to? == self.from;
        if paths == 0
            || is_within_port
            || fabric.port(self.from.device, self.from.port).is_infiniband()
        {
            return None;
        }
        let port = match source.kind {
            GidType::RoceV2 => header::udp_source_port(flow_label, local, remote),
            // Version 1 has no UDP header.
            GidType::Plain => 0,
        };
        Some(header::path(&source.gid, &target, port, paths))
    }

    /// Numbers a new connection among those that go this way.
    pub(crate) fn take_flow(&self, fabric: &Fabric) -> u32 {
        let row = |end: PortId| end.device * PORTS + end.port as usize - 1;
        self.to.map_or(0, |to| fabric.header().flows[row(self.from)][row(to)].fetch_add(1, SeqCst))
    }

    /// Checks the route anew if the network has changed since.
    #[inline]
    pub(crate) fn refresh(&mut self, fabric: &Fabric) {
        if fabric.header().changes.load(Acquire) != self.checked_at {
            self.check(fabric);
        }
    }

    /// Whether a message of so many bytes gets through, by the last [`Self::refresh`].
    #[inline]
    pub(crate) fn carries(&self, bytes: u64) -> bool {
        bytes < self.limit
    }

    /// Whether sending ends in an error at once, by the last [`Self::refresh`].
    #[inline]
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused
    }

    #[cold]
    fn check(&mut self, fabric: &Fabric) {
        self.checked_at = fabric.header().changes.load(Acquire);
        (self.limit, self.is_refused) = (0, false);
        let Some(to) = self.to else { return };
        let (mine, theirs) =
            (fabric.port(self.from.device, self.from.port), fabric.port(to.device, to.port));
        // Packets to the same queue pair do not leave the device.
        let is_inside = self.is_loop && fabric.settings.loopback_down == LoopbackDown::Answered;
        let is_up = (is_inside || mine.is_active() && theirs.is_active())
            && !fabric.is_failed(self.from.device)
            && !fabric.is_failed(to.device);
        let has_source =
            self.global.is_none_or(|global| mine.gid(global.index) == Some(global.source));
        let is_found = has_source
            && self.global.is_none_or(|global| {
                // The sender's entry gives the wire format; the receiver looks for its address in
                // that format.
                theirs.answers_to(&TypedGid { gid: global.target, kind: global.source.kind })
            });
        let is_cut_off = !is_inside && !mine.is_active() || !has_source;
        self.is_refused = is_cut_off
            && !fabric.is_failed(self.from.device)
            && fabric.settings.own_port_down == OwnPortDown::Fails;
        let is_near = !mine.is_infiniband() || theirs.lid.load(SeqCst) == u32::from(self.lid);
        if is_up && is_found && is_near {
            let narrowest = topology::mtu_bytes(mine.mtu.load(SeqCst).min(theirs.mtu.load(SeqCst)));
            // Packets are as large as both ends agreed; a port in between that takes only smaller
            // ones drops them.
            self.limit =
                if self.mtu_bytes <= narrowest { u64::MAX } else { u64::from(narrowest) + 1 };
        }
    }
}

// Whether the memory of another process can be reached from here.
//
// It takes the same user, one process id namespace, and a sandbox that allows it. Where one is
// missing copies are staged. A process number of another namespace may be another program's here;
// so we look for what only the right one has at the right place: its id in this fabric.

/// [`ProcSlot::ways`](crate::shm::slots::ProcSlot): directly.
pub(crate) const DIRECT: u32 = 1;
/// As above: staged.
pub(crate) const STAGED: u32 = 2;

impl Fabric {
    /// Whether copies to and from process `id`, number `pid`, go directly.
    #[inline]
    pub(crate) fn reaches(&self, id: u32, pid: i32) -> bool {
        let known = &self.reached[slot_of(id)];
        let seen = known.load(Relaxed);
        if seen >> 2 == u64::from(id) { seen & 3 == u64::from(DIRECT) } else { self.probe(id, pid) }
    }

    #[cold]
    fn probe(&self, id: u32, pid: i32) -> bool {
        let way = match self.try_to_read(id, pid) {
            Ok(()) => DIRECT,
            Err(code) => {
                self.proc(slot_of(self.me)).obstacle.store(code as u32, Relaxed);
                STAGED
            }
        };
        self.proc(slot_of(self.me)).ways.fetch_or(way, Relaxed);
        self.reached[slot_of(id)].store(u64::from(id) << 2 | u64::from(way), Relaxed);
        way == DIRECT
    }

    fn try_to_read(&self, id: u32, pid: i32) -> Result<(), i32> {
        if self.settings.staged {
            // As if it were forbidden.
            return Err(libc::EPERM);
        }
        let mut found = 0u32;
        let ours = libc::iovec { iov_base: (&raw mut found).cast(), iov_len: 4 };
        let at = self.proc(slot_of(id)).id_at.load(Acquire);
        let theirs = libc::iovec { iov_base: at as *mut _, iov_len: 4 };
        // SAFETY: writes four bytes to `found`; the kernel checks the address it reads.
        let got =
            unsafe { libc::process_vm_readv(pid, &raw const ours, 1, &raw const theirs, 1, 0) };
        match got {
            4 if found == id => Ok(()),
            4 => Err(libc::ESRCH),
            _ => Err(last_errno()),
        }
    }
}

/// A kind of command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    CreateQp,
    ModifyQp,
    DestroyQp,
    CreateCq,
    DestroyCq,
    RegisterMr,
    DeregisterMr,
    AllocPd,
    AllocTd,
}

/// A sleep ends so much too late, at most, where the kernel adds no slack of its own.
const LATE_NS: u64 = 20_000;

impl Fabric {
    /// This process has queried a port.
    pub(crate) fn count_port_query(&self) {
        self.proc(slot_of(self.me)).port_queries.fetch_add(1, Relaxed);
    }

    /// This process has had the card of `device` carry out a command. Returns when the card has
    /// done so: commands of all processes are carried out one after the other, and each takes as
    /// long as `SOFTRNIC_COMMAND_US` of its process says.
    pub(crate) fn carry_out(&self, device: usize, command: Command) {
        self.proc(slot_of(self.me)).commands[command as usize].fetch_add(1, Relaxed);
        let ns = self.settings.command_us * 1000;
        if ns == 0 {
            return;
        }
        let card = device - device % self.topology.devices_on_card();
        let (now, busy_until) = (now_ns(), &self.header().busy_until[card]);
        let begin = busy_until.fetch_update(SeqCst, SeqCst, |until| Some(until.max(now) + ns));
        wait_until(begin.map_or(now, |until| until.max(now)) + ns);
    }
}

/// Sleeps, as the caller of a real command does, and spins for the last microseconds.
fn wait_until(end: u64) {
    let left = end.saturating_sub(now_ns());
    if left > LATE_NS {
        // The slack of a thread is 50 us by default: too much beside a command.
        // SAFETY: reads a number of the calling thread.
        let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) } as libc::c_ulong;
        // SAFETY: writes it.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
        thread::sleep(Duration::from_nanos(left - LATE_NS));
        // SAFETY: as above.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack) };
    }
    while now_ns() < end {
        hint::spin_loop();
    }
}

// The log of port and device events. The process that changes a port or device adds an event; every
// process that has the device open reads it.

/// One event. Port 0: it concerns the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortEvent {
    pub(crate) kind: u32,
    pub(crate) port: PortId,
}

impl PortEvent {
    fn to_word(self) -> u64 {
        u64::from(self.kind) | (self.port.device as u64) << 8 | u64::from(self.port.port) << 16
    }

    fn from_word(word: u64) -> Self {
        let [kind, device, port, ..] = word.to_le_bytes();
        Self {
            kind: u32::from(kind),
            port: PortId { device: usize::from(device), port: u32::from(port) },
        }
    }
}

impl Fabric {
    /// Has every route checked anew. The caller has made the change already.
    pub(crate) fn note_change(&self, _control: &ControlLock<'_>) {
        self.header().changes.fetch_add(1, SeqCst);
    }

    /// Adds an event and wakes all processes. The change itself can be seen already.
    pub(crate) fn log_event(&self, _control: &ControlLock<'_>, event: PortEvent) {
        let header = self.header();
        let number = header.event_count.load(SeqCst);
        header.events[number as usize % EVENTS].store(event.to_word(), SeqCst);
        header.event_count.store(number + 1, SeqCst);
        for id in (0..PROCS).map(|index| self.proc(index).id.load(SeqCst)).filter(|&id| id != 0) {
            self.wake(id);
        }
    }

    /// Events since number `since`, and the number to ask from next time. Only the last [`EVENTS`]
    /// are kept.
    pub(crate) fn events_since(&self, since: u64) -> (Vec<PortEvent>, u64) {
        let header = self.header();
        let count = header.event_count.load(SeqCst);
        let oldest = since.max(count.saturating_sub(EVENTS as u64));
        let words =
            (oldest..count).map(|number| header.events[number as usize % EVENTS].load(SeqCst));
        (words.map(PortEvent::from_word).collect(), count)
    }
}

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
