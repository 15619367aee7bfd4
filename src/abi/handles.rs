//! The objects behind NCCL's `void*`.
//!
//! Each object begins with a tag, so that a pointer to anything else is refused. A request is the
//! address of its entry in one of the communicator's tables ([`crate::proto::requests`]), which
//! also begins with a tag. NCCL's pointer counts as one reference; the thread that recovers a
//! connection may hold another one for a while.

use super::nccl::ncclResult_t;
use super::output::Answer;
use crate::error::{Error, Result};
use crate::net::control::fork::process_id;
use crate::net::data::recv::RecvComm;
use crate::net::data::send::SendComm;
use crate::net::device::conn_memory::Holder;
use crate::net::explain::end::{ExplainedEnd, Labels};
use crate::net::mr::handle::MrHandle;
use crate::net::peer::state::PeerState;
use crate::net::recovery::end::{self, End};
use crate::net::setup::listen::Listener;
use crate::proto::explain::snapshot::EndCheck;
use crate::proto::requests::{Entry, Front};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

/// A type of object that NCCL holds.
pub trait Tagged {
    /// The first four bytes of such an object.
    const TAG: u32;
    /// NCCL's name for it, for messages.
    const NAME: &'static str;
}

macro_rules! tagged {
    ($type:ty, $tag:literal, $name:literal) => {
        impl Tagged for $type {
            const TAG: u32 = u32::from_le_bytes(*$tag);
            const NAME: &'static str = $name;
        }
    };
}

/// An object behind its tag.
#[repr(C)]
#[derive(Debug)]
pub struct Handle<T> {
    /// Invalid once NCCL has closed the object.
    tag: UnsafeCell<u32>,
    /// The object.
    pub inner: T,
}

/// What NCCL's pointer points to. It begins with a [`Handle`].
#[repr(C)]
#[derive(Debug)]
pub struct NcclObject<T> {
    handle: Handle<T>,
    /// Id of the process that created it.
    process: u32,
}

/// `listenComm`.
pub type ListenHandle = Handle<Mutex<Listener>>;
/// `sendComm`.
pub type SendHandle = Handle<SendComm>;
/// `recvComm`.
pub type RecvHandle = Handle<RecvComm>;
/// `mhandle`.
pub type MemoryHandle = Handle<MrHandle>;

tagged!(Mutex<Listener>, b"FLis", "listenComm");
tagged!(SendComm, b"FSnd", "sendComm");
tagged!(RecvComm, b"FRcv", "recvComm");
tagged!(MrHandle, b"FMem", "mhandle");
tagged!(Request, b"FReq", "request");

/// `request`: the address of an entry of one of a communicator's tables, which begins with this.
#[repr(transparent)]
#[derive(Debug)]
pub struct Request(Front);

/// NCCL's `test` of one kind of request. It is only called with requests of this kind.
pub type Test = unsafe extern "C" fn(*mut c_void, Answer) -> ncclResult_t;

impl<T> Handle<T>
where
    T: Tagged,
{
    /// Passes an object to NCCL.
    pub fn into_raw(inner: T) -> *mut c_void {
        NcclObject::into_raw(Self::allocate(inner))
    }

    /// An object that NCCL does not have yet.
    pub fn allocate(inner: T) -> Arc<NcclObject<T>> {
        let handle = Self { tag: UnsafeCell::new(T::TAG), inner };
        Arc::new(NcclObject { handle, process: process_id() })
    }

    /// The object behind NCCL's pointer.
    ///
    /// # Errors
    /// The pointer is NULL, or points to an object of another type.
    ///
    /// # Safety
    /// `raw` is NULL or points to a live object from this module.
    #[inline]
    pub unsafe fn borrow<'a>(raw: *mut c_void) -> Result<&'a T> {
        // SAFETY: as the caller says.
        unsafe { Self::find(raw) }.map(|handle| &handle.inner).ok_or_else(|| Self::wrong(raw))
    }

    /// The error for a pointer to anything but such an object.
    pub fn wrong(raw: *mut c_void) -> Error {
        wrong_object(raw, T::NAME)
    }

    /// [`Self::borrow`] with the tag; `None` where that fails.
    ///
    /// # Safety
    /// As for [`Self::borrow`].
    #[inline]
    pub unsafe fn find<'a>(raw: *mut c_void) -> Option<&'a Self> {
        // SAFETY: not NULL, so a live object as the caller says, and every object begins with a
        // tag.
        let is_one = !raw.is_null() && unsafe { *raw.cast::<u32>() } == T::TAG;
        // SAFETY: the tag identifies it.
        is_one.then(|| unsafe { &*raw.cast::<Self>() })
    }

    /// Takes an object back from NCCL. Returns `None` for NULL, since NCCL also closes what it
    /// never got. Returns `None` for an object that a forked child has inherited, and leaves it
    /// alone. Dropping it would report the end of the parent's connection to the peer, and destroy
    /// what the parent still uses.
    ///
    /// # Errors
    /// It is an object of another type.
    ///
    /// # Safety
    /// As for [`Self::borrow`]; NCCL does not use `raw` any more.
    pub unsafe fn take(raw: *mut c_void) -> Result<Option<Arc<NcclObject<T>>>> {
        if raw.is_null() {
            return Ok(None);
        }
        // SAFETY: as the caller says.
        unsafe { Self::borrow(raw)? };
        let raw = raw.cast::<NcclObject<T>>();
        // SAFETY: `into_raw` made it with this type, and `borrow` has found it alive.
        if unsafe { (*raw).process } != process_id() {
            return Ok(None);
        }
        // SAFETY: as above, and given back once.
        let given = unsafe { Arc::from_raw(raw) };
        // SAFETY: only NCCL's calls read it, and there are no more.
        unsafe { *given.handle.tag.get() = 0 };
        Ok(Some(given))
    }
}

impl<T> NcclObject<T> {
    /// NCCL's pointer to it.
    pub fn into_raw(this: Arc<Self>) -> *mut c_void {
        Arc::into_raw(this).cast_mut().cast()
    }
}

// SAFETY: only NCCL's calls read the tag.
unsafe impl<T: Sync> Sync for Handle<T> {}

impl Holder for NcclObject<MrHandle> {
    fn memory(&self) -> &MrHandle {
        &self.handle.inner
    }
}

macro_rules! ends {
    ($comm:ty, $new:ident) => {
        impl Handle<$comm> {
            /// Passes a communicator to NCCL; `test` tests its requests.
            pub fn $new(comm: $comm, test: Test) -> *mut c_void {
                let made = Self::allocate(comm);
                let comm = &made.handle.inner;
                comm.requests.iter().for_each(|entry| mark(entry.front(), comm, test));
                let owner: Weak<dyn end::Owner> = Arc::<NcclObject<_>>::downgrade(&made);
                comm.start(&owner);
                let explained: Arc<dyn ExplainedEnd> = Arc::clone(&made) as _;
                comm.nic.explain(&explained);
                NcclObject::into_raw(made)
            }
        }

        impl end::Owner for NcclObject<$comm> {
            fn end(&self) -> &dyn End {
                &self.handle.inner
            }
        }

        impl ExplainedEnd for NcclObject<$comm> {
            fn check(&self) -> EndCheck {
                self.handle.inner.snapshot()
            }

            fn peer(&self) -> &Arc<PeerState> {
                &self.handle.inner.peer
            }

            fn device(&self) -> &str {
                &self.handle.inner.nic.name
            }

            fn labels(&self) -> &Labels {
                &self.handle.inner.labels
            }
        }
    };
}

ends!(SendComm, new_send);
ends!(RecvComm, new_recv);

#[cold]
#[inline(never)]
fn wrong_object(raw: *mut c_void, name: &str) -> Error {
    Error::argument(format!("{raw:?} is not a Ferrite {name}"))
}

/// Marks `front` as the beginning of a request of `comm`, which `test` tests.
fn mark<T>(front: &Front, comm: &T, test: Test) {
    front.test.store(test as *mut (), Ordering::Relaxed);
    front.comm.store(std::ptr::from_ref(comm).cast_mut().cast(), Ordering::Relaxed);
    front.tag.set(Request::TAG);
}

/// NCCL's pointer for the flush in `entry` of `comm`, which `test` tests.
pub fn flush(comm: &RecvComm, entry: &Entry<()>, test: Test) -> *mut c_void {
    mark(entry.front(), comm, test);
    request(entry)
}

/// NCCL's pointer for the request in `entry`.
#[inline]
pub fn request<T>(entry: &Entry<T>) -> *mut c_void {
    std::ptr::from_ref(entry).cast_mut().cast()
}

impl Request {
    /// The request behind NCCL's pointer; `None` if it is NULL or points to an object of another
    /// type.
    ///
    /// # Safety
    /// `raw` is NULL or points to a live object from this module or from a table of requests.
    #[inline]
    pub unsafe fn find<'a>(raw: *mut c_void) -> Option<&'a Self> {
        // SAFETY: not NULL, so a live object as the caller says, and every object begins with a
        // tag.
        let is_one = !raw.is_null() && unsafe { *raw.cast::<u32>() } == Self::TAG;
        // SAFETY: the tag identifies it.
        is_one.then(|| unsafe { &*raw.cast::<Self>() })
    }

    /// Its function. Call it with the pointer to this request.
    #[inline]
    pub fn test(&self) -> Test {
        // SAFETY: [`mark`] has stored a function of this type in every object with this tag.
        unsafe { std::mem::transmute::<*mut (), Test>(self.0.test.load(Ordering::Relaxed)) }
    }

    /// The error for a pointer to anything but a request.
    pub fn wrong(raw: *mut c_void) -> Error {
        wrong_object(raw, Self::NAME)
    }
}

/// The communicator of the request in `entry`.
///
/// # Safety
/// The communicator is of this type and alive.
#[inline]
pub unsafe fn comm_of<T, R>(entry: &Entry<R>) -> &T {
    // SAFETY: the caller's contract.
    unsafe { &*entry.front().comm.load(Ordering::Relaxed).cast() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static DROPPED: Cell<u32> = const { Cell::new(0) };
    }

    /// Counts its drops.
    struct Probe;

    tagged!(Probe, b"FPrb", "probe");

    impl Drop for Probe {
        fn drop(&mut self) {
            DROPPED.set(DROPPED.get() + 1);
        }
    }

    #[test]
    fn what_a_forked_child_closes_is_still_its_parents() {
        let raw = Handle::into_raw(Probe);
        // SAFETY: the child continues alone with this one thread, allocates little, and ends below.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a live object of this module's.
            let inherited =
                unsafe { Handle::<Probe>::take(raw) }.is_ok_and(|taken| taken.is_none());
            // SAFETY: as above, the child's own.
            let own = unsafe { Handle::<Probe>::take(Handle::into_raw(Probe)) }
                .is_ok_and(|taken| taken.is_some());
            // SAFETY: ends here.
            unsafe { libc::_exit(if inherited && own && DROPPED.get() == 1 { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(
            status, 0,
            "the child has closed what it has inherited, or not what it has made"
        );
        // SAFETY: a live object of this module's.
        assert!(unsafe { Handle::<Probe>::take(raw) }.is_ok_and(|taken| taken.is_some()));
        assert_eq!(DROPPED.get(), 1);
    }
}
