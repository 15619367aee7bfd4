//! An open device.

use std::ffi::c_char;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

use crate::abi::types;
use crate::abi::types::{
    AhAttr, DeviceAttr, LEAD_ALLOC_PARENT_DOMAIN, LEAD_ALLOC_TD, LEAD_CREATE_CQ_EX,
    LEAD_CREATE_QP_EX, LEAD_DEALLOC_TD, LEAD_QUERY_DEVICE_EX, LEAD_QUERY_PORT, LEAD_SIZE,
    VerbsContext, event, op_slot,
};
use crate::drivers::table::Verb;
use crate::host::FdQueue;
use crate::limits::{DEVICES, MAX_CQE, SRQS};
use crate::network::header;
use crate::network::header::{HEADER_BYTES, NetworkHeader};
use crate::network::topology::{PortId, Topology};
use crate::process::fabric::{Command, Fabric, Route};
use crate::process::settings::Settings;
use crate::shm::file::Table;
use crate::shm::slots::{NO_PEER, PortSlot};

/// An asynchronous event on its way to the application.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// The application's `ibv_qp*`, `ibv_cq*` or `ibv_srq*`, or the number of a port.
    pub(crate) element: usize,
    pub(crate) kind: u32,
}

/// What the application holds as `ibv_context*` is `verbs.context`.
#[repr(C)]
pub(crate) struct Context {
    verbs: VerbsContext,
    pub(crate) fabric: &'static Fabric,
    pub(crate) device: &'static Device,
    pub(crate) events: FdQueue<Event>,
    /// Logged events up to this number have been passed on.
    delivered: AtomicU64,
    /// How often the device had failed when it was opened.
    failures: u32,
    /// The application has been told that the device has failed: nothing happens to it any more.
    is_told: AtomicBool,
    /// Places for doorbells, in pages that the card has allocated, which no thread domain has.
    doorbells: AtomicU32,
    /// What programs may duplicate that pass a context on to others, who are refused then.
    _command: File,
}

// SAFETY: the raw pointers inside are to statics; the rest synchronises itself.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The functions that inlined wrappers reach through the context.
pub(crate) struct Ops {
    pub(crate) poll_cq: usize,
    pub(crate) req_notify_cq: usize,
    pub(crate) post_send: usize,
    pub(crate) post_recv: usize,
    pub(crate) post_srq_recv: usize,
    pub(crate) query_port: usize,
    pub(crate) query_device: usize,
    pub(crate) create_cq_ex: usize,
    pub(crate) create_qp_ex: usize,
    pub(crate) alloc_td: usize,
    pub(crate) dealloc_td: usize,
    pub(crate) alloc_parent_domain: usize,
}

/// A descriptor in place of the one by which drivers give commands to the kernel.
fn no_commands() -> Result<File, i32> {
    let opened = File::options().read(true).write(true).open("/dev/null");
    opened.map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))
}

impl Context {
    pub(crate) fn open(
        fabric: &'static Fabric,
        device: &'static Device,
        ops: &Ops,
    ) -> Result<Arc<Self>, i32> {
        let failures = fabric.header().failures[device.index].load(SeqCst);
        if fabric.is_failed(device.index) || fabric.is_refusing(device.index) {
            return Err(libc::EIO);
        }
        let events = FdQueue::new()?;
        let command = no_commands()?;
        let mut table = [0; 32];
        table[op_slot::POLL_CQ] = ops.poll_cq;
        table[op_slot::REQ_NOTIFY_CQ] = ops.req_notify_cq;
        table[op_slot::POST_SEND] = ops.post_send;
        table[op_slot::POST_RECV] = ops.post_recv;
        table[op_slot::POST_SRQ_RECV] = ops.post_srq_recv;
        let context = types::Context {
            device: device.as_abi(),
            ops: table,
            cmd_fd: command.as_raw_fd(),
            async_fd: events.fd(),
            num_comp_vectors: 1,
            mutex: [0; 5],
            // "This is a verbs_context".
            abi_compat: usize::MAX,
        };
        let mut verbs = VerbsContext { lead: [0; LEAD_SIZE + 1], context };
        verbs.lead[LEAD_SIZE] = size_of::<VerbsContext>();
        verbs.lead[LEAD_QUERY_PORT] = ops.query_port;
        verbs.lead[LEAD_QUERY_DEVICE_EX] = ops.query_device;
        verbs.lead[LEAD_CREATE_CQ_EX] = ops.create_cq_ex;
        verbs.lead[LEAD_CREATE_QP_EX] = ops.create_qp_ex;
        verbs.lead[LEAD_ALLOC_TD] = ops.alloc_td;
        verbs.lead[LEAD_DEALLOC_TD] = ops.dealloc_td;
        verbs.lead[LEAD_ALLOC_PARENT_DOMAIN] = ops.alloc_parent_domain;
        let delivered = AtomicU64::new(fabric.header().event_count.load(SeqCst));
        let is_told = AtomicBool::new(false);
        Ok(Arc::new(Self {
            verbs,
            fabric,
            device,
            events,
            delivered,
            failures,
            is_told,
            doorbells: AtomicU32::new(0),
            _command: command,
        }))
    }

    /// For the service thread: passes on the events of this device.
    pub(crate) fn deliver(&self) {
        let (logged, count) = self.fabric.events_since(self.delivered.load(SeqCst));
        self.delivered.store(count, SeqCst);
        for one in logged.iter().filter(|one| one.port.device == self.device.index) {
            if self.is_told.load(SeqCst) {
                return;
            }
            self.is_told.store(one.kind == event::DEVICE_FATAL, SeqCst);
            self.events.push(Event { element: one.port.port as usize, kind: one.kind });
        }
    }

    /// Takes a place for the doorbell of a thread domain. As with libmlx5, a page has two and is
    /// kept. The card allocates one if no place is left.
    pub(crate) fn take_doorbell(&self) {
        if self.doorbells.fetch_update(SeqCst, SeqCst, |places| places.checked_sub(1)).is_err() {
            self.carry_out(Command::AllocTd);
            self.give_doorbell_back();
        }
    }

    /// Gives the place of a destroyed thread domain back.
    pub(crate) fn give_doorbell_back(&self) {
        self.doorbells.fetch_add(1, SeqCst);
    }

    /// Has the device's card execute a command, which takes its time. If the card has failed, only
    /// the kernel releases objects, which takes none.
    pub(crate) fn carry_out(&self, command: Command) {
        if !self.is_dead() {
            self.fabric.carry_out(self.device.index, command);
        }
    }

    /// Whether the device has failed since it was opened: this context stays dead, also if another
    /// device is in its place.
    pub(crate) fn is_dead(&self) -> bool {
        self.fabric.header().failures[self.device.index].load(SeqCst) != self.failures
    }

    /// Whether the device carries out no commands, though it has not failed yet. What is destroyed
    /// meanwhile stays as it is in the device, as long as the process lives.
    pub(crate) fn is_refusing(&self) -> bool {
        self.fabric.is_refusing(self.device.index) && !self.is_dead()
    }

    /// EIO if nothing can be made here any more.
    pub(crate) fn require_alive(&self) -> Result<(), i32> {
        if self.is_dead() || self.is_refusing() { Err(libc::EIO) } else { Ok(()) }
    }

    /// Port `port` of the device; EINVAL if it has none of that number.
    pub(crate) fn port(&self, port: u32) -> Result<&'static PortSlot, i32> {
        let exists = (1..=self.fabric.topology.ports()).contains(&port);
        if exists { Ok(self.fabric.port(self.device.index, port)) } else { Err(libc::EINVAL) }
    }

    pub(crate) fn as_abi(&self) -> *mut types::Context {
        (&raw const self.verbs.context).cast_mut()
    }

    /// The start of the object that holds the application's context.
    pub(crate) fn container(context: *const types::Context) -> *const Self {
        context.cast::<u8>().wrapping_sub(std::mem::offset_of!(VerbsContext, context)).cast()
    }
}

/// What the application holds as `ibv_device*`. Never freed.
#[repr(C)]
pub(crate) struct Device {
    abi: types::Device,
    /// Some libraries look just past the public struct.
    _zero: [u64; 8],
    pub(crate) index: usize,
}

/// All devices that could exist; the settings say how many do.
pub(crate) fn all() -> &'static [Device; DEVICES] {
    static ALL: OnceLock<Box<[Device; DEVICES]>> = OnceLock::new();
    ALL.get_or_init(|| Box::new(std::array::from_fn(Device::new)))
}

impl Device {
    fn new(index: usize) -> Self {
        let abi = types::Device {
            ops: [0; 2],
            node_type: 1,
            transport_type: 0,
            name: c_text(&format!("softrnic{index}")),
            dev_name: c_text(&format!("softverbs{index}")),
            dev_path: c_text(""),
            // Where `softrnic run --faithful` shows the device.
            ibdev_path: c_text(&format!("/sys/class/infiniband/softrnic{index}")),
        };
        Self { abi, _zero: [0; 8], index }
    }

    /// The device behind an application's pointer.
    ///
    /// # Safety
    /// `device` comes from our device list.
    pub(crate) unsafe fn from_abi<'a>(device: *const types::Device) -> &'a Self {
        // SAFETY: the caller's pointer is one of `all()`, whose first field it is.
        unsafe { &*device.cast::<Self>() }
    }

    pub(crate) fn as_abi(&self) -> *mut types::Device {
        (&raw const self.abi).cast_mut()
    }

    pub(crate) fn name(&self) -> *const c_char {
        self.abi.name.as_ptr()
    }

    /// The node GUID, network order in memory.
    pub(crate) fn guid(&self, settings: &Settings) -> u64 {
        header::guid(if settings.same_guid { 0 } else { self.index }, 0)
    }

    pub(crate) fn attributes(&self, settings: &Settings, topology: &Topology) -> DeviceAttr {
        let capacity = |table: Table| table.capacity() as i32;
        let driver = settings.driver;
        // As the kernel has it: the fewer of both queues.
        let (reads, sges) =
            (i32::from(driver.max_reads), driver.max_sge.0.min(driver.max_sge.1) as i32);
        let has_srqs = i32::from(driver.require(Verb::CreateSrq).is_ok());
        DeviceAttr {
            fw_ver: c_text(driver.fw_ver),
            node_guid: self.guid(settings),
            sys_image_guid: header::card_guid(topology.devices_on_card(), self.index),
            max_mr_size: driver.max_mr_size,
            page_size_cap: driver.page_size_cap,
            vendor_id: driver.vendor_id,
            vendor_part_id: driver.vendor_part_id,
            hw_ver: 0,
            max_qp: settings.max_qp.min(capacity(Table::Qp) as u32) as i32,
            max_qp_wr: settings.max_qp_wr as i32,
            device_cap_flags: 0,
            max_sge: sges,
            max_sge_rd: sges,
            max_cq: settings.max_cq as i32,
            max_cqe: MAX_CQE as i32,
            max_mr: settings.max_mr as i32,
            max_pd: driver.max_pd,
            max_qp_rd_atom: reads,
            max_ee_rd_atom: 0,
            max_res_rd_atom: reads * capacity(Table::Qp),
            max_qp_init_rd_atom: reads,
            max_ee_init_rd_atom: 0,
            atomic_cap: i32::from(driver.has_atomics),
            absent: [0; 8],
            max_ah: driver.max_ah,
            absent_too: [0; 2],
            max_srq: SRQS as i32 * has_srqs,
            max_srq_wr: settings.max_qp_wr as i32 * has_srqs,
            max_srq_sge: sges * has_srqs,
            max_pkeys: 1,
            local_ca_ack_delay: driver.local_ca_ack_delay,
            phys_port_cnt: topology.ports() as u8,
        }
    }
}

fn c_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(text.bytes().take(N - 1)) {
        *to = from as c_char;
    }
    out
}

// Protection domains: what may be used together. And parent domains, each of which is a protection
// domain by another handle, with or without a thread domain.

/// What the application holds as `ibv_pd*` is its first field.
#[repr(C)]
pub(crate) struct Pd {
    abi: types::Pd,
    pub(crate) context: Arc<Context>,
    /// Unique in the fabric; that of a parent domain is that of its protection domain.
    pub(crate) id: u32,
    /// Of a protection domain: its parent domains, memory regions, address handles, shared receive
    /// queues, and queue pairs. Of a parent domain: its queue pairs and completion queues.
    pub(crate) users: AtomicU32,
    parent: Option<Parent>,
}

/// What a parent domain is made of.
struct Parent {
    protection: Arc<Pd>,
    thread: Option<Arc<Td>>,
}

// SAFETY: `abi` is written once; the application reads it.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    pub(crate) fn new(context: Arc<Context>) -> Result<Arc<Self>, i32> {
        context.require_alive()?;
        let id = context.fabric.header().next_pd.fetch_add(1, SeqCst);
        let abi = types::Pd { context: context.as_abi(), handle: id };
        Ok(Arc::new(Self { abi, context, id, users: AtomicU32::new(0), parent: None }))
    }

    /// A parent domain of `pd`.
    pub(crate) fn parent(pd: &Arc<Self>, thread: Option<Arc<Td>>) -> Result<Arc<Self>, i32> {
        let protection = Arc::clone(Self::protection(pd));
        let (context, id) = (Arc::clone(&protection.context), protection.id);
        context.require_alive()?;
        protection.users.fetch_add(1, SeqCst);
        if let Some(thread) = &thread {
            thread.users.fetch_add(1, SeqCst);
        }
        let abi = types::Pd { context: context.as_abi(), handle: id };
        let parent = Some(Parent { protection, thread });
        Ok(Arc::new(Self { abi, context, id, users: AtomicU32::new(0), parent }))
    }

    /// The protection domain of a parent domain, or itself.
    pub(crate) fn protection(this: &Arc<Self>) -> &Arc<Self> {
        this.parent.as_ref().map_or(this, |parent| &parent.protection)
    }

    pub(crate) fn is_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// Whether queues in it are used from one thread at a time.
    pub(crate) fn has_thread(&self) -> bool {
        self.parent.as_ref().is_some_and(|parent| parent.thread.is_some())
    }

    /// It is given back: what it is made of may go. Somebody may still look at a queue pair that
    /// was in it.
    pub(crate) fn release(&self) {
        if let Some(Parent { protection, thread }) = &self.parent {
            protection.users.fetch_sub(1, SeqCst);
            if let Some(thread) = thread {
                thread.users.fetch_sub(1, SeqCst);
            }
        }
    }

    pub(crate) fn as_abi(&self) -> *mut types::Pd {
        (&raw const self.abi).cast_mut()
    }
}

/// What the application holds as `ibv_td*` is its first field.
#[repr(C)]
pub(crate) struct Td {
    abi: types::Td,
    pub(crate) context: Arc<Context>,
    /// Parent domains that have it.
    pub(crate) users: AtomicU32,
}

// SAFETY: `abi` is written once; the application reads it.
unsafe impl Send for Td {}
// SAFETY: as above.
unsafe impl Sync for Td {}

impl Td {
    pub(crate) fn new(context: Arc<Context>) -> Result<Arc<Self>, i32> {
        context.require_alive()?;
        let abi = types::Td { context: context.as_abi() };
        Ok(Arc::new(Self { abi, context, users: AtomicU32::new(0) }))
    }

    pub(crate) fn as_abi(&self) -> *mut types::Td {
        (&raw const self.abi).cast_mut()
    }
}

/// What the application holds as `ibv_ah*` is its first field.
#[repr(C)]
pub(crate) struct Ah {
    abi: types::Ah,
    pub(crate) pd: Arc<Pd>,
    pub(crate) vector: AhAttr,
    pub(crate) route: Route,
}

impl Ah {
    /// RoCE resolves the address, as the kernel does: `ETIMEDOUT` where nobody has it.
    pub(crate) fn create(pd: &Arc<Pd>, vector: &AhAttr) -> Result<Box<Self>, i32> {
        pd.context.require_alive()?;
        let (fabric, port) = (pd.context.fabric, u32::from(vector.port_num));
        pd.context.port(port)?;
        let from = PortId { device: pd.context.device.index, port };
        // A packet that is larger than the MTU of the port where it arrives vanishes.
        let route = Route::of_datagrams(fabric, from, vector)?.with_mtu(u32::MAX);
        let protection = Pd::protection(pd);
        protection.users.fetch_add(1, SeqCst);
        let abi = types::Ah { context: pd.context.as_abi(), pd: pd.as_abi(), handle: 0 };
        Ok(Box::new(Self { abi, pd: Arc::clone(protection), vector: *vector, route }))
    }

    pub(crate) fn as_abi(&self) -> *mut types::Ah {
        (&raw const self.abi).cast_mut()
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        self.pd.users.fetch_sub(1, SeqCst);
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram {
    /// Name of the queue pair, see `QpSlot::peer`.
    pub(crate) peer: u64,
    pub(crate) route: Route,
    pub(crate) path: Option<u32>,
    pub(crate) qkey: u32,
    /// It has a network header, which says who sends it. The receive has room for one in any case.
    pub(crate) has_header: bool,
    pub(crate) header: NetworkHeader,
    pub(crate) service_level: u8,
}

impl Default for Datagram {
    fn default() -> Self {
        Self {
            peer: NO_PEER,
            route: Route::default(),
            path: None,
            qkey: 0,
            has_header: false,
            header: [0; HEADER_BYTES],
            service_level: 0,
        }
    }
}
