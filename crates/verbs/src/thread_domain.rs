//! Queues for one thread at a time: thread domains, and the parent domains that attach queue pairs
//! to them.
//!
//! A driver needs no locks for such queues. Without a thread domain, mlx5 takes up to two locks for
//! each send, and one for each poll. With one, it uses half a page of the card for doorbells, which
//! costs one command for two of them, and aborts the process if two threads post at once. That
//! cannot happen here:
//! - Posting and polling take the exclusive reference to a [`super::queue_pair::QueuePair`] or a
//!   [`super::completion_queue::CompletionQueue`].
//! - The queues of one thread domain belong to one end of a connection, and pass from thread to
//!   thread together.
//!
//! Events of a device come to other threads, which only note that a queue has failed.

use super::context::Context;
use super::memory::ProtectionDomain;
use super::{create, extended_call, sys};
use crate::error::{Error, Result};
use std::sync::Arc;

type AllocTd =
    unsafe extern "C" fn(*mut sys::ibv_context, *mut sys::ibv_td_init_attr) -> *mut sys::ibv_td;
type DeallocTd = unsafe extern "C" fn(*mut sys::ibv_td) -> i32;
type AllocParentDomain = unsafe extern "C" fn(
    *mut sys::ibv_context,
    *mut sys::ibv_parent_domain_init_attr,
) -> *mut sys::ibv_pd;

/// A parent domain of its own thread domain and a protection domain.
#[derive(Debug)]
pub struct ThreadDomain {
    raw: *mut sys::ibv_pd,
    _td: Td,
    // Held so that this is released before it.
    domain: Arc<ProtectionDomain>,
}

/// A thread domain.
#[derive(Debug)]
struct Td {
    raw: *mut sys::ibv_td,
    dealloc: DeallocTd,
    context: Arc<Context>,
}

// SAFETY: the raw pointers are owned; any thread may use libibverbs' objects, and only creating and
// destroying queue pairs uses these.
unsafe impl Send for ThreadDomain {}
// SAFETY: as above.
unsafe impl Sync for ThreadDomain {}

impl ThreadDomain {
    /// A thread domain for queue pairs in `domain`.
    ///
    /// # Errors
    /// The library or the driver does not support them, or has no more.
    pub fn new(domain: &Arc<ProtectionDomain>) -> Result<Arc<Self>> {
        let context = domain.context.raw();
        // SAFETY: the context is open, and libibverbs' header declares functions of these types
        // there.
        let calls = unsafe {
            (
                extended_call::find::<AllocTd>(context, extended_call::ALLOC_TD),
                extended_call::find::<DeallocTd>(context, extended_call::DEALLOC_TD),
                extended_call::find::<AllocParentDomain>(
                    context,
                    extended_call::ALLOC_PARENT_DOMAIN,
                ),
            )
        };
        let (Some(alloc), Some(dealloc), Some(alloc_parent)) = calls else {
            return Err(Error::os(
                format_args!("ibv_alloc_td({})", domain.context.name()),
                libc::EOPNOTSUPP,
            ));
        };
        let mut attr = sys::ibv_td_init_attr { comp_mask: 0 };
        // SAFETY: the context is open, and the attributes are a whole struct.
        let raw = create::try_create(|| unsafe { alloc(context, &raw mut attr) }).map_err(|e| {
            Error::os(format_args!("ibv_alloc_td({})", domain.context.name()), e.errno())
        })?;
        let td = Td { raw, dealloc, context: Arc::clone(&domain.context) };
        // SAFETY: a struct of numbers and pointers, for which zero is valid.
        let mut attr: sys::ibv_parent_domain_init_attr = unsafe { std::mem::zeroed() };
        (attr.pd, attr.td) = (domain.raw(), td.raw);
        // SAFETY: both domains are live and of this context, and the attributes are a whole struct.
        let raw = create::try_create(|| unsafe { alloc_parent(context, &raw mut attr) }).map_err(
            |e| {
                Error::os(
                    format_args!("ibv_alloc_parent_domain({})", domain.context.name()),
                    e.errno(),
                )
            },
        )?;
        Ok(Arc::new(Self { raw, _td: td, domain: Arc::clone(domain) }))
    }

    /// Its device.
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.domain.context
    }

    /// The domain that queue pairs use instead of the protection domain.
    pub(super) fn raw(&self) -> *mut sys::ibv_pd {
        self.raw
    }
}

impl Drop for ThreadDomain {
    fn drop(&mut self) {
        let context = &self.domain.context;
        // SAFETY: allocated by us, released once; the queue pairs in it hold an Arc and are gone.
        let rc = unsafe { (context.library.ibv_dealloc_pd)(self.raw) };
        context.handle_released("ibv_dealloc_pd", rc);
    }
}

impl Drop for Td {
    fn drop(&mut self) {
        // SAFETY: allocated by us, released once, after the parent domain.
        let rc = unsafe { (self.dealloc)(self.raw) };
        self.context.handle_released("ibv_dealloc_td", rc);
    }
}
