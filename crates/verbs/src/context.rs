//! Open devices: their asynchronous events, and queries of their ports: state, GID table, speed.

use super::library::Library;
use super::queue_failure::QueueFailure;
use super::sys::{ibv_gid_entry, ibv_port_attr};
use super::{clock, create, extended_call, sys};
use crate::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// An open RDMA device.
///
/// Forked children keep neither its descriptors nor its mappings (`net::control::fork` of the
/// plugin). Otherwise the kernel would keep the queue pairs alive after the death of this process,
/// for as long as a child lives, and they would still acknowledge.
#[derive(Debug)]
pub struct Context {
    raw: *mut sys::ibv_context,
    name: String,
    /// GUID of the device, which is the same when it is lost and comes back; 0 if it has none.
    guid: u64,
    /// Whether no other device in the list had the same GUID when it was opened.
    has_own_guid: bool,
    port_changes: AtomicU32,
    /// How many threads are reading an event.
    readers: AtomicU32,
    ports: KnownPorts,
    /// When it reported its loss.
    failed: OnceLock<Instant>,
    /// Whether its queue pairs can be queried, once that was tried.
    answers_queries: OnceLock<bool>,
    pub(super) library: Arc<Library>,
}

// SAFETY: libibverbs locks inside; its contexts may be used by any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// A device that could not be opened.
#[derive(Debug)]
pub struct NotOpened {
    /// Its name.
    pub name: String,
    /// Why.
    pub error: Error,
}

/// What `ibv_query_device` returns.
#[derive(Debug, Clone, Copy)]
pub struct DeviceAttributes {
    /// GUID of the card, in the byte order of the verbs, as NCCL's built-in transport reports it.
    pub system_image_guid: u64,
    /// Number of ports. The first one is port 1.
    pub port_count: u8,
    /// The most queue pairs of the device.
    pub max_queue_pairs: i32,
    /// The most memory regions of the device.
    pub max_memory_regions: i32,
    /// Version of the firmware, as the device reports it.
    pub firmware: [u8; 64],
}

/// An asynchronous event of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AsyncEvent {
    /// Port `0` came up.
    PortActive(u8),
    /// Port `0` went down.
    PortDown(u8),
    /// The GIDs of port `0` changed.
    GidChange(u8),
    /// The LID of port `0` changed.
    LidChange(u8),
    /// The device is lost.
    DeviceFatal,
    /// The completion queue with this [`id`](super::completion_queue::CompletionQueue::id) has
    /// failed and reports nothing more.
    CompletionQueueError(u64),
    /// A queue pair has failed, which its completions also show. The text names the event.
    QueuePairError(&'static str),
    /// An event of this number, which needs no action.
    Other(i32),
}

/// What `ibv_query_port` returns.
#[derive(Debug, Clone, Copy)]
pub struct PortAttributes {
    /// Whether the port is in state ACTIVE.
    pub active: bool,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// Whether packets need a global route header (GIDs) even within an InfiniBand subnet.
    pub grh_required: bool,
    /// Local identifier (InfiniBand).
    pub lid: u16,
    /// MTU as `enum ibv_mtu`: 1 = 256 … 5 = 4096 bytes.
    pub mtu: u8,
    /// The largest MTU that the port supports, with the same codes.
    pub max_mtu: u8,
    /// LID of the subnet manager (InfiniBand); 0 if none.
    pub sm_lid: u16,
    /// Entries of the GID table.
    pub gid_count: i32,
    /// Entries of the partition key table.
    pub pkey_count: u16,
    /// Speed of one lane, as the bit mask of `active_speed`.
    pub speed: u32,
    /// Whether `speed` may stand for a higher one: the kernel then reports the maximum of the older
    /// field.
    pub speed_may_be_higher: bool,
    /// Number of lanes, as the bit mask of `active_width`.
    pub width: u8,
}

/// The highest bit of `active_speed`: NDR, 100 Gb/s a lane.
const HIGHEST_OLD_SPEED: u8 = 128;

/// Link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: packets are RoCE.
    Ethernet,
    /// Another or an unspecified one, with the device's number for it.
    Other(u8),
}

impl LinkLayer {
    fn from_raw(number: u8) -> Self {
        match number {
            sys::IBV_LINK_LAYER_INFINIBAND => Self::InfiniBand,
            sys::IBV_LINK_LAYER_ETHERNET => Self::Ethernet,
            other => Self::Other(other),
        }
    }
}

/// An entry of a GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gid {
    /// The GID.
    pub bytes: [u8; 16],
    /// RoCE version, if libibverbs reports it.
    pub roce_version: Option<u8>,
}

impl PortAttributes {
    /// Whether the link layer is InfiniBand. All other ports that Ferrite uses are Ethernet.
    pub fn is_infiniband(&self) -> bool {
        self.link_layer == LinkLayer::InfiniBand
    }
}

/// How long a result is reused without an event. No event reports a change of an Ethernet
/// interface's MTU, and some drivers report none at all.
const USE_FOR: Duration = Duration::from_secs(1);

/// The active ports of a device, as last queried. A query is a command to the card, for which the
/// caller waits.
#[derive(Debug, Default)]
struct KnownPorts(Mutex<BTreeMap<u8, KnownPort>>);

#[derive(Debug)]
struct KnownPort {
    attributes: PortAttributes,
    /// [`Context::port_changes`] and the time before the query.
    changes: u32,
    asked: Instant,
}

impl KnownPorts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u8, KnownPort>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type QueryPort = unsafe extern "C" fn(*mut sys::ibv_context, u8, *mut ibv_port_attr, usize) -> i32;

impl Context {
    /// Opens all devices. Returns those that could be opened, and the errors of the others.
    ///
    /// # Errors
    /// libibverbs returns no list of devices.
    pub fn open_all(library: &Arc<Library>) -> Result<(Vec<Arc<Self>>, Vec<NotOpened>)> {
        // SAFETY: the call has no preconditions; its failure (no kernel support) only matters to
        // forking programs.
        unsafe { (library.ibv_fork_init)() };
        let (mut contexts, mut failures) = (Vec::new(), Vec::new());
        let list = DeviceList::new(library)?;
        for listed in list.devices() {
            let has_own_guid = listed.guid != 0
                && list.devices().filter(|other| other.guid == listed.guid).count() == 1;
            match listed.open(library, has_own_guid) {
                Ok(context) => contexts.push(Arc::new(context)),
                Err(error) => failures.push(NotOpened { name: listed.name.clone(), error }),
            }
        }
        Ok((contexts, failures))
    }

    /// Opens the device as it is in the system now: to libibverbs, a device that comes back is
    /// another one. Finds it by its GUID, since two devices may have swapped their names. If
    /// several have that GUID, such as functions of one card, or if it has none, `is_at_place`
    /// decides by name.
    ///
    /// # Errors
    /// It is absent, or cannot be opened.
    pub fn open_again(&self, is_at_place: impl Fn(&str) -> bool) -> Result<Arc<Self>> {
        let (library, name) = (&self.library, &self.name);
        let list = DeviceList::new(library)?;
        let alike: Vec<_> = list.devices().filter(|listed| listed.guid == self.guid).collect();
        let found = match &alike[..] {
            [only] if self.has_own_guid => Some(only),
            all => all.iter().find(|listed| is_at_place(&listed.name)),
        };
        let absent = || {
            Error::os(
                format_args!("{name} is not in the list of RDMA devices: opening it"),
                libc::ENODEV,
            )
        };
        found.ok_or_else(absent)?.open(library, self.has_own_guid && alike.len() == 1).map(Arc::new)
    }

    /// The device's name, such as `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_context {
        self.raw
    }

    /// Whether the driver supports `ibv_query_qp`; tried once, on `qp`.
    ///
    /// # Safety
    /// The queue pair is live and of this context.
    pub(super) unsafe fn answers_queries(&self, qp: *mut sys::ibv_qp) -> bool {
        *self.answers_queries.get_or_init(|| {
            // SAFETY: structs of numbers and pointers, for which zero is valid.
            let (mut attr, mut made) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
            // SAFETY: the queue pair by the caller; both places are whole structs.
            let rc = unsafe {
                (self.library.ibv_query_qp)(qp, &raw mut attr, sys::IBV_QP_CAP, &raw mut made)
            };
            rc.abs() != libc::EOPNOTSUPP
        })
    }

    /// Queries the device.
    ///
    /// # Errors
    /// The query fails.
    pub fn attributes(&self) -> Result<DeviceAttributes> {
        let mut attr = std::mem::MaybeUninit::<sys::ibv_device_attr>::zeroed();
        // SAFETY: the context is open and the place is as large as the struct.
        let rc = unsafe { (self.library.ibv_query_device)(self.raw, attr.as_mut_ptr()) };
        if rc != 0 {
            return Err(Error::os(format_args!("ibv_query_device({})", self.name), rc));
        }
        // SAFETY: zeroed numbers are valid, and the call has filled them in.
        let attr = unsafe { attr.assume_init() };
        Ok(DeviceAttributes {
            system_image_guid: attr.sys_image_guid,
            port_count: attr.phys_port_cnt,
            max_queue_pairs: attr.max_qp,
            max_memory_regions: attr.max_mr,
            firmware: attr.fw_ver.map(|c| c as u8),
        })
    }

    /// Whether libibverbs has the function that registers dma-bufs.
    pub fn knows_dmabuf(&self) -> bool {
        self.library.ibv_reg_dmabuf_mr.is_some()
    }

    /// Number of events so far that reported a change of a port, including its GID table, or the
    /// loss of the device. `None`: an event is pending.
    pub fn port_changes(&self) -> Option<u32> {
        // An event that another thread has read is no longer in the descriptor, and may not count
        // yet.
        let is_read = self.has_event() || self.readers.load(Ordering::SeqCst) != 0;
        (!is_read).then(|| self.port_changes.load(Ordering::SeqCst))
    }

    /// Whether an event waits in the descriptor.
    fn has_event(&self) -> bool {
        #[cfg(feature = "simulator")]
        if let Some(has_event) = simulated::HAS_EVENT.get() {
            return has_event(self.raw);
        }
        let fd = self.event_fd();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec::default())) != Ok(0)
    }

    /// Whether it has reported its loss. This is final: the device can only be opened again.
    pub fn has_failed(&self) -> bool {
        self.failed_at().is_some()
    }

    /// When it reported its loss.
    pub fn failed_at(&self) -> Option<Instant> {
        self.failed.get().copied()
    }

    /// An object created from it was released by `call`, which returned `rc`. A lost device may
    /// refuse that.
    pub(super) fn handle_released(&self, call: &str, rc: i32) {
        match rc {
            0 => {}
            _ if self.has_failed() => {
                log::debug!("{call}({}) returned {rc}: the device is lost", self.name)
            }
            _ => log::warn!("{call}({}) returned {rc}", self.name),
        }
    }

    /// The descriptor for commands, whose file is mapped for pages of the device. Negative: the
    /// driver has none.
    pub fn command_fd(&self) -> RawFd {
        // SAFETY: the context is open.
        unsafe { (*self.raw).cmd_fd }
    }

    /// The descriptor that is readable while an event is pending.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open.
        let fd: RawFd = unsafe { (*self.raw).async_fd };
        // SAFETY: the descriptor lives as long as the context, which `self` keeps open.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Makes [`Self::next_event`] return at once when there is no event.
    ///
    /// # Errors
    /// The system refuses.
    pub fn make_events_nonblocking(&self) -> Result<()> {
        let fd = self.event_fd();
        fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK)).map_err(|e| {
            Error::os(format_args!("fcntl of the events of {}", self.name), e.raw_os_error())
        })
    }

    /// Reads the next event. Dropping the returned value acknowledges it. Until then a completion
    /// queue that it names is not destroyed. From then on the queue is known to [have
    /// failed](super::completion_queue::CompletionQueue::has_failed).
    pub fn next_event(&self) -> Option<UnackedEvent<'_>> {
        self.readers.fetch_add(1, Ordering::SeqCst);
        let event = self.read_event();
        self.readers.fetch_sub(1, Ordering::SeqCst);
        event
    }

    fn read_event(&self) -> Option<UnackedEvent<'_>> {
        let mut raw = sys::ibv_async_event { element: 0, event_type: -1 };
        // SAFETY: the context is open and `raw` has the size and layout of the struct.
        if unsafe { (self.library.ibv_get_async_event)(self.raw, &raw mut raw) } != 0 {
            return None;
        }
        // SAFETY: libibverbs has just filled it in, and the event is not acknowledged.
        let event = unsafe { raw.decode() };
        if let AsyncEvent::DeviceFatal = event {
            self.failed.get_or_init(clock::now);
        }
        match event {
            AsyncEvent::QueuePairError(_)
            | AsyncEvent::CompletionQueueError(_)
            | AsyncEvent::Other(_) => {}
            _ => drop(self.port_changes.fetch_add(1, Ordering::SeqCst)),
        }
        Some(UnackedEvent { event, raw, context: self })
    }

    /// Port number `port`, from 1: the latest result if it is recent and no event has been reported
    /// since; otherwise queries it.
    ///
    /// # Errors
    /// The query fails.
    pub fn recent_port(&self, port: u8) -> Result<PortAttributes> {
        let changes = self.port_changes();
        let is_current = |known: &&KnownPort| {
            Some(known.changes) == changes && clock::since(known.asked) < USE_FOR
        };
        let recent = self.ports.lock().get(&port).filter(is_current).map(|known| known.attributes);
        recent.map_or_else(|| self.port(port), Ok)
    }

    /// Makes the next use of port number `port` query it, since it may have changed.
    pub fn forget_port(&self, port: u8) {
        self.ports.lock().remove(&port);
    }

    /// Queries port number `port`, from 1.
    ///
    /// # Errors
    /// The query fails.
    pub fn port(&self, port: u8) -> Result<PortAttributes> {
        let (changes, asked) = (self.port_changes(), clock::now());
        let attributes = self.query_port(port)?;
        // A port that is down is polled, so it is not cached.
        if let Some(changes) = changes.filter(|_| attributes.active) {
            self.ports.lock().insert(port, KnownPort { attributes, changes, asked });
        } else {
            self.forget_port(port);
        }
        Ok(attributes)
    }

    fn query_port(&self, port: u8) -> Result<PortAttributes> {
        let mut raw = ibv_port_attr::default();
        let rc = match self.sized_query_port() {
            // SAFETY: the context is open, and the size of the struct is passed.
            Some(query) => unsafe {
                query(self.raw(), port, &raw mut raw, size_of::<ibv_port_attr>())
            },
            // This call fills in the old, shorter struct. The rest stays zero. SAFETY: the context
            // is open and the place is larger than the struct that the call fills in.
            None => unsafe { (self.library.ibv_query_port)(self.raw(), port, &raw mut raw) },
        };
        if rc != 0 {
            return Err(Error::of_device(
                format_args!("ibv_query_port({}:{port})", self.name()),
                rc.abs(),
            ));
        }
        Ok(PortAttributes {
            active: raw.state == sys::IBV_PORT_ACTIVE,
            link_layer: LinkLayer::from_raw(raw.link_layer),
            grh_required: raw.flags & sys::IBV_QPF_GRH_REQUIRED != 0,
            lid: raw.lid,
            mtu: raw.active_mtu as u8,
            max_mtu: raw.max_mtu as u8,
            sm_lid: raw.sm_lid,
            gid_count: raw.gid_tbl_len,
            pkey_count: raw.pkey_tbl_len,
            // The older field is too narrow for speeds above NDR.
            speed: if raw.active_speed_ex != 0 {
                raw.active_speed_ex
            } else {
                u32::from(raw.active_speed)
            },
            speed_may_be_higher: raw.active_speed_ex == 0 && raw.active_speed == HIGHEST_OLD_SPEED,
            width: raw.active_width,
        })
    }

    /// The query that takes the size of the struct.
    fn sized_query_port(&self) -> Option<QueryPort> {
        // SAFETY: the context is open, and libibverbs' header declares a function of this type
        // there.
        unsafe { extended_call::find(self.raw(), extended_call::QUERY_PORT) }
    }

    /// Bandwidth of `port` in Mbit/s, as the device reports it, even if the bits of `active_speed`
    /// cannot express it. `None` if libibverbs has no such query.
    pub fn port_speed_mbps(&self, port: u8) -> Option<u32> {
        const UNIT_MBPS: u64 = 100;
        let query = self.library.ibv_query_port_speed?;
        let mut speed = 0;
        // SAFETY: the context is open and `speed` is a valid place.
        let rc = unsafe { query(self.raw(), u32::from(port), &raw mut speed) };
        u32::try_from(speed * UNIT_MBPS).ok().filter(|speed| rc == 0 && *speed != 0)
    }

    /// Entry `index` of the GID table of `port`; `None` if empty or unreadable.
    pub fn gid(&self, port: u8, index: i32) -> Option<Gid> {
        self.query_gid(port, index).ok().flatten()
    }

    /// The errno if one of the first `count` entries of the GID table of `port` is unreadable.
    pub fn gid_errno(&self, port: u8, count: i32) -> Option<i32> {
        (0..count).find_map(|index| self.query_gid(port, index).err())
    }

    /// Entry `index` of the GID table of `port`; `None` if empty.
    ///
    /// # Errors
    /// The errno if it is unreadable.
    fn query_gid(&self, port: u8, index: i32) -> std::result::Result<Option<Gid>, i32> {
        let gid = sys::ibv_gid { raw: [0; 16] };
        let mut entry =
            ibv_gid_entry { gid, gid_index: 0, port_num: 0, gid_type: 0, ndev_ifindex: 0 };
        let rc = match (self.library._ibv_query_gid_ex, u32::try_from(index)) {
            (Some(query), Ok(index)) => {
                let size = size_of::<ibv_gid_entry>();
                // SAFETY: the context is open, and the size of the struct is passed.
                unsafe { query(self.raw(), u32::from(port), index, &raw mut entry, 0, size) }
            }
            _ => libc::EOPNOTSUPP,
        };
        let gid = match rc {
            0 => Gid {
                // SAFETY: as in `untyped_gid`.
                bytes: unsafe { entry.gid.raw },
                roce_version: roce_version(entry.gid_type),
            },
            libc::ENODATA => return Ok(None),
            _ => Gid { bytes: self.untyped_gid(port, index)?, roce_version: None },
        };
        Ok((gid.bytes != [0; 16]).then_some(gid))
    }

    /// The first entry of the partition key table of `port` with `key`; `None` if there is none.
    /// The highest bit of a key is the kind of membership, and is ignored.
    ///
    /// # Errors
    /// The port cannot be queried.
    pub fn partition_index(&self, port: u8, key: u16) -> Result<Option<u16>> {
        let count = self.port(port)?.pkey_count;
        Ok((0..count).find(|index| {
            self.partition_key(port, *index).is_some_and(|found| (found ^ key) << 1 == 0)
        }))
    }

    /// Entry `index` of the partition key table of `port`; `None` if unreadable.
    fn partition_key(&self, port: u8, index: u16) -> Option<u16> {
        let mut key = 0_u16;
        // SAFETY: the context is open and `key` is a valid place.
        let rc =
            unsafe { (self.library.ibv_query_pkey)(self.raw(), port, index.into(), &raw mut key) };
        (rc == 0).then_some(u16::from_be(key))
    }

    fn untyped_gid(&self, port: u8, index: i32) -> std::result::Result<[u8; 16], i32> {
        let mut gid = sys::ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open and `gid` is a valid place.
        let rc = unsafe { (self.library.ibv_query_gid)(self.raw(), port, index, &raw mut gid) };
        match rc {
            // SAFETY: bytes, which were zeros before the call.
            0 => Ok(unsafe { gid.raw }),
            // Some drivers set errno, and some return it.
            -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
            errno => Err(errno),
        }
    }
}

/// The devices of a simulator.
#[cfg(feature = "simulator")]
pub mod simulated {
    use crate::sys::ibv_context;
    use std::cell::Cell;

    type HasEvent = fn(*mut ibv_context) -> bool;

    thread_local! {
        pub(super) static HAS_EVENT: Cell<Option<HasEvent>> = const { Cell::new(None) };
    }

    /// From now on all devices of this thread are simulated, and `has_event` says which has an
    /// event.
    pub fn set_has_event(has_event: HasEvent) {
        HAS_EVENT.set(Some(has_event));
    }
}

/// An event that has not been acknowledged.
#[derive(Debug)]
pub struct UnackedEvent<'a> {
    /// The event.
    pub event: AsyncEvent,
    raw: sys::ibv_async_event,
    context: &'a Context,
}

impl Drop for UnackedEvent<'_> {
    fn drop(&mut self) {
        // SAFETY: the event came from ibv_get_async_event and is acknowledged once.
        unsafe { (self.context.library.ibv_ack_async_event)(&raw mut self.raw) };
    }
}

impl sys::ibv_async_event {
    /// # Safety
    /// It is an unacknowledged event of a device that this process has opened: the object that it
    /// names exists.
    unsafe fn decode(&self) -> AsyncEvent {
        let port = self.element as u32 as u8;
        match self.event_type {
            sys::IBV_EVENT_CQ_ERR => {
                // SAFETY: all queues of such a device come from `CompletionQueue::new`, and this
                // one exists, by the caller's contract.
                AsyncEvent::CompletionQueueError(unsafe {
                    QueueFailure::handle(self.element as *const sys::ibv_cq)
                })
            }
            sys::IBV_EVENT_QP_FATAL => AsyncEvent::QueuePairError("queue pair fatal error"),
            sys::IBV_EVENT_QP_REQ_ERR => {
                AsyncEvent::QueuePairError("queue pair got an invalid request")
            }
            sys::IBV_EVENT_QP_ACCESS_ERR => AsyncEvent::QueuePairError(
                "queue pair got a request it may not have (access error)",
            ),
            sys::IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
            sys::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortActive(port),
            sys::IBV_EVENT_PORT_ERR => AsyncEvent::PortDown(port),
            sys::IBV_EVENT_LID_CHANGE => AsyncEvent::LidChange(port),
            sys::IBV_EVENT_GID_CHANGE => AsyncEvent::GidChange(port),
            n => AsyncEvent::Other(n),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by us, closed once; everything made from it holds an Arc and is gone.
        let rc = unsafe { (self.library.ibv_close_device)(self.raw) };
        self.handle_released("ibv_close_device", rc);
        if self.has_failed() {
            log::debug!("{}: the device that was lost is closed", self.name);
        }
    }
}

/// The devices in libibverbs' list.
struct DeviceList<'a> {
    raw: *mut *mut sys::ibv_device,
    count: usize,
    library: &'a Library,
}

/// A device in the list.
struct ListedDevice<'a> {
    raw: *mut sys::ibv_device,
    name: String,
    guid: u64,
    _list: &'a DeviceList<'a>,
}

impl<'a> DeviceList<'a> {
    /// # Errors
    /// libibverbs returns no list of devices.
    fn new(library: &'a Library) -> Result<Self> {
        let mut count = 0;
        // SAFETY: `count` is a valid place for the number.
        let list = create::try_create(|| unsafe { (library.ibv_get_device_list)(&raw mut count) });
        let raw = list.map_err(|error| no_list(error.errno()))?;
        Ok(Self { raw, count: usize::try_from(count).unwrap_or(0), library })
    }

    fn devices(&self) -> impl Iterator<Item = ListedDevice<'_>> {
        (0..self.count).map(|place| {
            // SAFETY: the list has that many entries.
            let raw = unsafe { *self.raw.add(place) };
            // SAFETY: the device is of a list that has not been freed.
            let (name, guid) = unsafe {
                ((self.library.ibv_get_device_name)(raw), (self.library.ibv_get_device_guid)(raw))
            };
            // SAFETY: a device's name is a C string inside the device.
            let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
            ListedDevice { raw, name, guid, _list: self }
        })
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        // SAFETY: the list came from ibv_get_device_list; open contexts keep their devices alive.
        unsafe { (self.library.ibv_free_device_list)(self.raw) };
    }
}

impl ListedDevice<'_> {
    /// # Errors
    /// It cannot be opened.
    fn open(&self, library: &Arc<Library>, has_own_guid: bool) -> Result<Context> {
        let name = self.name.clone();
        let operation = format_args!("ibv_open_device({name})");
        // SAFETY: the device is of a list that has not been freed.
        let raw = create::create(operation, 0, || unsafe { (library.ibv_open_device)(self.raw) })?;
        let (port_changes, failed, answers_queries) =
            (AtomicU32::new(0), OnceLock::new(), OnceLock::new());
        let (guid, library) = (self.guid, Arc::clone(library));
        let ports = KnownPorts::default();
        Ok(Context {
            raw,
            name,
            guid,
            has_own_guid,
            port_changes,
            readers: AtomicU32::new(0),
            ports,
            failed,
            answers_queries,
            library,
        })
    }
}

/// The error of `ibv_get_device_list`, which returns an empty list if there are simply no devices.
fn no_list(errno: i32) -> Error {
    let error = Error::os("ibv_get_device_list", errno);
    match errno {
        libc::ENOSYS => error
            .context("no RDMA driver is loaded (on the host: modprobe ib_uverbs), or /dev/infiniband is not passed in"),
        _ => error,
    }
}

/// The RoCE version of a value of `enum ibv_gid_type`. InfiniBand has none.
fn roce_version(gid_type: u32) -> Option<u8> {
    match gid_type {
        sys::IBV_GID_TYPE_ROCE_V1 => Some(1),
        sys::IBV_GID_TYPE_ROCE_V2 => Some(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_kernel_without_rdma_names_the_module() {
        assert!(no_list(libc::ENOSYS).text().contains("modprobe ib_uverbs"));
        assert!(!no_list(libc::EPERM).text().contains("modprobe"));
    }
}
