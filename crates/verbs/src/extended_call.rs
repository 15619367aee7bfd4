//! Functions of a device that precede its context, in `struct verbs_context`. libibverbs has no
//! symbols for them; the inline functions of `infiniband/verbs.h` find them like this. The struct
//! grows towards lower addresses, so distances to the context are stable.

use super::sys;

/// Bytes from the struct's size to the context.
pub const SIZE: usize = 8;
/// Bytes from `query_port` to the context.
pub const QUERY_PORT: usize = 320;
/// Bytes from `create_qp_ex` to the context.
pub const CREATE_QP_EX: usize = 56;
/// Bytes from `create_cq_ex` to the context.
pub const CREATE_CQ_EX: usize = 120;
/// Bytes from `alloc_td` to the context.
pub const ALLOC_TD: usize = 192;
/// Bytes from `dealloc_td` to the context.
pub const DEALLOC_TD: usize = 200;
/// Bytes from `alloc_parent_domain` to the context.
pub const ALLOC_PARENT_DOMAIN: usize = 208;

/// The function `distance` bytes before the context; `None` if the struct is shorter, or the device
/// lacks the function.
///
/// # Safety
/// The context is open, and `Call` is the type of the function there.
pub unsafe fn find<Call: Copy>(context: *mut sys::ibv_context, distance: usize) -> Option<Call> {
    const {
        assert!(
            size_of::<Call>() == size_of::<usize>()
                && size_of::<Option<Call>>() == size_of::<Call>()
        )
    };
    // SAFETY: an open context.
    if unsafe { (*context).abi_compat }.addr() != usize::MAX {
        return None;
    }
    let before = |distance: usize| context.cast::<u8>().wrapping_sub(distance);
    // SAFETY: the value of `abi_compat` shows that the size is here.
    let size = unsafe { before(SIZE).cast::<usize>().read() };
    if size < distance + size_of::<sys::ibv_context>() {
        return None;
    }
    // SAFETY: the struct is long enough; a function of this type, or NULL, which is `None`.
    unsafe { before(distance).cast::<Option<Call>>().read() }
}
