//! Communicators, the memory registered with them, and the operations in flight on them.
//! [`crate::transport`] draws how they hang together.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::nccl::abi;
use crate::nccl::abi::later::{Net, NetV10};
use crate::nccl::library::{Vtable, slot};
use crate::transport::buffer::Buffer;
use crate::transport::instance::{Transport, call};

/// Most messages of one grouped receive that this driver posts (NCCL's own upper bound is 32, the
/// built-in transport's 8).
pub const MAX_GROUP: usize = 32;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Send,
    Receive,
}

/// What a send and a receive communicator have in common. Closed when the last holder goes.
#[derive(Debug)]
struct Comm {
    transport: Transport,
    raw: *mut c_void,
    kind: Kind,
}

// SAFETY: NCCL uses a communicator from different threads over its life, and since 2.24 its
// service and its progress thread may be inside one at once.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

impl Comm {
    fn new(transport: &Transport, raw: *mut c_void, kind: Kind) -> Arc<Self> {
        Arc::new(Self { transport: transport.clone(), raw, kind })
    }

    fn close(&mut self) -> Result<()> {
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        if raw.is_null() {
            return Ok(());
        }
        match self.kind {
            Kind::Send => call!(&self.transport, closeSend(raw)),
            Kind::Receive => call!(&self.transport, closeRecv(raw)),
        }
    }

    fn close_last(comm: Arc<Self>) -> Result<()> {
        Arc::into_inner(comm)
            .ok_or(Error::Misuse("a communicator is closed after its regions"))?
            .close()
    }

    fn register(comm: &Arc<Self>, memory: &Arc<Buffer>) -> Result<Region> {
        let mut raw = std::ptr::null_mut();
        let start = memory.address(0, memory.len())?;
        let kind = abi::NCCL_PTR_HOST as c_int;
        call!(&comm.transport, regMr(comm.raw, start.cast(), memory.len(), kind, &raw mut raw))?;
        Ok(Region { comm: comm.clone(), memory: memory.clone(), raw })
    }

    fn request(&self, raw: *mut c_void, count: usize) -> Option<Request<'_>> {
        (!raw.is_null()).then_some(Request {
            transport: &self.transport,
            raw,
            count,
            comm: PhantomData,
        })
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if let Err(problem) = self.close() {
            log::warn!("{problem}");
        }
    }
}

/// The sending end of a connection.
#[derive(Debug)]
pub struct SendComm(Arc<Comm>);

impl SendComm {
    pub fn new(transport: &Transport, raw: *mut c_void) -> Self {
        Self(Comm::new(transport, raw, Kind::Send))
    }

    /// Registers all of `memory`.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn register(&self, memory: &Arc<Buffer>) -> Result<Region> {
        Comm::register(&self.0, memory)
    }

    /// Starts to send `len` bytes at `offset` of `region`; `None` means call again later.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::Misuse`] if the range lies outside.
    #[inline]
    pub fn send(
        &self,
        region: &Region,
        offset: usize,
        len: usize,
        tag: i32,
    ) -> Result<Option<Request<'_>>> {
        let start = region.memory.address(offset, len)?;
        let mut raw = std::ptr::null_mut();
        let (transport, comm, start) = (&self.0.transport, self.0.raw, start.cast());
        match transport.vtable {
            Vtable::V8(net) => {
                let len = len as c_int;
                call!(transport, net.isend(comm, start, len, tag, region.raw, &raw mut raw))
            }
            Vtable::V9(net) => {
                call!(transport, net.isend(comm, start, len, tag, region.raw, &raw mut raw))
            }
            Vtable::V10(NetV10 { isend, .. })
            | Vtable::V11(Net { isend, .. })
            | Vtable::V12(Net { isend, .. }) => {
                let (region, profile, raw) = (region.raw, transport.profiled(), &raw mut raw);
                call!(transport, *isend => isend(comm, start, len, tag, region, profile, raw))
            }
        }?;
        Ok(self.0.request(raw, 1))
    }

    /// Closes it.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::Misuse`] while a [`Region`] is alive (the last one to go then
    /// closes it).
    pub fn close(self) -> Result<()> {
        Comm::close_last(self.0)
    }

    /// The transport's own pointer, for tests that call the vtable.
    pub fn raw(&self) -> *mut c_void {
        self.0.raw
    }
}

/// Where one message of a grouped receive goes.
#[derive(Debug, Clone, Copy)]
pub struct RecvBuffer<'r> {
    /// The registered memory.
    pub region: &'r Region,
    /// The first byte.
    pub offset: usize,
    /// The most bytes that may come.
    pub len: usize,
    /// The tag of the message that belongs here.
    pub tag: i32,
}

/// The parallel arrays that `irecv` and `iflush` take, with sizes of the type that the call wants.
struct Arrays<const N: usize, Size> {
    starts: [*mut c_void; N],
    regions: [*mut c_void; N],
    sizes: [Size; N],
    tags: [c_int; N],
}

impl<const N: usize, Size: Copy> Arrays<N, Size> {
    #[inline]
    fn fill(places: &[RecvBuffer<'_>], size: impl Fn(usize) -> Size) -> Result<Self> {
        if places.is_empty() || places.len() > N {
            return Err(Error::Misuse("a group has 1 to 32 messages"));
        }
        let nowhere = [std::ptr::null_mut(); N];
        let mut arrays =
            Self { starts: nowhere, regions: nowhere, sizes: [size(0); N], tags: [0; N] };
        for (i, place) in places.iter().enumerate() {
            arrays.starts[i] = place.region.memory.address(place.offset, place.len)?.cast();
            arrays.regions[i] = place.region.raw;
            arrays.sizes[i] = size(place.len);
            arrays.tags[i] = place.tag;
        }
        Ok(arrays)
    }
}

/// The receiving end of a connection.
#[derive(Debug)]
pub struct RecvComm(Arc<Comm>);

impl RecvComm {
    pub fn new(transport: &Transport, raw: *mut c_void) -> Self {
        Self(Comm::new(transport, raw, Kind::Receive))
    }

    /// Registers all of `memory`.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn register(&self, memory: &Arc<Buffer>) -> Result<Region> {
        Comm::register(&self.0, memory)
    }

    /// Posts one receive; `None` means call again later.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::Misuse`] if the range lies outside.
    #[inline]
    pub fn receive(
        &self,
        region: &Region,
        offset: usize,
        len: usize,
        tag: i32,
    ) -> Result<Option<Request<'_>>> {
        self.post::<1>(&[RecvBuffer { region, offset, len, tag }])
    }

    /// Posts a receive of several messages that are told apart by their tags and complete
    /// together; `None` means call again later.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::Misuse`] if a range lies outside or there are more than
    /// [`MAX_GROUP`].
    #[inline]
    pub fn receive_group(&self, places: &[RecvBuffer<'_>]) -> Result<Option<Request<'_>>> {
        self.post::<MAX_GROUP>(places)
    }

    /// `irecv` with arrays of `N` places, of which `places` fills the first.
    #[inline]
    fn post<const N: usize>(&self, places: &[RecvBuffer<'_>]) -> Result<Option<Request<'_>>> {
        let (transport, comm, count) = (&self.0.transport, self.0.raw, places.len() as c_int);
        let mut raw = std::ptr::null_mut();
        match transport.vtable {
            Vtable::V8(net) => {
                let Arrays { mut starts, mut regions, mut sizes, mut tags } =
                    Arrays::<N, c_int>::fill(places, |len| len as c_int)?;
                let (starts, sizes) = (starts.as_mut_ptr(), sizes.as_mut_ptr());
                let (tags, regions) = (tags.as_mut_ptr(), regions.as_mut_ptr());
                call!(transport, net.irecv(comm, count, starts, sizes, tags, regions, &raw mut raw))
            }
            later => {
                let Arrays { mut starts, mut regions, mut sizes, mut tags } =
                    Arrays::<N, usize>::fill(places, |len| len)?;
                let mut profiles = [transport.profiled(); N];
                let (starts, sizes) = (starts.as_mut_ptr(), sizes.as_mut_ptr());
                let (tags, regions) = (tags.as_mut_ptr(), regions.as_mut_ptr());
                let profiles = profiles.as_mut_ptr();
                match later {
                    Vtable::V8(_) => Err(Error::Misuse("a version with sizes of its own")),
                    Vtable::V9(net) => {
                        call!(
                            transport,
                            net.irecv(comm, count, starts, sizes, tags, regions, &raw mut raw)
                        )
                    }
                    Vtable::V10(NetV10 { irecv, .. })
                    | Vtable::V11(Net { irecv, .. })
                    | Vtable::V12(Net { irecv, .. }) => {
                        let raw = &raw mut raw;
                        call!(transport, *irecv => irecv(comm, count, starts, sizes, tags, regions, profiles, raw))
                    }
                }
            }
        }?;
        Ok(self.0.request(raw, places.len()))
    }

    /// Starts a flush of received messages (GPU memory only matters here); `None` means there is
    /// nothing to wait for.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::Misuse`] if a range lies outside or there are too many.
    pub fn flush(&self, places: &[RecvBuffer<'_>]) -> Result<Option<Request<'_>>> {
        let mut arrays = Arrays::<MAX_GROUP, c_int>::fill(places, |len| len as c_int)?;
        let mut raw = std::ptr::null_mut();
        call!(
            &self.0.transport,
            iflush(
                self.0.raw,
                places.len() as c_int,
                arrays.starts.as_mut_ptr(),
                arrays.sizes.as_mut_ptr(),
                arrays.regions.as_mut_ptr(),
                &raw mut raw
            )
        )?;
        Ok(self.0.request(raw, 0))
    }

    /// Closes it.
    ///
    /// # Errors
    /// As [`SendComm::close`].
    pub fn close(self) -> Result<()> {
        Comm::close_last(self.0)
    }

    /// The transport's own pointer, for tests that call the vtable.
    pub fn raw(&self) -> *mut c_void {
        self.0.raw
    }
}

/// Memory registered with a communicator. Deregistered on drop.
#[derive(Debug)]
pub struct Region {
    comm: Arc<Comm>,
    memory: Arc<Buffer>,
    raw: *mut c_void,
}

// SAFETY: an opaque handle, used under the rules of its communicator.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// The memory behind it.
    pub fn memory(&self) -> &Arc<Buffer> {
        &self.memory
    }

    /// The transport's own pointer, for tests that call the vtable.
    pub fn raw(&self) -> *mut c_void {
        self.raw
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Err(problem) = call!(&self.comm.transport, deregMr(self.comm.raw, self.raw)) {
            log::warn!("{problem}");
        }
    }
}

/// An operation in flight. Must be tested until it is done; dropping it forgets it.
#[must_use = "an operation is not done before test() says so"]
pub struct Request<'comm> {
    transport: &'comm Transport,
    raw: *mut c_void,
    count: usize,
    comm: PhantomData<&'comm Comm>,
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("raw", &self.raw).finish_non_exhaustive()
    }
}

impl Request<'_> {
    /// Whether the operation is done. When it is, the sizes that arrived (or were sent) are in
    /// the first places of `sizes`; a flush has none.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::Misuse`] if it was done before or `sizes` is too short.
    #[inline]
    pub fn test(&mut self, sizes: &mut [i32]) -> Result<bool> {
        if self.raw.is_null() {
            return Err(Error::Misuse("a finished request was tested again"));
        }
        if sizes.len() < self.count {
            return Err(Error::Misuse("test needs one size per message"));
        }
        let sizes = if self.count == 0 { std::ptr::null_mut() } else { sizes.as_mut_ptr() };
        let mut done: c_int = 0;
        call!(self.transport, test(self.raw, &raw mut done, sizes))?;
        if done != 0 {
            self.raw = std::ptr::null_mut();
        }
        Ok(done != 0)
    }
}
