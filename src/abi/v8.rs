//! `ncclNetPlugin_v8`: the vtable, and one thin function per slot: check the pointers, call `net`, write the answers.
//!
//! Every function is `unsafe` for one reason: NCCL's pointers. By its contract, comms, handles and requests are those
//! that this plugin gave out and that have not been closed, and output pointers are valid.

use super::guard::guard;
use super::handles::{Comm, Handle, ListenHandle, MemoryHandle, Owner, RecvHandle, RequestHandle, SendHandle, Tagged};
use super::{logger, nccl};
use crate::error::{Error, Result};
use crate::net::Net;
use crate::net::device::Device;
use crate::net::receiver::{Expected, RecvComm};
use crate::net::region::{MemoryKind, Registration};
use crate::net::sender::SendComm;
use crate::proto::handle::HANDLE_BYTES;
use crate::proto::requests::RequestId;
use crate::proto::{MAX_GROUP, MAX_MESSAGE};
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

/// Writes through an output pointer of NCCL's.
#[inline]
unsafe fn put<T>(place: *mut T, value: T, name: &str) -> Result<()> {
    if place.is_null() {
        return Err(missing(name));
    }
    // SAFETY: not NULL, and valid by NCCL's contract.
    unsafe { place.write(value) };
    Ok(())
}

#[cold]
#[inline(never)]
fn bad_group(n: c_int) -> Error {
    Error::argument(format!("n is {n}; 1 to {MAX_GROUP} are possible"))
}

#[cold]
#[inline(never)]
fn bad_length(size: c_int) -> Error {
    Error::argument(format!("a length of {size} bytes; 0 to {MAX_MESSAGE} are possible"))
}

#[cold]
#[inline(never)]
fn missing(name: &str) -> Error {
    Error::argument(format!("{name} is NULL"))
}

unsafe extern "C" fn init(log_function: nccl::ncclDebugLogger_t) -> ncclResult_t {
    guard("init", || {
        logger::install(log_function);
        PROCESS.get_or_try_init(|| {
            let net = Net::from_env()?;
            let string = |text: &str| CString::new(text).map_err(|_| Error::internal(format!("{text:?} has a NUL")));
            let strings = net.devices().iter().map(|d| {
                let path = d.card.pci_path().map(string).transpose()?;
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
        let number = |n: u32| c_int::try_from(n).unwrap_or(c_int::MAX);
        let properties = nccl::ncclNetProperties_v8_t {
            name: name.as_ptr().cast_mut(),
            pciPath: path.as_ref().map_or(std::ptr::null_mut(), |p| p.as_ptr().cast_mut()),
            guid: device.card.guid(),
            ptrSupport: pointer_support(device),
            regIsGlobal: 1,
            speed: number(device.speed_mbps),
            port: device.port_of_card,
            latency: 0.0,
            maxComms: device.card.max_queue_pairs(),
            maxRecvs: MAX_GROUP as c_int,
            netDeviceType: nccl::NCCL_NET_DEVICE_HOST,
            netDeviceVersion: nccl::NCCL_NET_DEVICE_INVALID_VERSION as c_int,
        };
        // SAFETY: NCCL's output pointer.
        unsafe { put(props, properties, "props") }
    })
}

fn pointer_support(device: &Device) -> c_int {
    let gpu = if device.peer_memory { nccl::NCCL_PTR_CUDA } else { 0 };
    let dmabuf = if device.card.supports_dmabuf() { nccl::NCCL_PTR_DMABUF } else { 0 };
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
unsafe fn device_of<'a>(comm: *mut c_void) -> Result<&'a Device> {
    // SAFETY: by NCCL's contract; the tag tells which of the two it is.
    match unsafe { SendHandle::borrow(comm) } {
        Ok(send) => Ok(&send.comm.device),
        // SAFETY: as above.
        Err(_) => Ok(&unsafe { RecvHandle::borrow(comm)? }.comm.device),
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
    let registration = unsafe { device.card.regions.register(data as u64, size, kind, dmabuf)? };
    // SAFETY: NCCL's output pointer.
    unsafe { put(mhandle, MemoryHandle::into_raw(registration), "mhandle") }
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

/// A length of NCCL's.
#[inline]
fn length(size: c_int) -> Result<u32> {
    match u32::try_from(size) {
        Ok(length) if length <= MAX_MESSAGE => Ok(length),
        _ => Err(bad_length(size)),
    }
}

/// Runs a data path function. An error that repeats itself is reported once: NCCL asks a failed communicator again and
/// again.
#[inline(always)]
fn on_comm<T>(call: &'static str, comm: Result<&Comm<T>>, body: impl FnOnce(&Comm<T>) -> Result<()>) -> ncclResult_t {
    guard(call, || {
        let comm = comm?;
        body(comm).map_err(|e| comm.first_or_quiet(e))
    })
}

unsafe extern "C" fn isend(
    send_comm: *mut c_void,
    data: *mut c_void,
    size: c_int,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: by NCCL's contract.
    let comm = unsafe { SendHandle::borrow(send_comm) };
    on_comm("isend", comm, |comm| {
        // SAFETY: by NCCL's contract.
        let memory = unsafe { MemoryHandle::borrow(mhandle)? };
        let id = comm.comm.isend(data as u64, length(size)?, tag as u32, memory)?;
        // SAFETY: NCCL's output pointer.
        unsafe { put(request, comm.request(id), "request") }
    })
}

/// A group's arrays of NCCL's.
#[derive(Clone, Copy)]
struct Group {
    count: usize,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
}

impl Group {
    #[inline(always)]
    fn new(
        n: c_int,
        data: *mut *mut c_void,
        sizes: *mut c_int,
        tags: *mut c_int,
        mhandles: *mut *mut c_void,
    ) -> Result<Self> {
        if !(1..=MAX_GROUP as c_int).contains(&n) {
            return Err(bad_group(n));
        }
        let count = n as usize;
        if data.is_null() || sizes.is_null() || mhandles.is_null() {
            return Err(missing("an array"));
        }
        Ok(Self { count, data, sizes, tags, mhandles })
    }

    /// Member `i`.
    ///
    /// # Safety
    /// `i` is below `count`, and the arrays have as many members; `tags` may be NULL.
    #[inline(always)]
    unsafe fn member<'a>(&self, i: usize) -> Result<Expected<'a>> {
        // SAFETY: as the caller says.
        let (data, size) = unsafe { (*self.data.add(i), *self.sizes.add(i)) };
        // SAFETY: as the caller says.
        let tag = if self.tags.is_null() { 0 } else { unsafe { *self.tags.add(i) } };
        // SAFETY: as the caller says, and by NCCL's contract.
        let memory: &'a Registration = unsafe { MemoryHandle::borrow(*self.mhandles.add(i))? };
        Ok(Expected { addr: data as u64, length: length(size)?, tag: tag as u32, memory })
    }
}

unsafe extern "C" fn irecv(
    recv_comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: by NCCL's contract.
    let comm = unsafe { RecvHandle::borrow(recv_comm) };
    on_comm("irecv", comm, |comm| {
        let group = Group::new(n, data, sizes, tags, mhandles)?;
        // SAFETY: NCCL's arrays have n members, and irecv asks for those below n.
        let id = comm.comm.irecv(group.count, |i| unsafe { group.member(i) })?;
        // SAFETY: NCCL's output pointer.
        unsafe { put(request, comm.request(id), "request") }
    })
}

unsafe extern "C" fn iflush(
    recv_comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: by NCCL's contract.
    let comm = unsafe { RecvHandle::borrow(recv_comm) };
    on_comm("iflush", comm, |comm| {
        let group = Group::new(n, data, sizes, std::ptr::null_mut(), mhandles)?;
        // SAFETY: NCCL's arrays have n members.
        let members = (0..group.count).map(|i| unsafe { group.member(i) }).collect::<Result<Vec<_>>>()?;
        let id = comm.comm.iflush(members.into_iter())?;
        // SAFETY: NCCL's output pointer.
        unsafe { put(request, comm.flush(id), "request") }
    })
}

unsafe extern "C" fn test(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) -> ncclResult_t {
    if done.is_null() {
        return refuse("test", missing("done"));
    }
    // SAFETY: NCCL's output pointer.
    unsafe { *done = 0 };
    // SAFETY: by NCCL's contract.
    let request = match unsafe { RequestHandle::borrow(request) } {
        Ok(request) => request,
        Err(e) => return refuse("test", e),
    };
    let (id, answer) = (request.id(), Answer { done, sizes });
    match request.owner() {
        // SAFETY: a request is part of its communicator and lives as long.
        Owner::Send(comm) => test_send(unsafe { &*comm }, id, answer),
        // SAFETY: as above.
        Owner::Receive(comm) => test_receive(unsafe { &*comm }, id, answer),
        // SAFETY: as above.
        Owner::Flush(comm) => test_flush(unsafe { &*comm }, id, answer),
    }
}

/// NCCL's places for what has become of a request: `sizes` has as many members as its group, or is NULL.
#[derive(Clone, Copy)]
#[repr(C)]
struct Answer {
    done: *mut c_int,
    sizes: *mut c_int,
}

impl Answer {
    /// The request is complete; `lengths` is what `sizes` gets, which may be nothing.
    #[inline(always)]
    fn finish(self, lengths: &[u32]) {
        // SAFETY: valid by NCCL's contract, which `test` has been called under.
        unsafe {
            *self.done = 1;
            if self.sizes.is_null() {
                return;
            }
            match lengths {
                [one] => *self.sizes.cast::<u32>() = *one,
                many => self.sizes.cast::<u32>().copy_from_nonoverlapping(many.as_ptr(), many.len()),
            }
        }
    }
}

#[inline(never)]
extern "C" fn test_send(comm: &Comm<SendComm>, id: RequestId, answer: Answer) -> ncclResult_t {
    on_comm("test", Ok(comm), |c| {
        if let Some(length) = c.comm.test(id)? {
            answer.finish(&[length]);
        }
        Ok(())
    })
}

#[inline(never)]
extern "C" fn test_receive(comm: &Comm<RecvComm>, id: RequestId, answer: Answer) -> ncclResult_t {
    on_comm("test", Ok(comm), |c| c.comm.test(id, |lengths| answer.finish(lengths)))
}

#[inline(never)]
extern "C" fn test_flush(comm: &Comm<RecvComm>, id: RequestId, answer: Answer) -> ncclResult_t {
    on_comm("test", Ok(comm), |c| {
        if c.comm.test_flush(id)? {
            answer.finish(&[]);
        }
        Ok(())
    })
}

/// An error before there is a communicator.
#[cold]
#[inline(never)]
fn refuse(call: &'static str, error: Error) -> ncclResult_t {
    guard(call, || Err(error))
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
    unsafe { close::<Mutex<crate::net::listen::Listener>>("closeListen", comm) }
}
