//! The calls of NCCL's service thread, in types that are the same for all interface versions: init,
//! devices, properties, listen, connect, accept, registration and close. The calls with a context
//! are in [`super::context_calls`]. Those of NCCL's progress thread are in [`super::datapath`].
//! `version` is that of the table that NCCL has called.
//!
//! Every function is `unsafe` for one reason: NCCL's pointers. By its contract, communicators,
//! handles and requests come from this plugin and are not closed, and output pointers are valid.

use super::datapath::test_message;
use super::guard::guard;
use super::handles::{
    Handle, ListenHandle, MemoryHandle, NcclObject, RecvHandle, SendHandle, Tagged,
};
use super::layout::Members;
use super::nccl;
use super::output::{missing, put};
use super::process::Process;
use crate::error::{Error, Result};
use crate::net::data::recv::RecvComm;
use crate::net::data::send::SendComm;
use crate::net::device::conn_memory::{ConnMemory, Holder};
use crate::net::device::nic::Nic;
use crate::net::mr::regions::MemoryKind;
use crate::net::setup::listen::Listener;
use crate::net::setup::nccl_comm::NcclComm;
use crate::proto::handle::HANDLE_BYTES;
use crate::proto::{MAX_GROUP, MAX_MESSAGE};
use nccl::ncclResult_t;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};

const _: () = assert!(HANDLE_BYTES == nccl::NCCL_NET_HANDLE_MAXSIZE as usize);

/// The properties of a device; each version of the interface has its own struct.
#[derive(Debug, Clone, Copy)]
pub(super) struct Properties<'a> {
    /// Unique name.
    pub(super) name: *const c_char,
    /// Path of the PCI function in /sys, or NULL.
    pub(super) pci_path: *const c_char,
    /// GUID of the card.
    pub(super) guid: u64,
    /// `NCCL_PTR_*` flags of the memory that can be registered.
    pub(super) ptr_support: c_int,
    /// Bandwidth in Mbit/s.
    pub(super) speed_mbps: c_int,
    /// Port number, from 1.
    pub(super) port: c_int,
    /// The most communicators of the device.
    pub(super) max_comms: c_int,
    /// The most messages in a grouped receive.
    pub(super) max_recvs: c_int,
    /// The numbers of the devices that it consists of.
    pub(super) members: &'a [c_int],
    /// The rail and the plane of the fabric; -1 if unknown.
    pub(super) rail: i16,
    /// As `rail`.
    pub(super) plane: i16,
}

/// The most bytes of a message, as reported to NCCL.
pub(super) const MAX_P2P_BYTES: usize = MAX_MESSAGE as usize;
/// The most bytes of a message of a collective network. There is none here; NCCL's own transports
/// report this value.
pub(super) const MAX_COLLECTIVE_BYTES: usize = 512 << 20;

/// Sends log messages to `log_function` and creates the network.
pub(super) unsafe fn init(version: u32, log_function: nccl::ncclDebugLogger_t) -> ncclResult_t {
    guard("init", || Process::init(version, log_function))
}

/// The number of devices.
pub(super) unsafe fn devices(version: u32, count: *mut c_int) -> ncclResult_t {
    guard("devices", || {
        let devices = Process::get()?.devices(version)?.count();
        // SAFETY: NCCL's output pointer.
        unsafe { put(count, c_int::try_from(devices).unwrap_or(c_int::MAX), "ndev") }
    })
}

/// The properties of device number `dev`; `convert` puts them into the struct of a version.
pub(super) unsafe fn get_properties<P>(
    version: u32,
    dev: c_int,
    props: *mut P,
    convert: impl FnOnce(Properties<'_>) -> P,
) -> ncclResult_t {
    guard("getProperties", || {
        let device = Process::get()?.devices(version)?.get(dev)?;
        let (nic, first) = (&device.nic, device.nic.first());
        let (rail, plane) = nic.rail_and_plane();
        let properties = Properties {
            name: device.name.as_ptr(),
            pci_path: device.pci_path.as_deref().map_or(std::ptr::null(), |path| path.as_ptr()),
            guid: first.card.guid(),
            ptr_support: pointer_support(nic),
            speed_mbps: c_int::try_from(nic.speed_mbps()).unwrap_or(c_int::MAX),
            port: first.port_of_card,
            max_comms: first.card.max_queue_pairs(),
            max_recvs: MAX_GROUP as c_int,
            members: &device.members,
            rail,
            plane,
        };
        // SAFETY: NCCL's output pointer.
        unsafe { put(props, convert(properties), "props") }
    })
}

/// Merges several devices into one; `dev` becomes its number.
pub(super) unsafe fn make_v_device<const MOST: usize>(
    version: u32,
    dev: *mut c_int,
    members: *const Members<MOST>,
) -> ncclResult_t {
    guard("makeVDevice", || {
        // SAFETY: NCCL's pointer, NULL or valid.
        let members = unsafe { members.as_ref() }.ok_or_else(|| missing("props"))?;
        let merged = Process::get()?.devices(version)?.merge(members.named()?)?;
        // SAFETY: NCCL's output pointer.
        unsafe { put(dev, merged, "d") }
    })
}

fn pointer_support(device: &Nic) -> c_int {
    let gpu = if device.supports_peer_memory() { nccl::NCCL_PTR_CUDA } else { 0 };
    let dmabuf = if device.supports_dmabuf() { nccl::NCCL_PTR_DMABUF } else { 0 };
    (nccl::NCCL_PTR_HOST | gpu | dmabuf) as c_int
}

/// A listener on device number `dev`, for NCCL's communicator `of`, and its handle for the peer.
pub(super) unsafe fn listen(
    version: u32,
    of: impl FnOnce() -> Result<NcclComm>,
    dev: c_int,
    handle: *mut c_void,
    listen_comm: *mut *mut c_void,
) -> ncclResult_t {
    guard("listen", || {
        let of = of()?;
        let process = Process::get()?;
        let listener = process.network.listen(&process.devices(version)?.get(dev)?.nic, of)?;
        // SAFETY: NCCL gives 128 bytes, without alignment.
        unsafe { put(handle.cast::<[u8; HANDLE_BYTES]>(), listener.handle().emit(), "handle")? };
        // SAFETY: NCCL's output pointer.
        unsafe { put(listen_comm, ListenHandle::into_raw(Mutex::new(listener)), "listenComm") }
    })
}

/// Creates a send communicator to the listener behind `handle`, for NCCL's communicator `of`; NULL
/// until it exists.
pub(super) unsafe fn connect(
    version: u32,
    of: impl FnOnce() -> Result<NcclComm>,
    dev: c_int,
    handle: *mut c_void,
    send_comm: *mut *mut c_void,
) -> ncclResult_t {
    guard("connect", || {
        let of = of()?;
        // SAFETY: NCCL's output pointer.
        unsafe { put(send_comm, std::ptr::null_mut(), "sendComm")? };
        if handle.is_null() {
            return Err(missing("handle"));
        }
        // SAFETY: NCCL's private copy of the 128 bytes; nothing else uses it during the call.
        let bytes = unsafe { &mut *handle.cast::<[u8; HANDLE_BYTES]>() };
        let process = Process::get()?;
        match process.network.connect(&process.devices(version)?.get(dev)?.nic, of, bytes)? {
            None => Ok(()),
            Some(comm) => {
                // SAFETY: as above.
                unsafe {
                    put(send_comm, SendHandle::new_send(comm, test_message::<SendComm>), "sendComm")
                }
            }
        }
    })
}

/// Creates a receive communicator from the listener's peer; NULL until it exists.
pub(super) unsafe fn accept(listen_comm: *mut c_void, recv_comm: *mut *mut c_void) -> ncclResult_t {
    guard("accept", || {
        // SAFETY: NCCL's output pointer.
        unsafe { put(recv_comm, std::ptr::null_mut(), "recvComm")? };
        // SAFETY: by NCCL's contract.
        let listener = unsafe { ListenHandle::borrow(listen_comm)? };
        let accepted = listener.lock().unwrap_or_else(PoisonError::into_inner).accept()?;
        match accepted {
            None => Ok(()),
            // SAFETY: as above.
            Some(comm) => unsafe {
                put(recv_comm, RecvHandle::new_recv(comm, test_message::<RecvComm>), "recvComm")
            },
        }
    })
}

/// Registers `size` bytes at `data`, through a dma-buf descriptor and offset if given. `call` is
/// NCCL's name for it.
pub(super) unsafe fn register(
    call: &'static str,
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    dmabuf: Option<(RawFd, u64)>,
    mhandle: *mut *mut c_void,
) -> ncclResult_t {
    guard(call, || {
        // SAFETY: NCCL's output pointer.
        unsafe { put(mhandle, std::ptr::null_mut(), "mhandle")? };
        // SAFETY: by NCCL's contract.
        let known = unsafe { memory_of(comm)? };
        let kind = match kind as u32 {
            nccl::NCCL_PTR_HOST => MemoryKind::Host,
            nccl::NCCL_PTR_CUDA => MemoryKind::Gpu,
            other => {
                return Err(Error::argument(format!(
                    "memory of type {other}; 1 (host) and 2 (CUDA) are supported"
                )));
            }
        };
        // SAFETY: NCCL keeps the memory until it has deregistered it.
        let register = |nic: &Nic| unsafe { nic.register(data as u64, size, kind, dmabuf) };
        let memory = known.add(register, MemoryHandle::allocate)?;
        // SAFETY: NCCL's output pointer.
        unsafe { put(mhandle, NcclObject::into_raw(memory), "mhandle") }
    })
}

/// The registered memory of a send or receive communicator.
unsafe fn memory_of<'a>(comm: *mut c_void) -> Result<&'a ConnMemory> {
    // SAFETY: by NCCL's contract; the tag tells which of the two it is.
    match unsafe { SendHandle::borrow(comm) } {
        Ok(send) => Ok(&send.memory),
        // SAFETY: as above.
        Err(_) => Ok(&unsafe { RecvHandle::borrow(comm)? }.memory),
    }
}

/// Deregisters memory. It needs no communicator, since NCCL may have closed that before.
pub(super) unsafe fn deregister(mhandle: *mut c_void) -> ncclResult_t {
    guard("deregMr", || {
        // SAFETY: by NCCL's contract.
        let memory = unsafe { MemoryHandle::take(mhandle)? };
        // A thread that recovers the connection may still use the handle.
        memory.iter().for_each(|given| given.memory().close());
        Ok(())
    })
}

/// Closes a send communicator.
pub(super) unsafe fn close_send(comm: *mut c_void) -> ncclResult_t {
    // SAFETY: the caller's contract.
    unsafe { close::<SendComm>("closeSend", comm) }
}

/// Closes a receive communicator.
pub(super) unsafe fn close_recv(comm: *mut c_void) -> ncclResult_t {
    // SAFETY: the caller's contract.
    unsafe { close::<RecvComm>("closeRecv", comm) }
}

/// Closes a listener.
pub(super) unsafe fn close_listen(comm: *mut c_void) -> ncclResult_t {
    // SAFETY: the caller's contract.
    unsafe { close::<Mutex<Listener>>("closeListen", comm) }
}

unsafe fn close<T: Tagged>(call: &'static str, raw: *mut c_void) -> ncclResult_t {
    guard(call, || {
        // SAFETY: by NCCL's contract.
        unsafe { Handle::<T>::take(raw) }.map(drop)
    })
}
