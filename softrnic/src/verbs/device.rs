//! Devices, contexts, queries.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::abi::export::export;
use crate::abi::types::{
    AhAttr, AsyncEvent, DEVICE_ATTR_EX_PORTS, DeviceAttr, Gid, GidEntry, PORT_ATTR_SHORT, PortAttr,
    WC_GRH, Wc, event,
};
use crate::abi::{names, types};
use crate::control::Network;
use crate::drivers::table::Verb;
use crate::host::set_errno;
use crate::network::header::{Described, GidType, NetworkHeader, TypedGid};
use crate::network::topology::STATE_DOWN;
use crate::objects::context;
use crate::objects::context::{Ah, Context, Device, Ops, Pd};
use crate::objects::cq::{Channel, Cq};
use crate::objects::qp::Qp;
use crate::objects::srq::Srq;
use crate::shm::slots::{GIDS, PortSlot};
use crate::verbs::engine::{engine, engine_of};
use crate::verbs::{code, context, minus_one, object, pointer, shared};

pub unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut types::Device {
    let mut found = 0;
    let list = pointer(|| {
        let fabric = engine()?.fabric;
        let is_there = |device: &&Device| !Network::of(fabric).is_absent(device.index);
        let there: Vec<_> =
            context::all().iter().take(fabric.topology.devices()).filter(is_there).collect();
        found = there.len();
        // Ends with a NULL.
        // SAFETY: plain allocation, released by `free_device_list`.
        let list = unsafe { libc::calloc(found + 1, size_of::<*mut types::Device>()) }
            .cast::<*mut types::Device>();
        if list.is_null() {
            return Err(libc::ENOMEM);
        }
        for (i, device) in there.into_iter().enumerate() {
            // SAFETY: `i < found`, inside the allocation.
            unsafe { list.add(i).write(device.as_abi()) };
        }
        Ok(list)
    });
    if !count.is_null() {
        let count_of = if list.is_null() { 0 } else { found as c_int };
        // SAFETY: the caller's structure.
        unsafe { count.write(count_of) };
    }
    list
}
export!("ibv_get_device_list", "IBVERBS_1.1", get_device_list);

pub unsafe extern "C" fn free_device_list(list: *mut *mut types::Device) {
    // SAFETY: allocated by `get_device_list`; the devices themselves stay.
    unsafe { libc::free(list.cast()) };
}
export!("ibv_free_device_list", "IBVERBS_1.1", free_device_list);

unsafe extern "C" fn get_device_name(device: *const types::Device) -> *const c_char {
    // SAFETY: the caller's handle.
    unsafe { Device::from_abi(device) }.name()
}
export!("ibv_get_device_name", "IBVERBS_1.1", get_device_name);

unsafe extern "C" fn get_device_guid(device: *const types::Device) -> u64 {
    // SAFETY: the caller's handle.
    let device = unsafe { Device::from_abi(device) };
    // Who has a device has an engine.
    engine().map_or(0, |engine| device.guid(&engine.fabric.settings))
}
export!("ibv_get_device_guid", "IBVERBS_1.1", get_device_guid);

pub unsafe extern "C" fn get_device_index(device: *const types::Device) -> c_int {
    // SAFETY: the caller's handle.
    unsafe { Device::from_abi(device) }.index as c_int
}
export!("ibv_get_device_index", "IBVERBS_1.9", get_device_index);

pub unsafe extern "C" fn open_device(device: *const types::Device) -> *mut types::Context {
    pointer(|| {
        let engine = engine()?;
        // SAFETY: the caller's handle.
        let device = unsafe { Device::from_abi(device) };
        if Network::of(engine.fabric).is_absent(device.index) {
            return Err(libc::EIO);
        }
        let ops = Ops {
            poll_cq: super::post::poll as *const () as usize,
            req_notify_cq: req_notify_cq as *const () as usize,
            post_send: super::post::post_send as *const () as usize,
            post_recv: super::post::post_recv as *const () as usize,
            post_srq_recv: crate::verbs::queues::post_srq_recv as *const () as usize,
            query_port: query_port_ex as *const () as usize,
            query_device: query_device_ex as *const () as usize,
            create_cq_ex: super::extended_cqs::create_cq_ex as *const () as usize,
            create_qp_ex: super::queues::create_qp_ex as *const () as usize,
            alloc_td: crate::verbs::queues::alloc_td as *const () as usize,
            dealloc_td: crate::verbs::queues::dealloc_td as *const () as usize,
            alloc_parent_domain: crate::verbs::queues::alloc_parent_domain as *const () as usize,
        };
        let opened = engine.open(device, &ops)?;
        let handle = opened.as_abi();
        // Given back by `close_device`.
        let _ = Arc::into_raw(opened);
        Ok(handle)
    })
}
export!("ibv_open_device", "IBVERBS_1.1", open_device);

pub unsafe extern "C" fn close_device(context: *mut types::Context) -> c_int {
    code(|| {
        // SAFETY: takes back what `open_device` leaked; objects that still refer to the context
        // keep it.
        drop(unsafe { Arc::from_raw(Context::container(context)) });
        Ok(())
    })
}
export!("ibv_close_device", "IBVERBS_1.1", close_device);

pub unsafe extern "C" fn query_device(handle: *mut types::Context, out: *mut DeviceAttr) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let context = unsafe { context(handle) }?;
        // SAFETY: the caller's structure.
        unsafe {
            out.write(context.device.attributes(&context.fabric.settings, &context.fabric.topology))
        };
        Ok(())
    })
}
export!("ibv_query_device", "IBVERBS_1.1", query_device);

/// Through `verbs_context`: the attributes of `query_device`, then those that newer headers have,
/// of which only the number of ports is not zero. Callers with older headers have less `room`.
unsafe extern "C" fn query_device_ex(
    handle: *mut types::Context,
    input: *const u32,
    out: *mut u8,
    room: usize,
) -> c_int {
    code(|| {
        // SAFETY: the caller's structure, whose first and only field is a mask of extensions, or
        // NULL.
        let is_extended = unsafe { input.as_ref() }.is_some_and(|mask| *mask != 0);
        if is_extended || room < size_of::<DeviceAttr>() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's handle.
        let context = unsafe { context(handle) }?;
        let attr = context.device.attributes(&context.fabric.settings, &context.fabric.topology);
        let ports = context.fabric.topology.ports();
        // SAFETY: the caller's structure has `room` bytes, which hold what is written (checked).
        unsafe {
            ptr::write_bytes(out, 0, room);
            out.cast::<DeviceAttr>().write_unaligned(attr);
            if room >= DEVICE_ATTR_EX_PORTS + size_of::<u32>() {
                out.add(DEVICE_ATTR_EX_PORTS).cast::<u32>().write_unaligned(ports);
            }
        }
        Ok(())
    })
}

/// Writes at most `room` bytes of the port's attributes; `room` itself is zeroed by the caller
/// where it is longer.
fn write_port(handle: *mut types::Context, port: u8, out: *mut u8, room: usize) -> Result<(), i32> {
    // SAFETY: the caller's handle.
    let context = unsafe { context(handle) }?;
    context.fabric.count_port_query();
    if context.is_refusing() {
        return Err(libc::EIO);
    }
    let mut attr = context.port(u32::from(port))?.attributes();
    if context.is_dead() {
        attr.state = STATE_DOWN;
    }
    if context.fabric.settings.old_speed {
        attr.active_speed_ex = 0;
    }
    let bytes = room.min(size_of::<PortAttr>());
    // SAFETY: the caller's structure has `room` bytes; `attr` has at least `bytes`.
    unsafe {
        ptr::write_bytes(out, 0, room);
        ptr::copy_nonoverlapping((&raw const attr).cast::<u8>(), out, bytes);
    }
    Ok(())
}

unsafe extern "C" fn query_port(handle: *mut types::Context, port: u8, out: *mut u8) -> c_int {
    // Callers with old headers have no more room than this.
    code(|| write_port(handle, port, out, PORT_ATTR_SHORT))
}
export!("ibv_query_port", "IBVERBS_1.1", query_port);

/// Through `verbs_context`: newer headers say how long their structure is.
pub unsafe extern "C" fn query_port_ex(
    handle: *mut types::Context,
    port: u8,
    out: *mut u8,
    room: usize,
) -> c_int {
    code(|| write_port(handle, port, out, room))
}

unsafe extern "C" fn query_port_speed(
    handle: *mut types::Context,
    port: u32,
    out: *mut u64,
) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let context = unsafe { context(handle) }?;
        if context.fabric.settings.old_speed {
            return Err(libc::EOPNOTSUPP);
        }
        let speed = context.port(port)?.speed.load(SeqCst);
        // SAFETY: the caller's structure.
        unsafe { out.write(u64::from(speed)) };
        Ok(())
    })
}
export!("ibv_query_port_speed", "IBVERBS_1.16", query_port_speed);

unsafe extern "C" fn query_pkey(
    handle: *mut types::Context,
    port: u8,
    index: c_int,
    out: *mut u16,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle.
        unsafe { context(handle) }?.port(u32::from(port))?;
        if index != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's structure. The default partition reads the same in either byte
        // order.
        unsafe { out.write(0xffff) };
        Ok(())
    })
}
export!("ibv_query_pkey", "IBVERBS_1.1", query_pkey);

/// Which entry of the partition table holds `pkey`; the default partition, of which every port is a
/// full member.
unsafe extern "C" fn get_pkey_index(handle: *mut types::Context, port: u8, pkey: u16) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle.
        let context = unsafe { context(handle) }?;
        context.port(u32::from(port))?;
        if pkey == 0xffff { Ok(()) } else { Err(libc::EINVAL) }
    })
}
export!("ibv_get_pkey_index", "IBVERBS_1.5", get_pkey_index);

unsafe extern "C" fn get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}
export!("ibv_get_sysfs_path", "IBVERBS_1.0", get_sysfs_path);

/// There is no sysfs behind these devices.
unsafe extern "C" fn read_sysfs_file(
    _: *const c_char,
    _: *const c_char,
    _: *mut c_char,
    _: usize,
) -> c_int {
    minus_one(|| Err(libc::ENOENT))
}
export!("ibv_read_sysfs_file", "IBVERBS_1.0", read_sysfs_file);

/// Children are safe by design: nothing registered is unmapped or copied for them.
unsafe extern "C" fn fork_init() -> c_int {
    0
}
export!("ibv_fork_init", "IBVERBS_1.1", fork_init);

unsafe extern "C" fn fork_range(_: *mut c_void, _: usize) -> c_int {
    0
}
export!("ibv_dontfork_range", "IBVERBS_1.1", fork_range);
export!("ibv_dofork_range", "IBVERBS_1.1", fork_range);

/// `IBV_FORK_UNNEEDED`: the same.
unsafe extern "C" fn is_fork_initialized() -> c_int {
    2
}
export!("ibv_is_fork_initialized", "IBVERBS_1.13", is_fork_initialized);

unsafe extern "C" fn wc_status_str(status: c_int) -> *const c_char {
    names::status(status).as_ptr()
}
export!("ibv_wc_status_str", "IBVERBS_1.1", wc_status_str);

unsafe extern "C" fn event_type_str(event: c_int) -> *const c_char {
    names::event(event).as_ptr()
}
export!("ibv_event_type_str", "IBVERBS_1.1", event_type_str);

unsafe extern "C" fn node_type_str(node: c_int) -> *const c_char {
    names::node_type(node).as_ptr()
}
export!("ibv_node_type_str", "IBVERBS_1.1", node_type_str);

unsafe extern "C" fn port_state_str(state: c_int) -> *const c_char {
    names::port_state(state).as_ptr()
}
export!("ibv_port_state_str", "IBVERBS_1.1", port_state_str);

fn create(pd: &Arc<Pd>, vector: &AhAttr) -> Result<*mut types::Ah, i32> {
    engine_of(pd.context.fabric)?.fabric.settings.driver.require(Verb::CreateAh)?;
    // Given back by `destroy_ah`.
    Ok(Box::leak(Ah::create(pd, vector)?).as_abi())
}

unsafe extern "C" fn create_ah(pd: *mut types::Pd, vector: *const AhAttr) -> *mut types::Ah {
    // SAFETY: the caller's handle and structure.
    pointer(|| create(&unsafe { shared(pd) }, unsafe { &*vector }))
}
export!("ibv_create_ah", "IBVERBS_1.1", create_ah);

unsafe extern "C" fn destroy_ah(handle: *mut types::Ah) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let ah: &Ah = unsafe { object(handle) };
        if !ah.pd.context.fabric.is_gone() {
            // SAFETY: takes back what `create` leaked.
            drop(unsafe { Box::from_raw(handle.cast::<Ah>()) });
        }
        Ok(())
    })
}
export!("ibv_destroy_ah", "IBVERBS_1.1", destroy_ah);

/// The way back to the sender of a datagram.
///
/// # Safety
/// `header` is the network header, where the completion says that there is one.
unsafe fn way_back(
    context: &Context,
    port: u8,
    wc: &Wc,
    header: *const NetworkHeader,
) -> Result<AhAttr, i32> {
    let slot = context.port(u32::from(port))?;
    let (dlid, sl, src_path_bits) = (wc.slid, wc.sl, wc.dlid_path_bits);
    let vector = AhAttr { dlid, sl, src_path_bits, port_num: port, ..AhAttr::default() };
    if wc.wc_flags & WC_GRH == 0 {
        return Ok(vector);
    }
    // SAFETY: by the caller.
    let found = Described::of_bytes(unsafe { &*header }).ok_or(libc::EPROTONOSUPPORT)?;
    let mine = TypedGid { gid: found.target, kind: found.source.kind };
    let index = (0..GIDS).find(|&index| slot.gid(index) == Some(mine)).ok_or(libc::ENOENT)?;
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| found.source.gid[at + i]));
    Ok(AhAttr {
        dgid: [word(0), word(8)],
        flow_label: found.flow_label,
        sgid_index: index as u8,
        hop_limit: 0xff,
        traffic_class: found.traffic_class,
        is_global: 1,
        ..vector
    })
}

unsafe extern "C" fn init_ah_from_wc(
    handle: *mut types::Context,
    port: u8,
    wc: *const Wc,
    header: *const NetworkHeader,
    out: *mut AhAttr,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle.
        let context = unsafe { context(handle) }?;
        // SAFETY: the caller's structures.
        unsafe { out.write(way_back(&context, port, &*wc, header)?) };
        Ok(())
    })
}
export!("ibv_init_ah_from_wc", "IBVERBS_1.1", init_ah_from_wc);

unsafe extern "C" fn create_ah_from_wc(
    pd: *mut types::Pd,
    wc: *const Wc,
    header: *const NetworkHeader,
    port: u8,
) -> *mut types::Ah {
    pointer(|| {
        // SAFETY: the caller's handle.
        let pd: Arc<Pd> = unsafe { shared(pd) };
        // SAFETY: the caller's structures.
        let vector = unsafe { way_back(&pd.context, port, &*wc, header) }?;
        create(&pd, &vector)
    })
}
export!("ibv_create_ah_from_wc", "IBVERBS_1.1", create_ah_from_wc);

// Enhanced connection establishment: options that devices of one maker agree on. `SOFTRNIC_ECE`
// says which these have; they are kept and reported, and change nothing.

/// `struct ibv_ece`.
#[repr(C)]
struct Ece {
    vendor_id: u32,
    options: u32,
    comp_mask: u32,
}

/// Before a set: what the device offers. After the change of the queue pair that follows it: what
/// of it the queue pair has.
unsafe extern "C" fn query_ece(handle: *mut types::Qp, out: *mut Ece) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let qp: &Qp = unsafe { object(handle) };
        if qp.fabric.settings.ece == 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let (vendor_id, options) = (qp.library.ece_vendor, qp.ece.load(SeqCst));
        // SAFETY: the caller's structure.
        unsafe { out.write(Ece { vendor_id, options, comp_mask: 0 }) };
        Ok(())
    })
}
export!("ibv_query_ece", "IBVERBS_1.10", query_ece);

/// For the next change of the queue pair. Until then it has no options, as with mlx5.
unsafe extern "C" fn set_ece(handle: *mut types::Qp, wanted: *const Ece) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let qp: &Qp = unsafe { object(handle) };
        // SAFETY: the caller's structure.
        let Ece { vendor_id, options, comp_mask } = unsafe { wanted.read() };
        if qp.fabric.settings.ece == 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if vendor_id != qp.library.ece_vendor || comp_mask != 0 {
            return Err(libc::EINVAL);
        }
        qp.ece.store(0, SeqCst);
        qp.ece_to_be.store(options, SeqCst);
        Ok(())
    })
}
export!("ibv_set_ece", "IBVERBS_1.10", set_ece);

// `ibv_gid_type`
const INFINIBAND: u32 = 0;
const ROCE_V1: u32 = 1;
const ROCE_V2: u32 = 2;

/// Empty entries read as zeros.
unsafe extern "C" fn query_gid(
    handle: *mut types::Context,
    port: u8,
    index: c_int,
    out: *mut Gid,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle.
        let port = unsafe { context(handle) }?.port(u32::from(port))?;
        let index = usize::try_from(index).ok().filter(|&i| i < GIDS).ok_or(libc::EINVAL)?;
        let gid = port.gid(index).unwrap_or_default().gid;
        // SAFETY: the caller's structure.
        unsafe { out.write(gid) };
        Ok(())
    })
}
export!("ibv_query_gid", "IBVERBS_1.1", query_gid);

/// GidEntry `index` of a table, unless it is empty.
fn entry(port: &PortSlot, port_num: u32, index: usize) -> Option<GidEntry> {
    let TypedGid { gid, kind } = port.gid(index)?;
    let gid_type = match kind {
        GidType::RoceV2 => ROCE_V2,
        GidType::Plain if port.is_infiniband() => INFINIBAND,
        GidType::Plain => ROCE_V1,
    };
    Some(GidEntry { gid, gid_index: index as u32, port_num, gid_type, ndev_ifindex: 0 })
}

/// Writes the part of `entry` that the caller's structure of `size` bytes has room for.
///
/// # Safety
/// `out` has `size` bytes.
unsafe fn write_entry(out: *mut u8, size: usize, entry: &GidEntry) {
    // SAFETY: by the caller; an entry has at least the bytes copied.
    unsafe {
        ptr::write_bytes(out, 0, size);
        ptr::copy_nonoverlapping(
            (&raw const *entry).cast::<u8>(),
            out,
            size.min(size_of::<GidEntry>()),
        );
    }
}

pub unsafe extern "C" fn query_gid_ex(
    handle: *mut types::Context,
    port: u32,
    index: u32,
    out: *mut u8,
    flags: u32,
    size: usize,
) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let slot = unsafe { context(handle) }?.port(port)?;
        if index as usize >= GIDS || flags != 0 {
            return Err(libc::EINVAL);
        }
        let found = entry(slot, port, index as usize).ok_or(libc::ENODATA)?;
        // SAFETY: the caller's structure.
        unsafe { write_entry(out, size, &found) };
        Ok(())
    })
}
export!("_ibv_query_gid_ex", "IBVERBS_1.11", query_gid_ex);

/// All entries of all ports that are not empty. Returns how many there are, or a negative errno
/// value.
pub unsafe extern "C" fn query_gid_table(
    handle: *mut types::Context,
    out: *mut u8,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    let mut count = 0;
    let rc = code(|| {
        // SAFETY: the caller's handle.
        let context = unsafe { context(handle) }?;
        if flags != 0 {
            return Err(libc::EINVAL);
        }
        for (port, index) in
            (1..=context.fabric.topology.ports()).flat_map(|port| (0..GIDS).map(move |i| (port, i)))
        {
            let Some(found) = entry(context.port(port)?, port, index) else { continue };
            if count == room {
                return Err(libc::EINVAL);
            }
            // SAFETY: the caller's array of `room` structures.
            unsafe { write_entry(out.add(count * size), size, &found) };
            count += 1;
        }
        Ok(())
    });
    if rc == 0 {
        return count as isize;
    }
    set_errno(rc);
    -(rc as isize)
}
export!("_ibv_query_gid_table", "IBVERBS_1.11", query_gid_table);

/// The type as sysfs counts it, where RoCE v1 and InfiniBand are one.
#[cfg(feature = "tools")]
pub(crate) unsafe extern "C" fn query_gid_type(
    handle: *mut types::Context,
    port: u8,
    index: u32,
    out: *mut u32,
) -> c_int {
    const SYSFS_IB_ROCE_V1: u32 = 0;
    const SYSFS_ROCE_V2: u32 = 1;
    minus_one(|| {
        // SAFETY: the caller's handle.
        let port = unsafe { context(handle) }?.port(u32::from(port))?;
        let index = usize::try_from(index).ok().filter(|&i| i < GIDS).ok_or(libc::EINVAL)?;
        let is_v2 = port.gid(index).is_some_and(|entry| entry.kind == GidType::RoceV2);
        // SAFETY: the caller's enumeration.
        unsafe { out.write(if is_v2 { SYSFS_ROCE_V2 } else { SYSFS_IB_ROCE_V1 }) };
        Ok(())
    })
}

/// Whether an event concerns a QP, which then waits for the acknowledgement.
fn is_of_qp(kind: u32) -> bool {
    (event::QP_FATAL..=event::SQ_DRAINED).contains(&kind) || kind == event::QP_LAST_WQE_REACHED
}

pub unsafe extern "C" fn get_async_event(
    handle: *mut types::Context,
    out: *mut AsyncEvent,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle.
        let context = unsafe { context(handle) }?;
        let taken = context.events.pop(|e| match e.kind {
            event::CQ_ERR => {
                // SAFETY: events of a CQ that is gone have been purged; this one still exists.
                let cq: &Cq = unsafe { object(e.element as *const types::Cq) };
                cq.async_events.fetch_add(1, SeqCst);
            }
            event::SRQ_LIMIT_REACHED => {
                // SAFETY: as above, for SRQs.
                let srq: &Srq = unsafe { object(e.element as *const types::Srq) };
                srq.async_events.fetch_add(1, SeqCst);
            }
            kind if is_of_qp(kind) => {
                // SAFETY: as above, for QPs.
                let qp: &Qp = unsafe { object(e.element as *const types::Qp) };
                qp.async_events.fetch_add(1, SeqCst);
            }
            // A port or a device.
            _ => {}
        })?;
        // SAFETY: the caller's structure.
        unsafe { out.write(AsyncEvent { element: taken.element, event_type: taken.kind }) };
        Ok(())
    })
}
export!("ibv_get_async_event", "IBVERBS_1.1", get_async_event);

pub unsafe extern "C" fn ack_async_event(given: *mut AsyncEvent) {
    code(|| {
        // SAFETY: the caller's structure.
        let event = unsafe { &*given };
        match event.event_type {
            event::CQ_ERR => {
                // SAFETY: the object waits for this acknowledgement before it goes.
                unsafe { object::<Cq, _>(event.element as *const types::Cq) }.ack_async_event()
            }
            event::SRQ_LIMIT_REACHED => {
                // SAFETY: as above.
                unsafe { object::<Srq, _>(event.element as *const types::Srq) }.ack_async_event()
            }
            kind if is_of_qp(kind) => {
                // SAFETY: as above.
                unsafe { object::<Qp, _>(event.element as *const types::Qp) }.ack_async_event();
            }
            _ => {}
        }
        Ok(())
    });
}
export!("ibv_ack_async_event", "IBVERBS_1.1", ack_async_event);

pub unsafe extern "C" fn create_comp_channel(
    handle: *mut types::Context,
) -> *mut types::CompChannel {
    pointer(|| {
        // SAFETY: the caller's handle.
        let channel = Channel::new(unsafe { context(handle) }?)?;
        // Given back by `destroy_comp_channel`.
        Ok(Box::leak(channel).as_abi())
    })
}
export!("ibv_create_comp_channel", "IBVERBS_1.0", create_comp_channel);

pub unsafe extern "C" fn destroy_comp_channel(handle: *mut types::CompChannel) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let channel: &Channel = unsafe { object(handle) };
        if channel.context.fabric.is_gone() {
            return Ok(());
        }
        if channel.users.load(SeqCst) != 0 {
            return Err(libc::EBUSY);
        }
        // SAFETY: takes back what `create_comp_channel` leaked; no CQ refers to it.
        drop(unsafe { Box::from_raw(handle.cast::<Channel>()) });
        Ok(())
    })
}
export!("ibv_destroy_comp_channel", "IBVERBS_1.0", destroy_comp_channel);

/// Reached through the context's table.
pub unsafe extern "C" fn req_notify_cq(handle: *mut types::Cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's handle.
    let cq: &Cq = unsafe { object(handle) };
    if !cq.context.fabric.is_gone() {
        cq.arm(solicited_only == 0);
    }
    0
}

pub unsafe extern "C" fn get_cq_event(
    handle: *mut types::CompChannel,
    cq_out: *mut *mut types::Cq,
    context_out: *mut *mut c_void,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle.
        let channel: &Channel = unsafe { object(handle) };
        let taken = channel.tokens.pop(|&token| {
            // SAFETY: tokens of a CQ that is gone have been purged; this one still exists.
            let cq: &Cq = unsafe { object(token as *const types::Cq) };
            cq.comp_events.fetch_add(1, SeqCst);
        })?;
        let cq = taken as *mut types::Cq;
        // SAFETY: the caller's structures; the CQ waits for the acknowledgement before it goes.
        unsafe {
            cq_out.write(cq);
            context_out.write((*cq).cq_context);
        }
        Ok(())
    })
}
export!("ibv_get_cq_event", "IBVERBS_1.1", get_cq_event);

pub unsafe extern "C" fn ack_cq_events(handle: *mut types::Cq, count: u32) {
    code(|| {
        // SAFETY: the caller's handle.
        unsafe { object::<Cq, _>(handle) }.ack_comp_events(count);
        Ok(())
    });
}
export!("ibv_ack_cq_events", "IBVERBS_1.1", ack_cq_events);
