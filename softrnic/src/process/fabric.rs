//! A process's view of a fabric: the shared file, what its devices are like, and the settings of
//! this process.
//!
//! Sharing rule: data path code of one process reads another's entries directly and writes only
//! what `shm::slots` allows a peer to write; nothing on the data path waits for another process.

use std::ops::Deref;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;
use std::{hint, thread};

use crate::abi::types::{AhAttr, Gid};
use crate::host::{last_errno, now_ns};
use crate::limits::{PORTS, PROCS};
use crate::network::header::{GidType, TypedGid};
use crate::network::topology::{PortId, Topology};
use crate::network::{header, topology};
use crate::process::settings::{LoopbackDown, OwnPortDown, Settings};
use crate::process::tables::{Task, Timers};
use crate::shm::file::{ControlLock, Failure, SharedFile, slot_of};
use crate::shm::slots::{EVENTS, GIDS, NO_PEER, PortSlot};

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
