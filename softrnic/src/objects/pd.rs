//! Protection domains: what may be used together. And parent domains, each of which is a protection domain by another handle, with
//! or without a thread domain.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use crate::abi::types;
use crate::objects::context::Context;
use crate::objects::td::Td;

/// What the application holds as `ibv_pd*` is its first field.
#[repr(C)]
pub(crate) struct Pd {
    abi: types::Pd,
    pub(crate) context: Arc<Context>,
    /// Unique in the fabric; that of a parent domain is that of its protection domain.
    pub(crate) id: u32,
    /// Of a protection domain: its parent domains, memory regions, address handles, shared receive queues, and queue pairs. Of a
    /// parent domain: its queue pairs and completion queues.
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

    /// It is given back: what it is made of may go. Somebody may still look at a queue pair that was in it.
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
