//! The calls of version 11 and later with the context of an NCCL communicator.
//!
//! They are `unsafe` for the reason given in [`super::calls`]: NCCL's pointers. A context may be
//! NULL.

use super::calls;
use super::context::Context;
use super::guard::guard;
use super::layout::{CommConfig, NetAttributes};
use super::nccl::{self, ncclResult_t};
use super::output::{missing, put};
use super::process::Process;
use crate::error::Result;
use crate::net::setup::nccl_comm::NcclComm;
use std::ffi::{c_int, c_void};

/// Begins a communicator: [`calls::init`], plus a context.
pub(super) unsafe fn init(
    version: u32,
    context: *mut *mut c_void,
    id: u64,
    config: *const CommConfig,
    log_function: nccl::ncclDebugLogger_t,
) -> ncclResult_t {
    guard("init", || {
        Process::init(version, log_function)?;
        // SAFETY: NCCL's pointer, NULL or valid.
        let (foreign, class) = unsafe {
            (config.as_ref().map_or(-1, |config| config.traffic_class), CommConfig::class(config))
        };
        if foreign != -1 && class.is_none() {
            log::warn!("the communicator's traffic class is {foreign}, not 0 to 255; using 0");
        }
        let made = Context::into_raw(id, foreign, class);
        // SAFETY: NCCL's output pointer.
        let given = unsafe { put(context, made, "ctx") };
        if given.is_err() {
            // SAFETY: made above, and nobody else has it.
            unsafe { Context::end(made)? };
            return given;
        }
        Process::get()?.handle_begin(version)
    })
}

/// # Safety
/// As for [`Context::borrow`].
unsafe fn comm_of(context: *mut c_void) -> Result<NcclComm> {
    // SAFETY: as the caller says.
    Ok(unsafe { Context::borrow(context)? }.map(Context::comm).unwrap_or_default())
}

/// [`calls::listen`] with a context.
pub(super) unsafe fn listen(
    version: u32,
    context: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    listen_comm: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: by NCCL's contract.
    let of = || unsafe { comm_of(context) };
    // SAFETY: as the caller says.
    unsafe { calls::listen(version, of, dev, handle, listen_comm) }
}

/// [`calls::connect`] with a context. By now NCCL has loaded a profiler, if any.
pub(super) unsafe fn connect(
    version: u32,
    context: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    send_comm: *mut *mut c_void,
) -> ncclResult_t {
    let of = || {
        if let Ok(process) = Process::get() {
            process.handle_connect();
        }
        // SAFETY: by NCCL's contract.
        unsafe { comm_of(context) }
    };
    // SAFETY: as the caller says.
    unsafe { calls::connect(version, of, dev, handle, send_comm) }
}

/// Ends a communicator. Listeners and connections of its context may still be open.
pub(super) unsafe fn finalize(version: u32, context: *mut c_void) -> ncclResult_t {
    guard("finalize", || {
        // SAFETY: by NCCL's contract.
        let Some(ended) = (unsafe { Context::end(context)? }) else { return Ok(()) };
        log::debug!("NCCL has ended {}", ended.describe());
        Process::get()?.handle_end(version)
    })
}

/// Records what a communicator does from now on.
pub(super) unsafe fn set_attributes(
    context: *mut c_void,
    attributes: *const NetAttributes,
) -> ncclResult_t {
    guard("setNetAttr", || {
        // SAFETY: NCCL's pointer, NULL or valid.
        let attributes = unsafe { attributes.as_ref() }.ok_or_else(|| missing("attr"))?;
        // SAFETY: by NCCL's contract.
        if let Some(context) = unsafe { Context::borrow(context)? } {
            context.set_attributes(attributes);
        }
        Ok(())
    })
}
