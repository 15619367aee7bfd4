//! Thread domains and parent domains.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::abi::domains::{HAS_ALLOCATORS, HAS_PD_CONTEXT, ParentDomainInitAttr, Td as AbiTd};
use crate::abi::types;
use crate::objects::pd::Pd;
use crate::objects::td::Td;
use crate::process::commands::Command;
use crate::verbs::{code, context, object, pointer, shared};

/// Through `verbs_context`.
pub(crate) unsafe extern "C" fn alloc_td(handle: *mut types::Context, attr: *const u32) -> *mut AbiTd {
    pointer(|| {
        // SAFETY: the caller's handle.
        let context = unsafe { context(handle) }?;
        context.fabric.settings.require_thread_domains()?;
        // SAFETY: the caller's structure, a mask of extensions.
        if unsafe { *attr } != 0 {
            return Err(libc::EINVAL);
        }
        let td = Td::new(context)?;
        td.context.fabric.count_command(Command::AllocTd);
        let handle = td.as_abi();
        // Given back by `dealloc_td`.
        let _ = Arc::into_raw(td);
        Ok(handle)
    })
}

/// Through `verbs_context`.
pub(crate) unsafe extern "C" fn dealloc_td(handle: *mut AbiTd) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let td: &Td = unsafe { object(handle) };
        if td.users.load(SeqCst) != 0 && !td.context.fabric.is_gone() {
            return Err(libc::EBUSY);
        }
        // SAFETY: takes back what `alloc_td` leaked.
        drop(unsafe { Arc::from_raw(handle.cast::<Td>()) });
        Ok(())
    })
}

/// Through `verbs_context`. Given back by `dealloc_pd`.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    handle: *mut types::Context,
    attr: *const ParentDomainInitAttr,
) -> *mut types::Pd {
    pointer(|| {
        // SAFETY: the caller's handle.
        unsafe { context(handle) }?.fabric.settings.require_thread_domains()?;
        // SAFETY: the caller's structure; the mirror is what every form of it has.
        let attr = unsafe { &*attr };
        if attr.pd.is_null() || attr.comp_mask & !(HAS_ALLOCATORS | HAS_PD_CONTEXT) != 0 {
            return Err(libc::EINVAL);
        }
        if attr.comp_mask & HAS_ALLOCATORS != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: the caller's handles, or NULL.
        let (pd, td): (Arc<Pd>, Option<Arc<Td>>) =
            unsafe { (shared(attr.pd), (!attr.td.is_null()).then(|| shared(attr.td))) };
        let made = Pd::parent(&pd, td)?;
        let handle = made.as_abi();
        let _ = Arc::into_raw(made);
        Ok(handle)
    })
}
