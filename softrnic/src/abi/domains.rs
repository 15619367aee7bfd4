//! Thread domains and parent domains in the verbs interface.

use std::mem::{offset_of, size_of};

use crate::abi::types::{Context, Pd};

/// `struct ibv_td`.
#[repr(C)]
pub(crate) struct Td {
    pub(crate) context: *mut Context,
}

/// The application has functions that allocate and free the memory of queues.
pub(crate) const HAS_ALLOCATORS: u32 = 1;
/// The application has a word of its own, for these functions.
pub(crate) const HAS_PD_CONTEXT: u32 = 1 << 1;

/// The first 24 bytes of `struct ibv_parent_domain_init_attr`: what is read of it.
#[repr(C)]
pub(crate) struct ParentDomainInitAttr {
    /// The protection domain.
    pub(crate) pd: *mut Pd,
    /// A thread domain, or NULL.
    pub(crate) td: *mut Td,
    pub(crate) comp_mask: u32,
}

const _: () = {
    assert!(size_of::<Td>() == 8);
    assert!(size_of::<ParentDomainInitAttr>() == 24 && offset_of!(ParentDomainInitAttr, comp_mask) == 16);
};
