//! Devices that are opened once for the process, and stay open: all identifiers on one have the same context and the same default
//! protection domain.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, Once};

use crate::abi::types::{Context, Pd};
use crate::host::errno::last_errno;
use crate::host::lock::lock;
use crate::limits::DEVICES;
use crate::objects::device;
use crate::verbs::attach::engine;
use crate::verbs::device::open_device;
use crate::verbs::memory::alloc_pd;

/// The application's handles, as numbers; 0: not opened yet.
#[derive(Clone, Copy)]
struct Opened {
    context: usize,
    pd: usize,
}

type Table = Mutex<[Opened; DEVICES]>;

static OPENED: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());
static HANDLER: Once = Once::new();

fn opened() -> &'static Table {
    let mut table = OPENED.load(SeqCst);
    if table.is_null() {
        // SAFETY: a plain function of a library that is never unloaded (-z nodelete).
        HANDLER.call_once(|| unsafe { _ = libc::pthread_atfork(None, None, Some(in_child)) });
        let new = Box::into_raw(Box::new(Mutex::new([Opened { context: 0, pd: 0 }; DEVICES])));
        table = match OPENED.compare_exchange(ptr::null_mut(), new, SeqCst, SeqCst) {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: made above, and nobody has seen it.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
    }
    // SAFETY: a leaked box.
    unsafe { &*table }
}

/// After fork, in the child: what is open is the parent's.
extern "C" fn in_child() {
    OPENED.store(ptr::null_mut(), SeqCst);
}

/// The context and the default protection domain of a device.
pub(super) fn open(index: usize) -> Result<(*mut Context, *mut Pd), i32> {
    let mut opened = lock(opened());
    let entry = &mut opened[index];
    if entry.context == 0 {
        let device = device::all().get(index).ok_or(libc::ENODEV)?;
        // SAFETY: a device of the list.
        let context = unsafe { open_device(device.as_abi()) };
        if context.is_null() {
            return Err(last_errno());
        }
        entry.context = context as usize;
    }
    if entry.pd == 0 {
        // SAFETY: a context that is never closed.
        let pd = unsafe { alloc_pd(entry.context as *mut Context) };
        if pd.is_null() {
            return Err(last_errno());
        }
        entry.pd = pd as usize;
    }
    Ok((entry.context as *mut Context, entry.pd as *mut Pd))
}

/// The contexts of all devices.
pub(super) fn all() -> Result<Vec<*mut Context>, i32> {
    let count = engine()?.fabric.topology.devices();
    (0..count).map(|index| open(index).map(|(context, _)| context)).collect()
}

/// For `rdma_get_devices`.
pub(super) unsafe extern "C" fn get_devices(count: *mut c_int) -> *mut *mut Context {
    crate::verbs::pointer(|| {
        let found = all()?;
        // SAFETY: plain allocation, released by `free_devices`; one more entry ends the list.
        let list = unsafe { libc::calloc(found.len() + 1, size_of::<*mut Context>()) }.cast::<*mut Context>();
        if list.is_null() {
            return Err(libc::ENOMEM);
        }
        for (i, context) in found.iter().enumerate() {
            // SAFETY: inside the allocation.
            unsafe { list.add(i).write(*context) };
        }
        if !count.is_null() {
            // SAFETY: the caller's structure.
            unsafe { count.write(found.len() as c_int) };
        }
        Ok(list)
    })
}
crate::abi::export::export!("rdma_get_devices", "RDMACM_1.0", get_devices);

unsafe extern "C" fn free_devices(list: *mut *mut Context) {
    // SAFETY: allocated by `get_devices`; the devices stay open.
    unsafe { libc::free(list.cast()) };
}
crate::abi::export::export!("rdma_free_devices", "RDMACM_1.0", free_devices);
