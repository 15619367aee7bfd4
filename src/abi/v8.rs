//! `ncclNetPlugin_v8`: the vtable, and one thin function per slot: check the pointers, call `net`, write the answers.
//!
//! Every function is `unsafe` for one reason: NCCL's pointers. By its contract, comms, handles and requests are those
//! that this plugin gave out and that have not been closed, and output pointers are valid.

use super::datapath::{iflush, irecv, isend, test};
use super::guard::guard;
use super::handles::{Comm, Handle, ListenHandle, MemoryHandle, RecvHandle, SendHandle, Tagged};
use super::output::put;
use super::{logger, nccl};
use crate::error::{Error, Result};
use crate::net::Net;
use crate::net::data::receiver::RecvComm;
use crate::net::data::sender::SendComm;
use crate::net::device::nic::Nic;
use crate::net::mr::cache::MemoryKind;
use crate::net::mr::handle::MrHandle;
use crate::proto::MAX_GROUP;
use crate::proto::handle::HANDLE_BYTES;
use nccl::ncclResult_t;
use once_cell::sync::OnceCell;
use std::ffi::{CString, c_int, c_void};
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};

const _: () = assert!(HANDLE_BYTES == nccl::NCCL_NET_HANDLE_MAXSIZE as usize);

/// The vtable's name: `NCCL_NET=Ferrite` asks for it.
const NAME: &std::ffi::CStr = c"Ferrite";

/// A vtable that NCCL only reads.
#[repr(transparent)]
#[derive(Debug)]
pub struct Vtable(nccl::ncclNet_v8_t);

// SAFETY: never written; its one data pointer is to a static string.
unsafe impl Sync for Vtable {}

/// What NCCL looks up.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclNetPlugin_v8: Vtable = Vtable(nccl::ncclNet_v8_t {
    name: NAME.as_ptr(),
    init: Some(init),
    devices: Some(devices),
    getProperties: Some(get_properties),
    listen: Some(listen),
    connect: Some(connect),
    accept: Some(accept),
    regMr: Some(reg_mr),
    regMrDmaBuf: Some(reg_mr_dma_buf),
    deregMr: Some(dereg_mr),
    isend: Some(isend),
    irecv: Some(irecv),
    iflush: Some(iflush),
    test: Some(test),
    closeSend: Some(close_send),
    closeRecv: Some(close_recv),
    closeListen: Some(close_listen),
    getDeviceMr: None,
    irecvConsumed: None,
});

/// The process's network with what `getProperties` hands out of it.
struct Process {
    net: Net,
    strings: Vec<(CString, Option<CString>)>,
}

static PROCESS: OnceCell<Process> = OnceCell::new();

fn process() -> Result<&'static Process> {
    PROCESS.get().ok_or_else(|| Error::internal("called before init succeeded"))
}

unsafe extern "C" fn init(log_function: nccl::ncclDebugLogger_t) -> ncclResult_t {
    guard("init", || {
        logger::install(log_function);
        PROCESS.get_or_try_init(|| {
            let net = Net::from_env()?;
            let string = |text: &str| CString::new(text).map_err(|_| Error::internal(format!("{text:?} has a NUL")));
            let strings = net.devices().iter().map(|d| {
                let path = d.first().card.pci_path().map(string).transpose()?;
                Ok((string(&d.name)?, path))
            });
            let strings = strings.collect::<Result<_>>()?;
            Ok::<_, Error>(Process { net, strings })
        })?;
        Ok(())
    })
}

unsafe extern "C" fn devices(count: *mut c_int) -> ncclResult_t {
    guard("devices", || {
        let devices = process()?.net.devices().len();
        // SAFETY: NCCL's output pointer.
        unsafe { put(count, c_int::try_from(devices).unwrap_or(c_int::MAX), "ndev") }
    })
}

unsafe extern "C" fn get_properties(dev: c_int, props: *mut nccl::ncclNetProperties_v8_t) -> ncclResult_t {
    guard("getProperties", || {
        let process = process()?;
        let device = process.net.device(dev)?;
        let strings = usize::try_from(dev).ok().and_then(|i| process.strings.get(i));
        let (name, path) = strings.ok_or_else(|| Error::internal(format!("device {dev} has no name")))?;
        let first = device.first();
        let number = |n: u32| c_int::try_from(n).unwrap_or(c_int::MAX);
        let properties = nccl::ncclNetProperties_v8_t {
            name: name.as_ptr().cast_mut(),
            pciPath: path.as_ref().map_or(std::ptr::null_mut(), |p| p.as_ptr().cast_mut()),
            guid: first.card.guid(),
            ptrSupport: pointer_support(device),
            regIsGlobal: 1,
            speed: number(device.speed_mbps()),
            port: first.port_of_card,
            latency: 0.0,
            maxComms: first.card.max_queue_pairs(),
            maxRecvs: MAX_GROUP as c_int,
            netDeviceType: nccl::NCCL_NET_DEVICE_HOST,
            netDeviceVersion: nccl::NCCL_NET_DEVICE_INVALID_VERSION as c_int,
        };
        // SAFETY: NCCL's output pointer.
        unsafe { put(props, properties, "props") }
    })
}

fn pointer_support(device: &Nic) -> c_int {
    let gpu = if device.supports_peer_memory() { nccl::NCCL_PTR_CUDA } else { 0 };
    let dmabuf = if device.supports_dmabuf() { nccl::NCCL_PTR_DMABUF } else { 0 };
    (nccl::NCCL_PTR_HOST | gpu | dmabuf) as c_int
}

unsafe extern "C" fn listen(dev: c_int, handle: *mut c_void, listen_comm: *mut *mut c_void) -> ncclResult_t {
    guard("listen", || {
        let listener = process()?.net.listen(dev)?;
        // SAFETY: NCCL gives 128 bytes, without alignment.
        unsafe { put(handle.cast::<[u8; HANDLE_BYTES]>(), listener.handle().emit(), "handle")? };
        // SAFETY: NCCL's output pointer.
        unsafe { put(listen_comm, ListenHandle::into_raw(Mutex::new(listener)), "listenComm") }
    })
}

unsafe extern "C" fn connect(
    dev: c_int,
    handle: *mut c_void,
    send_comm: *mut *mut c_void,
    _device_handle: *mut *mut nccl::ncclNetDeviceHandle_v8_t,
) -> ncclResult_t {
    guard("connect", || {
        // SAFETY: NCCL's output pointer.
        unsafe { put(send_comm, std::ptr::null_mut(), "sendComm")? };
        if handle.is_null() {
            return Err(Error::argument("handle is NULL"));
        }
        // SAFETY: NCCL's private copy of the 128 bytes, nobody else's during the call.
        let bytes = unsafe { &mut *handle.cast::<[u8; HANDLE_BYTES]>() };
        match process()?.net.connect(dev, bytes)? {
            None => Ok(()),
            // SAFETY: as above.
            Some(comm) => unsafe { put(send_comm, SendHandle::new_send(comm), "sendComm") },
        }
    })
}

unsafe extern "C" fn accept(
    listen_comm: *mut c_void,
    recv_comm: *mut *mut c_void,
    _device_handle: *mut *mut nccl::ncclNetDeviceHandle_v8_t,
) -> ncclResult_t {
    guard("accept", || {
        // SAFETY: NCCL's output pointer.
        unsafe { put(recv_comm, std::ptr::null_mut(), "recvComm")? };
        // SAFETY: by NCCL's contract.
        let listener = unsafe { ListenHandle::borrow(listen_comm)? };
        let accepted = listener.lock().unwrap_or_else(PoisonError::into_inner).accept()?;
        match accepted {
            None => Ok(()),
            // SAFETY: as above.
            Some(comm) => unsafe { put(recv_comm, RecvHandle::new_recv(comm), "recvComm") },
        }
    })
}

/// The device of a send or receive communicator.
unsafe fn device_of<'a>(comm: *mut c_void) -> Result<&'a Nic> {
    // SAFETY: by NCCL's contract; the tag tells which of the two it is.
    match unsafe { SendHandle::borrow(comm) } {
        Ok(send) => Ok(&send.comm.nic),
        // SAFETY: as above.
        Err(_) => Ok(&unsafe { RecvHandle::borrow(comm)? }.comm.nic),
    }
}

unsafe fn register(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    dmabuf: Option<(RawFd, u64)>,
    mhandle: *mut *mut c_void,
) -> Result<()> {
    // SAFETY: NCCL's output pointer.
    unsafe { put(mhandle, std::ptr::null_mut(), "mhandle")? };
    // SAFETY: by NCCL's contract.
    let device = unsafe { device_of(comm)? };
    let kind = match kind as u32 {
        nccl::NCCL_PTR_HOST => MemoryKind::Host,
        nccl::NCCL_PTR_CUDA => MemoryKind::Gpu,
        other => return Err(Error::argument(format!("memory of type {other}; 1 (host) and 2 (CUDA) are known"))),
    };
    // SAFETY: NCCL keeps the memory until it has deregistered it.
    let memory = unsafe { MrHandle::register(device, data as u64, size, kind, dmabuf)? };
    // SAFETY: NCCL's output pointer.
    unsafe { put(mhandle, MemoryHandle::into_raw(memory), "mhandle") }
}

unsafe extern "C" fn reg_mr(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    mhandle: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: the arguments are NCCL's.
    guard("regMr", || unsafe { register(comm, data, size, kind, None, mhandle) })
}

unsafe extern "C" fn reg_mr_dma_buf(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    offset: u64,
    fd: c_int,
    mhandle: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: the arguments are NCCL's.
    guard("regMrDmaBuf", || unsafe { register(comm, data, size, kind, Some((fd, offset)), mhandle) })
}

unsafe extern "C" fn dereg_mr(_comm: *mut c_void, mhandle: *mut c_void) -> ncclResult_t {
    // SAFETY: by NCCL's contract; the communicator may be gone or NULL, and is not needed.
    guard("deregMr", || unsafe { MemoryHandle::take(mhandle) }.map(drop))
}

unsafe fn close<T: Tagged>(call: &'static str, raw: *mut c_void) -> ncclResult_t {
    // SAFETY: by NCCL's contract; NULL is what it never got.
    guard(call, || unsafe { Handle::<T>::take(raw) }.map(drop))
}

unsafe extern "C" fn close_send(comm: *mut c_void) -> ncclResult_t {
    // SAFETY: as for `close`.
    unsafe { close::<Comm<SendComm>>("closeSend", comm) }
}

unsafe extern "C" fn close_recv(comm: *mut c_void) -> ncclResult_t {
    // SAFETY: as for `close`.
    unsafe { close::<Comm<RecvComm>>("closeRecv", comm) }
}

unsafe extern "C" fn close_listen(comm: *mut c_void) -> ncclResult_t {
    // SAFETY: as for `close`.
    unsafe { close::<Mutex<crate::net::setup::listen::Listener>>("closeListen", comm) }
}
