//! Thread domains and parent domains: calls that inlined wrappers make through the table in front
//! of the context.

use std::io::Error;
use std::mem::transmute_copy;
use std::ptr;

use super::node::Node;
use super::verbs::*;

/// `struct ibv_parent_domain_init_attr`.
#[repr(C)]
struct Init {
    pd: Ptr,
    td: Ptr,
    fields: u32,
    calls: [Ptr; 2],
    word: Ptr,
}

pub const ALLOCATORS: u32 = 1;
pub const PD_CONTEXT: u32 = 2;

fn made(handle: Ptr) -> Result<Ptr, i32> {
    if handle.is_null() {
        Err(Error::last_os_error().raw_os_error().unwrap_or(0))
    } else {
        Ok(handle)
    }
}

/// The function so many bytes in front of an open context.
///
/// # Safety
/// `F` is its type in the verbs interface.
unsafe fn before<F>(context: Ptr, bytes: usize) -> F {
    // SAFETY: an open context has a table of functions in front of it.
    unsafe { transmute_copy(&*context.cast::<u8>().sub(bytes).cast::<Ptr>()) }
}

/// `ibv_alloc_td`, with this mask.
pub fn thread_domain(context: Ptr, fields: u32) -> Result<Ptr, i32> {
    // SAFETY: its type.
    let call: extern "C" fn(Ptr, *const u32) -> Ptr = unsafe { before(context, 192) };
    made(call(context, &fields))
}

/// `ibv_dealloc_td`.
pub fn free_thread_domain(context: Ptr, td: Ptr) -> i32 {
    // SAFETY: its type.
    let call: extern "C" fn(Ptr) -> i32 = unsafe { before(context, 200) };
    call(td)
}

/// `ibv_alloc_parent_domain`, with these fields.
pub fn parent_domain(context: Ptr, pd: Ptr, td: Ptr, fields: u32) -> Result<Ptr, i32> {
    let init = Init { pd, td, fields, calls: [ptr::null_mut(); 2], word: 8 as Ptr };
    // SAFETY: its type.
    let call: extern "C" fn(Ptr, *const Init) -> Ptr = unsafe { before(context, 208) };
    made(call(context, &init))
}

/// A thread domain of `node`'s device, and a parent domain of its protection domain with it.
pub fn of(node: &Node) -> (Ptr, Ptr) {
    let td = thread_domain(node.context, 0).expect("a thread domain");
    let parent = parent_domain(node.context, node.pd, td, PD_CONTEXT).expect("a parent domain");
    (td, parent)
}
