//! Devices, contexts, queries.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::abi::device_attr::{DEVICE_ATTR_EX_PORTS, DeviceAttr};
use crate::abi::export::export;
use crate::abi::names;
use crate::abi::types::{self, PORT_ATTR_SHORT, PortAttr};
use crate::control::network::Network;
use crate::network::link::STATE_DOWN;
use crate::objects::context::{Context, Ops};
use crate::objects::device::{self, Device};
use crate::verbs::attach::engine;
use crate::verbs::{code, context, minus_one, pointer};

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut types::Device {
    let mut found = 0;
    let list = pointer(|| {
        let fabric = engine()?.fabric;
        let is_there = |device: &&Device| !Network::of(fabric).is_absent(device.index);
        let there: Vec<_> = device::all().iter().take(fabric.topology.devices()).filter(is_there).collect();
        found = there.len();
        // Ends with a NULL.
        // SAFETY: plain allocation, released by `free_device_list`.
        let list = unsafe { libc::calloc(found + 1, size_of::<*mut types::Device>()) }.cast::<*mut types::Device>();
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

unsafe extern "C" fn free_device_list(list: *mut *mut types::Device) {
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

unsafe extern "C" fn get_device_index(device: *const types::Device) -> c_int {
    // SAFETY: the caller's handle.
    unsafe { Device::from_abi(device) }.index as c_int
}
export!("ibv_get_device_index", "IBVERBS_1.9", get_device_index);

pub(super) unsafe extern "C" fn open_device(device: *const types::Device) -> *mut types::Context {
    pointer(|| {
        let engine = engine()?;
        // SAFETY: the caller's handle.
        let device = unsafe { Device::from_abi(device) };
        if Network::of(engine.fabric).is_absent(device.index) {
            return Err(libc::EIO);
        }
        let ops = Ops {
            poll_cq: super::post::poll as *const () as usize,
            req_notify_cq: super::events::req_notify_cq as *const () as usize,
            post_send: super::post::post_send as *const () as usize,
            post_recv: super::post::post_recv as *const () as usize,
            post_srq_recv: super::srqs::post_srq_recv as *const () as usize,
            query_port: query_port_ex as *const () as usize,
            query_device: query_device_ex as *const () as usize,
            create_cq_ex: super::extended_cqs::create_cq_ex as *const () as usize,
            create_qp_ex: super::queues::create_qp_ex as *const () as usize,
            alloc_td: super::domains::alloc_td as *const () as usize,
            dealloc_td: super::domains::dealloc_td as *const () as usize,
            alloc_parent_domain: super::domains::alloc_parent_domain as *const () as usize,
        };
        let opened = engine.open(device, &ops)?;
        let handle = opened.as_abi();
        // Given back by `close_device`.
        let _ = Arc::into_raw(opened);
        Ok(handle)
    })
}
export!("ibv_open_device", "IBVERBS_1.1", open_device);

unsafe extern "C" fn close_device(context: *mut types::Context) -> c_int {
    code(|| {
        // SAFETY: takes back what `open_device` leaked; objects that still refer to the context keep it.
        drop(unsafe { Arc::from_raw(Context::container(context)) });
        Ok(())
    })
}
export!("ibv_close_device", "IBVERBS_1.1", close_device);

unsafe extern "C" fn query_device(handle: *mut types::Context, out: *mut DeviceAttr) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let context = unsafe { context(handle) }?;
        // SAFETY: the caller's structure.
        unsafe { out.write(context.device.attributes(&context.fabric.settings, &context.fabric.topology)) };
        Ok(())
    })
}
export!("ibv_query_device", "IBVERBS_1.1", query_device);

/// Through `verbs_context`: the attributes of `query_device`, then those that newer headers have, of which only the
/// number of ports is not zero. Callers with older headers have less `room`.
unsafe extern "C" fn query_device_ex(
    handle: *mut types::Context,
    input: *const u32,
    out: *mut u8,
    room: usize,
) -> c_int {
    code(|| {
        // SAFETY: the caller's structure, whose first and only field is a mask of extensions, or NULL.
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

/// Writes at most `room` bytes of the port's attributes; `room` itself is zeroed by the caller where it is longer.
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
unsafe extern "C" fn query_port_ex(handle: *mut types::Context, port: u8, out: *mut u8, room: usize) -> c_int {
    code(|| write_port(handle, port, out, room))
}

unsafe extern "C" fn query_port_speed(handle: *mut types::Context, port: u32, out: *mut u64) -> c_int {
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

unsafe extern "C" fn query_pkey(handle: *mut types::Context, port: u8, index: c_int, out: *mut u16) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle.
        unsafe { context(handle) }?.port(u32::from(port))?;
        if index != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's structure. The default partition reads the same in either byte order.
        unsafe { out.write(0xffff) };
        Ok(())
    })
}
export!("ibv_query_pkey", "IBVERBS_1.1", query_pkey);

/// Which entry of the partition table holds `pkey`; the default partition, of which every port is a full member.
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
unsafe extern "C" fn read_sysfs_file(_: *const c_char, _: *const c_char, _: *mut c_char, _: usize) -> c_int {
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
